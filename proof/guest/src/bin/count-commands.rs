//! `count-commands`: counts the commands that the kernel has given its VT-d units so far, by the
//! kernel's own trace, of which `trace_event=intel_iommu:qi_submit` on its command line has it keep a
//! record.
//!
//! Prints a line for each kind of command, with its number. A record that lost anything is an error.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

const TRACING: &str = "/sys/kernel/tracing";

fn main() -> Result<()> {
    // Nothing is added while it is read.
    fs::write(Path::new(TRACING).join("tracing_on"), "0")?;
    for cpu in fs::read_dir(Path::new(TRACING).join("per_cpu"))? {
        let stats = fs::read_to_string(cpu?.path().join("stats"))?;
        let lost =
            |line: &&str| line.starts_with("overrun:") || line.starts_with("dropped events:");
        for line in stats.lines().filter(lost) {
            ensure!(line.ends_with(": 0"), "the record is not whole: {line}");
        }
    }
    let trace = fs::read_to_string(Path::new(TRACING).join("trace"))?;
    let mut kinds: BTreeMap<String, u64> = BTreeMap::new();
    for line in trace.lines() {
        let Some((_, command)) = line.split_once(" qi_submit: ") else {
            continue;
        };
        *kinds.entry(kind(command)?).or_default() += 1;
    }
    for (kind, number) in kinds {
        println!("commands: {number} {kind}");
    }
    Ok(())
}

/// `iotlb_inv dmar0: 0x300f2 0xffffd000 0x0 0x0`: its name, and the granularity in the IOTLB's (VT-d, 6.5.2.3).
fn kind(command: &str) -> Result<String> {
    let mut words = command.split(' ');
    let name = words.next().context("a command without a name")?;
    let word = words
        .nth(1)
        .and_then(|word| word.strip_prefix("0x"))
        .and_then(|digits| u64::from_str_radix(digits, 16).ok())
        .with_context(|| format!("a command without words: {command}"))?;
    let granularity = ["", " (global)", " (domain)", " (pages)"][(word >> 4 & 3) as usize];
    Ok(match name {
        "iotlb_inv" => format!("{name}{granularity}"),
        _ => name.to_owned(),
    })
}
