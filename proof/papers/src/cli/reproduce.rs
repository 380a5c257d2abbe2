//! `portolan-papers reproduce`.

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use portolan_cli::display::wrapped;
use portolan_cli::progress::Progress;
use portolan_cli::{Outcome, Output};

use crate::report::{self, Results};
use crate::reproduce;
use portolan_tune::cli::report::{ReportArgs, origin};

#[derive(Debug, Args)]
#[command(after_help = reproduce::COLUMNS_IN_WORDS)]
pub(super) struct ReproduceArgs {
    /// The published result.
    result: PublishedResult,
    #[command(flatten)]
    report: ReportArgs,
    #[command(flatten)]
    output: Output,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum PublishedResult {
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

/// A reproduction: its name, its JSON, its text, and `true` if it holds.
type Reproduced = (&'static str, serde_json::Value, String, bool);

fn reproduce_one(
    result: PublishedResult,
    columns: usize,
    page: &mut Results,
) -> Result<Reproduced> {
    macro_rules! reproduced {
        ($name:literal, $run:ident, $text:ident, $add:ident) => {{
            let result = reproduce::$run()?;
            page.$add(&result);
            let holds = result.holds();
            ($name, serde_json::to_value(&result)?, reproduce::$text(&result, columns), holds)
        }};
    }
    Ok(match result {
        PublishedResult::WalkFlush => reproduced!("walk-flush", walk_flush, text, latencies),
        PublishedResult::RangeFlush => reproduced!("range-flush", range_flush, text, latencies),
        PublishedResult::FlushQueue => {
            reproduced!("flush-queue", flush_queue, flush_queue_text, flush_queue)
        }
        PublishedResult::Swiotlb => reproduced!("swiotlb", swiotlb, swiotlb_text, swiotlb),
        PublishedResult::Iopf => reproduced!("iopf", iopf, iopf_text, iopf),
        PublishedResult::HeldOut => reproduced!("held-out", held_out, held_out_text, held_out),
        PublishedResult::All => bail!("`all` is not one result"),
    })
}

pub(super) fn run(args: &ReproduceArgs) -> Result<Outcome> {
    let destination = args.report.destination(&[])?;
    let mut page = Results::default();
    let all = match args.result {
        PublishedResult::All => reproduce_all(args.output, &mut page)?,
        one => {
            let (_, value, text, holds) = reproduce_one(one, args.output.columns(), &mut page)?;
            args.output.show(&value, |_, _| text.clone())?;
            holds
        }
    };
    if let Some(destination) = destination {
        // The machine of each result stands in its section.
        destination.write(&report::reproductions(page, origin(Vec::new())))?;
    }
    Ok(Outcome::of(all))
}

/// Reproduces each result; returns `true` if all of them hold.
fn reproduce_all(output: Output, page: &mut Results) -> Result<bool> {
    let results = PublishedResult::value_variants()
        .iter()
        .filter(|result| !matches!(result, PublishedResult::All));
    let progress = Progress::new(results.clone().count() as u64);
    let (mut document, mut texts) = (serde_json::Map::new(), Vec::new());
    let mut failed = Vec::new();
    for result in results {
        let (name, value, text, holds) = reproduce_one(*result, output.columns(), page)?;
        document.insert(name.to_owned(), value);
        texts.push(text);
        if !holds {
            failed.push(name);
        }
        progress.add(1);
    }
    drop(progress);
    let holds = failed.is_empty();
    output.show(&document, |document, columns| {
        let names: Vec<&str> = document.keys().map(String::as_str).collect();
        let said = if holds {
"each is as near as it promises to be".to_owned()
} else {
format!("{} FAIL", failed.join(", "))
};
        let answer = format!(
            "{} published results, computed again from the library's code and the prices of each machine's \
             profile: {}; {said}.\n\n",
            names.len(),
            names.join(", ")
        );
        wrapped(&answer, columns) + &texts.join("\n")
    })?;
    Ok(holds)
}
