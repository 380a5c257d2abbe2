//! Reports to look at: pages of `portolan-report` from the results of replays, comparisons and calibrations,
//! and from answers about a machine.
//!
//! `docs/report.md` explains each figure and the origin of its numbers. Nothing is computed here that the data has
//! not: figures arrange it.

mod calibrate;
mod compare;
mod explain;
mod fleet;
mod over_time;
mod policies;
mod replay;
mod settings;
mod trace;

pub use calibrate::calibrate;
pub use compare::compare;
pub use explain::{between, device, faults, machine};
pub use fleet::fleet;
pub use replay::replay;
