//! Machines that sleep (S3): units and devices lose their registers, and memory stays.
//!
//! QEMU resets the machine when it wakes. Its trace says when translation ends and begins: in between no function may
//! be let do DMA.

use std::path::Path;

use super::guests::{AMD, Guest, VTD};
use super::told::Told;
use super::{BAD, DemoRun, Ended, TRACE, counts, image, said};

/// Sleeps of a run in the gate: one under each policy.
const FEW: u64 = 3;
/// Sleeps of a long run.
const MANY: u64 = 30;
/// Bits of the number: sleeps are asked for; the units are not resumed.
const SLEEPS: u64 = 1 << 33;
const LEFT_OUT: u64 = 1 << 34;
/// Address of the number.
const KEPT: u64 = 0x800_0000;
/// The kernel's exit code.
const GOOD: i32 = 33;
/// The bus master's bit of a command register, and the words of the trace that write one.
const BUS_MASTER: u64 = 1 << 2;
const CONFIGURED: &str = "pci_cfg_write";
const COMMAND: &str = " @0x4 <- 0x";
/// Word of the trace that says that the machine sleeps.
const ASLEEP: &str = "new_state 12 (suspended)";

/// Machine that sleeps.
pub struct Sleeper {
    /// Its name in commands.
    pub name: &'static str,
    /// Its name as a step of `cargo xtask test`.
    pub step: &'static str,
    /// The machine.
    of: &'static Guest,
    /// Further event to be traced, and the words in it that say that translation is on, and that it is off.
    event: &'static str,
    on: fn(&str) -> bool,
    off: fn(&str) -> bool,
    /// The units are not resumed, which has to be noticed.
    is_left_out: bool,
}

const X86_VTD: Sleeper = Sleeper {
    name: "x86-vtd-sleep",
    step: "demo x86-vtd-sleep",
    of: &VTD,
    event: "vtd_switch_address_space",
    on: |line| line.contains("enabled=1"),
    off: |line| line.contains("enabled=0"),
    is_left_out: false,
};

const X86_AMD: Sleeper = Sleeper {
    name: "x86-amd-sleep",
    step: "demo x86-amd-sleep",
    of: &AMD,
    event: "amdvi_control_status",
    on: |line| enabled(line) == Some(true),
    off: |line| enabled(line) == Some(false),
    is_left_out: false,
};

/// All of them.
pub const ALL: &[Sleeper] = &[
    X86_VTD,
    X86_AMD,
    Sleeper {
        name: "x86-vtd-sleep-unresumed",
        step: "demo x86-vtd-sleep-unresumed, which has to fail",
        is_left_out: true,
        ..X86_VTD
    },
    Sleeper {
        name: "x86-amd-sleep-unresumed",
        step: "demo x86-amd-sleep-unresumed, which has to fail",
        is_left_out: true,
        ..X86_AMD
    },
];

/// Tells if AMD's control register, which the line says, enables the unit.
fn enabled(line: &str) -> Option<bool> {
    let (_, digits) = line.split_once("state 0x")?;
    Some(u64::from_str_radix(digits.trim(), 16).ok()? & 1 != 0)
}

/// Boots the machine, has it sleep, and checks the results.
pub fn one(root: &Path, sleeper: &Sleeper, is_long: bool) -> Ended {
    let count = if is_long { MANY } else { FEW };
    let left_out = if sleeper.is_left_out { LEFT_OUT } else { 0 };
    let told = Told {
        name: sleeper.name,
        of: sleeper.of,
        kept: KEPT,
        word: SLEEPS | left_out | count,
        traced: &["runstate_set", CONFIGURED, sleeper.event],
        slowed: [""; 2],
    };
    told.run(root, |ran| check(sleeper, ran, count))
}

