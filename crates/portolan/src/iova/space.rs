//! The addresses of one I/O address space, shared by CPUs.
//!
//! Small requests are rounded up to a power of two of granules and come from the calling CPU's
//! *magazines*, stocks of free blocks of one size; those are exchanged, full or empty, with the
//! *depot* of that size; below both is the [`RangeAllocator`]. Large and oddly aligned requests go
//! straight to that. Devices whose addresses have 32 bits have magazines and depots of their own,
//! so that neither they nor others search for an address that fits.
//!
//! *Steps.* An allocation takes at most one magazine exchange and one search of the ranges, O(log
//! n); one that finds nothing gives every stock back to the ranges once and searches again. A
//! release takes at most one exchange, or as many insertions as a magazine has blocks.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::magazine::{Depot, Magazine, Stock};
use super::{FreeError, IovaError, RangeAllocator, Request};
use crate::addr::{Iova, IovaRange, PageSize};
use crate::platform::{Cpus, Lock};

/// Sizes that are kept in stock: 1 to 512 granules, 2 MiB where a granule has 4 KiB.
const CLASSES: usize = 10;
/// Kinds of limits that have stocks of their own.
const ZONES: usize = 2;
/// The highest address of devices with 32 bits.
const LOW_LAST: u64 = u32::MAX as u64;

/// How addresses are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IovaOptions {
    /// Full magazines that a depot keeps for each size; more go back to the ranges.
    pub depot_magazines: usize,
    /// Blocks that are fetched from the ranges at once, next to each other, when stocks are empty;
    /// at most 2 MiB of them. At least 1.
    pub refill: u32,
}

impl Default for IovaOptions {
    /// 32 magazines, 16 blocks.
    fn default() -> Self {
        Self {
            depot_magazines: 32,
            refill: 16,
        }
    }
}

/// How many addresses are where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct IovaStats {
    /// Granules that are free and in no stock.
    pub free: u64,
    /// Pieces that those are in.
    pub fragments: usize,
    /// Granules in magazines.
    pub in_magazines: u64,
    /// Granules in depots.
    pub in_depots: u64,
}

/// Where a request is served from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Class {
    zone: usize,
    lg2: usize,
}

/// A CPU's stocks.
#[derive(Debug, Default)]
struct Stocks([[Stock; CLASSES]; ZONES]);

impl Stocks {
    #[inline]
    fn of(&mut self, class: Class) -> &mut Stock {
        &mut self.0[class.zone][class.lg2]
    }
}

/// Two cache lines, since some processors fetch pairs of them.
#[repr(align(128))]
struct Apart<T>(T);

/// Addresses for all CPUs.
///
/// *Locking.* One lock for each CPU's stocks, which others take only when nothing is left; one for
/// each depot; one for the ranges. None is held while another is waited for, but that of the
/// stocks while a magazine is exchanged.
pub struct IovaSpace<P: Cpus> {
    cpus: P,
    granule: PageSize,
    window: IovaRange,
    options: IovaOptions,
    stocks: Box<[Apart<P::Lock<Stocks>>]>,
    depots: [[P::Lock<Depot>; CLASSES]; ZONES],
    ranges: P::Lock<RangeAllocator>,
}

impl<P: Cpus> IovaSpace<P> {
    /// All of `window` is free.
    ///
    /// # Errors
    /// See [`RangeAllocator::new`].
    pub fn new(
        cpus: P,
        window: IovaRange,
        granule: PageSize,
        options: IovaOptions,
    ) -> Result<Self, IovaError> {
        let ranges = RangeAllocator::new(window, granule)?;
        let mut stocks = Vec::new();
        let reserved = stocks.try_reserve_exact(cpus.count());
        reserved.map_err(|_| IovaError::Memory)?;
        stocks.extend((0..cpus.count()).map(|_| Apart(Lock::new(Stocks::default()))));
        let depot = |_| Lock::new(Depot::new(options.depot_magazines));
        Ok(Self {
            cpus,
            granule,
            window,
            options,
            stocks: stocks.into_boxed_slice(),
            depots: [(); ZONES].map(|()| [(); CLASSES].map(depot)),
            ranges: Lock::new(ranges),
        })
    }

    /// A range for `request`. Its length is that asked for, rounded up to granules; what it was
    /// rounded up to beyond that stays with it.
    ///
    /// # Errors
    /// See [`IovaError`].
    #[inline]
    pub fn alloc(&self, request: &Request) -> Result<IovaRange, IovaError> {
        let pages = (request.bytes.saturating_add(self.granule.bytes() - 1)) >> self.granule.lg2();
        if pages == 0 {
            return Err(IovaError::Empty);
        }
        if let Some(class) = self.class_of(pages, request) {
            let home = self.cpus.current().get() as usize % self.stocks.len();
            let block = self.stocks[home].0.with(|stocks| {
                let stock = stocks.of(class);
                stock.take().or_else(|| self.refill(class, stock))
            });
            if let Some(block) = block {
                return Ok(self.range(block, pages));
            }
        }
        self.alloc_slowly(request, pages)
    }

