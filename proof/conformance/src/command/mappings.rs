//! Buffers through the DMA layer, by many CPUs in virtual time, against the adversarial IOMMU.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use portolan_cli::display;
use portolan_cli::progress::Progress;
use serde::Serialize;

use crate::mappings::{Health, MappingReport, UnmapMode, mappings};

/// Results of a run.
#[derive(Debug, Serialize)]
pub struct MappingTortureReport {
    /// Seed that replays the run.
    pub seed: u64,
    /// Buffers mapped and unmapped, all policies together.
    pub operations: u64,
    /// Violations that were found; none if all is well.
    pub violations: Vec<String>,
    /// Number of events of each kind, by name.
    pub events: BTreeMap<&'static str, u64>,
    /// Reports by policy.
    pub policies: Vec<MappingReport>,
}

impl MappingTortureReport {
    /// Tells if there were no violations.
    pub fn holds(&self) -> bool {
        self.violations.is_empty()
    }
}

/// Does `operations` random operations from `seed` by `cpus` CPUs, divided evenly among the policies, several at a
/// time if the machine has the cores. With [`Health::Failing`] each policy runs on hardware of both kinds.
pub fn run(seed: u64, cpus: u64, operations: u64, health: Health) -> MappingTortureReport {
    let kinds: &[Health] = match health {
        Health::Sound => &[Health::Sound],
        Health::Failing => &[Health::Sound, Health::Failing],
    };
    let ways = UnmapMode::ALL.iter();
    let runs: Vec<(UnmapMode, Health)> =
        ways.flat_map(|way| kinds.iter().map(|kind| (*way, *kind))).collect();
    let bar = Progress::new(operations);
    let each = operations.div_ceil(runs.len() as u64);
    let next = AtomicUsize::new(0);
    let done: Vec<Mutex<Option<MappingReport>>> = runs.iter().map(|_| Mutex::default()).collect();
    let work = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let (Some(&kind), Some(slot)) = (runs.get(index), done.get(index)) else {
                return;
            };
            let mut told = 0;
            let report = mappings(kind, seed, cpus, each, &mut |n| {
                bar.add(n.saturating_sub(told));
                told = n;
            });
            if let Ok(mut slot) = slot.lock() {
                *slot = Some(report);
            }
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores.min(runs.len()) {
            scope.spawn(work);
        }
    });
    drop(bar);
    let policies: Vec<MappingReport> =
        done.into_iter().filter_map(|slot| slot.into_inner().ok().flatten()).collect();
    let sum = |of: fn(&MappingReport) -> u64| policies.iter().map(of).sum();
    MappingTortureReport {
        seed,
        operations: sum(|one| one.operations),
        violations: (policies.iter().flat_map(|one| &one.violations)).cloned().collect(),
        events: BTreeMap::from([
            ("accesses", sum(|one| one.accesses)),
            ("retries", sum(|one| one.retries)),
            ("reached_waiting", sum(|one| one.reached_waiting)),
            ("reached_exposed", sum(|one| one.reached_exposed)),
            ("syncs", sum(|one| one.syncs)),
            ("failures", sum(|one| one.failures)),
            ("refused", sum(|one| one.refused)),
            ("recovered", sum(|one| one.recovered)),
            ("quarantined_bytes", sum(|one| one.quarantined_bytes)),
        ]),
        policies,
    }
}

/// The report for people, in lines of `columns`.
pub fn text(report: &MappingTortureReport, columns: usize) -> String {
    let rows = report.policies.iter().map(|one| {
        vec![
            one.way.name().to_owned(),
            one.health.name().to_owned(),
            display::grouped(one.operations),
            display::grouped(one.syncs),
            display::grouped(one.failures),
            display::grouped(one.recovered),
            display::grouped(one.accesses),
            display::grouped(one.retries),
            display::grouped(one.reached_waiting),
            display::grouped(one.reached_exposed),
            display::grouped(one.longest_window_ns / 1000),
            one.violations.len().to_string(),
        ]
    });
    let header = [
        ("policy", 0),
        ("hardware", 0),
        ("operations", 0),
        ("syncs", 4),
        ("failures", 1),
        ("recovered", 2),
        ("accesses", 5),
        ("old addresses tried", 3),
        ("reached, not given back", 0),
        ("reached, given back", 0),
        ("for µs", 0),
        ("violations", 0),
    ];
    let mut out = format!("seed {}\n\n", report.seed);
    let numbers: Vec<usize> = (2..header.len()).collect();
    out += &display::table(&header, &numbers, rows.collect(), columns);
    let cpus = report.policies.first().map_or(0, |one| one.cpus);
    let _ = writeln!(
        out,
        "\n{} buffers mapped and unmapped by {cpus} CPUs in virtual time: {} violations",
        display::grouped(report.operations),
        report.violations.len(),
    );
    for violation in &report.violations {
        let _ = writeln!(out, "  {violation}");
    }
    if !report.holds() {
        let _ = writeln!(out, "run again with --seed {} to see the same", report.seed);
    }
    display::wrapped(&out, columns)
}
