//! Kernels that hand their machine to the next one while its devices are at work, by a jump without a reset.
//!
//! QEMU fills in the number of updates, in the middle of RAM; the kernel is the one of the other machines. The disk is
//! slowed down, so that requests are under way when the units change hands.

use std::path::Path;

use super::guests::{AMD, Guest, RISCV_SYSTEM, SMMU, VTD};
use super::told::Told;
use super::{DemoRun, Ended, TRACE, counts, image, said};

/// Updates of a run in the gate: one under each policy, and one more.
const FEW: u64 = 4;
/// Updates of a long run.
const MANY: u64 = 100;
/// Bit of the number: the last record is damaged.
const DAMAGED: u64 = 1 << 32;
/// Settings of disks that do so many requests a second: virtio, and NVMe.
const SLOWED: [&str; 2] = [",throttling.iops-total=10", ",throttling.iops-total=100"];
/// The kernel's exit code.
const GOOD: i32 = 33;

/// Machine whose kernel is updated.
pub struct Updated {
    /// Its name in commands.
    pub name: &'static str,
    /// Its name as a step of `cargo xtask test`.
    pub step: &'static str,
    /// The machine.
    of: &'static Guest,
    /// Address of the number of updates.
    kept: u64,
    /// Further events to be traced.
    traced: &'static [&'static str],
    /// Words of the trace that say that an access was refused, or went past translation.
    strayed: &'static [&'static str],
    /// Sign in the trace of an access past translation.
    past: Past,
    is_damaged: bool,
}

