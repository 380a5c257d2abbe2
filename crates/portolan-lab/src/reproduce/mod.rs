//! Published results, recomputed: counts from the library run against the model, times from prices
//! that are fitted on a named part of the rows and have to predict the rest.

mod bounds;
mod fit;
mod flush_queue;
mod flush_queue_text;
mod held_out;
mod iopf;
mod published;
mod range_flush;
mod registers;
mod rows;
mod swiotlb;
mod walk_flush;

pub use bounds::{Bound, Evidence};
pub use flush_queue::{TABLE_WRITES, flush_queue};
pub use flush_queue_text::flush_queue_text;
pub use held_out::{HeldOut, HeldOutRow, held_out, held_out_text};
pub use iopf::{IopfReproduction, IopfRow, WindowRow, iopf, iopf_text};
pub use rows::{
    Check, FittedPrice, FlushQueue, Implied, Ranged, Receivers, Reproduction, Row, Throughput,
};
pub use swiotlb::{Swiotlb, swiotlb, swiotlb_text};

use anyhow::Result;
use portolan_model::profile::Profile;

use crate::smmu_v2_board;
use portolan_cli::display;

/// Recomputes walk flush by context, through the driver of Qualcomm's SMMUv2 on the model.
///
/// # Errors
/// If a profile or a published table is wrong, or the library refuses an operation.
pub fn walk_flush() -> Result<Reproduction> {
    let profile = Profile::by_name(walk_flush::MACHINE)?;
    let span = smmu_v2_board::TABLE_SPAN.bytes();
    walk_flush::reproduce(&profile, span, &mut |direction, bytes, way| {
        smmu_v2_board::measure(&profile, direction, bytes, way)
    })
}

/// Recomputes range flush.
///
/// # Errors
/// If a profile or a published table is wrong, or the library refuses an operation.
pub fn range_flush() -> Result<Reproduction> {
    let profile = Profile::by_name(range_flush::MACHINE)?;
    range_flush::reproduce(
        &profile,
        &mut |direction, bytes, way| registers::measure(&profile, direction, bytes, way),
        &|bytes, way| registers::tear_down(&profile, bytes, way),
    )
}

/// The cells of one row.
fn cells(row: &Row) -> Vec<String> {
    let size = display::bytes(row.size_bytes);
    let published = match row.published_range {
        Some([low, high]) => format!("{low:.0}..{high:.0}"),
        None => row
            .published
            .map_or("-".to_owned(), |us| format!("{us:.3}")),
    };
    let word = row.evidence.word();
    vec![
        row.case.to_owned(),
        row.size
            .as_ref()
            .map_or(size.clone(), |name| format!("{name} ({size})")),
        row.variant.to_owned(),
        published,
        format!("{:.3}", row.computed),
        row.error_pct
            .map_or(String::new(), |error| format!("{error:+.1}")),
        match row.computed_range {
            Some(range) => format!("{word} ({:.1} to {:.1})", range.low, range.high),
            None => word.to_owned(),
        },
        display::grouped(row.counts.page),
        display::grouped(row.counts.range),
        display::grouped(row.counts.context),
        display::grouped(row.counts.sync),
    ]
}

/// A reproduction as text.
pub fn text(result: &Reproduction) -> String {
    let rows = result.rows.iter().map(cells).collect();
    let header = [
        "case",
        "size",
        "variant",
        "published µs",
        "computed µs",
        "error %",
        "",
        "by page",
        "by range",
        "by context",
        "syncs",
    ];
    let mut out = format!("{} on {}\n\n", result.name, result.machine);
    out.push_str(&display::table(&header, &[3, 4, 5, 7, 8, 9, 10], rows));
    let overs = result
        .rows
        .iter()
        .filter_map(|row| Some(row.computed_range?.over));
    let mut overs: Vec<_> = overs.collect();
    overs.sort_unstable();
    overs.dedup();
    for over in overs {
        out.push_str(&format!("\n\nRanges in brackets: {over}."));
    }
    out.push_str(&registers::text(&result.rows));
    out.push_str("\n\nFitted prices\n\n");
    let prices = result.prices.iter().map(|price| {
        let ns = format!("{:.3}", price.ns);
        vec![
            price.case.to_owned(),
            price.event.to_owned(),
            ns,
            price.fitted_on.to_owned(),
        ]
    });
    out.push_str(&display::table(
        &["case", "event", "ns", "fitted on"],
        &[2],
        prices.collect(),
    ));
    out.push_str("\n\n");
    out.push_str(&Bound::table(&result.bounds));
    out.push_str(&Check::lines(&result.checks));
    for note in &result.notes {
        out.push_str(note);
        out.push('\n');
    }
    out
}
