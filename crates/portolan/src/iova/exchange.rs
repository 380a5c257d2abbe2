//! Slow paths of an allocation and a release when the CPU's cache does not serve:
//!
//! *Memory.* An allocation may take heap memory, while no lock is held: room for records, and
//! magazines, as long as those of the depot hold fewer blocks than are out. A release takes an empty
//! magazine from the depot or goes to the ranges: it never allocates.

use super::class::{Block, Kind};
use super::magazine::{Depot, FreshRun, Magazine, Put};
use super::ranges::{RangeAllocator, RangeRefused};
use super::shortage::{Heap, bit};
use super::space::{Home, IovaSpace, rounds_of};
use super::{FreeError, IovaError, Request};
use crate::addr::{IovaRange, PageSize};
use crate::platform::{Cpus, Lock};

/// Granules of a leaf table, in most formats.
const LEAF_BLOCKS: u32 = 512;
/// Blocks of a CPU's first run, whose entries fill two lines of 64 bytes, and of a run where the ranges have none
/// of a leaf table's size.
const FEW_BLOCKS: u32 = 16;

/// State of a cache that asks for fresh blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CacheAge {
    /// It has given none out yet.
    New,
    /// It has used up blocks before.
    Used,
}

impl<P: Cpus> IovaSpace<P> {
    /// Does `f` under the ranges' lock, and again with the room that it lacked, which is allocated
    /// outside. `memory` says that there is none.
    pub(super) fn ranges_with_room<T, E>(
        &self,
        heap: Heap,
        memory: E,
        f: impl Fn(&mut RangeAllocator) -> Result<T, RangeRefused<E>>,
    ) -> Result<T, E> {
        loop {
            let done = self.ranges(|ranges| {
                let done = f(ranges);
                self.watch(heap, ranges);
                done
            });
            let lack = match done {
                Ok(done) => return Ok(done),
                Err(RangeRefused::Error(error)) => return Err(error),
                Err(RangeRefused::Lacks(lack)) => lack,
            };
            let room = match heap {
                Heap::Use => lack.allocate().ok(),
                Heap::Spare => self.run_short(),
            };
            let Some(room) = room else {
                return Err(memory);
            };
            let over = self.ranges(|ranges| ranges.adopt(room));
            drop(over);
        }
    }

    /// From the calling CPU's cache, the depot or the ranges, as far as no heap memory is needed.
    pub(super) fn alloc_sparing(
        &self,
        cpu: &Home<P>,
        request: &Request,
    ) -> Result<IovaRange, IovaError> {
        let Some(block) = self.classes.of_request(request)? else {
            return self.search_ranges(request, Heap::Spare);
        };
        if let Some(start) = self.take_front(cpu, block) {
            return Ok(self.classes.exact(start, request));
        }
        let take = || {
            cpu.magazines.with(|cache| {
                let magazines = cache.of(block.kind);
                (magazines.take(block.highest), magazines.len())
            })
        };
        let (mut found, left) = take();
        if found.is_none() && left == 0 {
            if let Some(full) = self.depot(block.kind, |depot| depot.fetch()) {
                let out = cpu.magazines.with(|cache| cache.of(block.kind).load(full));
                self.keep(block.kind, out);
                found = take().0;
            }
        }
        match found {
            Some(start) => Ok(self.classes.exact(start, request)),
            None => self.search_ranges(request, Heap::Spare),
        }
    }

    /// For a cache that has nothing: a full magazine, or fresh blocks. Returns where the first one is.
    #[cold]
    pub(super) fn refilled(&self, cpu: &Home<P>, request: &Request, block: Block) -> Option<u64> {
        // Blocks that lie too high for the device: more of them would only be in the way.
        self.step(1);
        let (held, age) = cpu.magazines.with(|cache| {
            let magazines = cache.of(block.kind);
            let age = if magazines.given == 0 { CacheAge::New } else { CacheAge::Used };
            (magazines.len(), age)
        });
        if held > 0 {
            return None;
        }
        let Some(full) = self.depot(block.kind, |depot| depot.fetch()) else {
            return self.refill(cpu, request, block.kind, age);
        };
        self.step(1);
        let (out, found) = cpu.magazines.with(|cache| {
            let magazines = cache.of(block.kind);
            let out = magazines.load(full);
            (out, magazines.take(block.highest))
        });
        self.keep(block.kind, out);
        found
    }

