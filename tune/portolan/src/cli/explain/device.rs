//! `portolan explain DEVICE`: one PCI device and its group.

use anyhow::Result;
use portolan_cli::Outcome;

use super::ExplainArgs;
use crate::cli::report::{ReportFile, origin};
use crate::doctor::{Subject, device, outcome};
use crate::report;

/// Prints the answers about the device `name` on the machine of `args`, and writes them `to` a report.
pub(super) fn run(args: &ExplainArgs, to: Option<&ReportFile>, name: &str) -> Result<Outcome> {
    let subject = Subject::new(&args.from, args.log.as_deref())?;
    let answers = device::DeviceAnswers::new(&subject, name)?;
    args.output.show(&answers, device::text)?;
    if let Some(to) = to {
        to.write(&report::device(&answers, origin(Vec::new())))?;
    }
    Ok(outcome(&answers.findings))
}
