//! The command line of `portolan-verify`: conformance scenarios and torture.
//!
//! * [`check`]: the conformance scenarios on one backend.
//! * [`tables`], [`mappings`], [`faults`]: the layers of torture.

pub mod check;
pub mod faults;
pub mod mappings;
pub mod tables;

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::{Args, Parser, Subcommand, ValueEnum};
use portolan_cli::{Form, Outcome, Output, print, print_json};
use serde_json::json;

use crate::backend::BackendGroup;
use crate::format::FormatName;
use crate::mappings::Health;

/// Referees of the library: the conformance scenarios of drivers, and random operations.
#[derive(Debug, Parser)]
#[command(name = "portolan-verify", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the conformance scenarios on a model or on QEMU.
    Check(CheckArgs),
    /// Do random operations on every table format against an oracle and the adversarial model.
    Torture(TortureArgs),
}

#[derive(Debug, Args)]
struct CheckArgs {
    /// Whose IOMMU; may be repeated. Those of the model if absent.
    #[arg(long = "backend", value_name = "BACKEND")]
    backends: Vec<BackendGroup>,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
struct TortureArgs {
    /// Random operations, shared out evenly over the formats.
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    operations: u64,
    /// Where the random operations come from; chosen and printed if absent.
    #[arg(long)]
    seed: Option<u64>,
    /// What the operations go through.
    #[arg(long, value_enum, default_value_t = Layer::Tables)]
    layer: Layer,
    /// Table format; may be repeated. All if absent.
    #[arg(long = "format", value_name = "FORMAT")]
    formats: Vec<FormatName>,
    /// Half of the rounds are on hardware that fails, dies and comes back, and with memory that runs
    /// out; for the layers of mappings and faults.
    #[arg(long)]
    failures: bool,
    /// CPUs in virtual time, for the layers of mappings and faults.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
    cpus: u16,
    #[command(flatten)]
    output: Output,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Layer {
    /// Page tables of every format.
    Tables,
    /// Buffers through the DMA layer, under every policy.
    Mappings,
    /// I/O page faults on memory that its owner takes back.
    Faults,
}

/// Runs the command line of the process.
pub fn main() -> ExitCode {
    let ended = match Cli::parse().command {
        Command::Check(args) => run_check(&args),
        Command::Torture(args) => run_torture(&args),
    };
    portolan_cli::exit("portolan-verify", ended)
}

fn run_check(args: &CheckArgs) -> Result<Outcome> {
    let models = [BackendGroup::models()];
    let backends = match args.backends.as_slice() {
        [] => &models[..],
        some => some,
    };
    let form = args.output.form();
    let mut reports = Vec::new();
    for backend in backends {
        let report = check::run(backend, &mut |on, line| {
            if form == Form::Text {
                // A reader that has gone away ends the output and not the check.
                let _ = print(&format!("{on}  {line}\n"));
            }
        });
        if form == Form::Text {
            print(&check::totals(&report))?;
        }
        reports.push(report);
    }
    if form == Form::Json {
        // One backend is one object, as the others' output is.
        match reports.as_slice() {
            [one] => print_json(one)?,
            several => print_json(&json!({ "backends": several }))?,
        }
    }
    Ok(Outcome::of(reports.iter().all(check::Report::holds)))
}

fn run_torture(args: &TortureArgs) -> Result<Outcome> {
    let formats = match args.formats.as_slice() {
        [] => &FormatName::ALL[..],
        some => some,
    };
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..));
    // Said before anything can go wrong.
    eprintln!("seed {seed}");
    let (cpus, operations, output) = (args.cpus.into(), args.operations, args.output);
    let health = match args.failures {
        true => Health::Failing,
        false => Health::Sound,
    };
    if health == Health::Failing && args.layer == Layer::Tables {
        bail!(
            "tables have no hardware that could fail: --failures is for --layer mappings or faults"
        );
    }
    let holds = match args.layer {
        Layer::Mappings => {
            let report = mappings::run(seed, cpus, operations, health);
            output.show(&report, mappings::text)?;
            report.holds()
        }
        Layer::Faults => {
            let report = faults::run(seed, cpus, operations, health);
            output.show(&report, faults::text)?;
            report.holds()
        }
        Layer::Tables => {
            let report = tables::run(formats, seed, operations);
            output.show(&report, tables::text)?;
            report.holds()
        }
    };
    Ok(Outcome::of(holds))
}
