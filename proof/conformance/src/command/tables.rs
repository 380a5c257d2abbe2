//! Random operations on every table format against the oracle and the adversarial IOMMU.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use portolan_cli::display;
use portolan_cli::progress::Progress;
use serde::Serialize;

use crate::format::FormatName;
use crate::torture::{ConcurrentReport, TortureEvents, TortureReport, concurrent, torture};

/// CPUs that share one table after each format's own run.
const CPUS: u64 = 4;
/// One of so many operations on a format is done by CPUs that share a table.
const SHARED: u64 = 10;

/// Results of a torture run.
#[derive(Debug, Serialize)]
pub struct TableTortureReport {
    /// Seed that replays the run.
    pub seed: u64,
    /// Operations done by one CPU, all formats together.
    pub operations: u64,
    /// Operations done by CPUs that share a table; their order is the scheduler's.
    pub shared_operations: u64,
    /// Violations that were found; none if all is well.
    pub violations: Vec<String>,
    /// Number of events of each kind, by name.
    pub events: BTreeMap<&'static str, u64>,
    /// Reports by format.
    pub formats: Vec<FormatReport>,
}

/// Report on one format.
#[derive(Debug, Serialize)]
pub struct FormatReport {
    /// Its name.
    pub format: String,
    /// Operations done.
    pub operations: u64,
    /// Debts paid.
    pub syncs: u64,
    /// Places that the device tried again.
    pub retries: u64,
    /// Full audits of the table.
    pub audits: u64,
    /// Violations.
    pub violations: u64,
}

impl TableTortureReport {
    /// Tells if there were no violations.
    pub fn holds(&self) -> bool {
        self.violations.is_empty()
    }
}

/// Results of one format's share of the work.
type Done = (TortureReport, ConcurrentReport);

/// Does `operations` random operations from `seed`, shared out evenly over `formats`, several
/// formats at a time where the machine has the cores.
pub fn run(formats: &[FormatName], seed: u64, operations: u64) -> TableTortureReport {
    let bar = Progress::new(operations);
    let count = formats.len().max(1) as u64;
    let share = |index: usize| operations / count + u64::from((index as u64) < operations % count);
    let next = AtomicUsize::new(0);
    let done: Vec<Mutex<Option<Done>>> = formats.iter().map(|_| Mutex::new(None)).collect();
    let work = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let (Some(&format), Some(slot)) = (formats.get(index), done.get(index)) else {
                return;
            };
            let outcome = one(format, seed, share(index), &bar);
            if let Ok(mut slot) = slot.lock() {
                *slot = Some(outcome);
            }
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores.min(formats.len()) {
            scope.spawn(work);
        }
    });
    drop(bar);
    let mut report = TableTortureReport {
        seed,
        operations: 0,
        shared_operations: 0,
        violations: Vec::new(),
        events: BTreeMap::new(),
        formats: Vec::new(),
    };
    for slot in done {
        if let Ok(Some((alone, shared))) = slot.into_inner() {
            add(&mut report, alone);
            report.shared_operations += shared.operations;
            report.violations.extend(shared.violations);
        }
    }
    report
}

fn one(format: FormatName, seed: u64, operations: u64, bar: &Progress) -> Done {
    let mut told = 0;
    let alone = torture(format, seed, operations, &mut |n| {
        bar.add(n.saturating_sub(told));
        told = n;
    });
    let shared = concurrent(format, seed, CPUS, operations / SHARED / CPUS);
    (alone, shared)
}

fn add(report: &mut TableTortureReport, one: TortureReport) {
    report.operations += one.operations;
    for (name, number) in named(&one.events) {
        *report.events.entry(name).or_default() += number;
    }
    report.formats.push(FormatReport {
        format: one.format.to_string(),
        operations: one.operations,
        syncs: one.events.syncs,
        retries: one.events.retries,
        audits: one.events.audits,
        violations: one.violations.len() as u64,
    });
    report.violations.extend(one.violations);
}

fn named(events: &TortureEvents) -> [(&'static str, u64); 15] {
    [
        ("rounds", events.rounds),
        ("maps", events.maps),
        ("refused_maps", events.refused_maps),
        ("unmaps", events.unmaps),
        ("refused_unmaps", events.refused_unmaps),
        ("breaks", events.breaks),
        ("out_of_memory", events.out_of_memory),
        ("syncs", events.syncs),
        ("absorbed", events.absorbed),
        ("reclaimed", events.reclaimed),
        ("pruned", events.pruned),
        ("accesses", events.accesses),
        ("retries", events.retries),
        ("audits", events.audits),
        ("invalidations", events.invalidations),
    ]
}

/// The report for people, in lines of `columns`.
pub fn text(report: &TableTortureReport, columns: usize) -> String {
    let rows = report.formats.iter().map(|one| {
        vec![
            one.format.clone(),
            display::grouped(one.operations),
            display::grouped(one.syncs),
            display::grouped(one.retries),
            display::grouped(one.audits),
            display::grouped(one.violations),
        ]
    });
    let header = [
        ("format", 0),
        ("operations", 0),
        ("syncs", 2),
        ("device retries", 3),
        ("audits", 1),
        ("violations", 0),
    ];
    let mut out = format!("seed {}\n\n", report.seed);
    out += &display::table(&header, &[1, 2, 3, 4, 5], rows.collect(), columns);
    let _ = writeln!(
        out,
        "\n{} operations on one CPU and {} by {CPUS} CPUs on shared tables: {} violations",
        display::grouped(report.operations),
        display::grouped(report.shared_operations),
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
