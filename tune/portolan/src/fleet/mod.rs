//! Many traces: each replayed as one alone is, on all CPUs, and their sums by machine, device and load.
//!
//! A trace that cannot be replayed is told and costs the others nothing. Of a trace that has ended no more is kept
//! than its report, or less: [`Entry`]. `docs/fleet.md` describes the sums.
//!
//! Not here: spreading work over several machines. Engines for that exist, and run this command.

mod aggregate;
mod by;
mod entry;
mod files;
mod load;
mod results;
mod run;
mod table;
mod text;

pub(crate) use aggregate::least_strict;
pub use aggregate::{
    Aggregate, Group, GroupedBy, Percentiles, PolicySum, SettingCount, Spread, WorstTrace,
};
pub use by::GroupKey;
pub use entry::{AdvisedSetting, DeviceWork, Entry, Failed, ReplayedTrace, TraceResult};
pub use files::{Job, jobs};
pub use load::LoadKind;
pub use results::read as read_results;
pub use run::{How, run};
pub use table::csv;
pub(crate) use text::short_names;
pub use text::{COLUMNS_IN_WORDS, text};

/// Sums of `entries`, with the traces that failed or were not understood, and sentences on them; grouped by a fact if
/// one is given.
pub fn add_up(entries: &[Entry], failed: Vec<Failed>, by: Option<GroupKey>) -> Aggregate {
    let mut sum = Aggregate::new(entries, failed, by);
    sum.findings = text::findings(&sum);
    sum
}