    /// The stock that serves `pages`, if one does.
    #[inline]
    fn class_of(&self, pages: u64, request: &Request) -> Option<Class> {
        if pages > 1 << (CLASSES - 1) {
            return None;
        }
        let lg2 = pages.next_power_of_two().trailing_zeros();
        let zone = match request.limit.get() {
            limit if limit >= self.window.last().get() => 0,
            LOW_LAST => 1,
            _ => return None,
        };
        let natural = request.align.lg2() <= self.granule.lg2() + lg2;
        let lg2 = lg2 as usize;
        natural.then_some(Class { zone, lg2 })
    }

    /// The stock that takes back `range`, if one does.
    #[inline]
    fn home_of(&self, range: IovaRange) -> Option<Class> {
        let pages = range.pages(self.granule);
        if pages > 1 << (CLASSES - 1) || !self.window.covers(range) {
            return None;
        }
        let low = self.window.last().get() > LOW_LAST && range.last().get() <= LOW_LAST;
        Some(Class {
            zone: usize::from(low),
            lg2: pages.next_power_of_two().trailing_zeros() as usize,
        })
    }

    #[inline]
    fn range(&self, block: u64, pages: u64) -> IovaRange {
        let start = Iova::new(block << self.granule.lg2());
        // Blocks were ranges once, and hold at least so many pages.
        let range = IovaRange::from_len(start, pages << self.granule.lg2());
        range.unwrap_or(IovaRange::page(start, self.granule))
    }

    /// A block for an empty stock, with more behind it: from the depot, or fresh from the ranges.
    #[cold]
    fn refill(&self, class: Class, stock: &mut Stock) -> Option<u64> {
        let depot = &self.depots[class.zone][class.lg2];
        let full = depot.with(Depot::take_full);
        if let Some(full) = full {
            let empty = stock.load(full);
            depot.with(|depot| depot.give_empty(empty));
            return stock.take();
        }
        let block_lg2 = self.granule.lg2() + class.lg2 as u32;
        let most = (1u64 << (CLASSES - 1)) >> class.lg2;
        let blocks = u64::from(self.options.refill).clamp(1, most.max(1));
        let limit = match class.zone {
            0 => self.window.last(),
            _ => Iova::new(LOW_LAST.min(self.window.last().get())),
        };
        let request = |blocks: u64| Request {
            bytes: blocks << block_lg2,
            align: PageSize::of_lg2(block_lg2),
            limit,
        };
        let (first, blocks) = self
            .ranges
            .with(|ranges| match ranges.alloc(request(blocks)) {
                Ok(range) => Some((range.start(), blocks)),
                Err(_) => Some((ranges.alloc(request(1)).ok()?.start(), 1)),
            })?;
        let first = first.get() >> self.granule.lg2();
        let mut kept_back = None;
        // The lowest comes out first: neighbours in time are neighbours in place.
        for block in (0..blocks).rev().map(|i| first + (i << class.lg2)) {
            if let Some(before) = kept_back.replace(block) {
                if !stock.give(before) {
                    self.free_block(before, class);
                }
            }
        }
        kept_back
    }

    /// Straight from the ranges, if need be after every stock has been given back to them.
    #[cold]
    fn alloc_slowly(&self, request: &Request, pages: u64) -> Result<IovaRange, IovaError> {
        // What fits a stock when it is given back has to be a whole block of it.
        let whole = match pages <= 1 << (CLASSES - 1) {
            true => pages.next_power_of_two(),
            false => pages,
        };
        let block = PageSize::of_lg2(self.granule.lg2() + whole.ilog2());
        let align = match whole.is_power_of_two() && pages <= 1 << (CLASSES - 1) {
            true => request.align.max(block),
            false => request.align,
        };
        let exact = Request {
            bytes: whole.saturating_mul(self.granule.bytes()),
            align,
            limit: request.limit,
        };
        let found = self.ranges.with(|ranges| ranges.alloc(exact));
        let found = match found {
            Err(IovaError::Full { .. }) => {
                self.trim_all();
                self.ranges.with(|ranges| ranges.alloc(exact))
            }
            other => other,
        };
        match found {
            Ok(range) => Ok(self.range(range.start().get() >> self.granule.lg2(), pages)),
            Err(IovaError::Full { limit, .. }) => {
                let bytes = request.bytes;
                Err(IovaError::Full { bytes, limit })
            }
            Err(error) => Err(error),
        }
    }

    /// Takes one range back, as it was given out.
    ///
    /// # Errors
    /// See [`FreeError`]. What went to a stock is not looked at: who gives back a range twice gets
    /// it twice.
    #[inline]
    pub fn free(&self, range: IovaRange) -> Result<(), FreeError> {
        match self.free_all(&[range]) {
            0 => Ok(()),
            _ => Err(FreeError::Foreign { range }),
        }
    }

