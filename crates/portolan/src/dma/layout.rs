//! Layout of the pieces of a mapping, one behind the other, so that the device sees few segments.
//!
//! Each piece has pages of its own, with its offset kept. A device's boundary cuts pieces that
//! cross it: a piece begins at the next boundary instead where that makes fewer segments, as
//! Linux's iommu_dma_map_sg does. The addresses that are left free so lead to the first pages of
//! that piece: a mapping has no holes, and gives access to nothing but its buffer's pages.
//!
//! *Context.* Interrupt: everything here is a value.

use alloc::vec::Vec;
use core::num::NonZeroU64;

use arrayvec::ArrayVec;

use super::error::MapError;
use super::policy::{Constraints, MayBlock};
use crate::addr::{Iova, PageSize, PhysRange};

/// A contiguous piece of a mapping, as a device takes it into its descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DmaSegment {
    /// First address.
    pub iova: Iova,
    /// Length in bytes.
    pub bytes: NonZeroU64,
}

/// The place of one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Placed {
    /// Bytes left before its first page.
    pub lead: u64,
    /// The address of its first byte.
    pub first: u64,
}

/// Number of segments that a piece adds, and length of the last of them.
struct Cuts {
    added: u64,
    last: u64,
}

/// Places pieces in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    granule: PageSize,
    /// Pieces keep their address modulo this size: of a page at least.
    keep: PageSize,
    /// No segment crosses a multiple of this; none if pieces cannot be moved to one.
    boundary: Option<PageSize>,
    max: u64,
    /// The page behind the last piece.
    at: u64,
    /// Bytes of the last segment, if it ends where that page begins.
    open: u64,
}

impl Layout {
    /// For a mapping that begins at `first`.
    #[inline]
    pub fn new(first: Iova, granule: PageSize, constraints: &Constraints) -> Self {
        let keep = constraints.min_align_mask.max(granule);
        Self {
            granule,
            keep,
            boundary: constraints.seg_boundary.filter(|size| *size > keep),
            max: constraints.max_segment.get(),
            at: first.get(),
            open: 0,
        }
    }

    /// Tells if a device with `constraints` wants each piece in the page behind the one before it,
    /// whatever its length.
    #[inline]
    pub fn is_dense_for(constraints: &Constraints, granule: PageSize) -> bool {
        constraints.seg_boundary.is_none() && constraints.min_align_mask <= granule
    }

    /// Address of the first byte of `piece`, which is the first of a mapping that begins at `start`.
    #[inline]
    pub fn first(
        start: Iova,
        granule: PageSize,
        constraints: &Constraints,
        piece: PhysRange,
    ) -> Iova {
        let inside = piece.start().get() & (granule.bytes() - 1);
        match Self::is_dense_for(constraints, granule) {
            true => Iova::new(start.get() + inside),
            false => Iova::new(Self::new(start, granule, constraints).place(piece).first),
        }
    }

    #[inline]
    fn is_dense(&self) -> bool {
        self.boundary.is_none() && self.keep == self.granule
    }

    /// Alignment that a mapping of `bytes` bytes needs to be as it was laid out from address 0.
    pub fn alignment(&self, bytes: u64) -> PageSize {
        let whole = u64::BITS - bytes.saturating_sub(1).leading_zeros();
        let whole = PageSize::of_lg2(whole.min(u64::BITS - 1));
        let within = self.boundary.map_or(self.granule, |size| size.min(whole));
        self.keep.max(within)
    }

    /// Places `piece` behind those before it. Addresses wrap around.
    #[inline]
    pub fn place(&mut self, piece: PhysRange) -> Placed {
        let inside = piece.start().get() & (self.granule.bytes() - 1);
        let pages = self.pages(piece);
        let lead = match self.is_dense() {
            true => 0,
            false => self.lead(piece, inside),
        };
        let page = self.at.wrapping_add(lead);
        self.at = page.wrapping_add(pages);
        let first = page + inside;
        Placed { lead, first }
    }

    /// Number of ranges that [`Layout::filled`] makes of `pieces`, whose pages have fewer than 2^64
    /// bytes.
    pub fn count(mut self, pieces: &[PhysRange]) -> usize {
        let one = |&piece: &PhysRange| self.place(piece).lead.div_ceil(self.pages(piece));
        let fills = pieces.iter().map(one).fold(0, u64::saturating_add);
        let fills = usize::try_from(fills).unwrap_or(usize::MAX);
        pieces.len().saturating_add(fills)
    }

    /// `pieces` without holes: each behind as much of its own pages as there is room before it.
    pub fn filled(mut self, pieces: &[PhysRange]) -> impl Iterator<Item = PhysRange> {
        pieces.iter().flat_map(move |&piece| {
            let (lead, pages) = (self.place(piece).lead, self.pages(piece));
            let start = piece.start().align_down(self.granule);
            let fill = move |n| PhysRange::from_len(start, pages.min(lead - n * pages));
            let fills = (0..lead.div_ceil(pages)).filter_map(fill);
            fills.chain(core::iter::once(piece))
        })
    }

