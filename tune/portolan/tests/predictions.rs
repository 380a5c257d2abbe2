//! Predictions from one recording for another of the same load under another policy, compared with its commands.
//!
//! `docs/advice.md` has the table that is made here, row by row.

use std::collections::HashMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use portolan_cli::display::grouped;
use portolan_sim::profile::Profile;
use portolan_tune::compare::{Comparison, Side};
use portolan_tune::replay::{self, Now, Policy, Replay, ReplayReport, TraceInput};
use portolan_tune::trace;

/// Allowed difference of a recording's count from the prediction for its time or its unmaps, as a fraction. The worst
/// is 10.1 %.
const BOUND: f64 = 0.15;
/// Allowed difference of the number of flushes of full queues.
const BOUND_FULL: u64 = 2;

fn file(path: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.join(path)
}

fn packed(name: &str) -> PathBuf {
    file("data/traces").join(format!("{name}.trace.xz"))
}

fn replayed(name: &str) -> ReplayReport {
    let profile = Profile::by_name(replay::DEFAULT_MACHINE).unwrap();
    let policies = [Policy::StrictRange, Policy::Lazy];
    let mut reader = TraceInput::File(&packed(name)).open().unwrap();
    let mut report = Replay::new(&profile, &policies).run(&mut reader).unwrap();
    report.trace.source = name.to_owned();
    report
}

fn text(name: &str) -> String {
    let mut text = String::new();
    let packed = Box::new(std::fs::File::open(packed(name)).unwrap());
    let mut unpacked = trace::open_bytes(packed).unwrap();
    unpacked.read_to_string(&mut text).unwrap();
    text
}

/// Pairs of recordings, strict and lazy.
fn pairs() -> Vec<(String, String)> {
    let folder = std::fs::read_dir(file("data/traces")).unwrap();
    let names = folder.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let lazy = names.filter_map(|name| Some(name.strip_suffix(".trace.xz")?.to_owned()));
    let pairs = lazy
        .filter(|name| name.contains("lazy"))
        .map(|lazy| (lazy.replace("lazy", "strict"), lazy));
    let mut pairs: Vec<_> = pairs.filter(|(strict, _)| packed(strict).exists()).collect();
    pairs.sort();
    pairs
}

/// Counts the invalidations in a trace, and those of a full queue if it is lazy. The latter are sent outside of a
/// softirq, in which timers run, or between the removal of an address from the table and the event that ends its
/// unmap on the same CPU.
fn counted(text: &str) -> (u64, u64) {
    let (mut all, mut full) = (0, 0);
    // For each CPU, the address that it last removed from the table, and the commands sent in softirqs since.
    let mut unmapping: HashMap<&str, (u64, u64)> = HashMap::new();
    for line in text.lines() {
        let Some((_, rest)) = line.split_once(" [") else {
            continue;
        };
        let (cpu, rest) = rest.split_once("] ").unwrap();
        let address = |name: &str| {
            let digits = rest.split_once(name).unwrap().1.split(' ').next();
            u64::from_str_radix(digits.unwrap().trim_start_matches("0x"), 16).unwrap()
        };
        if rest.contains("iotlb_inv ") {
            all += 1;
            // Flags: interrupts off, rescheduling, the context, depth.
            match rest.as_bytes()[2] {
                b's' => _ = unmapping.entry(cpu).and_modify(|(_, since)| *since += 1),
                _ => full += 1,
            }
        } else if rest.contains(": unmap: ") {
            unmapping.insert(cpu, (address(" iova="), 0));
        } else if rest.contains(": dma_unmap_page: ") {
            let (at, since) = unmapping.remove(cpu).unwrap_or_default();
            // The offset in a page is in the operation's address alone.
            if address(" dma_addr=") & !0xfff == at {
                full += since;
            }
        }
    }
    (all, full)
}

