//! A running QEMU machine: its RAM, its registers, its devices' disks and its traces.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use thiserror::Error;

use crate::config::{Architecture, Config, Device, Inherited, Iommu, VtdFeature};
use crate::guest_tables::GuestTables;
use crate::mmio::Registers;
use crate::pci::{Pci, PciError};
use crate::process::{Process, memory_file, text_file};
use crate::qtest::{Qtest, QtestError};
use crate::ram::GuestRam;
use crate::trace::Trace;

/// Longest time that QEMU may take to start, on a loaded host.
const START_LIMIT: Duration = Duration::from_secs(30);
/// Longest time that it may take to tell its version.
const VERSION_LIMIT: Duration = Duration::from_secs(10);
/// Longest time that an answer may take, unless the builder sets another.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// Longest time that the end of a QEMU that has closed its socket may take.
const END_LIMIT: Duration = Duration::from_secs(2);
/// More devices than slots of the root bus is an error.
const MAX_DEVICES: usize = 24;
/// Bytes of QEMU's standard error that are kept for messages.
const MAX_MESSAGE: u64 = 4096;

/// A release of QEMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// First number.
    pub major: u16,
    /// Second number.
    pub minor: u16,
}

impl Version {
    /// The first release whose VT-d translates first-level tables, whose SMMUv3 has stage 2, and
    /// which has the RISC-V IOMMU.
    pub const STAGES: Self = Self { major: 10, minor: 0 };

    fn parse(text: &str) -> Option<Self> {
        let number = text.split_once("version ")?.1;
        let mut parts = number.split(|c: char| !c.is_ascii_digit());
        let major = parts.next()?.parse().ok()?;
        let minor = parts.next()?.parse().ok()?;
        Some(Self { major, minor })
    }
}

/// Reason why there is no machine.
#[derive(Debug, Error)]
pub enum StartError {
    /// The program is not installed.
    #[error("{program} is not installed; {variable} can name another program")]
    Missing {
        /// The program.
        program: String,
        /// The environment variable that can name another one.
        variable: &'static str,
    },
    /// The program is too old for the machine.
    #[error("QEMU {}.{} is too old: {}.{} is needed", found.major, found.minor, wanted.major, wanted.minor)]
    TooOld {
        /// Version that is installed.
        found: Version,
        /// Version that is needed.
        wanted: Version,
    },
    /// The program's version is not to be had.
    #[error("{program} does not say its version")]
    NoVersion {
        /// The program.
        program: String,
    },
    /// A machine of this architecture does not have this IOMMU.
    #[error("{architecture:?} has no {iommu:?}")]
    Unfit {
        /// The architecture.
        architecture: Architecture,
        /// The IOMMU.
        iommu: Iommu,
    },
    /// RAM has to be 8 to 1024 MiB.
    #[error("{mib} MiB of RAM are not between 8 and 1024")]
    Memory {
        /// Size that the caller asked for, in MiB.
        mib: u32,
    },
    /// More devices than the root bus has slots.
    #[error("{count} devices are too many")]
    Devices {
        /// Number of devices.
        count: usize,
    },
    /// The system refused memory, a socket or a process.
    #[error("the system refused: {0}")]
    System(#[from] io::Error),
    /// QEMU did not answer its first command.
    #[error("QEMU did not start ({error}): {message}")]
    NoAnswer {
        /// Error of the first command.
        error: QtestError,
        /// Text that QEMU wrote to its standard error.
        message: String,
    },
}

impl StartError {
    /// Reason to skip a test; `None` if this is a failure.
    pub fn skip(&self) -> Option<String> {
        match self {
            Self::Missing { .. } | Self::TooOld { .. } => Some(self.to_string()),
            _ => None,
        }
    }
}

fn program(architecture: Architecture) -> PathBuf {
    let (name, variable) = architecture.program();
    std::env::var_os(variable).map_or_else(|| name.into(), PathBuf::from)
}

fn spawn_error(architecture: Architecture, error: io::Error) -> StartError {
    match error.kind() {
        io::ErrorKind::NotFound => StartError::Missing {
            program: program(architecture).display().to_string(),
            variable: architecture.program().1,
        },
        _ => StartError::System(error),
    }
}

/// The release of the QEMU that would be started. Each call starts a process, so keep the result.
///
/// # Errors
/// [`StartError::Missing`], [`StartError::NoVersion`], [`StartError::System`].
pub fn version(architecture: Architecture) -> Result<Version, StartError> {
    let output = text_file("version")?;
    let mut command = Command::new(program(architecture));
    command.arg("--version").stdin(Stdio::null()).stderr(Stdio::null());
    command.stdout(output.try_clone()?);
    let process = Process::start(command, Vec::new()).map_err(|e| spawn_error(architecture, e))?;
    let ended = process.ended(VERSION_LIMIT);
    let text = tail(&output)?;
    let found = Version::parse(&text).filter(|_| ended.is_some());
    found.ok_or_else(|| StartError::NoVersion {
        program: program(architecture).display().to_string(),
    })
}

/// The last bytes of a text file.
fn tail(file: &File) -> io::Result<String> {
    let length = file.metadata()?.len();
    let start = length.saturating_sub(MAX_MESSAGE);
    let mut bytes = vec![0; usize::try_from(length - start).unwrap_or(0)];
    let count = file.read_at(&mut bytes, start)?;
    bytes.truncate(count);
    Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
}

/// A machine to be started.
#[derive(Clone, Debug)]
pub struct Builder {
    config: Config,
    limit: Duration,
}

impl Builder {
    /// A machine with 64 MiB of RAM, no IOMMU and no device.
    pub fn new(architecture: Architecture) -> Self {
        let config = Config {
            architecture,
            iommu: Iommu::None,
            memory_mib: 64,
            devices: Vec::new(),
            traces: Vec::new(),
            extra: Vec::new(),
            runs: false,
        };
        let limit = ANSWER_LIMIT;
        Self { config, limit }
    }

