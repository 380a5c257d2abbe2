//! Linux's rules, driven by each recorded trace, submit what QEMU counted.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use portolan_lab::linux::{Asked, CachingMode, LinuxReport, Options, Rules, StageName, Timer};
use portolan_lab::replay::{self, Policy};
use portolan_lab::trace;
use portolan_model::profile::Profile;

fn traces() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/traces")
}

/// A row of what was recorded.
#[derive(Debug)]
struct Row {
    config: String,
    workload: String,
    /// Submitted by the guest, the same as what QEMU received wherever that was counted.
    invalidations: u64,
    global: u64,
    domain: u64,
    masks: BTreeMap<u8, u64>,
}

fn rows() -> Vec<Row> {
    let path = traces().join("invalidations-summary.csv");
    let mut table = csv::Reader::from_path(path).unwrap();
    let header = table.headers().unwrap().clone();
    let column = |name: &str| header.iter().position(|known| known == name).unwrap();
    let numbers = [
        "guest_iotlb_inv",
        "qemu_iotlb_global",
        "qemu_iotlb_domain",
        "qemu_page_masks",
    ];
    let [guest, global, domain, masks] = numbers.map(column);
    let rows = table.records().map(|row| {
        let row = row.unwrap();
        let number = |at: usize| row[at].parse().unwrap_or(0);
        let pairs = row[masks].split_whitespace().map(|pair| {
            let (mask, count) = pair.split_once(':').unwrap();
            (mask.parse().unwrap(), count.parse().unwrap())
        });
        Row {
            config: row[0].to_owned(),
            workload: row[1].to_owned(),
            invalidations: number(guest),
            global: number(global),
            domain: number(domain),
            masks: pairs.collect(),
        }
    });
    rows.collect()
}

/// What the guest was booted with, by the name of its configuration (`data/traces/README.md`).
fn options(config: &str, timer: Timer) -> Options {
    let has = |word| config.split('-').any(|part| part == word);
    Options {
        asked: match has("lazy") {
            true => Asked::Lazy,
            false => Asked::Strict,
        },
        caching: Some(match has("cm") {
            true => CachingMode::On,
            false => CachingMode::Off,
        }),
        stage: Some(match has("fl") {
            true => StageName::First,
            false => StageName::Second,
        }),
        timer,
    }
}

fn replayed(row: &Row, timer: Timer) -> (LinuxReport, u64) {
    let profile = Profile::by_name(replay::DEFAULT_MACHINE).unwrap();
    let rules = Rules::new(&profile, &options(&row.config, timer)).unwrap();
    let path = traces().join(format!("{}.{}.trace.xz", row.config, row.workload));
    let mut reader = trace::open(&path).unwrap();
    let policies = [Policy::StrictRange];
    let report = replay::run_beside(&mut reader, &profile, &policies, Some(rules)).unwrap();
    (report.linux.unwrap(), report.trace.orphan_unmaps)
}

fn is_lazy(row: &Row) -> bool {
    ["vtd-lazy", "vtd-fl-lazy-cm"].contains(&row.config.as_str())
}

#[test]
fn strict_and_caching_mode_submit_exactly_what_was_recorded() {
    let mut seen = 0;
    for row in rows().iter().filter(|row| !is_lazy(row)) {
        let (linux, orphans) = replayed(row, Timer::default());
        assert_eq!(linux.policy, "strict", "{row:?}");
        // The global one is the unit being switched on; unmaps whose map precedes the trace were
        // invalidated by Linux and cannot be sized here.
        let told = row.invalidations - row.global - orphans;
        assert_eq!(linux.invalidations.range, told, "{row:?}");
        assert_eq!(linux.invalidations.total(), told, "{row:?}");
        assert_eq!(linux.syncs, told, "{row:?}");
        if orphans == 0 {
            assert_eq!(linux.masks, row.masks, "{row:?}");
        } else {
            assert_eq!((row.config.as_str(), orphans), ("vtd-strict-ats", 253));
        }
        let shadowed = ["vtd-strict-cm", "vtd-lazy-cm"].contains(&row.config.as_str());
        let after_map = if shadowed { told / 2 } else { 0 };
        assert_eq!(linux.after_map, after_map, "{row:?}");
        seen += 1;
    }
    assert_eq!(seen, 16);
}

/// By how much the rules miss the recording of a lazy guest.
fn off_by(row: &Row, timer: Timer) -> f64 {
    let (linux, orphans) = replayed(row, timer);
    assert_eq!((linux.policy.as_str(), orphans), ("lazy", 0), "{row:?}");
    assert_eq!(linux.invalidations.total(), linux.invalidations.context);
    assert!(row.domain == 0 || row.domain == row.invalidations);
    let off = linux.syncs as f64 / row.invalidations as f64 - 1.0;
    println!("{}.{}: {off:+.3}", row.config, row.workload);
    off
}

/// Driven by the traces' own time stamps, those of guests whose emulated CPUs share fewer real ones
/// too.
#[test]
fn lazy_submits_what_was_recorded() {
    let rows = rows();
    let lazy: Vec<_> = rows.iter().filter(|row| is_lazy(row)).collect();
    assert_eq!(lazy.len(), 5);
    for row in lazy {
        let off = off_by(row, Timer::default());
        // Where the guest's CPUs are all busy, an emulated one may be held up, which no trace tells.
        let bound = match row.workload.starts_with("net") {
            true => 0.05,
            false => 0.15,
        };
        assert!(off.abs() <= bound, "{off:+.3} {row:?}");
    }
}
