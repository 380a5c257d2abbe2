//! Devices that fault while memory is taken back, by many CPUs in virtual time.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use portolan_cli::display;
use portolan_cli::progress::Progress;
use serde::Serialize;

use crate::mappings::Health;
use crate::paging::paging;

/// Results of a run.
#[derive(Debug, Serialize)]
pub struct FaultTortureReport {
    /// Seed that replays the run.
    pub seed: u64,
    /// CPUs in virtual time.
    pub cpus: u64,
    /// Page requests that devices sent.
    pub operations: u64,
    /// Violations that were found; none if all is well.
    pub violations: Vec<String>,
    /// Number of events of each kind, by name.
    pub events: BTreeMap<&'static str, u64>,
}

impl FaultTortureReport {
    /// Tells if there were no violations.
    pub fn holds(&self) -> bool {
        self.violations.is_empty()
    }
}

/// Lets devices send `operations` page requests by `cpus` CPUs, from `seed`.
///
/// With [`Health::Failing`] the hardware of every second round fails.
pub fn run(seed: u64, cpus: u64, operations: u64, health: Health) -> FaultTortureReport {
    let bar = Progress::new(operations);
    let report = paging(health, seed, cpus, operations, &mut |done| bar.set(done));
    drop(bar);
    FaultTortureReport {
        seed,
        cpus,
        operations: report.requests,
        violations: report.violations,
        events: report.events,
    }
}

/// The report for people, in lines of `columns`.
pub fn text(report: &FaultTortureReport, columns: usize) -> String {
    let rows = report
        .events
        .iter()
        .map(|(name, number)| vec![name.replace('_', " "), display::grouped(*number)]);
    let mut out = format!("seed {}\n\n", report.seed);
    let header = [("event", 0), ("number", 0)];
    out += &display::table(&header, &[1], rows.collect(), columns);
    let _ = writeln!(
        out,
        "\n{} page requests by the devices of {} CPUs in virtual time: {} violations",
        display::grouped(report.operations),
        report.cpus,
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
