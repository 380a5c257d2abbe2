//! `portolan-papers synthetic`.

use anyhow::Result;
use clap::Args;
use portolan_cli::{Outcome, Output};
use portolan_tune::cli::machine::{file_of, profile};
use portolan_tune::cli::report::{ReportArgs, fact, of_profile, origin};

use crate::report;
use crate::synthetic::{self, SyntheticLoad};

#[derive(Debug, Args)]
#[command(after_help = synthetic::COLUMNS_IN_WORDS)]
pub(super) struct SyntheticArgs {
    /// The load.
    load: SyntheticLoad,
    /// Machine profile (see `portolan machines`), or a file with one; tegra210 for the camera if absent.
    #[arg(long, value_name = "NAME")]
    machine: Option<String>,
    #[command(flatten)]
    report: ReportArgs,
    #[command(flatten)]
    output: Output,
}

pub(super) fn run(args: &SyntheticArgs) -> Result<Outcome> {
    let machine = args.machine.as_deref().unwrap_or(args.load.machine());
    let destination = args.report.destination(file_of(machine).as_slice())?;
    let profile = profile(machine)?;
    let report = match args.load {
        SyntheticLoad::Camera => synthetic::camera::run(&profile)?,
    };
    args.output.show(&report, synthetic::text)?;
    if let Some(destination) = destination {
        let seed = fact("seed", "none: nothing in it is left to chance");
        let facts = vec![of_profile(&profile), seed];
        destination.write(&report::camera(&report, origin(facts)))?;
    }
    let holds = report.ways.iter().all(|way| way.faults == 0);
    Ok(Outcome::of(holds))
}
