//! Linux, which crashes while its disk is at work, and a kernel of ours that it has loaded for that case: the kernel
//! takes the IOMMU over with Linux's tables.
//!
//! The disk is slowed down, so that requests are under way when the unit changes hands. The kernel speaks by
//! semihosting, Linux by the serial port.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use super::crashed::CRASH_ARM;
use super::machines::Machine;
use super::{BARE, Debian, command_line, initramfs};
use crate::demo::{self, BAD, Ended, FLASH, GOOD, Guest, SMMU, said};

/// Requests that the disk does in a second, of one run after the other while none is under way at the crash.
const SLOWED: [u32; 3] = [10, 4, 2];
/// Reason of a run whose disk had done all when the unit changed hands, as on a busy host.
const ALL_DONE: &str = "no request was under way";
/// Reason of a run whose disk did not reach its memory.
const REFUSED: &str = "an access was refused";
/// The disk and the other device, by their streams in QEMU's trace.
const DISK: &str = "sid=0x8 ";
const OTHER: &str = "sid=0x10";
/// The base of the unit's command queue there, which each kernel writes once.
const QUEUE: &str = "addr: 0x90 ";
/// Sectors that the kernel copies.
const COPIED: usize = 80;
/// Name of the kernel's file in the guest.
const KERNEL: &str = "kernel";
/// Files of the kernel's words, and of QEMU's trace.
const TRACE: &str = "trace.txt";
const SAID: &str = "said.txt";

/// Machine whose Linux crashes.
pub struct Crash {
    /// Its name in commands.
    pub name: &'static str,
    /// Its name as a step of `cargo xtask test`.
    pub step: &'static str,
    /// The kernel's machine, of which the target counts.
    of: &'static Guest,
    /// Linux's machine.
    linux: &'static Machine,
    /// Features with which the kernel is built.
    features: &'static [&'static str],
    /// True if the kernel keeps nothing, so that requests are refused.
    is_broken: bool,
}

/// Exit status and words of a kernel.
struct CrashRun {
    place: PathBuf,
    status: ExitStatus,
    console: String,
}

/// All of them.
pub const CRASHES: &[Crash] = &[
    Crash {
        name: "aarch64-crash",
        step: "Linux guest: a crash with a disk at work, behind an SMMUv3",
        of: &SMMU,
        linux: &CRASH_ARM,
        features: &["after-crash"],
        is_broken: false,
    },
    Crash {
        name: "aarch64-crash-unnamed",
        step: "Linux guest: the same of a disk that is not named, which has to fail",
        of: &SMMU,
        linux: &CRASH_ARM,
        features: &["after-crash", "keep-nothing"],
        is_broken: true,
    },
];

/// Boots Linux, has it crash, and checks the results.
pub fn one(root: &Path, crash: &Crash) -> Ended {
    let emulator = || {
        let [program, variable] = crash.linux.architecture.emulator;
        demo::emulator(root, program, variable, crash.linux.release, crash.linux.limit)
    };
    let ready = Debian::provide(root, crash.linux)
        .and_then(|debian| Ok((debian, emulator()?, demo::compiler(root, crash.of)?)));
    let (debian, first, mut cargo) = match ready {
        Ok(ready) => ready,
        Err(why) => return Ended::Skipped(why),
    };
    cargo.args(crash.features.iter().flat_map(|of| ["--features", of]));
    let done = demo::build(root, crash.of, cargo).and_then(|kernel| {
        let kernel = std::fs::read(kernel).map_err(|error| error.to_string())?;
        let files = [(KERNEL, kernel)];
        let initramfs = initramfs(root, crash.linux, &debian, &files)?;
        let mut qemu = first;
        for rate in SLOWED {
            match check(crash, &boot(root, crash, qemu, rate, &debian, &initramfs)?) {
                Err(why) if why == ALL_DONE => println!("{ALL_DONE}: once more, of a slower disk"),
                checked => return checked,
            }
            qemu = emulator()?;
        }
        Err(ALL_DONE.to_owned())
    });
    match done {
        Ok(()) => Ended::Well,
        Err(why) => Ended::Failed(why),
    }
}

fn boot(
    root: &Path,
    crash: &Crash,
    mut qemu: Command,
    rate: u32,
    debian: &Debian,
    initramfs: &[u8],
) -> Result<CrashRun, String> {
    let error = |error: std::io::Error| error.to_string();
    let place = root.join("target/guest/runs").join(crash.name);
    std::fs::create_dir_all(&place).map_err(error)?;
    let (archive, words) = (place.join("initramfs"), place.join(SAID));
    std::fs::write(&archive, initramfs).map_err(error)?;
    let file = FLASH.image(&place);
    std::fs::write(&file, FLASH.before()).map_err(error)?;
    let linux = crash.linux;
    qemu.args(linux.architecture.board).args(BARE).args(linux.devices);
    let file = file.display();
    let drive = format!("if=none,id=flash,format=raw,cache=unsafe,file={file}");
    qemu.args(["-drive", &format!("{drive},throttling.iops-total={rate}")]);
    qemu.args(["-chardev", &format!("file,id=said,path={}", words.display())]);
    qemu.args(["-semihosting-config", "enable=on,target=native,chardev=said"]);
    qemu.arg("-kernel").arg(&debian.kernel.image).arg("-initrd").arg(archive);
    qemu.args(["-append", &command_line(linux)?]);
    qemu.args(linux.traced.iter().flat_map(|events| ["-trace", events]));
    qemu.arg("-D").arg(place.join(TRACE)).stdin(Stdio::null());
    qemu.stderr(std::fs::File::create(place.join("qemu.txt")).map_err(error)?);
    let output = qemu.output().map_err(error)?;
    std::fs::write(place.join("console.txt"), &output.stdout).map_err(error)?;
    let console = std::fs::read_to_string(words).map_err(error)?;
    print!("{console}");
    Ok(CrashRun { place, status: output.status, console })
}

