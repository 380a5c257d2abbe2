//! Size classes: blocks that a per-CPU cache may hold, and their places.
//!
//! A class is a power of two of granules, and its blocks are aligned to their size. A range that
//! was rounded up to a block begins where the block does; one that was not begins elsewhere, or is
//! too large for a class. So the range alone tells the class to which it returns. Classes are kept
//! twice where the space reaches above 32 bits, so that a device that needs low addresses never has
//! to look through high ones.
//!
//! *Context.* Interrupt: everything here is a value.

use super::{FreeError, IovaError, Request};
use crate::addr::{Iova, IovaRange, PageSize};

/// Sizes that per-CPU caches hold: 1 to 512 granules, 2 MiB where a granule has 4 KiB.
pub(super) const CLASSES: usize = 10;
/// Classes, below and above 32 bits.
pub(super) const KINDS: usize = 2 * CLASSES;
/// The highest address of devices with 32 bits.
const LOW_LAST: u64 = u32::MAX as u64;

/// One call has at most one part in so many of a zone in hand.
const SHARE: u64 = 64;

/// A class in a zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kind(usize);

impl Kind {
    pub fn all() -> impl Iterator<Item = Self> {
        (0..KINDS).map(Self)
    }

    #[inline]
    pub const fn index(self) -> usize {
        self.0
    }

    /// Granules of a block, as a power of two.
    #[inline]
    pub fn order(self) -> u32 {
        (self.0 % CLASSES) as u32
    }

    /// Tells if blocks of the kind can lie at or below `limit`.
    pub fn serves(self, limit: Iova) -> bool {
        self.0 < CLASSES || limit.get() > LOW_LAST
    }
}

/// A request that a class can serve.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub kind: Kind,
    /// The highest first address that the device can use.
    pub highest: u64,
}

/// The order of more than one granule. Apart, so that one granule is foretold and not computed.
#[cold]
fn order_of(granules_less_one: u64) -> u32 {
    u64::BITS - granules_less_one.leading_zeros()
}

/// The kind of high blocks. Apart, so that the zone is foretold and not computed.
#[cold]
fn high(order: u32) -> Kind {
    Kind(order as usize + CLASSES)
}

/// The classes of a space.
#[derive(Clone, Copy, Debug)]
pub(super) struct Classes {
    granule: PageSize,
    /// Bytes of a granule less one, and bytes as a power of two.
    inside: u64,
    lg2: u32,
    /// Whole granules only.
    space: IovaRange,
    /// The last address of the low zone; that of all addresses if there is no other zone.
    low_last: u64,
    /// Bytes of the largest block, less one.
    largest: u64,
}

impl Classes {
    /// The classes of a space of whole granules.
    pub fn new(space: IovaRange, granule: PageSize) -> Self {
        let apart = space.last().get() > LOW_LAST && granule.lg2() < 23;
        // As many classes as have blocks that 64 bits can say.
        let count = (CLASSES as u32).min(u64::BITS - granule.lg2());
        Self {
            granule,
            inside: granule.bytes() - 1,
            lg2: granule.lg2(),
            space,
            low_last: if apart { LOW_LAST } else { u64::MAX },
            largest: (granule.bytes() << (count - 1)) - 1,
        }
    }

    pub fn space(&self) -> IovaRange {
        self.space
    }

    pub fn granule(&self) -> PageSize {
        self.granule
    }

    /// Bytes of a block of `order`, less one.
    #[inline]
    fn block(&self, order: u32) -> u64 {
        ((self.inside + 1) << order).wrapping_sub(1)
    }

    /// The order of the smallest block for so many bytes, `None` if no class has it.
    #[inline]
    fn order(&self, less_one: u64) -> Option<u32> {
        if less_one > self.largest {
            return None;
        }
        match less_one >> self.lg2 {
            0 => Some(0),
            more => Some(order_of(more)),
        }
    }

    /// The kind of a block that ends at `last`.
    #[inline]
    fn kind(&self, order: u32, last: u64) -> Kind {
        // A branch foretells the zone: computed, the place of the kind's words would wait for the address.
        match last > self.low_last {
            false => Kind(order as usize),
            true => high(order),
        }
    }

    /// The kind of the block of `kind`'s size that begins at `start`.
    pub fn kind_at(&self, kind: Kind, start: u64) -> Kind {
        self.kind(kind.order(), start.saturating_add(self.block(kind.order())))
    }

