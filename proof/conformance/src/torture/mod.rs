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
mod operate;
mod round;
mod sabotage;

pub use concurrent::concurrent;
pub use sabotage::DebtSabotage;

use fastrand::Rng;
use portolan::table::format::{DirtyTracking, Format, SplitRule};
use portolan_sim::decode::TableFormat;

use crate::format::{FormatName, Visitor};
use crate::record::{Record, Round, Tally, in_rounds};

/// Operations after which a round ends and all is taken down.
const ROUND: u64 = 4000;
/// Events that every record counts.
const EVENTS: [&str; 14] = [
    "maps",
    "refused_maps",
    "unmaps",
    "refused_unmaps",
    "breaks",
    "out_of_memory",
    "syncs",
    "absorbed",
    "reclaimed",
    "pruned",
    "accesses",
    "retries",
    "audits",
    "invalidations",
];

/// Does `operations` random operations on tables of `format`, and stops at the first violation.
/// `progress` is called now and then with the number of operations that are done.
pub fn torture(
    format: FormatName,
    seed: u64,
    operations: u64,
    progress: &mut dyn FnMut(u64),
) -> Record {
    sabotaged(format, seed, operations, DebtSabotage::None, progress)
}

/// Runs [`torture`] with wrong payment of debts. A record without violations then means that the model misses the
/// error.
pub fn sabotaged(
    format: FormatName,
    seed: u64,
    operations: u64,
    sabotage: DebtSabotage,
    progress: &mut dyn FnMut(u64),
) -> Record {
    let whole = Round { seed, operations };
    in_rounds(whole, ROUND, &EVENTS, progress, |Round { seed, operations }, tally| {
        tally.begin(format!("{format}, seed {seed}"));
        let mut rng = Rng::with_seed(seed);
        let split = match format.may_need_break() && rng.bool() {
            true => SplitRule::BreakBeforeMake,
            false => SplitRule::Direct,
        };
        let plan = round::Plan { name: format, operations, sabotage };
        format.visit(split, DirtyTracking::Off, TableVisitor { plan, rng, tally });
    })
}

/// A round on a format.
struct TableVisitor<'r> {
    plan: round::Plan,
    rng: Rng,
    tally: &'r Tally,
}

impl Visitor for TableVisitor<'_> {
    type Output = ();

    fn visit<F: Format>(mut self, format: F, model: TableFormat) {
        if let Err(what) = round::run(format, model, self.plan, &mut self.rng, self.tally) {
            self.tally.violation(what);
        }
    }
}
