//! Linux's rules, driven by each recorded trace, submit the commands that QEMU counted.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use portolan::dma::PolicyPreference;
use portolan_sim::profile::Profile;
use portolan_tune::linux::{
    CachingMode, CpuTime, Kernel, LinuxReport, Options, Release, Rules, StageName,
};
use portolan_tune::replay::{self, Policy, Replay};
use portolan_tune::trace;

fn traces() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/traces")
}

/// A row of the recorded counts.
#[derive(Debug)]
struct Row {
    config: String,
    workload: String,
    /// Number submitted by the guest; QEMU received as many if that was counted.
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
    let numbers = ["guest_iotlb_inv", "qemu_iotlb_global", "qemu_iotlb_domain", "qemu_page_masks"];
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

/// Options that the guest was booted with, by the name of its configuration (`data/traces/README.md`).
fn options(config: &str, kernel: Option<Kernel>) -> Options {
    let has = |word| config.split('-').any(|part| part == word);
    Options {
        asked: if has("lazy") { PolicyPreference::Lazy } else { PolicyPreference::Strict },
        caching: Some(if has("cm") { CachingMode::On } else { CachingMode::Off }),
        stage: Some(if has("fl") { StageName::First } else { StageName::Second }),
        kernel,
    }
}

fn replayed(row: &Row, kernel: Option<Kernel>) -> (LinuxReport, u64) {
    let profile = Profile::by_name(replay::DEFAULT_MACHINE).unwrap();
    let rules = Rules::new(&profile, &options(&row.config, kernel)).unwrap();
    let path = traces().join(format!("{}.{}.trace.xz", row.config, row.workload));
    let mut reader = trace::open(&path).unwrap();
    let policies = [Policy::StrictRange];
    let report = (Replay { linux: Some(rules), ..Replay::new(&profile, &policies) })
        .run(&mut reader)
        .unwrap();
    (report.linux.unwrap(), report.trace.orphan_unmaps)
}

fn is_lazy(row: &Row) -> bool {
    ["vtd-lazy", "vtd-fl-lazy-cm"].contains(&row.config.as_str())
}

#[test]
fn strict_and_caching_mode_submit_exactly_what_was_recorded() {
    let mut seen = 0;
    for row in rows().iter().filter(|row| !is_lazy(row)) {
        let (linux, orphans) = replayed(row, None);
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

/// Percentage by which the rules miss the recording of a lazy guest, or that of `kernel`.
fn off_by(row: &Row, kernel: Option<Kernel>) -> f64 {
    let (linux, orphans) = replayed(row, kernel);
    assert_eq!((linux.policy.as_str(), orphans), ("lazy", 0), "{row:?}");
    assert_eq!(linux.invalidations.total(), linux.invalidations.context);
    assert!(row.domain == 0 || row.domain == row.invalidations);
    let [least, most] = linux.syncs_range;
    assert!(least <= linux.syncs && linux.syncs <= most, "{row:?}");
    100.0 * (linux.syncs as f64 / row.invalidations as f64 - 1.0)
}

/// Largest error of the rules, in per cent, and least number of invalidations to which it applies: one flush is two
/// per cent of 50.
const BOUND_PCT: f64 = 15.0;
const FEWEST: u64 = 50;

fn lazy_rows() -> Vec<Row> {
    let mut rows = rows();
    rows.retain(is_lazy);
    assert_eq!(rows.len(), 5);
    rows.retain(|row| row.invalidations >= FEWEST);
    assert_eq!(rows.len(), 4);
    rows
}

/// The trace's time stamps drive the replay, also in guests whose emulated CPUs share fewer real ones. A kernel that
/// differs from Linux in one mechanism would give other counts.
#[test]
fn lazy_submits_what_was_recorded_by_each_of_its_mechanisms() {
    let rows = lazy_rows();
    let off = |kernel: Option<Kernel>| -> Vec<f64> {
        let off = rows.iter().map(|row| off_by(row, kernel));
        off.collect()
    };
    let linux = off(None);
    println!("{linux:.1?}");
    assert!(linux.iter().all(|off| off.abs() <= BOUND_PCT), "{linux:?}");
    let cpus = Some(4);
    let like_linux = Kernel { cpus, ..Kernel::default() };
    assert_eq!(off(Some(like_linux)), linux);
    let others = [
        ("a timer that never runs", Kernel { timeout_ns: u64::MAX, ..like_linux }),
        ("a timer of 20 ms", Kernel { timeout_ns: 20_000_000, ..like_linux }),
        ("queues of half the size", Kernel { queue_holds: 127, ..like_linux }),
        ("ticks of 10 ms", Kernel { tick_ns: 10_000_000, ..like_linux }),
    ];
    for (name, kernel) in others {
        let off = off(Some(kernel));
        println!("{name}: {off:.1?}");
        assert!(off.iter().any(|off| off.abs() > BOUND_PCT), "{name}: {off:?}");
    }
}

/// QEMU emulated the recorded guest's unit. It reports `NpCache`, and counted 10,000 INVALIDATE_IOMMU_PAGES and as
/// many COMPLETION_WAITs, and four for interrupts (`data/traces/invalidations.csv`).
#[test]
fn on_amd_each_unmap_is_one_command_and_with_np_cache_each_map_too() {
    let profile = Profile::by_name("epyc-amdvi").unwrap();
    let counted = |asked, caching| {
        let options = Options { asked, caching, stage: None, kernel: None };
        let rules = Rules::new(&profile, &options).unwrap();
        let path = traces().join("amdvi-strict.read4k-1j.trace.xz");
        let mut reader = trace::open(&path).unwrap();
        let policies = [Policy::StrictRange];
        let report = (Replay { linux: Some(rules), ..Replay::new(&profile, &policies) })
            .run(&mut reader)
            .unwrap();
        report.linux.unwrap()
    };
    let strict = counted(PolicyPreference::Strict, None);
    assert_eq!((strict.policy.as_str(), strict.syncs), ("strict", 5000));
    assert_eq!((strict.invalidations.range, strict.after_map), (5000, 0));
    let lazy = counted(PolicyPreference::Lazy, None);
    assert_eq!((lazy.policy.as_str(), lazy.invalidations.range), ("lazy", 0));
    assert!(lazy.syncs < 250, "{lazy:?}");
    let played = counted(PolicyPreference::Lazy, Some(CachingMode::On));
    assert_eq!((played.policy.as_str(), played.syncs), ("strict", 10_000));
    assert_eq!((played.unit.as_str(), played.after_map), ("AMD-Vi", 5000));
    assert!(played.time_us.unwrap().total > strict.time_us.unwrap().total);
    let first = Options {
        asked: PolicyPreference::Lazy,
        caching: None,
        stage: Some(StageName::First),
        kernel: None,
    };
    let refused = Rules::new(&profile, &first).unwrap_err();
    assert!(refused.to_string().contains("epyc-amdvi"), "{refused}");
}

/// Percentage by which the rules miss a recording of a lazy 7.3, by the release in its facts, or by `release`.
fn off_by_release(name: &str, release: Option<Release>) -> (u64, f64) {
    let profile = Profile::by_name(replay::DEFAULT_MACHINE).unwrap();
    let kernel = release.map(|release| Kernel {
        release: Some(release),
        cpus: Some(2),
        ..Kernel::default()
    });
    let rules = Rules::new(&profile, &options("vtd-lazy", kernel)).unwrap();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recordings");
    let path = folder.join(format!("7.3-lazy-{name}.gz"));
    let mut reader = trace::open(&path).unwrap();
    let policies = [Policy::StrictRange];
    let report = (Replay { linux: Some(rules), ..Replay::new(&profile, &policies) })
        .run(&mut reader)
        .unwrap();
    let (linux, sent) = (report.linux.unwrap(), report.sent.unwrap());
    let off = linux.syncs as f64 / sent.invalidations.total() as f64 - 1.0;
    println!("{name} {release:?}: {} of {sent:?}: {off:+.3}", linux.syncs);
    (linux.unqueued, 100.0 * off)
}

/// Under the rule of 7.2 these unmaps join the queue, and the counts are far off.
#[test]
fn what_the_two_step_api_mapped_is_waited_for_since_7_3() {
    for (name, two_step) in [("dd4k", 0), ("dd128k", 300), ("mixed", 430)] {
        let (unqueued, off) = off_by_release(name, None);
        assert_eq!(unqueued, two_step, "{name}");
        assert!(off.abs() <= BOUND_PCT, "{name}: {off}");
        let (unqueued, off) = off_by_release(name, Some(Release(7, 2)));
        assert_eq!(unqueued, 0, "{name}");
        assert_eq!(off.abs() > BOUND_PCT, two_step > 0, "{name}: {off}");
    }
}

/// A trace without facts: CPU 0 unmaps once and then shows nothing, while CPU 1 unmaps once in each of `ticks` ticks.
fn one_cpu_falls_silent(ticks: u64) -> String {
    let unmap = |task, cpu, ms: u64| {
        let at = format!("{task} [{cpu:03}] 1.{ms:03}000:");
        format!(
            "{at} map: IOMMU: iova=0x1000 paddr=0x2000 size=4096\n\
             {at} unmap: IOMMU: iova=0x1000 size=4096 unmapped_size=4096\n"
        )
    };
    // A timer of CPU 0 is due after 16 ms.
    let others = (0..ticks).map(|tick| unmap("other-13", 1, 16 + 4 * tick));
    unmap("first-12", 0, 0) + &others.collect::<String>()
}

/// Hosts stop a virtual CPU for 100 ms (25 ticks) at most. So a CPU without events for longer has had its tick: its
/// timer flushes, and the next unmap starts another. With a tick less nothing is known.
#[test]
fn a_cpu_that_shows_nothing_for_longer_than_hosts_hold_one_up_has_run_its_timer() {
    let profile = Profile::by_name(replay::DEFAULT_MACHINE).unwrap();
    let flushes = |ticks| {
        let rules = Rules::new(&profile, &options("vtd-lazy", None)).unwrap();
        let mut reader = trace::from_bytes(one_cpu_falls_silent(ticks)).unwrap();
        let policies = [Policy::StrictRange];
        let report = (Replay { linux: Some(rules), ..Replay::new(&profile, &policies) })
            .run(&mut reader)
            .unwrap();
        report.linux.unwrap().flushes_timer
    };
    assert_eq!((flushes(25), flushes(26)), (1, 2));
}

/// A trace of 2 s on two CPUs. CPU 0 unmaps every millisecond; CPU 1's timers run on time. With `late`, CPU 0's
/// timers run that many ticks late.
fn busy_with_timers(late: Option<u64>) -> String {
    let run = |task, cpu, ms: u64, late: u64| {
        let due = 1000 + ms / 4 - late;
        format!(
            "{task} [{cpu:03}] {}.{:03}000: timer_expire_entry: timer=0 function=x now={due} baseclk={due}\n",
            ms / 1000,
            ms % 1000
        )
    };
    let mut text = "cpus=2\n".to_owned();
    for ms in 0..2000 {
        if let (0, Some(late)) = (ms % 100, late) {
            text += &run("other-13", 1, ms, 0);
            text += &run("first-12", 0, ms, late);
        }
        let at = format!("first-12 [000] {}.{:03}001:", ms / 1000, ms % 1000);
        text += &format!(
            "{at} map: IOMMU: iova=0x1000 paddr=0x2000 size=4096\n\
             {at} unmap: IOMMU: iova=0x1000 size=4096 unmapped_size=4096\n"
        );
    }
    text
}

/// A busy CPU's timer flushes every 16 ms if it runs its timers on time, and every 20 ms if not. Without a run in the
/// trace the rules take it to be on time every other time.
#[test]
fn how_late_a_busy_cpus_timers_run_is_read_from_the_trace() {
    let profile = Profile::by_name(replay::DEFAULT_MACHINE).unwrap();
    let flushes = |late| {
        let mut reader = trace::from_bytes(busy_with_timers(late)).unwrap();
        let kernel = Kernel { cpu_time: CpuTime::Always, ..Kernel::of(&reader, None) };
        let rules = Rules::new(&profile, &options("vtd-lazy", Some(kernel))).unwrap();
        let policies = [Policy::StrictRange];
        let report = (Replay { linux: Some(rules), ..Replay::new(&profile, &policies) })
            .run(&mut reader)
            .unwrap();
        report.linux.unwrap().flushes_timer
    };
    // Of the first 100 ms no tick's length is known.
    assert_eq!([Some(0), Some(1), None].map(flushes), [125, 101, 111]);
}