    /// The most blocks of a kind that one call may have in hand: a small share of the zone, since
    /// no other call can use them meanwhile.
    pub fn share(&self, kind: Kind) -> u64 {
        let (start, last) = (self.space.start().get(), self.space.last().get());
        let last = match kind.index() {
            0..CLASSES => last.min(self.low_last),
            _ => last,
        };
        let granules = last.saturating_sub(start) >> self.granule.lg2();
        ((granules / SHARE) >> kind.order()).max(1)
    }

    /// The class that serves a request, `None` if it goes to the ranges.
    ///
    /// # Errors
    /// [`IovaError::Empty`].
    #[inline]
    pub fn of_request(&self, request: &Request) -> Result<Option<Block>, IovaError> {
        let less_one = request.bytes.checked_sub(1).ok_or(IovaError::Empty)?;
        let Some(order) = self.order(less_one) else {
            return Ok(None);
        };
        let limit = request.limit.get();
        let Some(highest) = limit.checked_sub(self.block(order)) else {
            return Ok(None);
        };
        let aligned = request.align.lg2() <= self.lg2 + order;
        Ok(aligned.then_some(Block { kind: self.kind(order, limit), highest }))
    }

    /// The block for a request of one granule; `None` for others.
    #[inline]
    pub fn granule_for(&self, request: &Request) -> Option<Block> {
        let (less_one, limit) = (request.bytes.wrapping_sub(1), request.limit.get());
        let inside = self.inside;
        if less_one > inside || request.align.lg2() > self.lg2 || limit < inside {
            return None;
        }
        Some(Block { kind: self.kind(0, limit), highest: limit - inside })
    }

    /// The kind of a range that is one granule of the space; `None` for others.
    #[inline]
    pub fn of_granule(&self, range: IovaRange) -> Option<Kind> {
        let (start, last) = (range.start().get(), range.last().get());
        let (window, inside) = (self.space, self.inside);
        let here = start >= window.start().get() && last <= window.last().get();
        if !here || start & inside != 0 || start | inside != last {
            return None;
        }
        Some(self.kind(0, last))
    }

    /// The granule at `start`.
    #[inline]
    pub fn granule_at(&self, start: u64) -> IovaRange {
        let (start, last) = (Iova::new(start), Iova::new(start | self.inside));
        // Never the other: the last address does not lie below the first.
        IovaRange::new(start, last).unwrap_or_else(|| IovaRange::page(start, self.granule))
    }

    /// Request to the ranges for `request`: a whole block if it is of a class's size.
    pub fn whole(&self, request: &Request) -> Request {
        let Some(order) = self.order(request.bytes.saturating_sub(1)) else {
            return *request;
        };
        let block = PageSize::of_lg2(self.granule.lg2() + order);
        Request { bytes: block.bytes(), align: request.align.max(block), limit: request.limit }
    }

    /// The class of a range that comes back, `None` if it goes to the ranges.
    ///
    /// # Errors
    /// [`FreeError::Foreign`].
    #[inline]
    pub fn of_range(&self, range: IovaRange) -> Result<Option<Kind>, FreeError> {
        match self.of_block(range) {
            None => self.of_no_class(range),
            kind => Ok(kind),
        }
    }

    /// The class of a range that is a block of the space, or the beginning of one.
    #[inline]
    pub fn of_block(&self, range: IovaRange) -> Option<Kind> {
        let (start, less_one) = (range.start().get(), range.len_minus_one());
        let order = self.order(less_one)?;
        let (block, odd) = (self.block(order), self.inside);
        // Aligned to its block, and so of whole granules if its end is one's.
        if start & block != 0 || less_one & odd != odd {
            return None;
        }
        let last = start | block;
        // No block reaches past an end of the space, but a range that is no block may lie there.
        if start < self.space.start().get() || last > self.space.last().get() {
            return None;
        }
        Some(self.kind(order, last))
    }

    /// The same of a range that is no block, nor the beginning of one.
    ///
    /// # Errors
    /// [`FreeError::Foreign`].
    #[cold]
    pub fn of_no_class(&self, range: IovaRange) -> Result<Option<Kind>, FreeError> {
        let (start, less_one) = (range.start().get(), range.len_minus_one());
        let odd = self.inside;
        if !self.space.covers(range) || start & odd != 0 || less_one & odd != odd {
            return Err(FreeError::Foreign { range });
        }
        Ok(None)
    }

