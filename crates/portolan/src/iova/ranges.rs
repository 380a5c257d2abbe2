//! Contiguous ranges of one address space.
//!
//! Records of free ranges are made where no lock is held: a function that runs under one returns
//! its lack of memory ([`RangeRefused::Lacks`]) and changes nothing; the caller allocates that, brings
//! it, and tries again.

use super::tree::{Fit, Gap, GapTree, Lack, Room};
use super::{FreeError, IovaError};
use crate::addr::{Iova, IovaRange, PageSize};

/// Size, alignment and limit of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Bytes; rounded up to granules.
    pub bytes: u64,
    /// Alignment of the first address; at least the granule.
    pub align: PageSize,
    /// The highest address that the device can use.
    pub limit: Iova,
}

impl Request {
    /// The same, not above `ceiling`.
    #[inline]
    pub(super) fn below(&self, ceiling: Iova) -> Self {
        Self { limit: self.limit.min(ceiling), ..*self }
    }
}

/// Gives out ranges of an address space, each from the highest place where it fits.
///
/// *Cost.* Each call visits O(log n) of n free ranges, for every request.
///
/// *Alignment.* A request aligned to the granule finds every free range that is long enough. One
/// with a greater alignment finds every free range that holds an aligned block of its size rounded
/// up to a power of two, or that is longer by the alignment; it may miss one that fits by chance.
///
/// *Context.* Task, all methods that change it: they allocate records. It has no lock of its own.
#[derive(Debug)]
pub struct RangeAllocator {
    granule: PageSize,
    space: Gap,
    gaps: GapTree,
    free_pages: u64,
    /// Ranges out, if each comes back whole. There are at most that many gaps and one more.
    pieces: usize,
}

/// Error of a call that changed nothing.
#[derive(Clone, Copy, Debug)]
pub(super) enum RangeRefused<E> {
    /// There is no room for a record.
    Lacks(Lack),
    /// It cannot be done.
    Error(E),
}

impl<E> From<E> for RangeRefused<E> {
    fn from(error: E) -> Self {
        Self::Error(error)
    }
}

impl RangeAllocator {
    /// All of `space` is free, as far as it consists of whole granules.
    ///
    /// # Errors
    /// [`IovaError::Empty`] if no granule fits in it, [`IovaError::Memory`].
    pub fn new(space: IovaRange, granule: PageSize) -> Result<Self, IovaError> {
        let lg2 = granule.lg2();
        let mask = granule.bytes() - 1;
        let first = space.start().get().checked_add(mask).ok_or(IovaError::Empty)? >> lg2;
        // The first page that does not lie in it whole.
        let end = match space.last().get().checked_add(1) {
            Some(end) => end >> lg2,
            None => (u64::MAX >> lg2) + u64::from(lg2 > 0),
        };
        let last = end.checked_sub(1).filter(|&last| last >= first);
        let space = Gap { first, last: last.ok_or(IovaError::Empty)? };
        let mut gaps = GapTree::default();
        gaps.prepare(2).map_err(|_| IovaError::Memory)?;
        gaps.insert(space);
        Ok(Self {
            granule,
            space,
            gaps,
            // The whole of 64 bits has one byte more than fits.
            free_pages: (space.last - space.first).saturating_add(1),
            pieces: 0,
        })
    }

    /// All of the space that consists of whole granules.
    pub fn space(&self) -> Option<IovaRange> {
        self.range(self.space.first, self.space.last)
    }

    /// Free granules.
    pub fn free_pages(&self) -> u64 {
        self.free_pages
    }

    /// Free ranges, neighbours merged.
    pub fn fragments(&self) -> usize {
        self.gaps.len()
    }

    /// Gives out a range.
    ///
    /// # Errors
    /// See [`IovaError`]; nothing is given out.
    pub fn alloc(&mut self, request: Request) -> Result<IovaRange, IovaError> {
        self.with_room(IovaError::Memory, |ranges| ranges.try_alloc(request, 1))
    }

    /// Does `f`, with more room as often as it lacks some. `memory` says that the heap has none.
    fn with_room<T, E>(
        &mut self,
        memory: E,
        f: impl Fn(&mut Self) -> Result<T, RangeRefused<E>>,
    ) -> Result<T, E> {
        loop {
            match f(self) {
                Ok(done) => return Ok(done),
                Err(RangeRefused::Error(error)) => return Err(error),
                Err(RangeRefused::Lacks(lack)) => match lack.allocate() {
                    Ok(room) => drop(self.adopt(room)),
                    Err(_) => return Err(memory),
                },
            }
        }
    }

