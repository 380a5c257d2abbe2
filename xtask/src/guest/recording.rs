//! What `portolan record` wrote in a guest, beside what QEMU traced and what the kernel counted.
//!
//! The recorder's lines of `intel_iommu:qi_submit` are the commands that the kernel gave to its unit, and QEMU traces
//! each of them. The strict kernel gives one for each operation that it unmaps, and the replay counts those.

use std::collections::BTreeMap;
use std::io::Read;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::Ran;

/// A page-selective invalidation: domain, address, mask.
type Invalidation = (u64, u64, u64);

/// Compares all of them.
pub(super) fn check(ran: &Ran) -> Result<(), String> {
    let packed = std::fs::File::open(ran.place.join("trace.gz")).map_err(|e| e.to_string())?;
    let mut text = String::new();
    let mut lines = flate2::read::GzDecoder::new(packed);
    lines
        .read_to_string(&mut text)
        .map_err(|e| format!("the recording: {e}"))?;
    let recorded: Vec<Invalidation> = text.lines().filter_map(submitted).collect();
    let traced: Vec<Invalidation> = ran.trace.lines().filter_map(invalidated).collect();
    if recorded.is_empty() || !are_in_a_row(&recorded, &traced) {
        let (recorded, traced) = (recorded.len(), traced.len());
        return Err(format!(
            "the {recorded} invalidations that were recorded are not among QEMU's {traced}, one after the other"
        ));
    }
    let (ending, replayed) = (ending(&text)?, replay(ran)?);
    let cpus = ending["per_cpu"].as_array().map_or(&[][..], Vec::as_slice);
    let sum = |what: &str| {
        cpus.iter()
            .filter_map(|cpu| cpu[what].as_u64())
            .sum::<u64>()
    };
    let (kernel, lost) = (sum("read"), sum("overrun") + sum("dropped"));
    let of = |what: &str| {
        let number = replayed["trace"][what].as_u64();
        number.ok_or_else(|| format!("the replay has no {what}"))
    };
    let events = ending["events"].as_u64().unwrap_or(0);
    let (seen, bad) = (of("events")?, of("bad_lines")?);
    let (maps, unmaps) = (of("maps")?, of("unmaps")?);
    println!(
        "{events} events recorded, {kernel} by the kernel's count, {seen} replayed, {lost} lost; \
         {maps} maps, {unmaps} unmaps; {} invalidations, each of them in QEMU's trace",
        recorded.len()
    );
    if (events, events, 0, 0) != (kernel, seen, lost, bad) {
        return Err(format!(
            "the counts of events differ, or {bad} lines are bad"
        ));
    }
    // A page for each request: 4 MiB by 4 KiB. What was mapped before the recording began counts as well.
    let ends = unmaps + of("orphan_unmaps")? + of("coherent_frees")?;
    if unmaps < 1024 || ends != recorded.len() as u64 {
        return Err(format!(
            "a strict kernel invalidates once for each of {ends} unmaps"
        ));
    }
    let chosen = (
        replayed["machine"].as_str(),
        replayed["chosen"]["sureness"].as_str(),
    );
    match (chosen, replayed["chosen"]["recorded_under"].as_str()) {
        ((Some("spr-vm"), Some("fitted")), Some("strict")) => Ok(()),
        other => Err(format!("the replay took the machine for {other:?}")),
    }
}

/// What the recorder's last line says: its count of events, and the kernel's, CPU by CPU.
fn ending(text: &str) -> Result<Value, String> {
    let line = text.lines().next_back().unwrap_or_default();
    let json = line.strip_prefix("# portolan-end: ");
    let json = json.ok_or("the recording has no end")?;
    serde_json::from_str(json).map_err(|error| format!("the recording's end: {error}"))
}

/// Replays the recording with the program that made it, without further options.
fn replay(ran: &Ran) -> Result<Value, String> {
    let mut command = Command::new(ran.programs.join("portolan"));
    command
        .args(["replay", "trace.gz", "--json"])
        .current_dir(&ran.place);
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| error.to_string())?;
    match output.status.success() {
        true => serde_json::from_slice(&output.stdout).map_err(|error| error.to_string()),
        false => Err(format!("the replay ended with {}", output.status)),
    }
}

/// `... qi_submit: iotlb_inv dmar0: 0x300f2 0xffffd000 0x0 0x0`, if it is page-selective: VT-d, 6.5.2.3.
fn submitted(line: &str) -> Option<Invalidation> {
    let (_, rest) = line.split_once(" qi_submit: iotlb_inv ")?;
    let mut words = rest.split(' ').skip(1).filter_map(number);
    let (first, second) = (words.next()?, words.next()?);
    (first >> 4 & 3 == 3).then_some((first >> 16 & 0xffff, second & !0xfff, second & 0x3f))
}

/// `vtd_inv_desc_iotlb_pages iotlb invalidate domain 0x3 addr 0xffffd000 mask 0x0`.
fn invalidated(line: &str) -> Option<Invalidation> {
    let (_, rest) = line.split_once("vtd_inv_desc_iotlb_pages ")?;
    let mut words = rest.split(' ').filter_map(number);
    Some((words.next()?, words.next()? & !0xfff, words.next()?))
}

fn number(word: &str) -> Option<u64> {
    u64::from_str_radix(word.strip_prefix("0x")?, 16).ok()
}

/// Whether `all` has those of `some` one after the other, in any order among themselves: two CPUs may pass each other
/// between the unit and the recorder.
fn are_in_a_row(some: &[Invalidation], all: &[Invalidation]) -> bool {
    let mut missing: BTreeMap<Invalidation, i64> = BTreeMap::new();
    for one in some {
        *missing.entry(*one).or_default() += 1;
    }
    let mut wrong = missing.len();
    let mut change = |one: &Invalidation, by: i64| {
        let count = missing.entry(*one).or_default();
        wrong += usize::from(*count == 0);
        *count += by;
        wrong -= usize::from(*count == 0);
        wrong
    };
    all.iter().enumerate().any(|(at, one)| {
        if let Some(gone) = at.checked_sub(some.len()) {
            change(&all[gone], 1);
        }
        change(one, -1) == 0
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalidations_are_read_and_found_in_a_row() {
        let recorded =
            "  a-1 [000] d.... 1.5: qi_submit: iotlb_inv dmar0: 0x300f2 0xffffd041 0x0 0x0";
        let one = (3, 0xffff_d000, 1);
        assert_eq!(submitted(recorded), Some(one));
        assert_eq!(
            submitted(&recorded.replace("0x300f2", "0x300e2")),
            None,
            "a domain's"
        );
        let traced =
            "7@1.2:vtd_inv_desc_iotlb_pages iotlb invalidate domain 0x3 addr 0xffffd000 mask 0x1";
        assert_eq!(invalidated(traced), Some(one));
        let of = |list: &[u64]| list.iter().map(|n| (1, *n, 0)).collect::<Vec<_>>();
        let all = of(&[1, 2, 2, 3, 4]);
        assert!(are_in_a_row(&of(&[2, 3, 2]), &all));
        assert!(are_in_a_row(&all, &all));
        assert!(!are_in_a_row(&of(&[1, 3]), &all));
        assert!(!are_in_a_row(&of(&[2, 2, 2]), &all));
        assert!(!are_in_a_row(&of(&[5]), &all));
    }
}