    /// Takes back what was given out, and returns how many of them could not be: those stay out of
    /// use.
    #[inline]
    pub fn free_all(&self, given: &[IovaRange]) -> u64 {
        let home = self.cpus.current().get() as usize % self.stocks.len();
        let mut done = 0;
        let mut failed = 0;
        while done < given.len() {
            // As many as fit, under the CPU's lock once.
            done += self.stocks[home].0.with(|stocks| {
                let fits = |range: &&IovaRange| match self.home_of(**range) {
                    Some(class) => {
                        let block = range.start().get() >> self.granule.lg2();
                        let stock = stocks.of(class);
                        stock.give(block) || self.exchange_and_give(class, stock, block)
                    }
                    None => false,
                };
                given[done..].iter().take_while(fits).count()
            });
            if let Some(range) = given.get(done) {
                failed += u64::from(self.free_whole(*range).is_err());
                done += 1;
            }
        }
        failed
    }

    /// Makes room in a full stock by way of the depot.
    #[cold]
    fn exchange_and_give(&self, class: Class, stock: &mut Stock, block: u64) -> bool {
        let depot = &self.depots[class.zone][class.lg2];
        let empty = depot.with(Depot::take_empty);
        let full = match stock.unload(empty) {
            Ok(full) => full,
            Err(empty) => {
                depot.with(|depot| depot.give_empty(empty));
                return false;
            }
        };
        if let Err(mut full) = depot.with(|depot| depot.give_full(full)) {
            self.give_to_ranges(&mut full, class);
            depot.with(|depot| depot.give_empty(full));
        }
        stock.give(block)
    }

    fn give_to_ranges(&self, magazine: &mut Magazine, class: Class) {
        for block in magazine.drain() {
            self.free_block(block, class);
        }
    }

    /// Gives a block of a stock back to the ranges.
    fn free_block(&self, block: u64, class: Class) {
        let range = self.range(block, 1 << class.lg2);
        // Without memory for the ranges' records, or if somebody gave it back twice, it stays out
        // of use.
        let _ = self.ranges.with(|ranges| ranges.free(range));
    }

    /// Gives a range back to the ranges, with what it was rounded up to.
    fn free_whole(&self, range: IovaRange) -> Result<(), FreeError> {
        let pages = range.pages(self.granule);
        let whole = match pages <= 1 << (CLASSES - 1) {
            true => pages.next_power_of_two(),
            false => pages,
        };
        let block = range.start().get() >> self.granule.lg2();
        let whole = self.range(block, whole);
        self.ranges.with(|ranges| ranges.free(whole))
    }

    /// Sets `range` aside, from stocks too: it is never given out.
    ///
    /// # Errors
    /// If part of it is in use or outside the window.
    pub fn reserve(&self, range: IovaRange) -> Result<(), FreeError> {
        self.trim_all();
        self.ranges.with(|ranges| ranges.reserve(range))
    }

    /// Gives back to the ranges what the depots hold beyond one magazine for each size: for a
    /// timer.
    pub fn trim(&self) {
        for class in Self::classes() {
            let depot = &self.depots[class.zone][class.lg2];
            loop {
                let spare = depot.with(|depot| {
                    let spare = depot.take_full();
                    match (spare, depot.len()) {
                        (Some(only), 0) => {
                            let _ = depot.give_full(only);
                            None
                        }
                        (spare, _) => spare,
                    }
                });
                let Some(mut spare) = spare else {
                    break;
                };
                self.give_to_ranges(&mut spare, class);
                depot.with(|depot| depot.give_empty(spare));
            }
        }
    }

    /// Gives every stock of every CPU back to the ranges.
    pub fn trim_all(&self) {
        for class in Self::classes() {
            let depot = &self.depots[class.zone][class.lg2];
            while let Some(mut full) = depot.with(Depot::take_full) {
                self.give_to_ranges(&mut full, class);
                depot.with(|depot| depot.give_empty(full));
            }
            for stocks in &self.stocks {
                stocks.0.with(|stocks| {
                    for block in stocks.of(class).drain() {
                        self.free_block(block, class);
                    }
                });
            }
        }
    }

    fn classes() -> impl Iterator<Item = Class> {
        (0..ZONES).flat_map(|zone| (0..CLASSES).map(move |lg2| Class { zone, lg2 }))
    }

    /// Where the free addresses are, looked at one place after the other.
    pub fn stats(&self) -> IovaStats {
        let mut stats = self.ranges.with(|ranges| IovaStats {
            free: ranges.free_pages(),
            fragments: ranges.fragments(),
            ..IovaStats::default()
        });
        for class in Self::classes() {
            let depot = self.depots[class.zone][class.lg2].with(|depot| depot.len());
            stats.in_depots += (depot as u64) << class.lg2;
            for stocks in &self.stocks {
                let blocks = stocks.0.with(|stocks| stocks.of(class).len());
                stats.in_magazines += (blocks as u64) << class.lg2;
            }
        }
        stats
    }
}

#[cfg(test)]
mod tests;
