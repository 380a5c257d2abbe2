//! What an allocation and a release do when the stocks at hand do not serve: exchange a magazine
//! with the depot, go to the ranges, and, when those are exhausted, empty the stocks into them.

use super::class::{Block, Kind};
use super::magazine::{Empty, Magazine, Put};
use super::space::{Holder, IovaSpace, OnCpu};
use super::{FreeError, IovaError, Request};
use crate::addr::{IovaRange, PageSize};
use crate::platform::Cpus;

/// Blocks that go to the ranges while their lock is held once.
const BATCH: usize = 16;

/// When an empty magazine is wanted.
#[derive(Clone, Copy)]
enum Wanted {
    /// For blocks that push others out into the depot.
    IfDepotHasRoom,
    /// For blocks that stay.
    Always,
}

impl<P: Cpus> IovaSpace<P> {
    /// For stocks that have nothing: a full magazine, or fresh blocks.
    #[cold]
    pub(super) fn alloc_refilling(
        &self,
        holder: &mut impl Holder,
        request: &Request,
        block: Block,
    ) -> Result<IovaRange, IovaError> {
        // Blocks that lie too high for the device: more of them would only be in the way.
        self.step(1);
        if holder.stocks(|stocks| stocks.of(block.kind).len() > 0) {
            return self.alloc_slowly(holder, request);
        }
        if let Some(full) = self.depot(block.kind, |depot| depot.fetch()) {
            self.step(1);
            let (out, found) = holder.stocks(|stocks| {
                let shelf = stocks.of(block.kind);
                let out = shelf.load(full);
                (out, shelf.take(block.highest))
            });
            self.keep(block.kind, out);
            return match found {
                Some(start) => Ok(self.classes.exact(start, request)),
                None => self.alloc_slowly(holder, request),
            };
        }
        match self.refill(holder, request, block.kind) {
            Some(start) => Ok(self.classes.exact(start, request)),
            None => self.alloc_slowly(holder, request),
        }
    }

    /// Fresh blocks, the first of which is for the caller.
    fn refill(&self, holder: &mut impl Holder, request: &Request, kind: Kind) -> Option<u64> {
        let order = kind.order();
        let most = 512u32 >> order;
        let blocks = self.options.refill.min(self.rounds(kind) as u32);
        let blocks = blocks.clamp(1, most.max(1));
        let block = PageSize::of_lg2(self.granule().lg2() + order);
        let request = Request {
            bytes: u64::from(blocks) << block.lg2(),
            align: block,
            limit: request.limit,
        };
        if blocks == 1 {
            return None;
        }
        let fresh = self.ranges(|ranges| ranges.alloc_pieces(request, blocks as usize));
        let first = fresh.ok()?.start().get();
        // The lowest comes out first: neighbours in time are neighbours in place.
        let mut rest = (1..u64::from(blocks)).rev();
        let kind = self.classes.kind_at(kind, first);
        let offer = self.depot(kind, |depot| depot.offer());
        let magazine = self.made(kind, offer, Wanted::Always);
        if let Some(mut magazine) = magazine {
            for at in rest.by_ref() {
                let start = first + (at << block.lg2());
                // Fresh blocks may lie on both sides of the end of the low zone.
                if self.classes.kind_at(kind, start) != kind || !magazine.put(start) {
                    self.give(kind, start);
                }
            }
            self.step(1);
            let out = holder.stocks(|stocks| stocks.of(kind).load(magazine));
            self.keep(kind, out);
        }
        for at in rest {
            self.give(kind, first + (at << block.lg2()));
        }
        Some(first)
    }

    /// The empty magazine that a depot offers, if there is memory.
    fn made(&self, kind: Kind, offer: Empty, wanted: Wanted) -> Option<Magazine> {
        match (offer, wanted) {
            (Empty::Ready(magazine), _) => Some(magazine),
            (Empty::Enough, Wanted::IfDepotHasRoom) => None,
            _ => Magazine::try_new(self.rounds(kind)),
        }
    }

    /// Blocks in a magazine.
    fn rounds(&self, kind: Kind) -> usize {
        let rounds = u64::from(self.options.rounds).min(self.classes.share(kind));
        rounds.max(1) as usize
    }