    /// Takes in the memory that was lacking; the rest is freed by the caller, outside of locks.
    pub(super) fn adopt(&mut self, room: Room) -> Room {
        self.gaps.adopt(room)
    }

    /// Memory that is missing for `ranges` more that come back whole; `None` if none is.
    pub(super) fn lack(&self, ranges: usize) -> Option<Lack> {
        let gaps = self.pieces.max(self.gaps.len());
        self.gaps.lack(gaps.saturating_add(ranges).saturating_add(1))
    }

    fn room(&self, gaps: usize) -> Result<(), Lack> {
        self.gaps.lack(gaps).map_or(Ok(()), Err)
    }

    /// The same for a range that comes back in `pieces`, without allocating.
    pub(super) fn try_alloc(
        &mut self,
        request: Request,
        pieces: usize,
    ) -> Result<IovaRange, RangeRefused<IovaError>> {
        if request.bytes == 0 {
            return Err(IovaError::Empty.into());
        }
        let lg2 = self.granule.lg2();
        let pages_less_one = (request.bytes - 1) >> lg2;
        let align_lg2 = request.align.lg2().saturating_sub(lg2);
        let full = IovaError::Full { bytes: request.bytes, limit: request.limit };
        // The first page that the device cannot use whole.
        let below = match request.limit.get().checked_add(1) {
            Some(end) => end >> lg2,
            None => self.space.last.saturating_add(1),
        };
        let found = self.find(pages_less_one, align_lg2, below).ok_or(full)?;
        // As many as there can be once this range is out as well.
        let gaps = self.pieces.max(self.gaps.len()) + pieces;
        self.room(gaps).map_err(RangeRefused::Lacks)?;
        self.pieces += pieces;
        let (gap, first) = found;
        let last = first + pages_less_one;
        self.gaps.remove(gap.first);
        if gap.first < first {
            self.gaps.insert(Gap { first: gap.first, last: first - 1 });
        }
        if last < gap.last {
            self.gaps.insert(Gap { first: last + 1, last: gap.last });
        }
        self.free_pages = self.free_pages.saturating_sub(pages_less_one + 1);
        Ok(self.range(first, last).ok_or(full)?)
    }

    /// The highest place found: the gap and the first page.
    fn find(&self, pages_less_one: u64, align_lg2: u32, below: u64) -> Option<(Gap, u64)> {
        let align = |page: u64| page >> align_lg2 << align_lg2;
        let place = |gap: Gap| {
            let last = gap.last.min(below.checked_sub(1)?);
            let first = align(last.checked_sub(pages_less_one)?);
            (first >= gap.first).then_some((gap, first))
        };
        // The one gap that the limit may cut.
        let cut = below
            .checked_sub(1)
            .and_then(|last| self.gaps.at_or_below(last))
            .filter(|gap| gap.last >= below)
            .and_then(place);
        let order = u64::BITS - pages_less_one.leading_zeros();
        let by_order = Fit::Order(order.max(align_lg2) as u8);
        let slack = (1u64.checked_shl(align_lg2)? - 1).checked_add(pages_less_one);
        let by_order = self.gaps.highest(by_order, below).and_then(place);
        let by_length = slack.and_then(|pages| self.gaps.highest(Fit::Length(pages), below));
        let by_length = by_length.and_then(place);
        [cut, by_order, by_length].into_iter().flatten().max_by_key(|&(_, first)| first)
    }

    /// Tells if all of `range` can be given out.
    pub fn is_free(&self, range: IovaRange) -> bool {
        let lg2 = self.granule.lg2();
        let (first, last) = (range.start().get() >> lg2, range.last().get() >> lg2);
        let gap = self.gaps.at_or_below(last);
        gap.is_some_and(|gap| gap.first <= first && gap.last >= last)
    }

    /// Takes `range` out of the addresses that can be given out: a reserved region. Parts that are
    /// out already stay so.
    ///
    /// # Errors
    /// [`FreeError::Memory`]; nothing is set aside.
    pub fn reserve(&mut self, range: IovaRange) -> Result<(), FreeError> {
        self.with_room(FreeError::Memory, |ranges| ranges.try_reserve(range))
    }

