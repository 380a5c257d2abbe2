//! Drivers that leave something out, and the scenarios that notice.
//!
//! A [`Mutant`] is an unchanged driver behind a seam that drops or bends its work: a command as it
//! is submitted, a register as it is written or read, a cache line as it is cleaned. It has to fail
//! the scenarios that it names.

mod edits;
mod list;
mod list_amd;
mod list_riscv;
mod list_smmuv2;
mod registers;

pub use list::MUTANTS;
pub use list_amd::AMD_MUTANTS;
pub use list_riscv::RISCV_MUTANTS;
pub use list_smmuv2::SMMUV2_MUTANTS;
pub use registers::TEGRA_MUTANTS;

use crate::backend::BackendName;
use crate::backend::seam::{Sabotage, Seam};
use crate::conformance::{COUNTS, Outcome};

/// A driver with one part left out.
#[derive(Clone, Copy, Debug)]
pub struct Mutant {
    /// Its name: the part that the driver leaves out.
    pub without: &'static str,
    /// The back-end that the scenarios run on.
    pub ground: BackendName,
    /// Sabotage that takes it away between driver and unit.
    pub sabotage: Sabotage,
    /// Scenarios that have to fail.
    pub noticed_by: &'static [&'static str],
}

/// Fate of a mutant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MutantFate {
    /// The scenarios that failed.
    Noticed(Vec<&'static str>),
    /// No scenario failed.
    Survived,
    /// There is no such machine, and why.
    Skipped(String),
}

impl Mutant {
    /// Runs all scenarios.
    pub fn run(&self) -> MutantFate {
        let lines = self.ground.run_behind(Seam::Of(self.sabotage), &mut |_| {});
        let failed: Vec<_> = lines
            .iter()
            .filter(|line| matches!(line.outcome, Outcome::Fail(_)))
            .map(|line| line.name)
            // Edited commands are not those that the driver counted.
            .filter(|name| *name != COUNTS)
            .collect();
        if !failed.is_empty() {
            return MutantFate::Noticed(failed);
        }
        let passed = lines.iter().any(|line| line.outcome == Outcome::Pass);
        match lines.into_iter().next().map(|line| line.outcome) {
            Some(Outcome::Skip(why)) if !passed => MutantFate::Skipped(why),
            _ => MutantFate::Survived,
        }
    }
}
