//! Cuts of a buffer into parts that a device reaches in place, and parts that it reaches as copies.
//!
//! *Context.* Interrupt: everything here is a value.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use core::ops::{Deref, DerefMut};

use arrayvec::ArrayVec;

use crate::addr::{Iova, PageSize, PhysAddr, PhysRange};
use crate::bounce::{BouncePool, Copied, Need, Original, Padding};
use crate::dma::error::MapError;
use crate::dma::policy::{Constraints, MayBlock, Trust};
use crate::platform::contract::{HostVisibility, Pieces, PiecesIter, Sharing};
use crate::platform::{Cpus, Guarded, Nanos};

/// Condition under which a buffer is copied although the device could reach it in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum CopyWhen {
    /// Never.
    #[default]
    Needed,
    /// If all of it is at most so many bytes: copying costs less than invalidating then.
    UpTo(u64),
    /// Always.
    Always,
}

/// Costs of copying, and of the mapping in place that it saves: from a machine's profile, or as measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyPrices {
    /// Slots for one copy taken and given back.
    pub slots: Nanos,
    /// Bytes copied in a microsecond.
    pub bytes_per_us: u64,
    /// Mapping a buffer in place and taking it away again, its invalidation and sync included.
    pub in_place: Nanos,
}

impl CopyWhen {
    /// Copies while that costs less than mapping in place, if bytes that a device writes are copied
    /// both ways; never, where it does not pay for a single byte.
    ///
    /// This is the price of a pool that the device reaches at all times
    /// ([`Device::with_premapped_pool`](crate::dma::Device::with_premapped_pool)). Copies that are mapped
    /// and unmapped one by one save no invalidation.
    pub const fn cheapest(prices: &CopyPrices) -> Self {
        let left = prices.in_place.since(prices.slots).get();
        let bytes = left.saturating_mul(prices.bytes_per_us) / 2000;
        match bytes {
            0 => Self::Needed,
            most => Self::UpTo(most),
        }
    }
}

/// Copying for one device.
///
/// ```no_run
/// # use portolan::bounce::BouncePool;
/// # use portolan::dma::{CopyWhen, Copying, Device};
/// # use portolan::platform::Platform;
/// # use std::sync::Arc;
/// /// Buffers of up to 1 KiB are copied, since that costs less than to map them.
/// fn copied<P: Platform>(card: Device<P>, pool: Arc<dyn BouncePool>) -> Device<P> {
///     let when = CopyWhen::UpTo(1024);
///     card.with_copies(Copying { pool, when })
/// }
/// ```
#[derive(Clone)]
pub struct Copying {
    /// Pool in which copies lie.
    pub pool: Arc<dyn BouncePool>,
    /// The mappings that are copied.
    pub when: CopyWhen,
}

/// Way in which a device reaches copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::dma) enum Through {
    /// At their physical addresses.
    Nothing,
    /// Through tables that lead to them alone: they have whole pages of this size.
    Pages(PageSize),
    /// Through tables that lead to all of the pool.
    Premapped,
}

/// Way in which pieces are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::dma) enum Cut {
    /// Not at all.
    InPlace,
    /// From where a piece does not begin, or end, with a unit that it must not share, the part of
    /// it in that page is copied: the part that stays in place follows at the next address.
    Edges { unit: PageSize, page: PageSize },
    /// Pieces that end above the limit, or share a unit, are copied whole.
    Above { limit: u64, unit: PageSize },
    /// All are copied whole.
    Whole,
}

/// A part of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BufferPart {
    range: PhysRange,
    way: PartWay,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PartWay {
    InPlace,
    Copied,
}

/// Tells if `piece` shares a unit of this size with memory beside it.
pub(in crate::dma) fn shares(piece: PhysRange, unit: PageSize) -> bool {
    let inside = unit.bytes() - 1;
    (piece.start().get() | piece.last().get().wrapping_add(1)) & inside != 0
}

