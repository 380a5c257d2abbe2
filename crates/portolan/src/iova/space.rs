//! The addresses of one I/O address space, shared by CPUs.
//!
//! Small requests are rounded up to a power of two of granules and come from the calling CPU's
//! *front*, the few blocks of that size that it gave back last, or from its *magazines*, short lists
//! of such blocks; those are exchanged, full or empty, with the *depot* of that size; below all is
//! the [`RangeAllocator`]. Large and oddly aligned requests go
//! straight to that. Where the space reaches above 32 bits, low blocks have magazines and depots of
//! their own, so that neither devices with 32 bits nor others search for an address that fits.
//!
//! *Order.* Addresses below 4 GiB are given out first, and higher ones once those are used up
//! ([`AddressOrder`]).
//!
//! *Steps.* An allocation takes at most one exchange and one refill from the ranges, O(log n) each, or, when
//! nothing is left, one pass over the caches; each time that the highest address given out doubles, which is at
//! most 32 times, one exchange and one refill more. A release takes at most one exchange, or one insertion into
//! the ranges. Neither depends on the number of addresses that are out but through that logarithm.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::class::{Block, Classes, KINDS, Kind};
use super::front::{FRONT, Fronts, GRANULES};
use super::ledger::Ledger;
use super::magazine::{CpuCache, Depot, ROUNDS};
use super::order::{AddressOrder, Ceiling, above};
use super::shortage::{CACHES, Heap, KindBits, RECORDS};
use super::{IovaError, RangeAllocator, Request};
use crate::addr::{Iova, IovaRange, PageSize};
use crate::platform::{CachePadded, Cpus, Lock, PerCpu, count_of};

/// Options of a space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IovaOptions {
    /// Blocks of each size that a CPU takes and gives back without a lock, before its magazines are
    /// asked: at most 63 of one granule, or a 64th of the addresses if those are more than 7, and at most 7 of
    /// each other size; 0 is for none.
    pub front: u8,
    /// Full magazines of each size that [`IovaSpace::trim_overfull`] leaves in a depot.
    pub depot_magazines: usize,
    /// Blocks that are fetched from the ranges at once, next to each other, when a cache is empty, rounded
    /// down to a power of two; at most 512 granules of them, 16 blocks when the cache is new, and a 64th of the
    /// addresses. At least 1.
    pub refill: u32,
    /// Blocks in a magazine. At least 1, and at most 127 and a 64th of the addresses.
    pub rounds: u16,
    /// Ranges that can be given out without heap memory before [`IovaSpace::replenish`] has to be
    /// called again, beside those in caches.
    pub reserve: u16,
    /// Mistakes of callers that are found.
    pub checks: Checks,
    /// Order in which addresses are given out.
    pub order: AddressOrder,
}

impl Default for IovaOptions {
    /// As many blocks as may be at the front, 32 magazines of 127 blocks, refilled with the addresses of a
    /// leaf table, a reserve of 256 ranges, with cheap checks, and low addresses first.
    fn default() -> Self {
        Self {
            front: GRANULES as u8,
            depot_magazines: 32,
            refill: 512,
            rounds: ROUNDS as u16,
            reserve: 256,
            checks: Checks::Cheap,
            order: AddressOrder::LowFirst,
        }
    }
}

/// Strictness about ranges that must not be given back: those that are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Checks {
    /// Those outside the space or off the granule, those that the ranges know to be free, and a
    /// block given back twice in a row. Others are found, and kept from harm to the ranges, once
    /// the block leaves the caches.
    #[default]
    Cheap,
    /// All that are not out in just this form; for one record for each range that is out, and one
    /// lock for all CPUs: nothing is kept at the front of a CPU's cache.
    Exact,
}

/// Blocks in a magazine of `kind`.
pub(super) fn rounds_of(options: &IovaOptions, classes: &Classes, kind: Kind) -> usize {
    let rounds = u64::from(options.rounds).min(classes.share(kind));
    (rounds as usize).clamp(1, ROUNDS)
}

/// Blocks of each kind at a front.
fn fronts_of(options: &IovaOptions, classes: &Classes) -> [u8; KINDS] {
    let mut all = [options.front.min(FRONT as u8); KINDS];
    for kind in Kind::all().filter(|kind| kind.order() == 0) {
        let most = classes.share(kind).clamp(FRONT as u64, GRANULES as u64);
        all[kind.index()] = options.front.min(most as u8);
    }
    all
}

/// Blocks of a CPU.
pub(super) struct Home<P: Cpus> {
    pub fronts: Fronts<P::Word>,
    pub magazines: P::Lock<CpuCache>,
}

