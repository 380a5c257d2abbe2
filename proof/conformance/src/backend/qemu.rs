//! QEMU's memory, two of its `edu` devices, which write by message-signalled interrupt, and a disk.

use std::collections::BTreeMap;

use portolan::addr::{Iova, PageSize, PhysAddr, StreamId};
use portolan::iommu::MsiMessage;
use portolan_qemu::config::{Architecture, Device};
use portolan_qemu::edu::Edu;
use portolan_qemu::machine::{Builder, Machine, StartError, Version, version};
use portolan_qemu::pci::Pci;
use portolan_qemu::trace::Counts;

use super::disk::NvmeDisk;
use crate::conformance::{Disk, Host, Outcome, Raised};

/// Selects those of QEMU's counts that drivers have too, by the drivers' names.
pub type Witness = fn(&Counts) -> BTreeMap<String, u64>;

/// A running QEMU.
pub struct QemuHost {
    machine: Machine,
    pci: Pci,
    devices: [Edu; 2],
    disk: NvmeDisk,
    witness: Option<Witness>,
}

fn fail(what: &str, error: impl core::fmt::Display) -> Outcome {
    Outcome::Fail(format!("{what}: {error}"))
}

/// Ends a scenario as skipped unless QEMU is 10.0 or later.
///
/// # Errors
/// [`Outcome::Skip`].
pub fn needs_stages(architecture: Architecture) -> Result<(), Outcome> {
    let found = version(architecture).map_err(|error| match error.skip() {
        Some(why) => Outcome::Skip(why),
        None => fail("asking QEMU its version", error),
    })?;
    let wanted = Version::STAGES;
    if found >= wanted {
        return Ok(());
    }
    Err(Outcome::Skip(StartError::TooOld { found, wanted }.to_string()))
}

impl QemuHost {
    /// Starts the machine that `builder` describes, with two `edu` devices and a disk. `witness` selects those of
    /// QEMU's counts that drivers have too.
    ///
    /// # Errors
    /// [`Outcome::Skip`] where there is no such QEMU, [`Outcome::Fail`] if it does not start.
    pub fn start(builder: Builder, witness: Option<Witness>) -> Result<Self, Outcome> {
        let builder = builder
            .device(Device::edu())
            .device(Device::edu())
            .device(Device::nvme(super::disk::BYTES));
        let machine = builder.start().map_err(|error| match error.skip() {
            Some(why) => Outcome::Skip(why),
            None => fail("starting QEMU", error),
        })?;
        let pci = machine.pci().map_err(|error| fail("looking at PCI", error))?;
        let mut edus = Vec::new();
        for function in pci.find(0x1234, 0x11e8) {
            edus.push(Edu::new(function).map_err(|error| fail("taking over edu", error))?);
        }
        let devices = <[Edu; 2]>::try_from(edus)
            .map_err(|found| Outcome::Fail(format!("{} edu devices, not 2", found.len())))?;
        let disk = NvmeDisk::new(&pci).map_err(|error| fail("looking for the disk", error))?;
        Ok(Self { machine, disk, pci, devices, witness })
    }

    /// Functions on the bus.
    pub fn pci(&self) -> &Pci {
        &self.pci
    }

    /// The machine.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }
}

/// Parses QEMU's line of a message that was remapped, for the interrupt that arrives:
fn remapped(line: &str) -> Option<Raised> {
    let (_, after) = line.split_once("_ir_remap_msi")?.1.split_once("-> (addr 0x")?;
    let (address, data) = after.split_once(", data 0x")?;
    let number = |text: &str| u64::from_str_radix(text.trim_end_matches(')'), 16).ok();
    let address = number(address)?;
    Some(Raised {
        vector: number(data.trim_end())? as u8,
        destination: (address >> 32 & 0xffff_ff00 | address >> 12 & 0xff) as u32,
    })
}

impl Host for QemuHost {
    fn devices(&self) -> [StreamId; 2] {
        self.devices.each_ref().map(|edu| edu.function().stream())
    }

    fn device_write(&self, device: StreamId, iova: Iova, value: u32) {
        let edu = self.devices.iter().find(|edu| edu.function().stream() == device);
        // A device that fails writes nothing, which the scenario sees.
        let _ = edu.map(|edu| edu.dma_write32(iova, value as u16));
    }

    fn raise(&self, device: StreamId, message: MsiMessage) -> Option<Raised> {
        let edu = self.devices.iter().find(|edu| edu.function().stream() == device)?;
        let trace = self.machine.trace();
        let before = trace.mark().ok()?;
        edu.interrupt(message.address, message.data as u16).ok()?;
        let lines = trace.lines_since(before).ok()?;
        lines.iter().find_map(|line| remapped(line))
    }

    fn device_read(&self, _device: StreamId, _iova: Iova) -> Option<u32> {
        None
    }

    fn memory(&self, bytes: u64) -> PhysAddr {
        let lg2 = bytes.max(1).next_power_of_two().trailing_zeros();
        let block = self.machine.tables().alloc(PageSize::of_lg2(lg2));
        block.unwrap_or(PhysAddr::new(0))
    }

    fn peek(&self, pa: PhysAddr) -> u32 {
        self.machine.ram().read32(pa).unwrap_or(u32::MAX)
    }

    fn poke(&self, pa: PhysAddr, value: u32) {
        let _ = self.machine.ram().write32(pa, value);
    }

    fn with_disk(&self, work: &mut dyn FnMut(Option<&dyn Disk>)) {
        work(Some(&self.disk.in_machine(&self.machine)));
    }

    fn witnessed(&self) -> Option<BTreeMap<String, u64>> {
        let witness = self.witness?;
        self.machine.trace().counts().ok().map(|counts| witness(&counts))
    }
}
