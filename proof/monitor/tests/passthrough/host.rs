//! Processes of a machine: the monitor, which dies and comes back, and its two devices. This process is the guest.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use portolan_monitor::edu;
use portolan_monitor::wire::{Answer, Counts, Exit, SavedMonitor};
use rustix::fs::{MemfdFlags, memfd_create};
use tempfile::TempDir;
use vm_memory::{FileOffset, GuestAddress, GuestMemoryMmap};

/// Bytes of the guest's memory.
pub const RAM: usize = 1 << 20;
/// Number of devices.
pub const DEVICES: usize = 2;

/// A process of the program, which ends with this one.
struct Process {
    child: Child,
    said: BufReader<ChildStdout>,
}

impl Process {
    fn start(arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_portolan-monitor"));
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        Self { child, said }
    }

    /// A line that it says; an empty one at its end.
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.said.read_line(&mut line).unwrap();
        line
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

struct Device {
    process: Process,
    socket: PathBuf,
}

impl Device {
    fn start(socket: PathBuf) -> Self {
        let mut process = Process::start(&["device", socket.to_str().unwrap()]);
        assert_eq!(process.line(), "listening\n");
        Self { process, socket }
    }

    /// The number of mappings that it had when its client went.
    fn left(&mut self) -> u64 {
        let line = self.process.line();
        let mut words = line.split(' ');
        let number = words.find_map(|word| word.parse().ok());
        number.unwrap_or_else(|| panic!("a device said {line:?}"))
    }
}

/// The machine.
pub struct Host {
    folder: TempDir,
    sockets: usize,
    devices: Vec<Device>,
    monitor: Process,
    exits: ChildStdin,
    ram: File,
    /// The guest's memory.
    pub memory: GuestMemoryMmap,
    /// The last state that was saved.
    pub saved: Option<SavedMonitor>,
    /// Deaths of the monitor by its own hand.
    pub deaths: u32,
    /// Mappings of each device when its client had gone for the last time.
    pub left: [u64; DEVICES],
    is_doomed: bool,
    /// Transfers that each has refused.
    refused: [u64; DEVICES],
}

impl Host {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let ram = File::from(memfd_create("ram", MemfdFlags::CLOEXEC).unwrap());
        ram.set_len(RAM as u64).unwrap();
        let file = FileOffset::new(ram.try_clone().unwrap(), 0);
        let range = (GuestAddress(0), RAM, Some(file));
        let memory = GuestMemoryMmap::from_ranges_with_files([range]).unwrap();
        let device = |number| Device::start(folder.path().join(format!("{number}")));
        let devices: Vec<_> = (0..DEVICES).map(device).collect();
        let (monitor, exits) = monitor(&ram, &devices);
        Self {
            folder,
            sockets: DEVICES,
            devices,
            monitor,
            exits,
            ram,
            memory,
            saved: None,
            deaths: 0,
            left: [0; DEVICES],
            is_doomed: false,
            refused: [0; DEVICES],
        }
    }

    fn try_exit(&mut self, exit: &Exit) -> io::Result<Answer> {
        writeln!(self.exits, "{}", serde_json::to_string(exit)?)?;
        let line = self.monitor.line();
        if line.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(serde_json::from_str(&line)?)
    }

    /// Hands an exit to the monitor. One that dies of it comes back in the state that was saved last, and gets it
    /// again.
    pub fn exit(&mut self, exit: &Exit) -> Answer {
        let answer = self.try_exit(exit).unwrap_or_else(|_| {
            assert!(self.is_doomed, "the monitor has died by itself");
            self.deaths += 1;
            self.is_doomed = false;
            self.revive();
            self.try_exit(exit).unwrap()
        });
        if self.is_doomed && matches!(exit, Exit::Notify) {
            self.save();
        }
        answer
    }

    /// Has the monitor die after so many messages about mappings; it is saved after each request until then.
    pub fn doom(&mut self, messages: u32) {
        self.save();
        self.does(&Exit::DieAfter { messages });
        self.is_doomed = messages != 0;
    }

    /// Hands over an exit that has to be done.
    pub fn does(&mut self, exit: &Exit) {
        assert_eq!(self.exit(exit), Answer::Done, "{exit:?}");
    }

    pub fn value(&mut self, exit: &Exit) -> u64 {
        match self.exit(exit) {
            Answer::Value(value) => value,
            other => panic!("{exit:?}: {other:?}"),
        }
    }

    pub fn save(&mut self) -> SavedMonitor {
        let Answer::State(saved) = self.exit(&Exit::Save) else { panic!("no state") };
        self.saved = Some(saved.clone());
        saved
    }

    pub fn counts(&mut self) -> Counts {
        let Answer::Counts(counts) = self.exit(&Exit::Counts) else { panic!("no counts") };
        counts
    }

    /// Kills the monitor, wherever it is, and starts another one in the state that was saved last.
    pub fn revive(&mut self) {
        self.monitor.kill();
        for (device, left) in self.devices.iter_mut().zip(&mut self.left) {
            *left = device.left();
        }
        (self.monitor, self.exits) = monitor(&self.ram, &self.devices);
        // A device is new for each client.
        self.refused = [0; DEVICES];
        let saved = self.saved.clone().unwrap();
        let restored = self.try_exit(&Exit::Restore(saved.clone())).unwrap();
        assert_eq!(restored, Answer::Done);
        assert_eq!(self.save(), saved);
    }

    /// Kills a device.
    pub fn kill_device(&mut self, device: usize) {
        self.devices[device].process.kill();
    }

    /// Starts another one in its place.
    pub fn replace_device(&mut self, device: usize) {
        let socket = self.folder.path().join(format!("{}", self.sockets));
        self.sockets += 1;
        self.devices[device] = Device::start(socket.clone());
        self.refused[device] = 0;
        self.does(&Exit::Replace { device, socket });
    }

    pub fn read(&mut self, device: usize, offset: u64) -> u64 {
        self.value(&Exit::Read { device, offset })
    }

    pub fn write(&mut self, device: usize, offset: u64, value: u64) {
        self.does(&Exit::Write { device, offset, values: vec![value] });
    }

    /// Has a device copy bytes from one address to another; returns which of the two accesses were refused.
    pub fn copy(&mut self, device: usize, from: u64, to: u64, bytes: u64) -> [bool; 2] {
        let transfers = [
            (from, edu::BUFFER, edu::RUN),
            (edu::BUFFER, to, edu::RUN | edu::TO_MEMORY | edu::INTERRUPT),
        ];
        transfers.map(|(from, to, command)| {
            let values = vec![from, to, bytes, command];
            self.does(&Exit::Write { device, offset: edu::FROM, values });
            let refused = self.read(device, edu::REFUSED);
            std::mem::replace(&mut self.refused[device], refused) != refused
        })
    }
}

/// The machine, for the guest and for the one who looks at it.
#[derive(Clone)]
pub struct Shared(Arc<Mutex<Host>>);

impl Shared {
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(Host::new())))
    }

    /// The machine, also after a panic: the driver's end makes requests.
    pub fn at(&self) -> MutexGuard<'_, Host> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A monitor of these devices.
fn monitor(ram: &File, devices: &[Device]) -> (Process, ChildStdin) {
    let ram = format!("/proc/{}/fd/{}", std::process::id(), ram.as_raw_fd());
    let sockets = devices.iter().map(|device| Path::to_str(&device.socket).unwrap());
    let arguments: Vec<_> = ["run", &ram].into_iter().chain(sockets).collect();
    let mut process = Process::start(&arguments);
    let exits = process.child.stdin.take().unwrap();
    (process, exits)
}
