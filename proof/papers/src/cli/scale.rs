//! `portolan-papers scale`.

use anyhow::Result;
use clap::Args;
use portolan_cli::{Outcome, Output};

use crate::report;
use crate::scale;
use portolan_tune::cli::machine::{file_of, profile};
use portolan_tune::cli::report::{ReportArgs, fact, of_profile, origin};

#[derive(Debug, Args)]
#[command(after_help = scale::COLUMNS_IN_WORDS)]
pub(super) struct ScaleArgs {
    /// Machine profile (see `portolan machines`), or a file with one.
    #[arg(long, value_name = "NAME", default_value = scale::DEFAULT_MACHINE)]
    machine: String,
    /// Policy; may be repeated. All if absent.
    #[arg(long = "policy", value_name = "POLICY")]
    policies: Vec<scale::ScalePolicy>,
    /// Number of CPUs; may be repeated. Powers of two and the numbers that were measured if absent.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    cpus: Vec<u16>,
    /// Seed of the order of simultaneous events and of the variation of work.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Virtual milliseconds that are computed for each row.
    #[arg(long, value_name = "MS", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    horizon: u64,
    #[command(flatten)]
    report: ReportArgs,
    #[command(flatten)]
    output: Output,
}

pub(super) fn run(args: &ScaleArgs) -> Result<Outcome> {
    let options = scale::Options {
        policies: args.policies.clone(),
        cpus: args.cpus.iter().copied().map(usize::from).collect(),
        seed: args.seed,
        horizon_ms: args.horizon,
    };
    let destination = args.report.destination(file_of(&args.machine).as_slice())?;
    let profile = profile(&args.machine)?;
    let found = scale::run(&profile, &options)?;
    args.output.show(&found, scale::text)?;
    if let Some(destination) = destination {
        let facts = vec![
            of_profile(&profile),
            fact("seed", args.seed.to_string()),
            fact("horizon", format!("{} virtual ms", args.horizon)),
        ];
        destination.write(&report::scale(&found, origin(facts)))?;
    }
    Ok(Outcome::Good)
}
