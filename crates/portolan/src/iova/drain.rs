//! Work that is not done on the way of an allocation: trimming, setting aside, counting.

use alloc::vec::Vec;

use super::FreeError;
use super::class::Kind;
use super::front::GRANULES;
use super::magazine::{Depot, FreshRun, Magazine};
use super::ranges::{RangeAllocator, RangeRefused};
use super::shortage::{Heap, bit};
use super::space::{Home, IovaSpace};
use crate::addr::{Iova, IovaRange};
use crate::platform::{Cpus, Lock};

/// Runs of neighbours that go to the ranges while their lock is held once.
const RUNS: usize = 16;

/// Blocks that are sorted at once: 512 KiB of their addresses.
const BATCH: u64 = 1 << 16;

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
        self.take_free(range)
    }

    /// As [`IovaSpace::reserve_free`]; addresses in caches are not looked for, and count as in use.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn take_free(&self, range: IovaRange) -> Result<(), FreeError> {
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
        self.note_out(Heap::Use, range);
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
            while self.empty_batch(kind, &mut { usize::MAX }, |depot| depot.idle(0)) > 0 {}
            self.end_trim(kind);
        }
    }

    /// As [`IovaSpace::trim`], of depots with more magazines than `IovaOptions::depot_magazines`:
    /// one batch of each size, of at most a 64th of the addresses, and without a lock where there is
    /// nothing to do.
    ///
    /// *Context.* Task: frees heap memory.
    pub fn trim_overfull(&self) {
        if !self.overfull.0.any() {
            return;
        }
        let kept = self.options.depot_magazines;
        let overfull = self.overfull.0.take();
        for kind in Kind::all().filter(|kind| overfull & bit(*kind) != 0) {
            self.empty_batch(kind, &mut { usize::MAX }, |depot| depot.idle(kept));
            self.end_trim(kind);
            if self.depot(kind, |depot| depot.magazines()) > kept {
                self.overfull.0.add(bit(kind));
            }
        }
    }

    /// Frees magazines that no blocks will fill, and begins another period.
    fn end_trim(&self, kind: Kind) {
        while let Some(surplus) = self.depot(kind, |depot| depot.surplus()) {
            drop(surplus);
        }
        self.depot(kind, |depot| depot.mark());
    }

    /// Gives the blocks of up to `most` magazines that `next` takes from a depot back to the ranges,
    /// neighbours as one range, and returns the number of blocks. It takes as many at once as one call
    /// may have in hand, so `most` says how many are left to take.
    pub(super) fn empty_batch(
        &self,
        kind: Kind,
        most: &mut usize,
        next: impl Fn(&mut Depot) -> Option<Magazine>,
    ) -> usize {
        let mut batch = Vec::new();
        let (mut blocks, share) = (0, self.classes.share(kind).min(BATCH) as usize);
        while *most > 0 && blocks < share {
            let Some(mut full) = self.depot(kind, &next) else {
                *most = 0;
                break;
            };
            *most -= 1;
            blocks += full.len();
            // Without memory, each magazine goes back by itself.
            match batch.try_reserve(full.len()) {
                Ok(()) => batch.extend_from_slice(full.blocks()),
                Err(_) => self.give_sorted(kind, full.blocks_mut()),
            }
            full.clear();
            self.keep(kind, full);
        }
        self.give_sorted(kind, &mut batch);
        blocks
    }

    /// Gives all blocks of a magazine back to the ranges, and returns their number.
    pub(super) fn empty_out(&self, kind: Kind, magazine: &mut Magazine) -> usize {
        let blocks = magazine.len();
        self.give_sorted(kind, magazine.blocks_mut());
        magazine.clear();
        blocks
    }

    /// Gives blocks back to the ranges, lowest first and neighbours as one range, so that the ranges
    /// change once for each run of neighbours, next to the change before.
    pub(super) fn give_sorted(&self, kind: Kind, blocks: &mut [u64]) {
        blocks.sort_unstable();
        let block = |start: &u64| self.classes.block_at(kind, *start);
        let next_to =
            |one: &u64, other: &u64| block(one).last().get().checked_add(1) == Some(*other);
        let mut runs = blocks.chunk_by(next_to).peekable();
        while runs.peek().is_some() {
            self.ranges(|ranges| {
                for run in runs.by_ref().take(RUNS) {
                    self.free_neighbours(ranges, kind, run.iter().copied());
                }
            });
        }
        let back = blocks.len() as u64;
        self.depot(kind, |depot| depot.note_back(back));
    }

    /// Gives a run of blocks back to the ranges.
    pub(super) fn give_run(&self, kind: Kind, run: FreshRun) {
        if run.len() > 0 {
            self.ranges(|ranges| self.free_neighbours(ranges, kind, run.starts()));
            self.depot(kind, |depot| depot.note_back(run.len() as u64));
        }
    }

    /// Gives the blocks that begin at `starts`, next to each other and lowest first, back to the ranges.
    fn free_neighbours(
        &self,
        ranges: &mut RangeAllocator,
        kind: Kind,
        starts: impl Iterator<Item = u64> + Clone,
    ) {
        let blocks = starts.clone().map(|start| self.classes.block_at(kind, start));
        let Some(whole) = blocks.clone().reduce(IovaRange::hull) else {
            return;
        };
        if ranges.try_free_run(whole, starts.count()).is_err() {
            // One of them was given back twice: it is there already.
            for block in blocks {
                let _ = ranges.try_free(block);
            }
        }
    }

    /// Gives all blocks in every CPU's cache back to the ranges.
    ///
    /// *Context.* Task: goes through all caches.
    pub fn trim_all(&self) {
        for kind in Kind::all() {
            // No more than were there: other CPUs may bring new ones all the time.
            let mut there = self.depot(kind, |depot| depot.magazines());
            while there > 0 {
                self.empty_batch(kind, &mut there, Depot::fetch);
            }
        }
        for cache in self.caches.iter() {
            self.empty_cache(cache, self.top());
        }
    }

    /// Empties the fronts and magazines of which a device with `limit` can use blocks, and returns their
    /// number.
    pub(super) fn empty_cache(&self, cpu: &Home<P>, limit: Iova) -> usize {
        let mut blocks = 0;
        for kind in Kind::all().filter(|kind| kind.serves(limit)) {
            self.step(1);
            let mut front = [0; GRANULES];
            let mut cleared = 0;
            for (place, start) in front.iter_mut().zip(cpu.fronts.clear(kind, self.front(kind))) {
                *place = start;
                cleared += 1;
            }
            let cleared = front.get_mut(..cleared).unwrap_or_default();
            if !cleared.is_empty() {
                self.give_sorted(kind, cleared);
            }
            blocks += cleared.len();
            let (both, fresh) = cpu.magazines.with(|cache| cache.of(kind).clear());
            blocks += fresh.len();
            self.give_run(kind, fresh);
            for mut magazine in both {
                blocks += self.empty_out(kind, &mut magazine);
                self.keep(kind, magazine);
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
            stats.in_depots += blocks << kind.order();
            stats.exchanges += exchanges;
            for cache in self.caches.iter() {
                let front = cache.fronts.blocks(kind, self.front(kind)).count() as u64;
                stats.in_magazines += front << kind.order();
                cache.magazines.with(|cache| {
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
