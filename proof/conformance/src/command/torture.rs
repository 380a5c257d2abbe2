//! Torture: the layers of the library that random operations are done on, and the report of a run.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use portolan_cli::progress::Progress;
use portolan_cli::{Outcome, Output, display};
use serde::Serialize;

use crate::format::FormatName;
use crate::record::{EventCounts, Record};
use crate::smp::{Health, SmpLoad, SmpPlan, smp};
use crate::torture::{concurrent, torture};

/// CPUs that share one table after each format's own run.
const CPUS: u64 = 4;
/// One of so many operations on a format is done by CPUs that share a table.
const SHARED: u64 = 10;

#[derive(Debug, Args)]
pub(super) struct TortureArgs {
    /// Random operations, shared out evenly over the formats or the loads.
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    operations: u64,
    /// Seed of the random operations; chosen and printed if absent.
    #[arg(long)]
    seed: Option<u64>,
    /// Layer of the library that runs the operations.
    #[arg(long, value_enum, default_value_t = Layer::Tables)]
    layer: Layer,
    /// Table format; may be repeated. All if absent.
    #[arg(long = "format", value_name = "FORMAT")]
    formats: Vec<FormatName>,
    /// Half of the operations are on hardware that fails, dies and comes back, and with memory that runs
    /// out; for the layers of CPUs in virtual time.
    #[arg(long)]
    failures: bool,
    /// CPUs in virtual time, for all layers but tables.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
    cpus: u16,
    #[command(flatten)]
    output: Output,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Layer {
    /// Page tables of every format.
    Tables,
    /// Buffers through the DMA layer, under every policy.
    Mappings,
    /// I/O page faults on memory that its owner takes back.
    Faults,
    /// Buffers under every policy, and I/O page faults beside them on the same unit.
    Both,
}

impl Layer {
    /// The runs that share out the operations.
    fn runs(self, formats: &[FormatName], failures: bool) -> Vec<RunKind> {
        let loads: &[SmpLoad] = match self {
            Self::Tables => return formats.iter().copied().map(RunKind::Tables).collect(),
            Self::Mappings => &SmpLoad::BUFFERS,
            Self::Faults => &[SmpLoad::Faults],
            Self::Both => &SmpLoad::BOTH,
        };
        let health = if failures { &Health::ALL[..] } else { &[Health::Sound] };
        let of_load = |&load| health.iter().map(move |&health| RunKind::Smp(load, health));
        loads.iter().flat_map(of_load).collect()
    }

    /// Columns of the table for people, if it has a row for each run: title, priority, and event.
    fn columns(self) -> Option<&'static [(&'static str, u8, &'static str)]> {
        match self {
            Self::Tables => Some(&[
                ("syncs", 2, "syncs"),
                ("device retries", 3, "retries"),
                ("audits", 1, "audits"),
            ]),
            Self::Mappings => Some(&[
                ("syncs", 4, "syncs"),
                ("failures", 1, "failures"),
                ("recovered", 2, "recovered"),
                ("accesses", 5, "accesses"),
                ("old addresses tried", 3, "retries"),
                ("reached, not given back", 0, "reached_waiting"),
                ("reached, given back", 0, "reached_exposed"),
                ("for ns", 0, "longest_window_ns"),
            ]),
            Self::Faults | Self::Both => None,
        }
    }
}

/// One of the runs that share out the operations.
#[derive(Clone, Copy, Debug)]
enum RunKind {
    Tables(FormatName),
    Smp(SmpLoad, Health),
}

impl RunKind {
    fn name(self) -> String {
        match self {
            Self::Tables(format) => format.to_string(),
            Self::Smp(load, health) => format!("{}, {}", load.name(), health.name()),
        }
    }

    fn run(
        self,
        (seed, operations): (u64, u64),
        cpus: u64,
        progress: &mut dyn FnMut(u64),
    ) -> Record {
        match self {
            Self::Smp(load, health) => {
                smp(SmpPlan { load, health, seed, cpus, operations }, progress)
            }
            Self::Tables(format) => {
                let mut record = torture(format, seed, operations, progress);
                let shared = concurrent(format, seed, CPUS, operations / SHARED / CPUS);
                record.events.extend(shared.events);
                record.violations.extend(shared.violations);
                record
            }
        }
    }
}

/// Results of all runs.
#[derive(Debug, Serialize)]
struct TortureReport {
    #[serde(skip)]
    layer: Layer,
    /// Seed that replays them.
    seed: u64,
    /// CPUs in virtual time, where the layer has any.
    #[serde(skip_serializing_if = "Option::is_none")]
    cpus: Option<u16>,
    /// Operations done, all runs together.
    operations: u64,
    /// Violations that were found; none if all is well.
    violations: Vec<String>,
    /// Number of events of each kind, by name, all runs together.
    events: EventCounts,
    runs: Vec<RunReport>,
}

/// Results of one of the runs.
#[derive(Debug, Serialize)]
struct RunReport {
    name: String,
    #[serde(flatten)]
    record: Record,
}