    /// For stocks that are full.
    #[cold]
    pub(super) fn free_exchanging(
        &self,
        holder: &mut impl Holder,
        kind: Kind,
        range: IovaRange,
    ) -> Result<(), FreeError> {
        let offer = self.depot(kind, |depot| depot.offer());
        let Some(empty) = self.made(kind, offer, Wanted::IfDepotHasRoom) else {
            return self.take_back(range);
        };
        let start = range.start().get();
        self.step(1);
        let (out, put) = holder.stocks(|stocks| stocks.of(kind).put_into(empty, start));
        self.keep(kind, out);
        match put {
            Put::Done => Ok(()),
            Put::Twice => Err(FreeError::Free { range }),
            Put::Full => self.take_back(range),
        }
    }

    /// Brings a magazine to the depot, and its blocks to the ranges if that has no room.
    pub(super) fn keep(&self, kind: Kind, magazine: Magazine) {
        if magazine.is_none() {
            return;
        }
        if let Some(back) = self.depot(kind, |depot| depot.keep(magazine)) {
            self.empty_out(kind, back);
        }
    }

    /// Gives all blocks of a magazine back to the ranges, and returns their number.
    pub(super) fn empty_out(&self, kind: Kind, mut magazine: Magazine) -> usize {
        let blocks = magazine.len();
        while magazine.len() > 0 {
            self.ranges(|ranges| {
                for start in core::iter::from_fn(|| magazine.pop()).take(BATCH) {
                    // Fails for what somebody gave back twice: that is there already.
                    let _ = ranges.free(self.classes.block_at(kind, start));
                }
            });
        }
        blocks
    }

    /// Gives one block back to the ranges.
    fn give(&self, kind: Kind, start: u64) {
        let block = self.classes.block_at(kind, start);
        // Cannot fail: it was fetched just now.
        let _ = self.ranges(|ranges| ranges.free(block));
    }

    /// Gives a range back to the ranges, with what it was rounded up to.
    pub(super) fn take_back(&self, range: IovaRange) -> Result<(), FreeError> {
        let kind = self.classes.of_range(range)?;
        let whole = kind.map_or(range, |kind| {
            self.classes.block_at(kind, range.start().get())
        });
        self.ranges(|ranges| ranges.free(whole))
    }

    /// From the ranges, if need be after stocks were emptied into them: the caller's, the depots,
    /// and those of the other CPUs, one after the other.
    #[cold]
    pub(super) fn alloc_slowly(
        &self,
        holder: &mut impl Holder,
        request: &Request,
    ) -> Result<IovaRange, IovaError> {
        let mut result = self.search_ranges(request);
        let mut retry = |emptied: usize| {
            if emptied > 0 {
                result = self.search_ranges(request);
            }
            !matches!(result, Err(IovaError::Full { .. }))
        };
        if retry(0) || retry(self.empty_stocks(holder, request.limit)) {
            return result;
        }
        if retry(self.empty_depots(request.limit)) {
            return result;
        }
        for stocks in &self.stocks {
            if retry(self.empty_stocks(&mut OnCpu(&stocks.0), request.limit)) {
                return result;
            }
        }
        self.recall();
        result
    }

    /// A block, or, if there is none, a range that begins where no block does.
    fn search_ranges(&self, request: &Request) -> Result<IovaRange, IovaError> {
        let whole = self.classes.whole(request);
        let full = |error| match error {
            IovaError::Full { limit, .. } => IovaError::Full {
                bytes: request.bytes,
                limit,
            },
            other => other,
        };
        match self.ranges(|ranges| ranges.alloc(whole)) {
            Ok(range) => Ok(self.classes.exact(range.start().get(), request)),
            Err(IovaError::Full { .. }) if whole != *request => self
                .ranges(|ranges| {
                    let range = ranges.alloc(*request)?;
                    match self.classes.of_range(range) {
                        Ok(Some(kind)) => {
                            // It would come back as a block, and is only part of one.
                            let block = self.classes.block_at(kind, range.start().get());
                            if block != range {
                                let _ = ranges.free(range);
                                return Err(IovaError::Full {
                                    bytes: request.bytes,
                                    limit: request.limit,
                                });
                            }
                            Ok(range)
                        }
                        _ => Ok(range),
                    }
                })
                .map_err(full),
            Err(error) => Err(full(error)),
        }
    }
}