    /// Bytes of the pages that `piece` needs.
    #[inline]
    const fn pages(&self, piece: PhysRange) -> u64 {
        piece.pages(self.granule) << self.granule.lg2()
    }

    /// Number of bytes left free before `piece`, whose last segment is noted.
    #[cold]
    fn lead(&mut self, piece: PhysRange, inside: u64) -> u64 {
        let (start, bytes) = (piece.start().get(), piece.len_minus_one().saturating_add(1));
        let kept = (start & (self.keep.bytes() - 1)) - inside;
        let behind = |at: u64| kept.wrapping_sub(at) & (self.keep.bytes() - 1);
        let lead = behind(self.at);
        let Some(boundary) = self.boundary else {
            return lead;
        };
        let offset = |at: u64| (at + inside) & (boundary.bytes() - 1);
        let open = match (lead, inside) {
            (0, 0) => self.open,
            _ => 0,
        };
        let here = self.cuts(boundary, offset(self.at.wrapping_add(lead)), bytes, open);
        let next = self.at.wrapping_add(self.at.wrapping_neg() & (boundary.bytes() - 1));
        let later = next.wrapping_add(behind(next));
        let there = self.cuts(boundary, offset(later), bytes, 0);
        let (lead, cuts) = match there.added < here.added {
            true => (later.wrapping_sub(self.at), there),
            false => (lead, here),
        };
        let after = piece.last().get().wrapping_add(1) & (self.granule.bytes() - 1);
        self.open = if after == 0 { cuts.last } else { 0 };
        lead
    }

    /// Cuts of `bytes` bytes that begin `offset` behind a boundary, and behind `open` bytes of a
    /// segment that they may continue.
    fn cuts(&self, boundary: PageSize, offset: u64, bytes: u64, open: u64) -> Cuts {
        let segments = |bytes: u64| bytes.div_ceil(self.max);
        let last = |bytes: u64| (bytes.saturating_sub(1) % self.max).saturating_add(1);
        let open = if offset == 0 { 0 } else { open };
        let here = bytes.min(boundary.bytes() - offset);
        let joined = open.saturating_add(here);
        let added = segments(joined) - segments(open);
        let Some(more) = (bytes - here).checked_sub(1) else {
            let last = last(joined);
            return Cuts { added, last };
        };
        let (whole, rest) = (more / boundary.bytes(), more % boundary.bytes() + 1);
        let windows = whole.saturating_mul(segments(boundary.bytes()));
        let added = added.saturating_add(windows).saturating_add(segments(rest));
        let last = last(rest);
        Cuts { added, last }
    }
}

/// Pieces that are gathered on the stack: those of a contiguous buffer with its ends copied.
const FEW: usize = 4;

/// A list, as it is or gathered.
///
/// *Context.* Interrupt; [`PieceList::gather`] takes heap memory where it may wait.
pub(super) enum PieceList<'l> {
    There(&'l [PhysRange]),
    Few(ArrayVec<PhysRange, FEW>),
    Many(Vec<PhysRange>),
}