    /// RAM in MiB, 8 to 1024.
    #[must_use]
    pub fn memory_mib(mut self, mib: u32) -> Self {
        self.config.memory_mib = mib;
        self
    }

    /// The IOMMU.
    #[must_use]
    pub fn iommu(mut self, iommu: Iommu) -> Self {
        self.config.iommu = iommu;
        self
    }

    /// Adds a device.
    #[must_use]
    pub fn device(mut self, device: Device) -> Self {
        self.config.devices.push(device);
        self
    }

    /// Adds a pattern of trace events to those that count the IOMMU's commands and faults.
    #[must_use]
    pub fn trace(mut self, pattern: &str) -> Self {
        self.config.traces.push(pattern.to_owned());
        self
    }

    /// Adds an argument of QEMU, after all others.
    #[must_use]
    pub fn argument(mut self, argument: &str) -> Self {
        self.config.extra.push(argument.to_owned());
        self
    }

    /// Has the machine run, but for its CPUs: other processes that have devices of it do their work.
    #[must_use]
    pub fn running(mut self) -> Self {
        self.config.runs = true;
        self
    }

    /// Longest time that an answer of QEMU may take; 10 seconds by default.
    #[must_use]
    pub fn answer_limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    fn check(&self) -> Result<(), StartError> {
        let Config { architecture, iommu, memory_mib: mib, devices, .. } = &self.config;
        if !iommu.fits(*architecture) {
            let (architecture, iommu) = (*architecture, iommu.clone());
            return Err(StartError::Unfit { architecture, iommu });
        }
        if !(8..=1024).contains(mib) {
            return Err(StartError::Memory { mib: *mib });
        }
        if devices.len() > MAX_DEVICES {
            return Err(StartError::Devices { count: devices.len() });
        }
        let newer = match iommu {
            Iommu::Vtd(vtd) => vtd.has(VtdFeature::FirstLevel),
            Iommu::Riscv | Iommu::RiscvPci => true,
            // RISC-V's machine of 7.2 refuses the device.
            Iommu::Virtio => *architecture == Architecture::Riscv64,
            _ => false,
        };
        if newer {
            let (found, wanted) = (version(*architecture)?, Version::STAGES);
            if found < wanted {
                return Err(StartError::TooOld { found, wanted });
            }
        }
        Ok(())
    }

    /// Starts QEMU and waits until it answers.
    ///
    /// # Errors
    /// [`StartError`]; [`StartError::skip`] tells a missing QEMU from a failure.
    pub fn start(&self) -> Result<Machine, StartError> {
        self.check()?;
        let architecture = self.config.architecture;
        let bytes = u64::from(self.config.memory_mib) << 20;
        let memory = memory_file("ram", bytes)?;
        let ram = GuestRam::map(&memory, architecture.ram_base(), bytes)?;
        let sizes = self.config.devices.iter().filter_map(Device::disk_bytes);
        let disks: Vec<Disk> = sizes.map(Disk::new).collect::<io::Result<_>>()?;
        let (trace, messages) = (text_file("trace")?, text_file("messages")?);
        let (socket, theirs) = UnixStream::pair()?;

        let mut inherited: Vec<OwnedFd> = Vec::new();
        let mut inherit = |fd: OwnedFd| {
            let number = fd.as_raw_fd();
            inherited.push(fd);
            number
        };
        let copies = disks.iter().map(|disk| disk.file.try_clone());
        let copies: Vec<File> = copies.collect::<io::Result<_>>()?;
        let fds = Inherited {
            ram: inherit(memory.into()),
            qtest: inherit(theirs.into()),
            trace: inherit(trace.try_clone()?.into()),
            disks: copies.into_iter().map(|copy| inherit(copy.into())).collect(),
        };
        let mut command = Command::new(program(architecture));
        command.args(self.config.arguments(&fds));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(messages.try_clone()?);
        // The starter drops its copies of the descriptors, so that QEMU's end closes the socket.
        let process =
            Process::start(command, inherited).map_err(|e| spawn_error(architecture, e))?;

        let answer = Qtest::new(socket, START_LIMIT).and_then(|qtest| {
            qtest.read32(architecture.ram_base().get())?;
            qtest.set_limit(self.limit)?;
            Ok(qtest)
        });
        let qtest = answer.map_err(|error| {
            process.ended(END_LIMIT);
            let message = tail(&messages).unwrap_or_default();
            StartError::NoAnswer { error, message }
        })?;
        let range = architecture.free_ram().ok_or(io::ErrorKind::InvalidInput);
        let tables = GuestTables::new(ram.clone(), range.map_err(io::Error::from)?);
        let (config, trace) = (self.config.clone(), Trace::new(trace));
        Ok(Machine { process, qtest, ram, tables, disks, trace, messages, config })
    }
}

/// The contents of a device's disk, in memory; QEMU's writes are seen at once.
#[derive(Debug)]
pub struct Disk {
    file: File,
    bytes: u64,
}

impl Disk {
    fn new(bytes: u64) -> io::Result<Self> {
        let file = memory_file("disk", bytes)?;
        Ok(Self { file, bytes })
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Reads at a byte offset.
    ///
    /// # Errors
    /// The system's; `UnexpectedEof` past the end.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(into, offset)
    }

