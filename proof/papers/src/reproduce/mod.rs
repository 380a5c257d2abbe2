//! Published results, recomputed: counts from the library run against the model, times from prices
//! that are fitted on a named part of the rows and have to predict the rest.

mod bounds;
mod flush_queue;
mod flush_queue_text;
mod held_out;
mod iopf;
mod published;
mod range_flush;
mod registers;
mod rows;
mod swiotlb;
mod text;
mod walk_flush;

pub use bounds::{Bound, Evidence};
pub use flush_queue::{TABLE_WRITES, flush_queue};
pub use flush_queue_text::flush_queue_text;
pub use held_out::{HeldOut, HeldOutRow, held_out, held_out_text};
pub use iopf::{IopfReproduction, IopfRow, WindowRow, iopf, iopf_text};
pub use rows::{
    Check, FittedPrice, FlushQueue, Implied, LatencyRow, Ranged, Receivers, Reproduction,
    Throughput,
};
pub use swiotlb::{Swiotlb, swiotlb, swiotlb_text};
pub use text::{COLUMNS_IN_WORDS, text};

use anyhow::Result;
use portolan_sim::profile::Profile;

use crate::smmu_v2_board;

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
