//! `portolan explain --between`: peer-to-peer access of PCI devices.

use anyhow::Result;
use portolan_cli::Outcome;

use super::ExplainArgs;
use crate::cli::report::{ReportFile, origin};
use crate::doctor::{Subject, between};
use crate::report;

/// Prints the ways between the devices of `names`, or all GPUs, network cards and disks, on the machine of `args`, and
/// writes them `to` a report.
pub(super) fn run(
    args: &ExplainArgs,
    to: Option<&ReportFile>,
    names: &[String],
) -> Result<Outcome> {
    let subject = Subject::new(&args.from, args.log.as_deref())?;
    let answers = between::PairAnswers::new(&subject, names)?;
    args.output.show(&answers, between::text)?;
    if let Some(to) = to {
        to.write(&report::between(&answers, origin(Vec::new())))?;
    }
    Ok(Outcome::of(!answers.has_problem()))
}