/// Checks the exit code, the console, both disks, the trace and the counts.
fn check(sleeper: &Sleeper, ran: &DemoRun, count: u64) -> Result<(), String> {
    let error = |error: std::io::Error| error.to_string();
    let code = ran.status.code();
    let trace = std::fs::read_to_string(ran.place.join(TRACE)).map_err(error)?;
    if sleeper.is_left_out {
        if code != Some(BAD) {
            return Err(format!("the kernel noticed nothing: {}", ran.status));
        }
        let lost = "failed: a device does not reach its buffer after the sleep";
        said(&ran.console, &[&["  suspended: edu is refused", lost]])?;
        return match slept(sleeper, &trace) {
            Err(_) => Ok(()),
            Ok(_) => Err("the trace shows no device that goes past translation".to_owned()),
        };
    }
    if code != Some(GOOD) {
        return Err(format!("the machine ended with {}", ran.status));
    }
    let lines: Vec<String> = (0..count).map(|number| format!("sleep {number}: ")).collect();
    let each = lines.iter().flat_map(|line| [line, "  suspended: edu", "  awake: edu"]);
    let mut wanted: Vec<&str> = each.collect();
    wanted.extend(["not opened: refused", "mapped at ", "taken back: refused"]);
    said(&ran.console, &[&wanted])?;
    for disk in &image::DISKS {
        let found = std::fs::read(disk.image(&ran.place)).map_err(error)?;
        disk.check_copies(&found, if disk.is_virtio() { 0 } else { count as usize * 128 })?;
    }
    let slept = slept(sleeper, &trace)?;
    if slept != count {
        return Err(format!("the machine slept {slept} times instead of {count}"));
    }
    counts::check(&ran.console, &trace, sleeper.of.kinds)
}

/// Counts the sleeps, and checks that translation ended in each of them and nowhere else, and that no function was let
/// do DMA until it was on again.
fn slept(sleeper: &Sleeper, trace: &str) -> Result<u64, String> {
    let (mut is_on, mut count) = (false, 0);
    for line in trace.lines() {
        if line.contains(ASLEEP) {
            if !is_on {
                return Err("the machine slept before its units were on".to_owned());
            }
            (is_on, count) = (false, count + 1);
        } else if line.contains(sleeper.event) {
            if is_on && (sleeper.off)(line) {
                return Err(format!("translation ended while the machine was awake: {line}"));
            }
            is_on |= (sleeper.on)(line);
        } else if line.contains(CONFIGURED) && count != 0 && !is_on && is_master(line) {
            return Err(format!("a device was let past translation: {line}"));
        }
    }
    Ok(count)
}

/// Tells if the line lets a function do DMA.
fn is_master(line: &str) -> bool {
    let value = line.split_once(COMMAND).map(|(_, digits)| digits.trim());
    let value = value.and_then(|digits| u64::from_str_radix(digits, 16).ok());
    value.is_some_and(|value| value & BUS_MASTER != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_is_let_past_translation_is_found_in_the_trace() {
        let on = "vtd_switch_address_space Device 00:02.0 (iommu enabled=1)\n";
        let off = on.replace("=1", "=0");
        let asleep = format!("runstate_set current_run_state 9 (running) {ASLEEP}\n");
        let command = |value| format!("pci_cfg_write nvme 00:02.0 @0x4 <- {value:#x}\n");
        let slept = |parts: &[&str]| slept(&X86_VTD, &parts.concat());
        let (master, stopped) = (command(0x107), command(0x103));
        assert_eq!(slept(&[&off, on, &master, &asleep, &off, &stopped, on, &master]), Ok(1));
        assert_eq!(slept(&[&master, &off, on, &asleep, &off, on, &asleep, &off, on]), Ok(2));
        assert!(slept(&[on, &asleep, &off, &master, on]).is_err());
        assert!(slept(&[on, &off, &asleep, on]).is_err());
        assert!(slept(&[&off, &asleep, on]).is_err());
    }

    #[test]
    fn the_enable_of_amds_unit_is_read_from_its_register() {
        let line = |value| format!("amdvi_control_status MMIO_STATUS state {value:#x}");
        assert_eq!(enabled(&line(0x1405)), Some(true));
        assert_eq!(enabled(&line(0x1404)), Some(false));
        assert_eq!(enabled("amdvi_control_status"), None);
    }
}