/// Runs one layer.
pub(super) fn run(args: &TortureArgs) -> Result<Outcome> {
    ensure!(
        !args.failures || args.layer != Layer::Tables,
        "tables have no hardware that could fail: --failures is for --layer mappings, faults or both"
    );
    let formats = match args.formats.as_slice() {
        [] => &FormatName::ALL[..],
        some => some,
    };
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..));
    // Said before anything can go wrong.
    eprintln!("seed {seed}");
    let kinds = args.layer.runs(formats, args.failures);
    let records = side_by_side(&kinds, seed, args);
    let report = report(args, seed, &kinds, records);
    args.output.show(&report, text)?;
    Ok(Outcome::of(report.violations.is_empty()))
}

/// Does the runs, which share out the operations evenly, several at a time if the machine has the cores.
fn side_by_side(kinds: &[RunKind], seed: u64, args: &TortureArgs) -> Vec<Record> {
    let bar = Progress::new(args.operations);
    let count = kinds.len() as u64;
    let share = |index: usize| {
        args.operations / count + u64::from((index as u64) < args.operations % count)
    };
    let next = AtomicUsize::new(0);
    let done: Vec<Mutex<Option<Record>>> = kinds.iter().map(|_| Mutex::default()).collect();
    let work = || {
        while let Some((index, kind)) = {
            let index = next.fetch_add(1, Ordering::Relaxed);
            kinds.get(index).map(|kind| (index, kind))
        } {
            let mut told = 0;
            let record = kind.run((seed, share(index)), args.cpus.into(), &mut |n| {
                bar.add(n.saturating_sub(told));
                told = n;
            });
            *done[index].lock().unwrap_or_else(PoisonError::into_inner) = Some(record);
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..cores.min(kinds.len())).for_each(|_| drop(scope.spawn(work))));
    done.into_iter().filter_map(|slot| slot.into_inner().ok().flatten()).collect()
}

fn report(args: &TortureArgs, seed: u64, kinds: &[RunKind], records: Vec<Record>) -> TortureReport {
    let mut events = EventCounts::new();
    for (&name, &number) in records.iter().flat_map(|record| &record.events) {
        let all = events.entry(name).or_default();
        *all = if name.starts_with("longest") { number.max(*all) } else { number + *all };
    }
    TortureReport {
        layer: args.layer,
        seed,
        cpus: Some(args.cpus).filter(|_| args.layer != Layer::Tables),
        operations: records.iter().map(|record| record.operations).sum(),
        violations: records.iter().flat_map(|record| &record.violations).cloned().collect(),
        events,
        runs: (kinds.iter().zip(records))
            .map(|(kind, record)| RunReport { name: kind.name(), record })
            .collect(),
    }
}

/// A table of the runs, or of the events of all.
fn table(report: &TortureReport, columns: usize) -> String {
    let Some(events) = report.layer.columns() else {
        let rows = report.events.iter();
        let rows =
            rows.map(|(name, number)| vec![name.replace('_', " "), display::grouped(*number)]);
        return display::table(&[("event", 0), ("number", 0)], &[1], rows.collect(), columns);
    };
    let rows = report.runs.iter().map(|RunReport { name, record }| {
        let counts = events.iter().map(|(_, _, event)| record.count(event));
        let violations = record.violations.len() as u64;
        let numbers = [record.operations].into_iter().chain(counts).chain([violations]);
        [name.clone()].into_iter().chain(numbers.map(display::grouped)).collect()
    });
    let header: Vec<_> = [("run", 0), ("operations", 0)]
        .into_iter()
        .chain(events.iter().map(|&(title, priority, _)| (title, priority)))
        .chain([("violations", 0)])
        .collect();
    let numbers: Vec<usize> = (1..header.len()).collect();
    display::table(&header, &numbers, rows.collect(), columns)
}

/// The report for people, in lines of `columns`.
fn text(report: &TortureReport, columns: usize) -> String {
    let (seed, cpus) = (report.seed, report.cpus.unwrap_or(1));
    let mut out = format!("seed {seed}\n\n{}\n", table(report, columns));
    let operations = display::grouped(report.operations);
    let violations = report.violations.len();
    let _ = match report.layer {
        Layer::Tables => {
            let shared = report.events.get("shared_operations").copied().unwrap_or(0);
            let shared = display::grouped(shared);
            write!(
                out,
                "{operations} operations on one CPU and {shared} by {CPUS} CPUs on shared tables"
            )
        }
        Layer::Mappings => {
            write!(out, "{operations} buffers mapped and unmapped by {cpus} CPUs in virtual time")
        }
        Layer::Faults => {
            write!(out, "{operations} page requests by the devices of {cpus} CPUs in virtual time")
        }
        Layer::Both => {
            write!(out, "{operations} buffers and page requests by {cpus} CPUs in virtual time")
        }
    };
    let _ = writeln!(out, ": {violations} violations");
    for violation in &report.violations {
        let _ = writeln!(out, "  {violation}");
    }
    if violations > 0 {
        let _ = writeln!(out, "run again with --seed {seed} to see the same");
    }
    display::wrapped(&out, columns)
}
