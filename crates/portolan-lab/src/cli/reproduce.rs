//! `portolan reproduce`.

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use portolan_cli::{Outcome, Output};

use crate::reproduce;

#[derive(Debug, Args)]
pub(super) struct ReproduceArgs {
    /// The published result.
    result: Published,
    #[command(flatten)]
    output: Output,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Published {
    /// Walk flush by context (Qualcomm SMMU, 2021).
    WalkFlush,
    /// Range flush (Tegra SMMU, 2015).
    RangeFlush,
    /// Lazy invalidation under a virtual IOMMU (VT-d, 2023).
    FlushQueue,
    /// Bounce-buffer pools that scale (swiotlb, 2022).
    Swiotlb,
    /// I/O page faults instead of pinning (VFIO passthrough, 2021).
    Iopf,
    /// Figures of other machines, on which no price was fitted.
    HeldOut,
    /// Each of them, one after the other; one object by name.
    All,
}

/// A reproduction: its JSON, its text, and whether it holds.
type Reproduced = (&'static str, serde_json::Value, String, bool);

fn reproduce_one(result: Published) -> Result<Reproduced> {
    macro_rules! reproduced {
        ($name:literal, $run:ident, $text:ident) => {{
            let result = reproduce::$run()?;
            let holds = result.holds();
            (
                $name,
                serde_json::to_value(&result)?,
                reproduce::$text(&result),
                holds,
            )
        }};
    }
    Ok(match result {
        Published::WalkFlush => reproduced!("walk-flush", walk_flush, text),
        Published::RangeFlush => reproduced!("range-flush", range_flush, text),
        Published::FlushQueue => reproduced!("flush-queue", flush_queue, flush_queue_text),
        Published::Swiotlb => reproduced!("swiotlb", swiotlb, swiotlb_text),
        Published::Iopf => reproduced!("iopf", iopf, iopf_text),
        Published::HeldOut => reproduced!("held-out", held_out, held_out_text),
        Published::All => bail!("`all` is not one result"),
    })
}

pub(super) fn run(args: &ReproduceArgs) -> Result<Outcome> {
    let Published::All = args.result else {
        let (_, value, text, holds) = reproduce_one(args.result)?;
        args.output.show(&value, |_| text.clone())?;
        return Ok(Outcome::of(holds));
    };
    let (mut document, mut texts, mut all) = (serde_json::Map::new(), String::new(), true);
    for result in Published::value_variants() {
        if let Published::All = result {
            continue;
        }
        let (name, value, text, holds) = reproduce_one(*result)?;
        document.insert(name.to_owned(), value);
        texts.push_str(&text);
        texts.push('\n');
        all &= holds;
    }
    args.output.show(&document, |_| texts.clone())?;
    Ok(Outcome::of(all))
}
