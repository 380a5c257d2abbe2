//! `portolan explain` without an option: the machine's IOMMU.

use anyhow::Result;
use portolan_cli::Outcome;

use super::ExplainArgs;
use crate::doctor::{Subject, machine, outcome};

/// Prints the answers about the machine of `args`.
pub(super) fn run(args: &ExplainArgs) -> Result<Outcome> {
    let subject = Subject::new(&args.from, args.log.as_deref())?;
    let report = machine::MachineAnswers::new(&subject)?;
    args.output.show(&report, machine::text)?;
    Ok(outcome(&report.findings))
}