impl<P: Cpus> Home<P> {
    /// An empty one.
    ///
    /// *Context.* Atomic: to be put on the heap.
    pub fn new() -> Self {
        Self { fronts: Fronts::new(), magazines: Lock::new(CpuCache::default()) }
    }
}

/// Addresses for all CPUs.
///
/// ```no_run
/// # use portolan::addr::{Iova, IovaRange, PageSize};
/// # use portolan::iova::{IovaError, IovaOptions, IovaSpace, Request};
/// # use portolan::platform::Platform;
/// /// 64 KiB for a card that sends 32 bits of an address.
/// fn addresses<P: Platform>(platform: P, window: IovaRange) -> Result<(), IovaError> {
///     let space = IovaSpace::new(platform, window, PageSize::SIZE_4K, IovaOptions::default())?;
///     let (bytes, align, limit) = (0x1_0000, PageSize::SIZE_4K, Iova::new(0xffff_ffff));
///     let range = space.alloc(&Request { bytes, align, limit })?;
///     // ... mapped, used, unmapped and invalidated ...
///     space.free(range).expect("what was given out");
///     Ok(())
/// }
/// ```
///
/// *Locking.* None where the few blocks at the front of a CPU's cache serve: each is in a word of its
/// own, and goes to the caller that exchanges that. Otherwise one lock for each CPU's magazines,
/// which others take only when nothing is left; one for each depot; one for the ranges. None is held
/// while another is waited for, and no heap memory is taken or freed under one.
///
/// *Full.* A request fails once no cache has anything for it. Blocks that another CPU moves
/// between two caches at that moment are not seen, at most a 64th of the addresses for each such
/// CPU.
///
/// *Context.* Interrupt: [`try_alloc`](Self::try_alloc), [`free`](Self::free),
/// [`free_all`](Self::free_all) and the methods that return numbers. Atomic: [`alloc`](Self::alloc)
/// and [`replenish`](Self::replenish), which wait for nothing and may take heap memory. Task: all
/// else, and dropping it.
pub struct IovaSpace<P: Cpus> {
    cpus: P,
    pub(super) classes: Classes,
    pub(super) options: IovaOptions,
    ceiling: Ceiling,
    pub(super) caches: PerCpu<Home<P>, P::Word>,
    pub(super) depots: Box<[P::Lock<Depot>]>,
    /// Blocks of each kind at the front.
    front: [u8; KINDS],
    ranges: P::Lock<RangeAllocator>,
    pub(super) ledger: Option<P::Lock<Ledger>>,
    pub(super) shortage: CachePadded<KindBits<P>>,
    /// Kinds whose depots have more magazines than a trim leaves there.
    pub(super) overfull: CachePadded<KindBits<P>>,
    #[cfg(test)]
    steps: core::sync::atomic::AtomicUsize,
}

