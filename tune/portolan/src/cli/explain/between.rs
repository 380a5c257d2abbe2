//! `portolan explain --between`: peer-to-peer access of PCI devices.

use anyhow::Result;
use portolan_cli::Outcome;

use super::ExplainArgs;
use crate::doctor::{Subject, between};

/// Prints the ways between the devices of `names`, or all GPUs, network cards and disks, on the machine of `args`.
pub(super) fn run(args: &ExplainArgs, names: &[String]) -> Result<Outcome> {
    let subject = Subject::new(&args.from, args.log.as_deref())?;
    let report = between::PairAnswers::new(&subject, names)?;
    args.output.show(&report, between::text)?;
    Ok(Outcome::of(!report.has_problem()))
}