/// A row of the table: `of` as `by` predicts it.
fn row(side: Side, two: &Comparison, counted_full: u64) -> String {
    let (of, by) = match side {
        Side::A => (&two.a, &two.b),
        Side::B => (&two.b, &two.a),
    };
    let mut found = two.predictions.iter();
    let one = found.find(|one| one.of == side).unwrap();
    let names = format!("`{}` | `{}`", by.trace.source, of.trace.source);
    let paced = one.at_its_pace.unwrap();
    let off = one.counted as f64 / paced - 1.0;
    assert!(off.abs() <= BOUND, "{names}: {off:+.3} {one:?}");
    let (policy, full) = match one.policy {
        Now::Lazy => {
            let rules = by.predicted.as_ref().unwrap();
            let range = &rules.lazy_range;
            assert!((range.least..=range.most).contains(&one.counted), "{names}: {range:?}");
            let predicted = rules.lazy_full;
            assert!(predicted.abs_diff(counted_full) <= BOUND_FULL, "{names}");
            ("lazy", format!("{predicted} | {counted_full}"))
        }
        _ => ("strict", " | ".to_owned()),
    };
    format!(
        "| {policy} | {names} | {} | {} | {} | {:+.1} % | {full} |",
        grouped(one.predicted),
        grouped(one.counted),
        grouped(paced.round() as u64),
        100.0 * off,
    )
}

#[test]
fn each_recording_predicts_what_the_other_of_its_pair_counts() {
    let mut rows = Vec::new();
    let mut said = HashMap::new();
    for (strict, lazy) in pairs() {
        let two = Comparison::new(replayed(&strict), replayed(&lazy));
        let texts = [text(&strict), text(&lazy)].map(|text| counted(&text));
        for (report, (all, _)) in [&two.a, &two.b].into_iter().zip(texts) {
            let name = &report.trace.source;
            assert_eq!(report.sent.unwrap().invalidations.total(), all, "{name}");
        }
        if two.b.situation.now != Now::Lazy {
            // Lazy was requested and refused: both do the same, and predict each other exactly.
            assert_eq!((strict.as_str(), two.predictions.len()), ("vtd-strict-cm.read4k-1j", 0));
            let predicted = two.a.predicted.as_ref().unwrap().shadowed;
            assert_eq!((predicted, predicted), (texts[0].0, texts[1].0));
            continue;
        }
        rows.extend([row(Side::B, &two, texts[1].1), row(Side::A, &two, 0)]);
        said.insert(strict, two.findings.join("\n"));
    }
    assert_eq!(rows.len(), 10);
    let docs = std::fs::read_to_string(file("docs/advice.md")).unwrap();
    let table = rows.join("\n");
    assert!(docs.contains(&table), "docs/advice.md should have\n{table}");
    let words = "A's advice predicted 101 invalidations of a lazy kernel; B's recording counts 47, 0.47 times as many. \
                 101 of the 101 are the timer's, which go with the time in which memory is unmapped: 2.03 s in A, \
                 1.05 s in B. For B's time 52 are predicted.\n\
                 B's replay predicted 3,755 invalidations of a strict kernel; A's recording counts 3,755.";
    let mixed = &said["vtd-strict.mixed-sg-4j"];
    assert!(mixed.contains(words), "{mixed}");
    let words = "A's recording counts 18,276, 1.00 times as many. They go with unmaps: 18,244 in B, 18,276 in A. \
                 For A's number 18,276 are predicted.";
    let net = &said["vtd-strict.net-rx"];
    assert!(net.contains(words), "{net}");
}

#[test]
fn a_trace_without_such_events_says_nothing_of_what_was_sent() {
    let amd = replayed("amdvi-strict.read4k-1j");
    assert_eq!((amd.sent, amd.situation.now), (None, Now::Strict));
    assert!(!replay::text(&amd, usize::MAX).contains("The recorded kernel sent"));
    let ats = replayed("vtd-strict-ats.net-rx");
    let text = replay::text(&ats, usize::MAX);
    let words = "The recorded kernel sent 4,595 invalidations by page, 4,595 of device TLBs; predicted: 4,342, without \
                 253 unmaps that have no map.";
    assert!(text.contains(words), "{text}");
    // Other loads predict nothing of each other.
    assert_eq!(Comparison::new(amd, ats).predictions, []);
}