    /// The block of `kind` at `start`.
    pub fn block_at(&self, kind: Kind, start: u64) -> IovaRange {
        let last = Iova::new(start + self.block(kind.order()));
        let start = Iova::new(start);
        IovaRange::new(start, last).unwrap_or(IovaRange::page(start, self.granule))
    }

    /// The range for a request that is served at `start`.
    #[inline]
    pub fn exact(&self, start: u64, request: &Request) -> IovaRange {
        let last = start.saturating_add((request.bytes - 1) | self.inside);
        let start = Iova::new(start);
        // Never the other: the last address does not lie below the first.
        let range = IovaRange::new(start, Iova::new(last));
        range.unwrap_or_else(|| IovaRange::page(start, self.granule))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_comes_back_to_where_its_request_looks() {
        let space = IovaRange::from_len(Iova::new(0), 1 << 40).unwrap();
        let classes = Classes::new(space, PageSize::SIZE_4K);
        for pages in 1..=512u64 {
            for (start, limit) in [(1 << 22, LOW_LAST), (1 << 33, u64::MAX)] {
                let request = Request {
                    bytes: (pages << 12) - 1,
                    align: PageSize::SIZE_4K,
                    limit: Iova::new(limit),
                };
                let block = classes.of_request(&request).unwrap().unwrap();
                assert!(block.kind.serves(request.limit));
                let range = classes.exact(start, &request);
                assert_eq!(range.pages(PageSize::SIZE_4K), pages);
                assert_eq!(classes.of_range(range), Ok(Some(block.kind)));
                let whole = classes.block_at(block.kind, start);
                assert!(whole.covers(range) && classes.kind_at(block.kind, start) == block.kind);
                assert_eq!(classes.whole(&request).bytes, whole.len_minus_one() + 1);
            }
        }
        let odd = IovaRange::from_len(Iova::new(0x1000), 0x2000).unwrap();
        assert_eq!(classes.of_range(odd), Ok(None));
    }

    #[test]
    fn low_blocks_serve_all_devices_and_high_ones_those_that_reach_above_32_bits() {
        for (limit, high) in [(0xfff, false), (LOW_LAST, false), (LOW_LAST + 1, true)] {
            let limit = Iova::new(limit);
            assert!(Kind(0).serves(limit) && Kind(CLASSES - 1).serves(limit));
            let served = [CLASSES, KINDS - 1].map(|kind| Kind(kind).serves(limit));
            assert_eq!(served, [high; 2]);
        }
    }

    #[test]
    fn one_call_has_a_64th_of_its_zone_in_hand_at_most() {
        let space = IovaRange::from_len(Iova::new(0), 1 << 40).unwrap();
        let classes = Classes::new(space, PageSize::SIZE_4K);
        let low = (1 << 20) / 64 - 1;
        let high = (1 << 28) / 64 - 1;
        for (kind, share) in [(0, low), (3, low >> 3), (CLASSES, high), (CLASSES + 9, high >> 9)] {
            assert_eq!(classes.share(Kind(kind)), share, "{kind}");
        }
        let small = IovaRange::from_len(Iova::new(0), 1 << 16).unwrap();
        assert_eq!(Classes::new(small, PageSize::SIZE_4K).share(Kind(0)), 1);
    }

    #[test]
    fn what_lies_outside_or_off_the_granule_is_foreign() {
        let space = IovaRange::from_len(Iova::new(1 << 20), 1 << 20).unwrap();
        let classes = Classes::new(space, PageSize::SIZE_4K);
        for (start, bytes) in [
            (0, 0x1000),
            ((1 << 20) - 0x1000, 0x2000),
            (2 << 20, 0x1000),
            ((1 << 20) + 0x800, 0x1000),
            (1 << 20, 0x800),
            (1 << 20, 0x1800),
        ] {
            let range = IovaRange::from_len(Iova::new(start), bytes).unwrap();
            let foreign = Err(FreeError::Foreign { range });
            assert_eq!(classes.of_range(range), foreign, "{start:#x} {bytes:#x}");
        }
        let first = IovaRange::from_len(space.start(), 0x1000).unwrap();
        assert_eq!(classes.of_range(first), Ok(Some(Kind(0))));
    }
}
