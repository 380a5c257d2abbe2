//! Work that is not done on the way of an allocation: trimming, setting aside, counting.

use super::FreeError;
use super::class::Kind;
use super::ranges::RangeRefused;
use super::shortage::Heap;
use super::space::{Home, IovaSpace};
use crate::addr::{Iova, IovaRange};
use crate::platform::{Cpus, Lock};

/// Numbers of addresses, by their place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct IovaStats {
    /// Granules that are free and in no cache.
    pub free: u64,
    /// Pieces that those are in.
    pub fragments: usize,
    /// Granules in the fronts and magazines of CPUs.
    pub in_magazines: u64,
    /// Granules in depots.
    pub in_depots: u64,
    /// Ranges that came from the magazines of CPUs. Those from their fronts are not counted.
    pub given: u64,
    /// Ranges that went to the magazines of CPUs. Those to their fronts are not counted.
    pub taken: u64,
    /// Magazines that depots exchanged.
    pub exchanges: u64,
}

impl<P: Cpus> IovaSpace<P> {
    /// Sets `range` aside, from caches too: it is never given out. For the time before there are
    /// mappings: parts of it that are in use stay so, and can be given out again once they have
    /// come back.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// [`FreeError::Memory`]; nothing is set aside.
    pub fn reserve(&self, range: IovaRange) -> Result<(), FreeError> {
        self.trim_all();
        self.ranges_with_room(Heap::Use, FreeError::Memory, |ranges| ranges.try_reserve(range))
    }

    /// As [`IovaSpace::reserve`], of a range that is free.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// [`FreeError::InUse`] if a part of it is not; nothing is set aside.
    pub fn reserve_free(&self, range: IovaRange) -> Result<(), FreeError> {
        self.trim_all();
        self.ranges_with_room(Heap::Use, FreeError::Memory, |ranges| match ranges.is_free(range) {
            true => ranges.try_reserve(range),
            false => Err(RangeRefused::Error(FreeError::InUse { range })),
        })
    }

    /// As [`IovaSpace::alloc`], of the addresses `range` and those to which such an allocation
    /// there is rounded up. [`IovaSpace::free`] takes them back.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// [`FreeError::Foreign`] if they are not whole granules of the space, [`FreeError::InUse`] if a part
    /// is not free, [`FreeError::Memory`]; nothing is given out.
    pub fn alloc_at(&self, range: IovaRange) -> Result<(), FreeError> {
        self.reserve_free(self.block_of(range)?)?;
        match &self.ledger {
            None => Ok(()),
            Some(ledger) => match self.enter(ledger, range, Heap::Use) {
                Ok(_) => Ok(()),
                Err(_) => Err(FreeError::Memory),
            },
        }
    }

    /// Lets a range be given out that was set aside, all of which was free then.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// See [`FreeError`]; nothing is changed.
    pub fn release(&self, range: IovaRange) -> Result<(), FreeError> {
        self.ranges_with_room(Heap::Use, FreeError::Memory, |ranges| ranges.try_free(range))
    }

    /// Gives back to the ranges the magazines that lay in a depot since the last trim: for a timer.
    ///
    /// *Context.* Task: frees heap memory.
    pub fn trim(&self) {
        for kind in Kind::all() {
            while let Some(mut idle) = self.depot(kind, |depot| depot.idle()) {
                self.empty_out(kind, &mut idle);
            }
            while let Some(surplus) = self.depot(kind, |depot| depot.surplus()) {
                drop(surplus);
            }
            self.depot(kind, |depot| depot.mark());
        }
    }

    /// Gives all blocks in every CPU's cache back to the ranges.
    ///
    /// *Context.* Task: goes through all caches.
    pub fn trim_all(&self) {
        self.empty_depots(self.top());
        for cache in &self.caches {
            self.empty_cache(&cache.0, self.top());
        }
    }

    /// Empties the fronts and magazines of which a device with `limit` can use blocks, and returns their
    /// number.
    pub(super) fn empty_cache(&self, cpu: &Home<P>, limit: Iova) -> usize {
        let mut blocks = 0;
        for kind in Kind::all().filter(|kind| kind.serves(limit)) {
            self.step(1);
            for start in cpu.fronts.clear(kind, self.front) {
                self.step(1);
                self.give(kind, start);
                blocks += 1;
            }
            let both = cpu.magazines.with(|cache| cache.of(kind).clear());
            for mut magazine in both {
                blocks += self.empty_out(kind, &mut magazine);
                self.keep_empty(kind, magazine);
            }
        }
        blocks
    }

    /// The same of depots.
    pub(super) fn empty_depots(&self, limit: Iova) -> usize {
        let mut blocks = 0;
        for kind in Kind::all().filter(|kind| kind.serves(limit)) {
            // No more than were there: other CPUs may bring new ones all the time.
            let there = self.depot(kind, |depot| depot.magazines());
            for _ in 0..there {
                let Some(mut full) = self.depot(kind, |depot| depot.fetch()) else {
                    break;
                };
                blocks += self.empty_out(kind, &mut full);
                self.keep_empty(kind, full);
            }
        }
        blocks
    }

    /// Places of the free addresses, looked at one after the other.
    ///
    /// *Context.* Interrupt.
    pub fn stats(&self) -> IovaStats {
        let mut stats = self.ranges(|ranges| IovaStats {
            free: ranges.free_pages(),
            fragments: ranges.fragments(),
            ..IovaStats::default()
        });
        for kind in Kind::all() {
            let (blocks, exchanges) = self.depot(kind, |depot| (depot.len(), depot.exchanges));
            stats.in_depots += (blocks as u64) << kind.order();
            stats.exchanges += exchanges;
            for cache in &self.caches {
                let front = cache.0.fronts.blocks(kind, self.front).count() as u64;
                stats.in_magazines += front << kind.order();
                cache.0.magazines.with(|cache| {
                    let magazines = cache.of(kind);
                    stats.in_magazines += (magazines.len() as u64) << kind.order();
                    stats.given += magazines.given;
                    stats.taken += magazines.taken;
                });
            }
        }
        stats
    }
}