    /// Fresh blocks, the first of which is for the caller: those of a whole leaf table, so that other CPUs
    /// seldom write entries beside this one's; a few where the ranges have no such run, and the first time:
    /// CPUs that use few have theirs beside each other, for one range command, and on lines of their own.
    fn refill(&self, cpu: &Home<P>, request: &Request, kind: Kind, age: CacheAge) -> Option<u64> {
        let most = (LEAF_BLOCKS >> kind.order()).min(self.options.refill);
        let most = match age {
            CacheAge::New => most.min(FEW_BLOCKS),
            CacheAge::Used => most,
        };
        // A power of two, so that runs lie next to each other.
        let blocks = 1 << u64::from(most).min(self.classes.share(kind)).max(1).ilog2();
        let runs = [blocks, blocks.min(FEW_BLOCKS)];
        let run = runs.iter().find_map(|blocks| self.fresh_run(request, kind, *blocks));
        let (kind, mut run) = run?;
        let first = run.take(u64::MAX);
        self.step(1);
        let surplus = cpu.magazines.with(|cache| cache.of(kind).freshen(run));
        self.give_run(kind, surplus);
        first
    }

    /// So many blocks from the ranges, with their kind.
    fn fresh_run(&self, request: &Request, kind: Kind, blocks: u32) -> Option<(Kind, FreshRun)> {
        if blocks <= 1 {
            return None;
        }
        let lg2 = self.granule().lg2() + kind.order();
        // A run that is aligned to its size lies in one zone and under one leaf table.
        let align = PageSize::of_lg2(lg2 + blocks.ilog2());
        let request = Request { bytes: u64::from(blocks) << lg2, align, limit: request.limit };
        let fresh = self.ranges_with_room(Heap::Use, IovaError::Memory, |ranges| {
            ranges.try_alloc(request, blocks as usize)
        });
        let first = fresh.ok()?.start().get();
        let kind = self.classes.kind_at(kind, first);
        self.note_blocks_out(Heap::Use, kind, blocks.into());
        Some((kind, FreshRun::new(first, blocks, lg2)))
    }

    /// A new magazine, or one that stands for none if there is no memory.
    pub(super) fn made(&self, kind: Kind) -> Magazine {
        Magazine::try_new(rounds_of(&self.options, &self.classes, kind)).unwrap_or_default()
    }

    /// For a cache that is full.
    #[cold]
    pub(super) fn free_exchanging(
        &self,
        cpu: &Home<P>,
        kind: Kind,
        range: IovaRange,
    ) -> Result<(), FreeError> {
        let Some(empty) = self.depot(kind, |depot| depot.fetch_empty()) else {
            self.miss_magazine(kind);
            return self.take_back(range);
        };
        let start = range.start().get();
        self.step(1);
        let (out, put) = cpu.magazines.with(|cache| cache.of(kind).put_into(empty, start));
        self.keep(kind, out);
        match put {
            Put::Done => Ok(()),
            Put::Twice => Err(FreeError::Free { range }),
            Put::Full => self.take_back(range),
        }
    }

    /// Brings a magazine to the depot.
    pub(super) fn keep(&self, kind: Kind, magazine: Magazine) {
        if magazine.is_none() {
            return;
        }
        let kept = self.options.depot_magazines;
        let full = self.depot(kind, |depot| {
            depot.keep(magazine);
            depot.magazines()
        });
        if full > kept {
            self.overfull.0.add(bit(kind));
        }
    }

    /// A range that is given out, rounded up as it was then.
    pub(super) fn block_of(&self, range: IovaRange) -> Result<IovaRange, FreeError> {
        let block = |kind| self.classes.block_at(kind, range.start().get());
        Ok(self.classes.of_range(range)?.map_or(range, block))
    }