fn check(crash: &Crash, ran: &CrashRun) -> Result<(), String> {
    let error = |error: std::io::Error| error.to_string();
    let trace = std::fs::read_to_string(ran.place.join(TRACE)).map_err(error)?;
    let strayed = strayed(&trace);
    let late = late(&ran.console);
    if late == Some(0) {
        return Err(ALL_DONE.to_owned());
    }
    if crash.is_broken {
        return match (ran.status.code(), strayed) {
            (Some(BAD), Err(why)) if why.starts_with(REFUSED) => {
                said(&ran.console, &[&["failed: the disk was refused"]])
            }
            (Some(BAD), _) => Err("no access of the disk was refused".to_owned()),
            _ => Err(format!("the machine ended with {}", ran.status)),
        };
    }
    if ran.status.code() != Some(GOOD) {
        return Err(format!("the machine ended with {}", ran.status));
    }
    let queues = queues(&ran.console);
    if queues.len() != 2 || !queues.iter().all(|(at, memory)| is_reached(&trace, at, memory)) {
        return Err(format!("the disk's queues are elsewhere: {queues:?}"));
    }
    said(&ran.console, &[&["1 of 1 devices go on", "edu: refused, Blocked", "the disk is"]])?;
    let late = late.ok_or("the requests under way were not counted")?;
    let translated = strayed?;
    println!("{late} requests after the unit changed hands, {translated} accesses translated");
    if translated < late {
        return Err("a completed request makes at least one access".to_owned());
    }
    FLASH.check_copies(&std::fs::read(FLASH.image(&ran.place)).map_err(error)?, COPIED)
}

/// Addresses of the disk's queues, and the memory there, by the kernel's words.
fn queues(console: &str) -> Vec<(&str, &str)> {
    let words = console.lines().filter_map(|line| {
        let (_, words) = line.strip_prefix("the disk's ")?.split_once(" at ")?;
        words.split_once(": ")
    });
    words.collect()
}

/// Tells if the unit has translated `at` to `memory` for the disk.
fn is_reached(trace: &str, at: &str, memory: &str) -> bool {
    let words = format!("{DISK}iova={at} translated={memory} ");
    trace.contains(&words)
}

/// Number of requests that were under way when the unit changed hands, once the kernel has told it.
fn late(console: &str) -> Option<u64> {
    let line = console.lines().find_map(|line| line.strip_suffix(" after"))?;
    line.rsplit(' ').next()?.parse().ok()
}

/// Checks that no access of the disk was refused, that none of any device went past translation, and that the other
/// device was refused. Returns the number of accesses of the disk that were translated after the unit had changed
/// hands, and before the disk was reset.
fn strayed(trace: &str) -> Result<u64, String> {
    let (mut queues, mut stops, mut translated, mut refused) = (0, 0, 0, 0);
    for line in trace.lines() {
        let event = line.split_once("smmuv3_").map_or("", |(_, event)| event);
        let name = event.split_ascii_whitespace().next().unwrap_or_default();
        let is_disk = line.contains(DISK);
        match name {
            "translate_success" if is_disk && queues == 2 && stops == 0 => translated += 1,
            "record_event" if line.contains(OTHER) => refused += 1,
            "record_event" => return Err(format!("{REFUSED}: {line}")),
            "translate_bypass" | "translate_disable" => {
                return Err(format!("a device goes past translation: {line}"));
            }
            "write_mmio" if event.contains(QUEUE) => queues += 1,
            _ if queues == 2 && line.contains("pci_nvme_mmio_stopped") => stops += 1,
            _ => {}
        }
    }
    match (queues, refused) {
        (2, 1..) => Ok(translated),
        (2, 0) => Err("the other device was not refused".to_owned()),
        _ => Err(format!("the unit's queue was set up {queues} times")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_queues_are_where_the_unit_finds_them() {
        let console =
            "the disk's commands at 0xffffd000: 0x43ebe000\nthe disk is this kernel's: it\n";
        assert_eq!(queues(console), [("0xffffd000", "0x43ebe000")]);
        let trace =
            "smmuv3_translate_success r-8-1 sid=0x8 iova=0xffffd000 translated=0x43ebe000 perm=0x3";
        assert!(is_reached(trace, "0xffffd000", "0x43ebe000"));
        assert!(!is_reached(trace, "0xffffd000", "0x43ebe00"));
    }

    #[test]
    fn requests_that_were_under_way_are_counted() {
        let line =
            "3 requests of the former kernel done before its unit was taken over, 28 after\n";
        assert_eq!(late(line), Some(28));
        assert_eq!(late("a kernel has crashed\n"), None);
    }

    #[test]
    fn an_access_that_strays_is_found_in_the_trace() {
        let queue = "smmuv3_write_mmio addr: 0x90 val:0x4000000050030007 size: 0x8(0)\n";
        let reached = "smmuv3_translate_success smmuv3-iommu-memory-region-8 sid=0x8 iova=0xfe\n";
        let refused = "smmuv3_record_event SMMU_EVT_C_BAD_STE sid=0x10\n";
        let stopped = "pci_nvme_mmio_stopped cleared controller enable bit\n";
        let good = [reached, queue, reached, queue, reached, refused, stopped, reached];
        assert_eq!(strayed(&good.concat()), Ok(1));
        assert!(strayed(&good[..5].concat()).is_err(), "nothing was refused");
        assert!(strayed(&good[2..].concat()).is_err(), "nothing changed hands");
        for more in [refused.replace("0x10", "0x8"), reached.replace("success", "bypass")] {
            assert!(strayed(&(good.concat() + &more)).is_err(), "{more}");
        }
    }
}