    /// Writes at a byte offset.
    ///
    /// # Errors
    /// The system's; `InvalidInput` past the end.
    pub fn write(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        let end = offset.checked_add(from.len() as u64);
        if end.is_none_or(|end| end > self.bytes) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.file.write_all_at(from, offset)
    }
}

/// A running machine. Dropping it kills QEMU; so does the end of this process.
#[derive(Debug)]
pub struct Machine {
    process: Process,
    qtest: Qtest,
    ram: GuestRam,
    tables: GuestTables,
    disks: Vec<Disk>,
    trace: Trace,
    messages: File,
    config: Config,
}

impl Machine {
    /// The architecture.
    pub fn architecture(&self) -> Architecture {
        self.config.architecture
    }

    /// The IOMMU.
    pub fn iommu(&self) -> &Iommu {
        &self.config.iommu
    }

    /// The connection to QEMU.
    pub fn qtest(&self) -> &Qtest {
        &self.qtest
    }

    /// All of RAM.
    pub fn ram(&self) -> &GuestRam {
        &self.ram
    }

    /// Pages of RAM that nothing else uses.
    pub fn tables(&self) -> &GuestTables {
        &self.tables
    }

    /// `bytes` bytes of registers at guest-physical `base`.
    pub fn registers(&self, base: u64, bytes: u64) -> Registers {
        Registers::new(self.qtest.clone(), base, bytes)
    }

    /// The IOMMU's registers; `None` if it has none at a fixed address.
    pub fn iommu_registers(&self) -> Option<Registers> {
        let (base, bytes) = self.config.iommu.registers()?;
        Some(self.registers(base, bytes))
    }

    /// Enumerates PCI and assigns buses and addresses anew.
    ///
    /// # Errors
    /// [`PciError`].
    pub fn pci(&self) -> Result<Pci, PciError> {
        Pci::enumerate(self.qtest.clone(), self.architecture())
    }

    /// The disks, in the order of the devices that have one.
    pub fn disks(&self) -> &[Disk] {
        &self.disks
    }

    /// QEMU's own account of its work.
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// QEMU's process id.
    pub fn process_id(&self) -> u32 {
        self.process.id()
    }

    /// The end of QEMU's standard error.
    pub fn messages(&self) -> String {
        tail(&self.messages).unwrap_or_default()
    }

    /// Kills QEMU and waits for its end; later calls find it gone.
    pub fn kill(&self) {
        self.process.kill();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        let found = Version::parse("QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7)\n");
        assert_eq!(found, Some(Version { major: 7, minor: 2 }));
        assert!(Version::parse("QEMU emulator version 10.0.2") >= Some(Version::STAGES));
        assert_eq!(Version::parse("QEMU"), None);
        assert_eq!(Version::parse("version 10"), None);
    }

    #[test]
    fn nonsense_is_refused_before_anything_starts() {
        let unfit = Builder::new(Architecture::X86).iommu(Iommu::Smmuv3).start();
        assert!(matches!(unfit, Err(StartError::Unfit { .. })));
        let small = Builder::new(Architecture::X86).memory_mib(0).start();
        assert!(matches!(small, Err(StartError::Memory { mib: 0 })));
        let many = Builder { ..Builder::new(Architecture::X86) };
        let many = (0..40).fold(many, |many, _| many.device(Device::edu())).start();
        assert!(matches!(many, Err(StartError::Devices { count: 40 })));
    }
}
