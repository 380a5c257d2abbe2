//! Addresses at which a device sees the pieces of its buffers.
//!
//! *Context.* Interrupt: everything here is a value.

use core::num::NonZeroU64;

use super::Constraints;
use super::copies::Reached;
use super::layout::Layout;
use crate::addr::{Iova, PageSize, PhysRange};

/// A contiguous piece of a mapping, as a device takes it into its descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DmaSegment {
    /// First address.
    pub iova: Iova,
    /// Length in bytes.
    pub bytes: NonZeroU64,
}

/// Places of the pieces of a buffer for the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Placing {
    /// One after the other, each in pages of its own.
    From(Layout),
    /// At their physical addresses.
    Identity,
    /// At their physical addresses and so much, modulo 2^64.
    Moved(u64),
}

/// The segments of a mapping: neighbours joined, then cut at the device's limits.
///
/// ```no_run
/// # use portolan::dma::{Buffer, DataDirection, Mapping};
/// # use portolan::platform::Platform;
/// /// Fills a ring's descriptors: an address and a length each.
/// fn describe<P, B, D>(mapping: &Mapping<P, B, D>, ring: &mut [(u64, u32)]) -> Option<usize>
/// where
///     P: Platform,
///     B: Buffer,
///     D: DataDirection,
/// {
///     let mut used = 0;
///     for segment in mapping.segments() {
///         let bytes = u32::try_from(segment.bytes.get()).ok()?;
///         *ring.get_mut(used)? = (segment.iova.get(), bytes);
///         used += 1;
///     }
///     Some(used)
/// }
/// ```
#[derive(Clone, Debug)]
pub struct DmaSegments<'m> {
    pieces: core::iter::Peekable<Reached<'m>>,
    placing: Placing,
    max: u64,
    boundary: Option<PageSize>,
    /// First address and number of bytes not handed out yet.
    run: Option<(u64, u64)>,
}

impl Placing {
    /// Address of `piece`, and the placing for the one after it.
    #[inline]
    pub fn place(self, piece: PhysRange) -> (u64, Self) {
        match self {
            Self::Identity => (piece.start().get(), self),
            Self::Moved(by) => (piece.start().get().wrapping_add(by), self),
            Self::From(mut layout) => (layout.place(piece).first, Self::From(layout)),
        }
    }
}

impl<'m> DmaSegments<'m> {
    pub(super) fn new(pieces: Reached<'m>, placing: Placing, constraints: &Constraints) -> Self {
        Self {
            pieces: pieces.peekable(),
            placing,
            max: constraints.max_segment.get(),
            boundary: constraints.seg_boundary,
            run: None,
        }
    }

    /// The offset in the buffer that the device reaches at `iova`.
    pub(super) fn offset_of(mut self, iova: Iova) -> Option<u64> {
        let mut before = 0u64;
        while let Some((start, bytes)) = self.next_run() {
            let inside = iova.get().wrapping_sub(start);
            if inside < bytes {
                return before.checked_add(inside);
            }
            before = before.saturating_add(bytes);
        }
        None
    }

    fn next_run(&mut self) -> Option<(u64, u64)> {
        let first = self.pieces.next()?;
        let (start, after) = self.placing.place(first);
        self.placing = after;
        let mut bytes = first.len_minus_one().saturating_add(1);
        while let Some(&piece) = self.pieces.peek() {
            let (at, after) = self.placing.place(piece);
            if at != start.wrapping_add(bytes) {
                break;
            }
            self.placing = after;
            bytes = bytes.saturating_add(piece.len_minus_one().saturating_add(1));
            self.pieces.next();
        }
        Some((start, bytes))
    }
}

impl Iterator for DmaSegments<'_> {
    type Item = DmaSegment;

    fn next(&mut self) -> Option<DmaSegment> {
        let (start, left) = match self.run.take() {
            Some(run) => run,
            None => self.next_run()?,
        };
        let mut bytes = left.min(self.max);
        if let Some(boundary) = self.boundary {
            let room = boundary.bytes() - (start & (boundary.bytes() - 1));
            bytes = bytes.min(room);
        }
        if bytes < left {
            self.run = Some((start.wrapping_add(bytes), left - bytes));
        }
        NonZeroU64::new(bytes).map(|bytes| DmaSegment { iova: Iova::new(start), bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::PhysAddr;
    use crate::dma::Pieces;
    use alloc::vec::Vec;

    fn piece(start: u64, bytes: u64) -> PhysRange {
        PhysRange::from_len(PhysAddr::new(start), bytes).unwrap()
    }

    fn segments(pieces: &[PhysRange], constraints: &Constraints) -> Vec<(u64, u64)> {
        let layout = Layout::new(Iova::new(0x10_0000), PageSize::SIZE_4K, constraints);
        let all = Reached::new(Pieces::List(pieces), None);
        DmaSegments::new(all, Placing::From(layout), constraints)
            .map(|segment| (segment.iova.get(), segment.bytes.get()))
            .collect()
    }

    #[test]
    fn whole_pages_join_and_others_keep_their_offsets() {
        let pieces = [piece(0x5000, 0x1000), piece(0x9000, 0x2000)];
        let plain = Constraints::trusted();
        assert_eq!(segments(&pieces, &plain), [(0x10_0000, 0x3000)]);
        let pieces = [piece(0x5ff0, 0x20), piece(0x9000, 0x1800), piece(0x700, 0x10)];
        let expected = [(0x10_0ff0, 0x20), (0x10_2000, 0x1800), (0x10_4700, 0x10)];
        assert_eq!(segments(&pieces, &plain), expected);
    }

    #[test]
    fn runs_are_cut_at_the_device_s_limits() {
        let mut limits =
            Constraints { max_segment: NonZeroU64::new(0x3000).unwrap(), ..Constraints::trusted() };
        let pieces = [piece(0x1_0800, 0x7000)];
        let expected = [(0x10_0800, 0x3000), (0x10_3800, 0x3000), (0x10_6800, 0x1000)];
        assert_eq!(segments(&pieces, &limits), expected);
        limits.seg_boundary = Some(PageSize::of_lg2(14));
        let expected =
            [(0x10_0800, 0x3000), (0x10_3800, 0x800), (0x10_4000, 0x3000), (0x10_7000, 0x800)];
        assert_eq!(segments(&pieces, &limits), expected);
    }
}