impl Cut {
    /// The parts of `piece`, in order.
    fn parts(self, piece: PhysRange) -> ArrayVec<BufferPart, 3> {
        let mut parts = ArrayVec::new();
        let mut push = |start: u64, last: u64, way| {
            if let Some(range) = PhysRange::new(PhysAddr::new(start), PhysAddr::new(last)) {
                parts.push(BufferPart { range, way });
            }
        };
        let (start, last) = (piece.start().get(), piece.last().get());
        match self {
            Self::InPlace => push(start, last, PartWay::InPlace),
            Self::Whole => push(start, last, PartWay::Copied),
            Self::Above { limit, unit } if last > limit || shares(piece, unit) => {
                push(start, last, PartWay::Copied);
            }
            Self::Above { .. } => push(start, last, PartWay::InPlace),
            Self::Edges { unit, page } => {
                let (mask, unit) = (page.bytes() - 1, unit.bytes() - 1);
                let head_last = start | mask;
                let tail_start = last & !mask;
                let head = start & unit != 0;
                let tail = last & unit != unit;
                if last <= head_last {
                    let way = if head || tail { PartWay::Copied } else { PartWay::InPlace };
                    push(start, last, way);
                    return parts;
                }
                let middle_start = if head { head_last + 1 } else { start };
                let middle_after = if tail { Some(tail_start) } else { None };
                if head {
                    push(start, head_last, PartWay::Copied);
                }
                match middle_after {
                    None => push(middle_start, last, PartWay::InPlace),
                    // None, where it begins behind the middle's first byte or there.
                    Some(after) => push(middle_start, after - 1, PartWay::InPlace),
                }
                if tail {
                    push(tail_start, last, PartWay::Copied);
                }
            }
        }
        parts
    }
}

/// The copies of one buffer, in the order of its parts.
#[derive(Debug)]
pub(in crate::dma) struct Copies {
    few: ArrayVec<Copied, 2>,
    more: Vec<Copied>,
    cut: Cut,
    /// The next record in a list of spare ones.
    next: Option<CopyRecord>,
}

/// The copies of one buffer, on the heap: a box of one, since only a vector's memory can be asked for
/// without a panic.
#[derive(Debug)]
pub(in crate::dma) struct CopyRecord(Box<[Copies; 1]>);

impl Deref for CopyRecord {
    type Target = Copies;

    fn deref(&self) -> &Copies {
        let [copies] = &*self.0;
        copies
    }
}

impl DerefMut for CopyRecord {
    fn deref_mut(&mut self) -> &mut Copies {
        let [copies] = &mut *self.0;
        copies
    }
}

/// Records of copies that are not in use. They go back here instead of to the heap, so that mapping
/// and reclaiming in an interrupt handler touches no heap.
pub(in crate::dma) struct SpareRecords<P: Cpus> {
    list: Guarded<P, Option<CopyRecord>>,
}

/// So many copied buffers can be mapped by handlers before a task has mapped any.
const SPARES: usize = 32;

impl<P: Cpus> SpareRecords<P> {
    /// No spare yet.
    pub fn new() -> Self {
        let list = Guarded::new(None);
        Self { list }
    }

    /// Adds some, as far as there is memory.
    pub fn fill(&self) {
        (0..SPARES).for_each(|_| {
            if let Ok(record) = Copies::record() {
                self.give(record);
            }
        });
    }

    /// A record without copies.
    fn take(&self, may_block: MayBlock) -> Result<CopyRecord, MapError> {
        let spare = self.list.with(|list| {
            let mut first = list.take()?;
            *list = first.next.take();
            Some(first)
        });
        match (spare, may_block) {
            (Some(spare), _) => Ok(spare),
            (None, MayBlock::No) => Err(MapError::WouldWait),
            (None, MayBlock::Yes) => Copies::record(),
        }
    }

    fn give(&self, mut record: CopyRecord) {
        self.list.with(|list| {
            record.next = list.take();
            *list = Some(record);
        });
    }

    /// Gives back the slots of copies that no device reaches any more, and their record.
    pub fn give_back(&self, mut copies: CopyRecord, pool: &dyn BouncePool) {
        copies.give_back(pool);
        self.give(copies);
    }
}

