//! Torture: random operations on a table, against the oracle and an adversarial IOMMU.
//!
//! A run is made of rounds; each has a random machine (capabilities, quirks, rule for splitting
//! blocks), one table, one device that does DMA on live mappings and tries old addresses after each
//! sync. No access may reach a page that was unmapped and synced, every mapping whose debt is paid
//! has to translate right through all caches, and the whole table is audited every few steps. Equal
//! seeds give equal runs.

mod access;
mod concurrent;
mod machine;
mod memory;
mod operate;
mod round;
mod sabotage;

pub use concurrent::{ConcurrentReport, concurrent};
pub use sabotage::DebtSabotage;

use fastrand::Rng;
use portolan::table::format::{DirtyTracking, Format, SplitRule};
use portolan_sim::decode::TableFormat;

use crate::format::{FormatName, Visitor};

/// Operations after which a round ends and all is taken down.
const ROUND: u64 = 4000;
/// Operations between two calls of the progress function.
const PROGRESS: u64 = 1024;

/// Number of events of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TortureEvents {
    /// Rounds, each with its own machine.
    pub rounds: u64,
    /// Lists mapped.
    pub maps: u64,
    /// Maps that were rightly refused.
    pub refused_maps: u64,
    /// Ranges unmapped.
    pub unmaps: u64,
    /// Unmaps that were rightly refused.
    pub refused_unmaps: u64,
    /// Blocks split through break-before-make.
    pub breaks: u64,
    /// Maps, unmaps and splits that found no table memory.
    pub out_of_memory: u64,
    /// Debts paid.
    pub syncs: u64,
    /// Debts absorbed by another.
    pub absorbed: u64,
    /// Table pages given back after quiet.
    pub reclaimed: u64,
    /// Tables taken out by pruning.
    pub pruned: u64,
    /// Accesses to live mappings.
    pub accesses: u64,
    /// Places that the device tried again.
    pub retries: u64,
    /// Full audits.
    pub audits: u64,
    /// Invalidations that the IOMMU carried out.
    pub invalidations: u64,
}

/// Results of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TortureReport {
    /// The format.
    pub format: FormatName,
    /// Seed that replays the run.
    pub seed: u64,
    /// Operations done; fewer than asked for after a violation.
    pub operations: u64,
    /// Violations that were found, the first few; none if all is well.
    pub violations: Vec<String>,
    /// Number of events of each kind.
    pub events: TortureEvents,
}

/// Does `operations` random operations on tables of `format`, and stops at the first violation.
/// `progress` is called now and then with the number of operations that are done.
pub fn torture(
    format: FormatName,
    seed: u64,
    operations: u64,
    progress: &mut dyn FnMut(u64),
) -> TortureReport {
    sabotaged(format, seed, operations, DebtSabotage::None, progress)
}

/// Runs [`torture`] with wrong payment of debts. A report without violations then means that the model misses the
/// error.
pub fn sabotaged(
    format: FormatName,
    seed: u64,
    operations: u64,
    sabotage: DebtSabotage,
    progress: &mut dyn FnMut(u64),
) -> TortureReport {
    let mut report = TortureReport {
        format,
        seed,
        operations: 0,
        violations: Vec::new(),
        events: TortureEvents::default(),
    };
    let mut rng = Rng::with_seed(seed);
    while report.operations < operations && report.violations.is_empty() {
        let split = if format.may_need_break() && rng.bool() {
            SplitRule::BreakBeforeMake
        } else {
            SplitRule::Direct
        };
        let run = Run { report: &mut report, rng: &mut rng, until: operations, sabotage, progress };
        format.visit(split, DirtyTracking::Off, run);
    }
    progress(report.operations);
    report
}

/// A round on a format.
struct Run<'r> {
    report: &'r mut TortureReport,
    rng: &'r mut Rng,
    until: u64,
    sabotage: DebtSabotage,
    progress: &'r mut dyn FnMut(u64),
}

impl Visitor for Run<'_> {
    type Output = ();

    fn visit<F: Format>(self, format: F, model: TableFormat) {
        let number = self.report.events.rounds;
        self.report.events.rounds += 1;
        let name = self.report.format;
        let mut operations = 0;
        let until = (self.until - self.report.operations).min(ROUND);
        let done = self.report.operations;
        let progress = self.progress;
        let mut tick = |n: u64| {
            operations = n;
            if (done + n).is_multiple_of(PROGRESS) {
                progress(done + n);
            }
        };
        let plan = round::Plan { name, operations: until, sabotage: self.sabotage };
        let outcome = round::run(format, model, plan, self.rng, &mut self.report.events, &mut tick);
        self.report.operations += operations;
        if let Err(what) = outcome {
            let seed = self.report.seed;
            let at = self.report.operations;
            self.report
                .violations
                .push(format!("{name}, seed {seed}, round {number}, operation {at}: {what}"));
        }
    }
}
