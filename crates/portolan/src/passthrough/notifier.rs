//! The owner takes memory back.

use super::account::count;
use super::error::InvalidateError;
use super::owner::MemoryOwner;
use super::region::{Part, Phase, Region};
use super::space::Passthrough;
use crate::addr::{Iova, IovaRange};
use crate::inval::Gather;
use crate::platform::Cpus;
use crate::unit::{Domain, UnitError};

impl<D: Domain, O: MemoryOwner, P: Cpus> Passthrough<D, O, P> {
    /// Unmaps all that is mapped in `range`, and returns when no device reaches it any more: the
    /// number of granules that were mapped. What populated memory a fault has in hands is not
    /// mapped any more. A block that the range cuts goes whole, and comes back on demand.
    ///
    /// It waits for others that take memory back there, and for the hardware, whose driver has a
    /// deadline.
    ///
    /// # Errors
    /// See [`InvalidateError`]: devices may still reach the memory. Faults around it fail until the
    /// same range has been taken back with success.
    pub fn invalidate(&self, range: IovaRange) -> Result<u64, InvalidateError> {
        count(&self.counters.invalidations, 1);
        let granule = self.domain.granule();
        let last = IovaRange::page(range.last(), granule).last();
        let first = range.start().align_down(granule);
        let range = IovaRange::new(first, last).unwrap_or(range);
        self.each_region(range, |region, inside| match region.pinned_in(inside) {
            Some(pinned) => Err(InvalidateError::Pinned { pinned }),
            None => Ok(()),
        })?;
        let mut taken = 0;
        self.each_region(range, |region, inside| {
            taken += self.take_back(region, inside, Phase::Open)?;
            Ok::<(), InvalidateError>(())
        })?;
        count(&self.counters.granules_taken_back, taken);
        Ok(taken)
    }

    /// Calls `f` for each region that `range` touches, with what they share.
    pub(super) fn each_region<E>(
        &self,
        range: IovaRange,
        mut f: impl FnMut(&Region<O, P>, IovaRange) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut from = Some(range.start());
        while let Some(region) = from.and_then(|from| self.next_region(from)) {
            let Some(inside) = region.range.intersection(range) else {
                break;
            };
            f(&region, inside)?;
            from = region.range.last().checked_add(1);
        }
        Ok(())
    }

    /// Takes back `range` of a region; its slots are left open, unless they were closed or are to be
    /// `after`.
    pub(super) fn take_back(
        &self,
        region: &Region<O, P>,
        range: IovaRange,
        after: Phase,
    ) -> Result<u64, InvalidateError> {
        let mut owed = Gather::new();
        let mut taken = 0;
        let mut done = Ok(());
        let mut last = None;
        // In order of address, so that no two wait for each other.
        for part in region.parts(range) {
            self.enter(region, part.slot, after);
            last = Some(part.slot);
            match self.unmap_part(region, part, &mut owed) {
                Ok(granules) => taken += granules,
                Err(error) => {
                    done = Err(error);
                    break;
                }
            }
        }
        let settled = self.settle(owed);
        let outcome = done.and(settled.map_err(InvalidateError::from));
        for part in region.parts(range) {
            if last.is_none_or(|last| part.slot > last) {
                break;
            }
            region.with(part.slot, |slot| {
                slot.phase = match outcome {
                    Ok(()) => slot.resume,
                    Err(_) => Phase::Stuck,
                }
            });
        }
        outcome.map(|()| taken)
    }

    /// Becomes the only one who takes memory back in a slot, and makes what faults have in hands out
    /// of date. Waits for who is the only one; that one waits for the hardware at most, or for
    /// slots above.
    fn enter(&self, region: &Region<O, P>, slot: usize, after: Phase) {
        let entered = || {
            region.with(slot, |slot| {
                let free = slot.phase != Phase::Taking;
                if free {
                    if after == Phase::Closed {
                        slot.resume = Phase::Closed;
                    }
                    slot.phase = Phase::Taking;
                    slot.sequence = slot.sequence.wrapping_add(1);
                }
                free
            })
        };
        while entered() == Some(false) {
            self.cpus.relax();
        }
    }

    /// Unmaps what is mapped of `part`, whose slot is the caller's.
    fn unmap_part(
        &self,
        region: &Region<O, P>,
        part: Part,
        owed: &mut Gather,
    ) -> Result<u64, InvalidateError> {
        let mut granules = 0;
        let lg2 = self.domain.granule().lg2();
        let all = |slot: &mut super::region::Slot| slot.mapped.run_of(true, part.run);
        while let Some(run) = region.with(part.slot, all).flatten() {
            let Some(range) =
                (region.addresses(Part { run, ..part })).map(|r| self.whole(region, r))
            else {
                break;
            };
            if let Err(error) = self.domain.unmap(range, owed) {
                return Err(InvalidateError::Unmap { range, error });
            }
            let Some((gone, _)) = region.first_part(range) else {
                break;
            };
            region.with(part.slot, |slot| {
                slot.mapped.clear(gone.run);
                slot.lost.set(gone.run);
            });
            self.mapped.give(gone.run.count() << lg2);
            granules += gone.run.count();
        }
        Ok(granules)
    }

    /// `range` and what of the slot shares a block with its ends.
    fn whole(&self, region: &Region<O, P>, range: IovaRange) -> IovaRange {
        let granule = self.domain.granule();
        let block = |iova: Iova| {
            let leaf = self.domain.translate(iova)?;
            (leaf.size > granule).then(|| IovaRange::page(iova, leaf.size))
        };
        let slot = region.around(range.start());
        let slot = slot.and_then(|part| region.addresses(part));
        let ends = [range.start(), range.last()];
        let hull = (ends.into_iter().filter_map(block)).fold(range, IovaRange::hull);
        slot.and_then(|slot| hull.intersection(slot))
            .unwrap_or(range)
    }

    /// Waits until what others mapped in a slot is paid for, or is not open any more.
    pub(super) fn paid(&self, region: &Region<O, P>, slot: usize) -> Result<(), UnitError> {
        let look = || {
            let unpaid = region.with(slot, |slot| slot.unpaid)?;
            (unpaid == 0).then_some(())
        };
        if look().is_some() {
            return Ok(());
        }
        crate::platform::poll(&self.cpus, self.options.patience, look).map_err(|waited| {
            UnitError::TimedOut {
                awaited: crate::unit::Awaited::Completion,
                waited,
            }
        })
    }
}