impl<P: Cpus> Drop for SpareRecords<P> {
    fn drop(&mut self) {
        // One after the other: a list of boxes would be dropped by recursion.
        let mut left = self.list.with(Option::take);
        while let Some(mut record) = left {
            left = record.next.take();
        }
    }
}

impl Copies {
    /// A record of no copies.
    fn record() -> Result<CopyRecord, MapError> {
        let mut one = Vec::new();
        one.try_reserve_exact(1).map_err(|_| MapError::Records)?;
        one.push(Self {
            few: ArrayVec::new_const(),
            more: Vec::new(),
            cut: Cut::InPlace,
            next: None,
        });
        let one = one.into_boxed_slice().try_into();
        one.map(CopyRecord).map_err(|_| MapError::Records)
    }

    /// Makes the copies that `cut` asks for; none if it asks for none.
    pub(in crate::dma) fn make<P: Cpus>(
        spares: &SpareRecords<P>,
        copying: &Copying,
        pieces: Pieces<'_>,
        cut: Cut,
        wanted: &WantedCopies<'_>,
        may_block: MayBlock,
    ) -> Result<Option<CopyRecord>, MapError> {
        let mut made: Option<CopyRecord> = None;
        let parts = pieces.into_iter().flat_map(|piece| cut.parts(piece));
        for part in parts.filter(|part| part.way == PartWay::Copied) {
            let mut copies = match made.take() {
                Some(copies) => copies,
                None => spares.take(may_block)?,
            };
            copies.cut = cut;
            if let Err(error) = copies.add(copying, part.range, wanted, may_block) {
                spares.give_back(copies, &*copying.pool);
                return Err(error);
            }
            made = Some(copies);
        }
        Ok(made)
    }

    /// Adds a copy of `part`.
    fn add(
        &mut self,
        copying: &Copying,
        part: PhysRange,
        wanted: &WantedCopies<'_>,
        may_block: MayBlock,
    ) -> Result<(), MapError> {
        self.room(may_block)?;
        let need = Need {
            may_block: may_block == MayBlock::Yes,
            reach: wanted.reach,
            ..need(part, wanted.constraints, wanted.through)?
        };
        let padding = match wanted.through {
            Through::Pages(_) => Padding::Clear,
            Through::Nothing | Through::Premapped => Padding::Leave,
        };
        let original = Original { memory: part, sharing: wanted.sharing };
        let copied = Copied::new(&*copying.pool, original, &need, padding)?;
        self.push(copied);
        Ok(())
    }

    fn room(&mut self, may_block: MayBlock) -> Result<(), MapError> {
        if self.few.is_full() && self.more.len() == self.more.capacity() {
            if may_block == MayBlock::No {
                return Err(MapError::WouldWait);
            }
            self.more.try_reserve(1).map_err(|_| MapError::Records)?;
        }
        Ok(())
    }

    fn push(&mut self, copied: Copied) {
        if let Err(full) = self.few.try_push(copied) {
            self.more.push(full.element());
        }
    }

    /// Gives the slots back; no device reaches them any more.
    pub fn give_back(&mut self, pool: &dyn BouncePool) {
        for copied in self.few.drain(..).chain(self.more.drain(..)) {
            // They were taken from this pool and are given back once.
            let given = pool.give(copied.into_slots());
            debug_assert!(given.is_ok());
        }
    }

    fn at(&self, index: usize) -> Option<&Copied> {
        match index.checked_sub(self.few.capacity()) {
            None => self.few.get(index),
            Some(index) => self.more.get(index),
        }
    }
}

/// Requirements for the copy of `part`.
fn need(part: PhysRange, constraints: &Constraints, through: Through) -> Result<Need, MapError> {
    let bytes = part.len_minus_one().checked_add(1);
    let page = match through {
        Through::Pages(page) => page,
        Through::Nothing | Through::Premapped => PageSize::of_lg2(0),
    };
    Ok(Need {
        bytes: bytes.ok_or(MapError::TooLong)?,
        align: page,
        like: part.start(),
        keep: constraints.min_align_mask.max(page),
        reach: constraints.reach,
        may_block: false,
        limit: match through {
            Through::Nothing => PhysAddr::new(constraints.dma_mask.get()),
            // The tables lead there for any limit of the device.
            Through::Pages(_) | Through::Premapped => PhysAddr::new(u64::MAX),
        },
    })
}

