//! Recordings that `portolan record` wrote in a guest, compared with QEMU's trace and the kernel's counts.
//!
//! The recorder's lines of `intel_iommu:qi_submit` are the commands that the kernel gave to its unit, and QEMU traces
//! each of them. The strict kernel gives one for each operation that it unmaps, and the replay counts those.

use std::collections::BTreeMap;
use std::io::Read;

use serde_json::Value;

use super::GuestRun;

/// An invalidation of the IOTLB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Invalidation {
    /// Everything that the unit caches.
    Global,
    /// A domain.
    Domain(u64),
    /// `2^mask` pages of `domain`, from `address` on.
    Pages { domain: u64, address: u64, mask: u64 },
}

impl Invalidation {
    /// Tells if it is page-selective.
    pub(super) fn is_of_pages(&self) -> bool {
        matches!(self, Self::Pages { .. })
    }
}

/// Compares all of them.
pub(super) fn check(ran: &GuestRun) -> Result<(), String> {
    let recorded = invalidations(ran, "trace.gz")?.iter().filter(|one| one.is_of_pages()).count();
    let (ending, replayed) =
        (ending(&text(ran, "trace.gz")?)?, ran.portolan(&["replay", "trace.gz"])?);
    let cpus = ending["per_cpu"].as_array().map_or(&[][..], Vec::as_slice);
    let sum = |what: &str| cpus.iter().filter_map(|cpu| cpu[what].as_u64()).sum::<u64>();
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
         {maps} maps, {unmaps} unmaps; {recorded} invalidations, each of them in QEMU's trace"
    );
    if (events, events, 0, 0) != (kernel, seen, lost, bad) {
        return Err(format!("the counts of events differ, or {bad} lines are bad"));
    }
    // A page for each request: 4 MiB by 4 KiB. Buffers that were mapped before the recording began count
    // as well.
    let ends = unmaps + of("orphan_unmaps")? + of("coherent_frees")?;
    if unmaps < 1024 || ends != recorded as u64 {
        return Err(format!("a strict kernel invalidates once for each of {ends} unmaps"));
    }
    let chosen = (replayed["machine"].as_str(), replayed["chosen"]["sureness"].as_str());
    match (chosen, replayed["chosen"]["recorded_under"].as_str()) {
        ((Some("spr-vm"), Some("fitted")), Some("strict")) => Ok(()),
        other => Err(format!("the replay took the machine for {other:?}")),
    }
}

/// Text of a file of the recorder's.
fn text(ran: &GuestRun, file: &str) -> Result<String, String> {
    let packed = std::fs::File::open(ran.place.join(file)).map_err(|e| e.to_string())?;
    let mut text = String::new();
    let mut lines = flate2::read::GzDecoder::new(packed);
    let read = lines.read_to_string(&mut text);
    read.map_err(|e| format!("{file}: {e}")).map(|_| text)
}

/// Invalidations recorded in `file`; all of them have to be in QEMU's trace, in sequence.
pub(super) fn invalidations(ran: &GuestRun, file: &str) -> Result<Vec<Invalidation>, String> {
    let recorded: Vec<_> = text(ran, file)?.lines().filter_map(submitted).collect();
    let traced: Vec<_> = ran.trace.lines().filter_map(invalidated).collect();
    if !recorded.is_empty() && are_in_a_row(&recorded, &traced) {
        Ok(recorded)
    } else {
        Err(format!(
            "{file}: the {} invalidations that were recorded are not among QEMU's {}, one after the other",
            recorded.len(),
            traced.len()
        ))
    }
}

/// Contents of the recorder's last line: its count of events, and the kernel's, CPU by CPU.
fn ending(text: &str) -> Result<Value, String> {
    let line = text.lines().next_back().unwrap_or_default();
    let json = line.strip_prefix("# portolan-end: ").ok_or("the recording has no end")?;
    serde_json::from_str(json).map_err(|error| format!("the recording's end: {error}"))
}

/// `... qi_submit: iotlb_inv dmar0: 0x300f2 0xffffd000 0x0 0x0`: VT-d, 6.5.2.3.
fn submitted(line: &str) -> Option<Invalidation> {
    let (_, rest) = line.split_once(" qi_submit: iotlb_inv ")?;
    let mut words = rest.split(' ').skip(1).filter_map(number);
    let (first, second) = (words.next()?, words.next()?);
    let domain = first >> 16 & 0xffff;
    match first >> 4 & 3 {
        1 => Some(Invalidation::Global),
        2 => Some(Invalidation::Domain(domain)),
        3 => Some(Invalidation::Pages { domain, address: second & !0xfff, mask: second & 0x3f }),
        _ => None,
    }
}

/// Parses `vtd_inv_desc_iotlb_pages iotlb invalidate domain 0x3 addr 0xffffd000 mask 0x0` and its like.
fn invalidated(line: &str) -> Option<Invalidation> {
    let (_, rest) = line.split_once("vtd_inv_desc_iotlb_")?;
    let mut words = rest.split(' ');
    let kind = words.next()?;
    let mut numbers = words.filter_map(number);
    match kind {
        "global" => Some(Invalidation::Global),
        "domain" => Some(Invalidation::Domain(numbers.next()?)),
        "pages" => Some(Invalidation::Pages {
            domain: numbers.next()?,
            address: numbers.next()? & !0xfff,
            mask: numbers.next()?,
        }),
        _ => None,
    }
}

fn number(word: &str) -> Option<u64> {
    u64::from_str_radix(word.strip_prefix("0x")?, 16).ok()
}

/// Tells if `all` contains `some` in sequence, in any order among themselves: two CPUs may overtake each other
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
        let pages = Invalidation::Pages { domain: 3, address: 0xffff_d000, mask: 1 };
        let granularity = |word| submitted(&recorded.replace("0x300f2", word));
        assert_eq!(granularity("0x300f2"), Some(pages));
        assert_eq!(granularity("0x300e2"), Some(Invalidation::Domain(3)));
        assert_eq!(granularity("0xd2"), Some(Invalidation::Global));
        let traced = |rest| invalidated(&format!("7@1.2:vtd_inv_desc_iotlb_{rest}"));
        let said = "pages iotlb invalidate domain 0x3 addr 0xffffd000 mask 0x1";
        assert_eq!(traced(said), Some(pages));
        let said = "domain iotlb invalidate whole domain 0x3";
        assert_eq!(traced(said), Some(Invalidation::Domain(3)));
        let said = "global iotlb invalidate global";
        assert_eq!(traced(said), Some(Invalidation::Global));
        let of = |list: &[u64]| {
            let list = list.iter().map(|domain| Invalidation::Domain(*domain));
            list.collect::<Vec<_>>()
        };
        let all = of(&[1, 2, 2, 3, 4]);
        assert!(are_in_a_row(&of(&[2, 3, 2]), &all));
        assert!(are_in_a_row(&all, &all));
        assert!(!are_in_a_row(&of(&[1, 3]), &all));
        assert!(!are_in_a_row(&of(&[2, 2, 2]), &all));
        assert!(!are_in_a_row(&of(&[5]), &all));
    }
}
