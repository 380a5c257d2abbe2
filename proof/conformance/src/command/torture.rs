//! The layers of torture.

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use portolan_cli::{Outcome, Output};

use super::{faults, mappings, tables};
use crate::format::FormatName;
use crate::mappings::Health;

#[derive(Debug, Args)]
pub(super) struct TortureArgs {
    /// Random operations, shared out evenly over the formats.
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    operations: u64,
    /// Seed of the random operations; chosen and printed if absent.
    #[arg(long)]
    seed: Option<u64>,
    /// Layer of the library that runs the operations.
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

/// Runs one layer.
pub(super) fn run(args: &TortureArgs) -> Result<Outcome> {
    let formats = match args.formats.as_slice() {
        [] => &FormatName::ALL[..],
        some => some,
    };
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..));
    // Said before anything can go wrong.
    eprintln!("seed {seed}");
    let (cpus, operations, output) = (args.cpus.into(), args.operations, args.output);
    let health = if args.failures { Health::Failing } else { Health::Sound };
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