/// Requirements for copies.
pub(in crate::dma) struct WantedCopies<'c> {
    pub constraints: &'c Constraints,
    pub reach: HostVisibility,
    pub through: Through,
    pub sharing: Sharing,
}

/// Pieces as the device reaches them: in place, or their copies.
#[derive(Clone, Debug)]
pub(in crate::dma) struct Reached<'c> {
    copies: Option<&'c Copies>,
    next: usize,
    pieces: PiecesIter<'c>,
    /// Of the piece at hand, the last first.
    parts: ArrayVec<BufferPart, 3>,
}

/// Bytes of a buffer, and where the device reaches them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::dma) struct Stretch {
    pub buffer: PhysRange,
    pub reached: PhysRange,
}

impl Stretch {
    /// Tells if the device reaches a copy.
    pub fn is_copied(&self) -> bool {
        self.reached != self.buffer
    }

    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        self.buffer.len_minus_one().saturating_add(1)
    }

    /// From offset `first` to offset `last`, which is inside, if that is not before it.
    pub fn part(self, first: u64, last: u64) -> Option<Self> {
        let bytes = last.checked_sub(first)?.saturating_add(1);
        let cut = |whole: PhysRange| {
            let start = whole.start().get().checked_add(first)?;
            PhysRange::from_len(PhysAddr::new(start), bytes)
        };
        Some(Self { buffer: cut(self.buffer)?, reached: cut(self.reached)? })
    }
}

impl<'c> Reached<'c> {
    /// The memory that the device reaches of `pieces`, of which these are the copies.
    pub fn new(pieces: Pieces<'c>, copies: Option<&'c Copies>) -> Self {
        Self { copies, next: 0, pieces: pieces.into_iter(), parts: ArrayVec::new() }
    }

    /// The bytes from offset `at` to offset `last` of the buffer, and where the device reaches them.
    pub fn stretches(mut self, at: u64, last: u64) -> impl Iterator<Item = Stretch> {
        let mut begin = 0u64;
        core::iter::from_fn(move || {
            loop {
                let whole = self.next_stretch().filter(|_| begin <= last)?;
                let start = begin;
                let longest = whole.buffer.len_minus_one();
                begin = begin.saturating_add(longest).saturating_add(1);
                let part = whole.part(at.saturating_sub(start), (last - start).min(longest));
                if part.is_some() {
                    return part;
                }
            }
        })
    }

    #[inline]
    pub fn next_stretch(&mut self) -> Option<Stretch> {
        let in_place = |buffer| Stretch { buffer, reached: buffer };
        let Some(copies) = self.copies else {
            return self.pieces.next().map(in_place);
        };
        if self.parts.is_empty() {
            self.parts = copies.cut.parts(self.pieces.next()?);
            self.parts.reverse();
        }
        let part = self.parts.pop()?;
        match part.way {
            PartWay::InPlace => Some(in_place(part.range)),
            PartWay::Copied => {
                self.next += 1;
                let copied = copies.at(self.next - 1)?;
                Some(Stretch { buffer: part.range, reached: copied.copy_range() })
            }
        }
    }
}

impl Iterator for Reached<'_> {
    type Item = PhysRange;

    #[inline]
    fn next(&mut self) -> Option<PhysRange> {
        self.next_stretch().map(|stretch| stretch.reached)
    }
}

/// Facts of a map that decide which bytes of its buffer are copied.
pub(in crate::dma) struct CopyFacts {
    pub when: CopyWhen,
    /// The device must not reach the buffer's memory itself.
    pub hidden: bool,
    /// Length of the buffer, if it decides: with a pool that stays mapped, or [`CopyWhen::UpTo`].
    pub bytes: u64,
    /// A pool stays mapped for the device.
    pub premapped: bool,
    pub trust: Trust,
    /// The page, if the device's addresses are translated.
    pub page: Option<PageSize>,
    /// The highest address of the device.
    pub limit: Iova,
    /// Unit that the device must not share with CPUs.
    pub line: PageSize,
}

