//! Where the data of a command is: physical region pages.
//!
//! NVM Express base specification 2.0, section 4.1.1. The controller's page has 4 KiB.

use core::sync::atomic::{AtomicU64, Ordering};

use portolan::addr::Iova;
use portolan::dma::DmaSegment;

use super::NvmeError;

/// Bytes of a page: what one entry stands for.
pub const PAGE: u64 = 4096;

/// The two entries of a command.
#[derive(Clone, Copy, Default)]
pub struct Prps {
    /// The first page, or where in it the data begins.
    pub first: u64,
    /// The second page; for more than two, where the list of all but the first is.
    pub second: u64,
}

impl Prps {
    /// The data at `segments`, with `list`, which the controller sees at `list_at`, for its pages.
    ///
    /// # Errors
    /// If there is a gap inside of a page, or there are more pages than entries.
    pub fn new(
        segments: impl Iterator<Item = DmaSegment>,
        list: &[AtomicU64],
        list_at: Iova,
    ) -> Result<Self, NvmeError> {
        let (mut first, mut pages, mut end) = (0, 0, 0);
        for DmaSegment { iova, bytes } in segments {
            let mut at = iova.get();
            if pages != 0 && (at % PAGE != 0 || end % PAGE != 0) {
                return Err(NvmeError::Gap);
            }
            end = at.checked_add(bytes.get()).ok_or(NvmeError::Gap)?;
            while at < end {
                match pages {
                    0 => first = at,
                    _ => list
                        .get(pages - 1)
                        .ok_or(NvmeError::TooLong)?
                        .store(at.to_le(), Ordering::Relaxed),
                }
                pages += 1;
                at = (at | (PAGE - 1)).saturating_add(1);
            }
        }
        let second = match (pages, list.first()) {
            (2, Some(second)) => u64::from_le(second.load(Ordering::Relaxed)),
            (0 | 1, _) => 0,
            _ => list_at.get(),
        };
        Ok(Self { first, second })
    }
}
