//! A device in one process behind the virtio-iommu in another: `portolan-monitor`, which QEMU reaches by vfio-user and
//! by vhost-user.
//!
//! Linux's own driver of the virtio-iommu, VFIO and the example `stray` map a page, have the device read it, unmap it
//! and have the device read once more. The process that has the device counts the reads that it was refused.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use super::GuestRun;
use super::machines::Machine;
use super::strayed::{STRAY, STRAYED_VIRTIO};
use crate::built;
use crate::demo::Release;

/// QEMU's way to the virtio-iommu.
const VIOMMU: &str = "socket,id=viommu,path=viommu";
/// Virtual I/O Translation Table: the PCI function 00:05.0 is endpoint 0x28 of the virtio-iommu 00:04.0.
const VIOT: &[u8] = &[
    2, 0, 0x30, 0, 0, 0, 0, 0, 0, 0, 0, 0, // Two nodes, from byte 48 on.
    3, 0, 16, 0, 0, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, // The virtio-iommu.
    1, 0, 24, 0, 0x28, 0, 0, 0, 0, 0, 0, 0, 0x28, 0, 0x28, 0, 0x30, 0, 0, 0, 0, 0, 0, 0,
];
const PROGRAM: &str = "portolan-monitor";

/// A device that reads memory after its unmap.
pub const PASSED: Machine = Machine {
    name: "passed",
    step: "Linux guest: a device behind the virtio-iommu of another process",
    release: Release::Eleven,
    devices: &[
        "-object",
        "memory-backend-memfd,id=ram,size=512M,share=on",
        "-machine",
        "memory-backend=ram",
        "-chardev",
        VIOMMU,
        "-device",
        "vhost-user-test-device-pci,chardev=viommu,virtio-id=23,num_vqs=2,config_size=40,addr=4",
        "-device",
        r#"{"driver":"vfio-user-pci","addr":"5","socket":{"type":"unix","path":"device"}}"#,
    ],
    tables: &[("VIOT", VIOT)],
    programs: &[STRAY],
    runs: &["stray 0000:00:05.0"],
    check,
    ..STRAYED_VIRTIO
};

/// The processes of a machine's device, if it has one.
pub struct Processes(Vec<Process>);

struct Process {
    child: Child,
    /// It ends when this is closed.
    input: Option<ChildStdin>,
    said: BufReader<ChildStdout>,
}

impl Processes {
    /// Starts them in `place`, where QEMU finds their sockets.
    pub fn start(root: &Path, machine: &Machine, place: &Path) -> Result<Self, String> {
        if !machine.devices.contains(&VIOMMU) {
            return Ok(Self(Vec::new()));
        }
        let built = built::programs(root, &["--bin", PROGRAM]).unwrap_or_default();
        let program = built.into_iter().find(|program| program.name == PROGRAM);
        let program = program.ok_or("the monitor is not built")?.path;
        let commands = [&["device", "behind"][..], &["behind", "viommu", "device", "behind", "40"]];
        for socket in ["viommu", "device", "behind"] {
            // Of an earlier run.
            let _ = std::fs::remove_file(place.join(socket));
        }
        let start = |arguments: &&[&str]| {
            let mut command = Command::new(&program);
            command.args(*arguments).current_dir(place);
            Process::start(&mut command).map_err(|error| format!("{PROGRAM}: {error}"))
        };
        commands.iter().map(start).collect::<Result<_, _>>().map(Self)
    }

    /// Waits until they have no machine any more, and returns their words.
    pub fn end(mut self) -> Result<String, String> {
        let mut said = String::new();
        let error = |error: std::io::Error| format!("{PROGRAM}: {error}");
        // The one between QEMU and the device ends by itself; the device waits for the next machine.
        for process in self.0.iter_mut().rev() {
            process.said.read_line(&mut said).map_err(error)?;
            drop(process.input.take());
            process.said.read_to_string(&mut said).map_err(error)?;
        }
        Ok(said)
    }
}

impl Process {
    /// Starts it, and waits until it listens.
    fn start(command: &mut Command) -> std::io::Result<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let input = child.stdin.take();
        let said = child.stdout.take().ok_or(std::io::ErrorKind::BrokenPipe)?;
        let mut process = Self { child, input, said: BufReader::new(said) };
        let mut line = String::new();
        process.said.read_line(&mut line)?;
        match line == "listening\n" {
            true => Ok(process),
            false => Err(std::io::Error::other("it does not listen")),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Compares the guest's words with those of the processes.
fn check(ran: &GuestRun) -> Result<(), String> {
    let read = "once while it was mapped, and once after";
    if !ran.console.lines().any(|line| line.starts_with("stray: ") && line.contains(read)) {
        return Err("the guest did not say what its device read".to_owned());
    }
    print!("{}", ran.passed);
    let mut lines = ran.passed.lines();
    let calls = lines.next().and_then(|line| {
        let counts = line.strip_prefix("ended after ")?.strip_suffix(" calls, 0 failed")?;
        counts.parse::<u64>().ok()
    });
    if calls.is_none_or(|calls| calls < 2) {
        return Err("the device heard of no page".to_owned());
    }
    match lines.next() {
        Some("gone with 0 mappings, 2 transfers, 1 refused") => Ok(()),
        _ => Err("the device was not refused one of two reads".to_owned()),
    }
}