/// Choice of copies for a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::dma) struct CopyChoice {
    /// All of it goes to the pool that stays mapped, where there is room.
    pub premapped: bool,
    /// Cut of the buffer without that.
    pub cut: Cut,
}

impl CopyFacts {
    /// The choice.
    #[inline]
    pub fn choose(&self) -> CopyChoice {
        let wanted = match self.when {
            CopyWhen::Needed => false,
            CopyWhen::UpTo(most) => self.bytes <= most,
            CopyWhen::Always => true,
        };
        let premapped = self.premapped && (wanted || self.hidden) && self.bytes != 0;
        // With a pool that stays mapped, a short buffer is not worth a copy anywhere else.
        let short = matches!(self.when, CopyWhen::UpTo(_));
        let whole = self.hidden || (wanted && !(short && self.premapped));
        let cut = match (whole, self.page, self.trust) {
            (true, _, _) => Cut::Whole,
            (false, Some(page), Trust::Untrusted) => Cut::Edges { unit: page, page },
            (false, Some(_), Trust::Trusted) if self.line == ONE_BYTE => Cut::InPlace,
            (false, Some(page), Trust::Trusted) => Cut::Edges { unit: self.line, page },
            (false, None, _) => Cut::Above { limit: self.limit.get(), unit: self.line },
        };
        CopyChoice { premapped, cut }
    }
}

/// A unit of one byte, which no two buffers share.
pub(in crate::dma) const ONE_BYTE: PageSize = PageSize::of_lg2(0);

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(start: u64, last: u64) -> Vec<(u64, u64, bool)> {
        let piece = PhysRange::new(PhysAddr::new(start), PhysAddr::new(last)).unwrap();
        let page = PageSize::SIZE_4K;
        Cut::Edges { unit: page, page }
            .parts(piece)
            .into_iter()
            .map(|part| {
                let range = part.range;
                let copied = part.way == PartWay::Copied;
                (range.start().get(), range.last().get(), copied)
            })
            .collect()
    }

    #[test]
    fn copying_pays_until_it_costs_what_it_saves() {
        // 800 ns saved, 40 of them for slots; 25 bytes a nanosecond, each copied twice.
        let prices =
            CopyPrices { slots: Nanos::new(40), bytes_per_us: 25_000, in_place: Nanos::new(800) };
        assert_eq!(CopyWhen::cheapest(&prices), CopyWhen::UpTo(9500));
        let dear = CopyPrices { slots: Nanos::new(900), ..prices };
        assert_eq!(CopyWhen::cheapest(&dear), CopyWhen::Needed);
        let free = CopyPrices { bytes_per_us: u64::MAX, ..prices };
        assert!(matches!(CopyWhen::cheapest(&free), CopyWhen::UpTo(_)));
    }

    #[test]
    fn only_the_parts_that_share_their_pages_are_copied() {
        assert_eq!(parts(0x1000, 0x2fff), [(0x1000, 0x2fff, false)]);
        assert_eq!(parts(0x1010, 0x1020), [(0x1010, 0x1020, true)]);
        assert_eq!(parts(0x1000, 0x1020), [(0x1000, 0x1020, true)]);
        assert_eq!(parts(0x1010, 0x3fff), [(0x1010, 0x1fff, true), (0x2000, 0x3fff, false)]);
        assert_eq!(parts(0x1000, 0x3ffe), [(0x1000, 0x2fff, false), (0x3000, 0x3ffe, true)]);
        assert_eq!(
            parts(0x1010, 0x4010),
            [(0x1010, 0x1fff, true), (0x2000, 0x3fff, false), (0x4000, 0x4010, true)]
        );
        assert_eq!(parts(0x1010, 0x2010), [(0x1010, 0x1fff, true), (0x2000, 0x2010, true)]);
        let top = parts(0xffff_ffff_ffff_f000, u64::MAX);
        assert_eq!(top, [(0xffff_ffff_ffff_f000, u64::MAX, false)]);
    }
}