impl PieceList<'_> {
    /// The list of `pieces`, which are `count`.
    #[cold]
    pub fn gather(
        pieces: impl Iterator<Item = PhysRange>,
        count: usize,
        may_block: MayBlock,
    ) -> Result<Self, MapError> {
        if count <= FEW {
            return Ok(Self::Few(pieces.collect()));
        }
        if may_block == MayBlock::No {
            return Err(MapError::WouldWait);
        }
        let mut list = Vec::new();
        let room = list.try_reserve_exact(count);
        room.map_err(|_| MapError::Records)?;
        list.extend(pieces);
        Ok(Self::Many(list))
    }

    #[inline]
    pub fn as_slice(&self) -> &[PhysRange] {
        match self {
            Self::There(list) => list,
            Self::Few(list) => list,
            Self::Many(list) => list,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::PhysAddr;
    use crate::dma::Pieces;
    use crate::dma::reach::{DmaSegments, Placing, Reached};
    use alloc::vec::Vec;
    use core::num::NonZeroU64;

    fn limits(pages: u64, boundary: u32, keep: u32) -> Constraints {
        Constraints {
            max_segment: NonZeroU64::new(pages << 12).unwrap(),
            seg_boundary: Some(PageSize::of_lg2(boundary)),
            min_align_mask: PageSize::of_lg2(keep),
            ..Constraints::trusted()
        }
    }

    fn pieces(list: &[(u64, u64)]) -> Vec<PhysRange> {
        let piece = |&(start, bytes)| PhysRange::from_len(PhysAddr::new(start), bytes).unwrap();
        list.iter().map(piece).collect()
    }

    /// Number of the first page and pages of each segment, from an aligned address.
    fn segments(list: &[(u64, u64)], constraints: &Constraints) -> Vec<(u64, u64)> {
        let list = pieces(list);
        let layout = Layout::new(Iova::new(0), PageSize::SIZE_4K, constraints);
        let reached = Reached::new(Pieces::List(&list), None);
        DmaSegments::new(reached, Placing::From(layout), constraints)
            .map(|segment| (segment.iova.get() >> 12, segment.bytes.get() >> 12))
            .collect()
    }

    #[test]
    fn a_piece_moves_to_the_next_boundary_if_that_saves_a_segment() {
        // Pieces of three pages, whose neighbours are elsewhere in memory; a boundary at four.
        let three = [(0x10_0000, 0x3000), (0x20_0000, 0x3000)];
        assert_eq!(segments(&three, &limits(3, 14, 12)), [(0, 3), (4, 3)]);
        // Joined they would be cut at four and six: as many, and without a gap.
        assert_eq!(segments(&three, &limits(4, 14, 12)), [(0, 4), (4, 2)]);
        // One that does not begin with its page cannot join.
        let odd = [(0x10_0000, 0x3000), (0x20_0800, 0x2000)];
        assert_eq!(segments(&odd, &limits(9, 14, 12)), [(0, 3), (4, 2)]);
        // Longer than the distance of two boundaries.
        let long = [(0x10_0000, 0x1000), (0x20_0800, 0x7000)];
        assert_eq!(segments(&long, &limits(9, 14, 12)), [(0, 1), (4, 3), (8, 3)]);
    }

    #[test]
    fn pieces_keep_as_many_bits_as_the_device_uses() {
        let constraints = Constraints { seg_boundary: None, ..limits(64, 14, 16) };
        let list = pieces(&[(0x1_3000, 0x1000), (0x2_2000, 0x2800), (0xf_0010, 0x10)]);
        let mut layout = Layout::new(Iova::new(0), PageSize::SIZE_4K, &constraints);
        let placed: Vec<_> = list.iter().map(|piece| layout.place(*piece)).collect();
        let firsts: Vec<_> = placed.iter().map(|placed| placed.first).collect();
        assert_eq!(firsts, [0x3000, 0x1_2000, 0x2_0010]);
        let leads: Vec<_> = placed.iter().map(|placed| placed.lead).collect();
        assert_eq!(leads, [0x3000, 0xe000, 0xb000]);
        assert_eq!(layout.alignment(0x3000), PageSize::SIZE_64K);
    }

    /// Against all ways to leave room before each piece, a window or less.
    #[test]
    fn no_way_to_place_two_pieces_makes_fewer_segments() {
        // Segments that fill the space between two boundaries, or are cut by nothing else.
        for max in [1, 2, 4, 5] {
            for first in 1..=9u64 {
                for second in 1..=9u64 {
                    let list = [(0x100_0000, first << 12), (0x200_0000, second << 12)];
                    let constraints = limits(max, 14, 12);
                    let best = (0..4).map(|gap| {
                        let at = |from: u64, pages: u64, open: u64| {
                            let mut cut: Vec<(u64, u64)> = Vec::new();
                            let mut length = open;
                            for page in from..from + pages {
                                let begins = page % 4 == 0 || length == 0 || length == max;
                                length = if begins { 1 } else { length + 1 };
                                cut.extend(begins.then_some((page, 1)));
                            }
                            (cut.len(), length)
                        };
                        let (one, open) = at(0, first, 0);
                        let open = if gap == 0 { open } else { 0 };
                        one + at(first + gap, second, open).0
                    });
                    let best = best.min().unwrap();
                    assert_eq!(segments(&list, &constraints).len(), best, "{max} {first} {second}");
                }
            }
        }
    }

    #[test]
    fn a_mapping_is_aligned_to_itself_or_to_the_boundary() {
        let layout = Layout::new(Iova::new(0), PageSize::SIZE_4K, &limits(9, 16, 12));
        for (bytes, lg2) in [
            (1, 12),
            (0x1000, 12),
            (0x1001, 13),
            (0x3000, 14),
            (0x8001, 16),
            (1 << 40, 16),
            (u64::MAX, 16),
        ] {
            assert_eq!(layout.alignment(bytes), PageSize::of_lg2(lg2), "{bytes:#x}");
        }
    }

    /// Against bytes that are put into segments one by one.
    #[test]
    fn cuts_are_those_of_byte_after_byte() {
        let boundary = PageSize::of_lg2(4);
        for max in 1..=20 {
            let constraints =
                Constraints { max_segment: NonZeroU64::new(max).unwrap(), ..limits(1, 14, 12) };
            let layout = Layout::new(Iova::new(0), PageSize::SIZE_4K, &constraints);
            for (offset, bytes) in (0..16).flat_map(|at| (1..50).map(move |bytes| (at, bytes))) {
                for open in 0..=max.min(offset) {
                    let (mut added, mut last) = (0, open);
                    for at in offset..offset + bytes {
                        let begins = at % 16 == 0 || last == 0 || last == max;
                        added += u64::from(begins);
                        last = if begins { 1 } else { last + 1 };
                    }
                    let cuts = layout.cuts(boundary, offset, bytes, open);
                    let context = (max, offset, bytes, open);
                    assert_eq!((cuts.added, cuts.last), (added, last), "{context:?}");
                }
            }
        }
    }
}