/// Sign in QEMU's trace of an access that goes past translation.
#[derive(Clone, Copy)]
enum Past {
    /// An event of its own, or none.
    Event,
    /// The second word, behind the first.
    Switch([&'static str; 2]),
    /// An event of this name with a page of RAM, from here on, that leads to itself.
    Same(&'static str, u64),
}

const X86_VTD: Updated = Updated {
    name: "x86-vtd-update",
    step: "demo x86-vtd-update",
    of: &VTD,
    kept: 0x800_0000,
    traced: &["vtd_dmar_fault", "vtd_translate_pt", "vtd_switch_address_space"],
    strayed: &["vtd_dmar_fault", "vtd_translate_pt"],
    past: Past::Switch(["enabled=1", "enabled=0"]),
    is_damaged: false,
};

const RISCV: Updated = Updated {
    name: "riscv-update",
    step: "demo riscv-update",
    of: &RISCV_SYSTEM,
    kept: 0x8800_0000,
    traced: &["riscv_iommu_flt", "riscv_iommu_dma"],
    strayed: &["riscv_iommu_flt"],
    past: Past::Same("riscv_iommu_dma", 0x8000_0000),
    is_damaged: false,
};

/// All of them.
pub const ALL: &[Updated] = &[
    X86_VTD,
    Updated {
        name: "x86-vtd-damaged",
        step: "demo x86-vtd-damaged",
        // The last kernel has a device try what it may not.
        strayed: &["vtd_translate_pt"],
        is_damaged: true,
        ..X86_VTD
    },
    Updated {
        name: "x86-amd-update",
        step: "demo x86-amd-update",
        of: &AMD,
        kept: 0x800_0000,
        traced: &["amdvi_*fault", "amdvi_*fail", "amdvi_invalid_dte", "amdvi_mode_invalid"],
        strayed: &["fault", "fail", "amdvi_invalid_dte", "amdvi_mode_invalid"],
        past: Past::Event,
        is_damaged: false,
    },
    Updated {
        name: "aarch64-update",
        step: "demo aarch64-update",
        of: &SMMU,
        kept: 0x4800_0000,
        traced: &["smmuv3_record_event", "smmuv3_translate_disable", "smmuv3_translate_bypass"],
        strayed: &["smmuv3_record_event", "smmuv3_translate_disable", "smmuv3_translate_bypass"],
        past: Past::Event,
        is_damaged: false,
    },
    RISCV,
    Updated {
        name: "riscv-damaged",
        step: "demo riscv-damaged",
        // As on `x86-vtd-damaged`.
        strayed: &[],
        is_damaged: true,
        ..RISCV
    },
];

/// Boots the machine, has its kernel updated, a few times or many, and checks the results.
pub fn one(root: &Path, updated: &Updated, is_long: bool) -> Ended {
    let count = if is_long { MANY } else { FEW };
    let word = if updated.is_damaged { DAMAGED | count } else { count };
    let told = Told {
        name: updated.name,
        of: updated.of,
        kept: updated.kept,
        word,
        traced: updated.traced,
        slowed: SLOWED,
    };
    told.run(root, |ran| check(updated, ran, count))
}

/// Checks the exit code, the console, both disks, the trace and the counts.
fn check(updated: &Updated, ran: &DemoRun, count: u64) -> Result<(), String> {
    let error = |error: std::io::Error| error.to_string();
    if ran.status.code() != Some(GOOD) {
        return Err(format!("the machine ended with {}", ran.status));
    }
    let numbers = 1..=if updated.is_damaged { count - 1 } else { count };
    let lines: Vec<String> = numbers.map(|number| format!("update {number}: ")).collect();
    let mut wanted: Vec<&str> = lines.iter().map(String::as_str).collect();
    match updated.is_damaged {
        true => wanted.extend(["a damaged record: ", "edu is blocked"]),
        false => wanted.push("  edu wrote"),
    }
    said(&ran.console, &[&wanted])?;
    for (disk, before) in [("NVMe", NVME_AFTER), ("virtio", VIRTIO_AFTER)] {
        if under_way(&ran.console, before) == 0 {
            return Err(format!("{disk}: no request was under way when the units changed hands"));
        }
    }
    let batches = if updated.is_damaged { count - 1 } else { count };
    for disk in &image::DISKS {
        let found = std::fs::read(disk.image(&ran.place)).map_err(error)?;
        disk.check_copies(&found, batches as usize * if disk.is_virtio() { 16 } else { 128 })?;
    }
    let trace = std::fs::read_to_string(ran.place.join(TRACE)).map_err(error)?;
    strayed(updated, &trace)?;
    counts::check(&ran.console, &trace, updated.of.kinds)
}

/// Words behind the number of requests that were completed after the units changed hands.
const NVME_AFTER: &str = " after";
const VIRTIO_AFTER: &str = " requests of the virtio disk after";

/// Sum of the numbers at the ends of lines, before these words.
fn under_way(console: &str, words: &str) -> u64 {
    let numbers = console.lines().filter_map(|line| line.strip_suffix(words)?.rsplit(' ').next());
    numbers.filter_map(|number| number.parse::<u64>().ok()).sum()
}

/// Checks that no access was refused or went past translation.
fn strayed(updated: &Updated, trace: &str) -> Result<(), String> {
    let mut is_on = false;
    for line in trace.lines() {
        let name = line.split_ascii_whitespace().next().unwrap_or_default();
        if updated.strayed.iter().any(|word| name.contains(word)) {
            return Err(format!("an access strayed: {line}"));
        }
        let is_past = match updated.past {
            Past::Event => false,
            Past::Switch([on, off]) => {
                is_on |= line.contains(on);
                is_on && line.contains(off)
            }
            Past::Same(event, memory) if name.contains(event) => {
                let [from, to] = ends(line).ok_or_else(|| format!("no addresses: {line}"))?;
                is_on = true;
                from >> 12 == to >> 12 && to >= memory
            }
            Past::Same(..) => false,
        };
        if is_past {
            return Err(format!("a device goes past translation: {line}"));
        }
    }
    match updated.past {
        Past::Switch(_) | Past::Same(..) if !is_on => Err("no device was translated".to_owned()),
        _ => Ok(()),
    }
}

/// Both addresses of a line that ends in `0x… -> 0x…`.
fn ends(line: &str) -> Option<[u64; 2]> {
    let (from, to) = line.rsplit_once(" -> ")?;
    let number = |word: &str| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok();
    Some([number(from.rsplit(' ').next()?)?, number(to.trim_end())?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_that_were_under_way_are_counted() {
        let console = "update 1: 3 requests done before the units were taken over, 29 after\r\n\
                       update 2: 32 requests done before the units were taken over, 0 after\n";
        assert_eq!(under_way(console, NVME_AFTER), 29);
        assert_eq!(under_way("update 1: 2 before", NVME_AFTER), 0);
        let line = "  edu wrote before that; 3 requests of the virtio disk after\n";
        assert_eq!((under_way(line, VIRTIO_AFTER), under_way(line, NVME_AFTER)), (3, 0));
    }

    #[test]
    fn an_access_that_strays_is_found_in_the_trace() {
        let line =
            |on| format!("9@1.2:vtd_switch_address_space Device 00:02.0 (iommu enabled={on})\n");
        let good = line(0) + &line(1) + &line(1);
        assert_eq!(strayed(&X86_VTD, &good), Ok(()));
        assert!(strayed(&X86_VTD, &(good.clone() + &line(0))).is_err());
        assert!(strayed(&X86_VTD, &(good + "1@2.3:vtd_dmar_fault sid 0x10\n")).is_err());
        assert!(strayed(&X86_VTD, &line(0)).is_err());
    }

    #[test]
    fn an_address_of_memory_that_leads_to_itself_is_found_in_the_trace() {
        let line = |from, to| {
            format!("9@1.2:riscv_iommu_dma ddb: translate 0000:02.0 #0 WO 0x{from:x} -> 0x{to:x}\n")
        };
        let good = line(0xfff_0000_u64, 0x8801_2000_u64) + &line(0x2800_1000, 0x2800_1000);
        assert_eq!(strayed(&RISCV, &good), Ok(()));
        assert!(strayed(&RISCV, &(good.clone() + &line(0x8801_2124, 0x8801_2000))).is_err());
        assert!(strayed(&RISCV, &(good + "1@2.3:riscv_iommu_flt ddb: fault\n")).is_err());
        assert!(strayed(&RISCV, "").is_err());
    }
}