    /// Gives a range back to the ranges, rounded up as it was.
    pub(super) fn take_back(&self, range: IovaRange) -> Result<(), FreeError> {
        let kind = self.classes.of_range(range)?;
        let whole = kind.map_or(range, |kind| self.classes.block_at(kind, range.start().get()));
        self.ranges_with_room(Heap::Spare, FreeError::Memory, |ranges| ranges.try_free(whole))?;
        if let Some(kind) = kind {
            self.depot(kind, |depot| depot.note_back(1));
        }
        Ok(())
    }

    /// From the ranges, if need be (`empties_caches`) after caches were emptied into them: the caller's, the
    /// depots, and those of the other CPUs, one after the other.
    #[cold]
    pub(super) fn alloc_slowly(
        &self,
        cpu: &Home<P>,
        request: &Request,
        empties_caches: bool,
    ) -> Result<IovaRange, IovaError> {
        if !empties_caches {
            return self.search_ranges(request, Heap::Use);
        }
        let mut result = self.search_ranges(request, Heap::Use);
        let mut retry = |emptied: usize| {
            if emptied > 0 {
                result = self.search_ranges(request, Heap::Use);
            }
            !matches!(result, Err(IovaError::Full { .. }))
        };
        if retry(0) || retry(self.empty_cache(cpu, request.limit)) {
            return result;
        }
        for kind in Kind::all().filter(|kind| kind.serves(request.limit)) {
            // No more than were there: other CPUs may bring new ones all the time.
            let mut there = self.depot(kind, |depot| depot.magazines());
            while there > 0 {
                let emptied = self.empty_batch(kind, &mut there, Depot::fetch);
                if retry(emptied) {
                    return result;
                }
            }
        }
        for cache in self.caches.iter() {
            if retry(self.empty_cache(cache, request.limit)) {
                return result;
            }
        }
        result
    }

    /// A block, or, if there is none, a range that begins where no block does.
    fn search_ranges(&self, request: &Request, heap: Heap) -> Result<IovaRange, IovaError> {
        let memory = IovaError::Memory;
        let whole = self.classes.whole(request);
        let full = |error| match error {
            IovaError::Full { limit, .. } => IovaError::Full { bytes: request.bytes, limit },
            other => other,
        };
        let block = self.ranges_with_room(heap, memory, |ranges| ranges.try_alloc(whole, 1));
        match block {
            Ok(range) => {
                let range = self.classes.exact(range.start().get(), request);
                self.note_out(heap, range);
                Ok(range)
            }
            Err(IovaError::Full { .. }) if whole != *request => self
                .ranges_with_room(heap, memory, |ranges| self.part(ranges, request))
                .map_err(full),
            Err(error) => Err(full(error)),
        }
    }

    /// Counts a range that the ranges have given out.
    pub(super) fn note_out(&self, heap: Heap, range: IovaRange) {
        if let Some(kind) = self.classes.of_block(range) {
            self.note_blocks_out(heap, kind, 1);
        }
    }

    /// Counts blocks that the ranges have given out, and makes magazines for their return if there are too
    /// few.
    fn note_blocks_out(&self, heap: Heap, kind: Kind, blocks: u64) {
        let missing = self.depot(kind, |depot| {
            depot.note_out(blocks);
            depot.missing(blocks)
        });
        if heap == Heap::Use {
            let made =
                (0..missing).map_while(|_| Some(self.made(kind)).filter(|made| !made.is_none()));
            made.for_each(|made| self.keep(kind, made));
        }
    }

    /// A range that would not come back as a block, of which it is only part.
    fn part(
        &self,
        ranges: &mut RangeAllocator,
        request: &Request,
    ) -> Result<IovaRange, RangeRefused<IovaError>> {
        let range = ranges.try_alloc(*request, 1)?;
        let Ok(Some(kind)) = self.classes.of_range(range) else {
            return Ok(range);
        };
        if self.classes.block_at(kind, range.start().get()) == range {
            return Ok(range);
        }
        // There is a record for it: it was given out just now.
        let _ = ranges.try_free(range);
        let (bytes, limit) = (request.bytes, request.limit);
        Err(IovaError::Full { bytes, limit }.into())
    }
}
