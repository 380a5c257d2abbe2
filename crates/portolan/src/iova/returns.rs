//! Ranges that come back: to the front of a CPU's cache, to its magazines, or to what is behind them.
//!
//! *Context.* Interrupt: no memory is taken. The depots and the ranges are in `exchange.rs`.

use super::FreeError;
use super::class::Kind;
use super::magazine::{CpuCache, Put};
use super::space::{Home, IovaSpace};
use crate::addr::IovaRange;
use crate::platform::{Cpus, Lock};

/// Ranges taken back while a lock is held once.
const BULK: usize = 128;

impl<P: Cpus> IovaSpace<P> {
    /// Takes one range back, as it was given out. For addresses that devices used: only once the
    /// invalidation that covers them has completed. Needs no memory.
    ///
    /// *Context.* Interrupt.
    ///
    /// # Errors
    /// See [`FreeError`] and [`Checks`](super::Checks); nothing is taken back.
    #[inline(always)]
    pub fn free(&self, range: IovaRange) -> Result<(), FreeError> {
        self.step(1);
        let Some(cpu) = self.own_home() else {
            return self.free_any(range);
        };
        let Some(kind) = self.classes.of_granule(range) else {
            return self.free_any(range);
        };
        self.free_block(cpu, kind, range)
    }

    /// The same of any number of granules, on any CPU.
    #[inline(never)]
    fn free_any(&self, range: IovaRange) -> Result<(), FreeError> {
        let cpu = self.home();
        match self.classes.of_block(range) {
            Some(kind) => self.free_block(cpu, kind, range),
            None => self.free_behind(cpu, range),
        }
    }

    /// Gives a block to the front of a CPU's cache, or to what is behind it.
    #[inline(always)]
    fn free_block(&self, cpu: &Home<P>, kind: Kind, range: IovaRange) -> Result<(), FreeError> {
        match cpu.fronts.put(kind, range.start().get(), self.front(kind)) {
            Put::Done => Ok(()),
            Put::Twice => Err(FreeError::Free { range }),
            Put::Full => match self.block_behind(cpu, kind, range.start().get()) {
                Put::Done => Ok(()),
                Put::Full | Put::Twice => self.put_behind(cpu, kind, range),
            },
        }
    }

    /// Gives a block to the magazines, where ranges that come back are not recorded. Its result is in a register.
    #[inline(never)]
    fn block_behind(&self, cpu: &Home<P>, kind: Kind, start: u64) -> Put {
        match self.ledger {
            None => cpu.magazines.with(|cache| cache.of(kind).put(start)),
            Some(_) => Put::Full,
        }
    }

    /// Gives to the magazines, or to the depot and the ranges behind them.
    #[inline(never)]
    pub(super) fn free_behind(&self, cpu: &Home<P>, range: IovaRange) -> Result<(), FreeError> {
        match self.classes.of_block(range) {
            Some(kind) => self.put_behind(cpu, kind, range),
            None => {
                self.note_in(range)?;
                self.classes.of_no_class(range)?;
                self.take_back(range)
            }
        }
    }

    /// The same of a block.
    #[inline(never)]
    fn put_behind(&self, cpu: &Home<P>, kind: Kind, range: IovaRange) -> Result<(), FreeError> {
        self.note_in(range)?;
        match cpu.magazines.with(|cache| cache.of(kind).put(range.start().get())) {
            Put::Done => Ok(()),
            Put::Full => self.free_exchanging(cpu, kind, range),
            Put::Twice => Err(FreeError::Free { range }),
        }
    }

    /// Strikes out a range that comes back, where those that are out are recorded.
    #[inline]
    fn note_in(&self, range: IovaRange) -> Result<(), FreeError> {
        match &self.ledger {
            None => Ok(()),
            Some(ledger) => ledger.with(|ledger| ledger.leave(range)),
        }
    }

    /// Takes back ranges that were given out, and returns the number of those that could not be
    /// taken. They lie in the calling CPU's cache then, as far as there is room.
    ///
    /// *Context.* Interrupt; as long as the list.
    pub fn free_all(&self, given: &[IovaRange]) -> u64 {
        let cpu = self.home();
        let (mut done, mut failed) = (0, 0);
        while let Some(left) = given.get(done..).filter(|left| !left.is_empty()) {
            self.step(1);
            // As many as fit, under the CPU's lock once.
            if self.ledger.is_none() {
                let few = left.get(..BULK).unwrap_or(left);
                done += cpu.magazines.with(|cache| self.put_many(cache, few));
            }
            if let Some(range) = given.get(done) {
                failed += u64::from(self.free_behind(cpu, *range).is_err());
                done += 1;
            }
        }
        failed
    }

    /// Puts the first of some ranges into magazines, as many as fit, and returns their number.
    #[inline]
    fn put_many(&self, cache: &mut CpuCache, few: &[IovaRange]) -> usize {
        // Most are single granules of one zone.
        let granule = |range: &IovaRange| self.classes.of_granule(*range);
        if let Some(kind) = few.first().and_then(granule) {
            let alike = few.iter().take_while(|range| granule(range) == Some(kind));
            return cache.of(kind).put_all(alike.map(|range| range.start().get()));
        }
        let fits = |range: &&IovaRange| match self.classes.of_range(**range) {
            Ok(Some(kind)) => cache.of(kind).put(range.start().get()) == Put::Done,
            _ => false,
        };
        few.iter().take_while(fits).count()
    }
}
