//! `portolan explain --firmware`: IOMMUs, devices and groups by tables of firmware.

use anyhow::Result;
use portolan_cli::Outcome;

use super::ExplainArgs;
use crate::firmware;

/// Prints what the tables of `args` describe.
pub(super) fn run(args: &ExplainArgs) -> Result<Outcome> {
    let tables = firmware::read(&args.firmware)?;
    let config = args.pci.as_deref().map(firmware::Config::read).transpose()?.unwrap_or_default();
    let report = firmware::Report::new(&tables, &config, &args.external)?;
    args.output.show(&report, firmware::text)?;
    Ok(Outcome::of(report.holds()))
}