    /// The same without allocating.
    pub(super) fn try_reserve(&mut self, range: IovaRange) -> Result<(), RangeRefused<FreeError>> {
        let lg2 = self.granule.lg2();
        let (first, last) = (range.start().get() >> lg2, range.last().get() >> lg2);
        let gaps = self.pieces.max(self.gaps.len()) + 1;
        self.room(gaps).map_err(RangeRefused::Lacks)?;
        self.pieces += 1;
        let mut from = last;
        // From the top down, one gap at a time.
        while let Some(gap) = self.gaps.at_or_below(from).filter(|gap| gap.last >= first) {
            self.gaps.remove(gap.first);
            self.free_pages -= gap.last.min(last) - gap.first.max(first) + 1;
            if gap.first < first {
                self.gaps.insert(Gap { first: gap.first, last: first - 1 });
            }
            if gap.last > last {
                self.gaps.insert(Gap { first: last + 1, last: gap.last });
            }
            let Some(next) = gap.first.checked_sub(1) else {
                break;
            };
            from = next;
        }
        Ok(())
    }

    /// Takes back a range, whole or a part of one that was given out or set aside. For addresses
    /// that devices used: only once the invalidation that covers them has completed. Needs no
    /// memory if every range comes back whole, as it was given out.
    ///
    /// # Errors
    /// See [`FreeError`]; nothing is taken back.
    pub fn free(&mut self, range: IovaRange) -> Result<(), FreeError> {
        self.with_room(FreeError::Memory, |ranges| ranges.try_free(range))
    }

    /// The same without allocating.
    pub(super) fn try_free(&mut self, range: IovaRange) -> Result<(), RangeRefused<FreeError>> {
        self.try_free_run(range, 1)
    }

    /// The same of neighbours that were given out as `pieces`.
    pub(super) fn try_free_run(
        &mut self,
        range: IovaRange,
        pieces: usize,
    ) -> Result<(), RangeRefused<FreeError>> {
        let lg2 = self.granule.lg2();
        let mask = self.granule.bytes() - 1;
        let (mut first, mut last) = (range.start().get() >> lg2, range.last().get() >> lg2);
        let whole = range.start().get() & mask == 0 && range.last().get() & mask == mask;
        if !whole || first < self.space.first || last > self.space.last {
            return Err(FreeError::Foreign { range }.into());
        }
        let before = self.gaps.at_or_below(last);
        if before.is_some_and(|gap| gap.last >= first) {
            return Err(FreeError::Free { range }.into());
        }
        // No more than was promised when it was given out, unless ranges come back in parts.
        let gaps = self.gaps.len() + 1;
        self.room(gaps).map_err(RangeRefused::Lacks)?;
        self.pieces = self.pieces.saturating_sub(pieces);
        self.free_pages = self.free_pages.saturating_add(last - first + 1);
        if let Some(gap) = before.filter(|gap| gap.last.checked_add(1) == Some(first)) {
            self.gaps.remove(gap.first);
            first = gap.first;
        }
        let after = self.gaps.above(last);
        if let Some(gap) = after.filter(|gap| last.checked_add(1) == Some(gap.first)) {
            self.gaps.remove(gap.first);
            last = gap.last;
        }
        self.gaps.insert(Gap { first, last });
        Ok(())
    }

    fn range(&self, first: u64, last: u64) -> Option<IovaRange> {
        let lg2 = self.granule.lg2();
        let end = (last << lg2) + (self.granule.bytes() - 1);
        IovaRange::new(Iova::new(first << lg2), Iova::new(end))
    }

    /// Free ranges, lowest first.
    #[cfg(test)]
    pub(super) fn gaps(&self) -> impl Iterator<Item = IovaRange> + '_ {
        let mut next = self.gaps.at_or_below(0).or_else(|| self.gaps.above(0));
        core::iter::from_fn(move || {
            let gap = next?;
            next = self.gaps.above(gap.last);
            self.range(gap.first, gap.last)
        })
    }

    /// Nodes looked at since the last call.
    #[cfg(test)]
    pub(super) fn take_steps(&self) -> usize {
        self.gaps.steps.take()
    }
}

#[cfg(test)]
mod tests;
