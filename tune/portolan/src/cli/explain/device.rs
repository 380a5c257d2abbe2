//! `portolan explain DEVICE`: one PCI device and its group.

use anyhow::Result;
use portolan_cli::Outcome;

use super::ExplainArgs;
use crate::doctor::{Subject, device, outcome};

/// Prints the answers about the device `name` on the machine of `args`.
pub(super) fn run(args: &ExplainArgs, name: &str) -> Result<Outcome> {
    let subject = Subject::new(&args.from, args.log.as_deref())?;
    let report = device::DeviceAnswers::new(&subject, name)?;
    args.output.show(&report, device::text)?;
    Ok(outcome(&report.findings))
}