impl<P: Cpus> IovaSpace<P> {
    /// All of `window` is free, as far as it consists of whole granules.
    ///
    /// *Context.* Task.
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
        let space = ranges.space().ok_or(IovaError::Empty)?;
        let count = count_of(&cpus);
        let caches = PerCpu::new(count, Home::new()).map_err(|_| IovaError::Memory)?;
        let mut depots = Vec::new();
        let reserved = depots.try_reserve_exact(KINDS);
        reserved.map_err(|_| IovaError::Memory)?;
        let classes = Classes::new(space, granule);
        for kind in Kind::all() {
            depots.push(Lock::new(Depot::new(rounds_of(&options, &classes, kind), count)));
        }
        let exact = options.checks == Checks::Exact;
        let made = Self {
            cpus,
            classes,
            options,
            ceiling: Ceiling::new(options.order, space),
            caches,
            depots: depots.into_boxed_slice(),
            // A first address of all ones, which only bytes have, cannot be kept there. Ranges that
            // are recorded as they go out and come back do both behind the front.
            front: match granule.lg2() == 0 || exact {
                true => [0; KINDS],
                false => fronts_of(&options, &classes),
            },
            ranges: Lock::new(ranges),
            ledger: exact.then(|| Lock::new(Ledger::default())),
            // Of records: there are none yet.
            shortage: CachePadded(KindBits::new(RECORDS)),
            overfull: CachePadded(KindBits::new(0)),
            #[cfg(test)]
            steps: 0.into(),
        };
        made.replenish()?;
        Ok(made)
    }

    /// A range for `request`. Its length is that of the request, rounded up to granules; pages that
    /// it was rounded up to beyond that stay with it.
    ///
    /// *Context.* Atomic: may take heap memory.
    ///
    /// # Errors
    /// See [`IovaError`].
    #[inline(always)]
    pub fn alloc(&self, request: &Request) -> Result<IovaRange, IovaError> {
        self.step(1);
        let low = request.below(self.ceiling.get());
        // Requests are handed on by value: a reference would have each one written to memory.
        // The CPU first: the compiler follows the zone, a branch, to the front only if nothing lies between.
        let Some(cpu) = self.own_home() else {
            return self.alloc_any(*request);
        };
        let Some(block) = self.classes.granule_for(&low) else {
            return self.alloc_any(*request);
        };
        match cpu.fronts.take(block.kind, block.highest) {
            Ok(Some(start)) => Ok(self.classes.granule_at(start)),
            Ok(None) => match self.granule_behind(cpu, block) {
                Some(start) => Ok(self.classes.granule_at(start)),
                None => self.alloc_searching(cpu, *request),
            },
            Err(start) => self.alloc_beside(cpu, *request, start),
        }
    }

    /// A granule of the magazines, where ranges that go out are not recorded. Its result is in registers.
    #[inline(never)]
    fn granule_behind(&self, cpu: &Home<P>, block: Block) -> Option<u64> {
        match self.ledger {
            None => self.take_behind(cpu, block),
            Some(_) => None,
        }
    }

    /// The same of any number of granules, on any CPU.
    #[inline(never)]
    fn alloc_any(&self, request: Request) -> Result<IovaRange, IovaError> {
        let cpu = self.home_made();
        let low = request.below(self.ceiling.get());
        let Some(block) = self.classes.of_request(&low)? else {
            return self.alloc_searching(cpu, request);
        };
        match self.take_front(cpu, block) {
            Some(start) => Ok(self.classes.exact(start, &request)),
            None => self.alloc_behind(cpu, request, block),
        }
    }

    /// The same, where the front had `start`, which lies too high for the device.
    #[cold]
    fn alloc_beside(
        &self,
        cpu: &Home<P>,
        request: Request,
        start: u64,
    ) -> Result<IovaRange, IovaError> {
        // Cannot fail: it was here as a block.
        let _ = self.free_behind(cpu, self.classes.granule_at(start));
        self.alloc_any(request)
    }

    /// From the front of a CPU's cache.
    #[inline]
    pub(super) fn take_front(&self, cpu: &Home<P>, block: Block) -> Option<u64> {
        match cpu.fronts.take(block.kind, block.highest) {
            Ok(start) => start,
            Err(start) => self.not_for_us(cpu, block.kind, start),
        }
    }

    /// A block that lies too high for the device goes where others find it.
    #[cold]
    fn not_for_us(&self, cpu: &Home<P>, kind: Kind, start: u64) -> Option<u64> {
        // Cannot fail: it was here as a block of this kind.
        let _ = self.free_behind(cpu, self.classes.block_at(kind, start));
        None
    }

    /// Takes from the magazines, or from the depot and the ranges behind them. `block` is below the ceiling.
    #[inline(never)]
    fn alloc_behind(
        &self,
        cpu: &Home<P>,
        request: Request,
        block: Block,
    ) -> Result<IovaRange, IovaError> {
        match self.take_behind(cpu, block) {
            Some(start) => self.noted(self.classes.exact(start, &request), Heap::Use),
            None => self.alloc_searching(cpu, request),
        }
    }

    /// Takes from a CPU's magazines.
    #[inline]
    fn take_behind(&self, cpu: &Home<P>, block: Block) -> Option<u64> {
        cpu.magazines.with(|cache| cache.of(block.kind).take(block.highest))
    }

    /// Finds addresses where the magazines have none, or `request` is of no class.
    #[inline(never)]
    fn alloc_searching(&self, cpu: &Home<P>, request: Request) -> Result<IovaRange, IovaError> {
        let found = self.upwards(&request, |low, is_last| {
            let block = self.classes.of_request(low)?;
            let start = block.and_then(|block| {
                let taken = self.take_behind(cpu, block);
                taken.or_else(|| self.refilled(cpu, low, block))
            });
            match start {
                Some(start) => Ok(self.classes.exact(start, low)),
                None => self.alloc_slowly(cpu, low, is_last),
            }
        });
        self.noted(found?, Heap::Use)
    }

    /// Enters a range that goes out, where those are recorded.
    #[inline]
    fn noted(&self, range: IovaRange, heap: Heap) -> Result<IovaRange, IovaError> {
        match &self.ledger {
            None => Ok(range),
            Some(ledger) => self.enter(ledger, range, heap),
        }
    }

    /// Does `find` for `request` with the addresses that are given out first, and as long as it finds them
    /// full with more of them, at last with all that the device can use: then it is told so.
    fn upwards(
        &self,
        request: &Request,
        find: impl Fn(&Request, bool) -> Result<IovaRange, IovaError>,
    ) -> Result<IovaRange, IovaError> {
        let mut ceiling = self.ceiling.get();
        loop {
            let low = request.below(ceiling);
            let is_last = low.limit == request.limit;
            let found = find(&low, is_last);
            if is_last || !matches!(found, Err(IovaError::Full { .. })) {
                return found;
            }
            ceiling = above(ceiling, self.classes.space());
            // A request that is too large for a class may find no room where others go on finding it.
            if self.classes.of_request(&low)?.is_some() {
                self.ceiling.raise(ceiling);
            }
        }
    }

    /// Enters a range that goes out; the room that this takes is allocated outside the lock.
    #[cold]
    pub(super) fn enter(
        &self,
        ledger: &P::Lock<Ledger>,
        range: IovaRange,
        heap: Heap,
    ) -> Result<IovaRange, IovaError> {
        loop {
            let Err(lack) = ledger.with(|ledger| ledger.enter(range)) else {
                if heap == Heap::Spare {
                    self.watch_ledger(ledger);
                }
                return Ok(range);
            };
            let room = match heap {
                Heap::Use => lack.allocate().ok(),
                Heap::Spare => self.run_short(),
            };
            let Some(room) = room else {
                // It was given out just now, so there is a record to take it back with.
                let _ = self.take_back(range);
                return Err(IovaError::Memory);
            };
            let over = ledger.with(|ledger| ledger.adopt(room));
            drop(over);
        }
    }

    /// As [`IovaSpace::alloc`], with no heap memory: from the caches of the calling CPU and the depot, or
    /// the ranges as long as there are records in reserve ([`IovaOptions::reserve`]).
    ///
    /// *Context.* Interrupt.
    ///
    /// # Errors
    /// See [`IovaError`]; [`IovaError::Memory`] if the reserve is used up. A task may find addresses
    /// all the same.
    pub fn try_alloc(&self, request: &Request) -> Result<IovaRange, IovaError> {
        let cpu = self.home();
        let found = self.upwards(request, |low, _| self.alloc_sparing(cpu, low));
        self.noted(found?, Heap::Spare)
    }

    /// Blocks of a kind that a front has place for.
    #[inline]
    pub(super) fn front(&self, kind: Kind) -> usize {
        self.front[kind.index()].into()
    }

    /// The calling CPU's cache, if it has one.
    #[inline]
    pub(super) fn own_home(&self) -> Option<&Home<P>> {
        self.caches.own(self.cpus.current().get() as usize)
    }

    /// The calling CPU's cache, or the first CPU's until it has one.
    #[inline]
    pub(super) fn home(&self) -> &Home<P> {
        self.own_home().unwrap_or_else(|| self.first_home())
    }

    #[cold]
    fn first_home(&self) -> &Home<P> {
        if self.caches.want(self.cpus.current().get() as usize) {
            self.shortage.0.add(CACHES);
        }
        self.caches.first()
    }

    /// The calling CPU's cache, made if it has none, for callers that may take heap memory.
    #[inline]
    fn home_made(&self) -> &Home<P> {
        self.own_home().unwrap_or_else(|| self.make_home())
    }

    #[cold]
    fn make_home(&self) -> &Home<P> {
        let cpu = self.cpus.current().get() as usize;
        let made = self.caches.make(cpu, || Some(Home::new()));
        made.unwrap_or_else(|| self.caches.first())
    }

    /// Smallest block of addresses, and unit of alignment.
    ///
    /// *Context.* Interrupt.
    pub fn granule(&self) -> PageSize {
        self.classes.granule()
    }

    /// All addresses, free and not, that consist of whole granules.
    ///
    /// *Context.* Interrupt.
    pub fn window(&self) -> IovaRange {
        self.classes.space()
    }

    /// Holds the ranges' lock during `f`.
    pub(super) fn ranges<R>(&self, f: impl FnOnce(&mut RangeAllocator) -> R) -> R {
        self.ranges.with(|ranges| {
            let result = f(ranges);
            #[cfg(test)]
            self.step(ranges.take_steps());
            result
        })
    }

    /// Holds a depot's lock during `f`.
    pub(super) fn depot<R>(&self, kind: Kind, f: impl FnOnce(&mut Depot) -> R) -> R {
        self.step(1);
        self.depots[kind.index()].with(f)
    }

    /// Steps since the last call.
    #[cfg(test)]
    fn take_steps(&self) -> usize {
        self.steps.swap(0, core::sync::atomic::Ordering::Relaxed)
    }

    /// Counts locks taken, blocks moved and records looked at.
    #[inline]
    pub(super) fn step(&self, _steps: usize) {
        #[cfg(test)]
        self.steps.fetch_add(_steps, core::sync::atomic::Ordering::Relaxed);
    }

    /// The highest address that a device may be limited to.
    pub(super) fn top(&self) -> Iova {
        Iova::new(u64::MAX)
    }
}

#[cfg(test)]
mod tests;
