//! `portolan explain` without an option: the machine's IOMMU.

use anyhow::Result;
use portolan_cli::Outcome;

use super::ExplainArgs;
use crate::cli::report::{ReportFile, origin};
use crate::doctor::{Subject, machine, outcome};
use crate::report;

/// Prints the answers about the machine of `args`, and writes them `to` a report.
pub(super) fn run(args: &ExplainArgs, to: Option<&ReportFile>) -> Result<Outcome> {
    let subject = Subject::new(&args.from, args.log.as_deref())?;
    let answers = machine::MachineAnswers::new(&subject)?;
    args.output.show(&answers, machine::text)?;
    if let Some(to) = to {
        to.write(&report::machine(&answers, origin(Vec::new())))?;
    }
    Ok(outcome(&answers.findings))
}
