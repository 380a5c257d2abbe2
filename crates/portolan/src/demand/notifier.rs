//! The owner takes memory back.

use super::account::count;
use super::debt::{Generation, Unpaid, UnpaidReason};
use super::error::InvalidateError;
use super::owner::Pager;
use super::region::{Part, Region, SlotPhase};
use super::space::Ioas;
use crate::addr::{Iova, IovaRange};
use crate::inval::Gather;
use crate::iommu::Domain;
use crate::platform::{Cpus, Nanos, poll};

/// End of taking memory back.
enum NotifiedEnd {
    /// All of it is quiet.
    Quiet,
    /// Part of it is still mapped; the rest is quiet.
    Mapped,
    /// It is not mapped, or part of it is not, and its debt joined this generation.
    Owed(Generation),
}

impl<D: Domain, O: Pager, P: Cpus> Ioas<D, O, P> {
    /// Unmaps all mappings in `range`, and returns when no device reaches it any more: the number
    /// of granules that were mapped. Populated memory that a fault has in hands is not mapped any
    /// more. A block that the range cuts goes whole, and comes back on demand.
    ///
    /// It waits for others that take memory back there, no longer than the container's timeout,
    /// and for the hardware, whose driver has a deadline.
    ///
    /// *Context.* Atomic; the longer the range, the longer it takes.
    ///
    /// # Errors
    /// See [`InvalidateError`]: devices may still reach the memory. Unless nothing was done (it is
    /// pinned, or others were there for too long), faults around it fail until the same range has
    /// been taken back with success.
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
            taken += self.take_back(region, inside)?;
            Ok::<(), InvalidateError>(())
        })?;
        count(&self.counters.granules_taken_back, taken);
        Ok(taken)
    }

    /// Calls `f` for each region that `range` touches, with the addresses that they share.
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

    /// Takes back `range` of a region; its slots are left as they are to go on.
    pub(super) fn take_back(
        &self,
        region: &Region<O, P>,
        range: IovaRange,
    ) -> Result<u64, InvalidateError> {
        self.enter(region, range)?;
        let parts = || region.parts(range);
        let older = parts().filter_map(|part| region.with(part.slot, |slot| slot.unmap_debt)?);
        let needs = older.max();
        let mut owed = Gather::new();
        let unmapped = self.unmap_range(region, range, &mut owed);
        let settled = self.settle(owed, needs);
        let ended = match (settled, &unmapped) {
            (Ok(()), Ok(_)) => NotifiedEnd::Quiet,
            (Ok(()), Err(_)) => NotifiedEnd::Mapped,
            (Err(Unpaid { generation, .. }), _) => NotifiedEnd::Owed(generation),
        };
        for part in parts() {
            self.leave(region, part.slot, &ended);
        }
        let granules = unmapped?;
        match settled.map_err(|unpaid| unpaid.cause) {
            Ok(()) => Ok(granules),
            Err(UnpaidReason::Iommu(error)) => Err(InvalidateError::Iommu(error)),
            Err(UnpaidReason::Turn { waited }) => Err(InvalidateError::Busy { range, waited }),
        }
    }

    /// Becomes the only caller that takes memory back in the slots of `range`, and makes memory
    /// that faults have in hands out of date. In order of address, so that no two wait for each
    /// other; a caller for which others wait waits for the hardware at most, or for slots above.
    fn enter(&self, region: &Region<O, P>, range: IovaRange) -> Result<(), InvalidateError> {
        let mut timeout = self.options.timeout;
        for part in region.parts(range) {
            if let Err(waited) = self.enter_slot(region, part.slot, &mut timeout) {
                let entered = region.parts(range).map(|part| part.slot);
                for slot in entered.take_while(|slot| *slot < part.slot) {
                    self.resume(region, slot);
                }
                return Err(InvalidateError::Busy { range, waited });
            }
        }
        Ok(())
    }

    /// Enters one slot, and waits until maps that are being written there are.
    fn enter_slot(
        &self,
        region: &Region<O, P>,
        slot: usize,
        timeout: &mut Nanos,
    ) -> Result<(), Nanos> {
        let free = || {
            let entered = region.with(slot, |slot| {
                let free = slot.phase != SlotPhase::Taking;
                if free {
                    slot.before = slot.phase;
                    slot.phase = SlotPhase::Taking;
                    slot.sequence = slot.sequence.wrapping_add(1);
                }
                free
            });
            entered != Some(false)
        };
        self.wait(timeout, free)?;
        let written = || {
            let filling = region.with(slot, |slot| slot.filling);
            filling.unwrap_or(0) == 0
        };
        self.wait(timeout, written).inspect_err(|_| self.resume(region, slot))
    }

    /// Waits until `ready` holds, or `timeout` is used up. The clock is read only if there is something to
    /// wait for.
    fn wait(&self, timeout: &mut Nanos, ready: impl Fn() -> bool) -> Result<(), Nanos> {
        if ready() {
            return Ok(());
        }
        let begin = self.cpus.now();
        let waited = poll(&self.cpus, *timeout, || ready().then_some(()));
        *timeout = timeout.since(self.cpus.now().since(begin));
        waited
    }

    /// Leaves a slot in which nothing was done.
    fn resume(&self, region: &Region<O, P>, slot: usize) {
        region.with(slot, |slot| {
            slot.phase = match slot.before {
                SlotPhase::Stuck => SlotPhase::Stuck,
                _ => slot.resume,
            }
        });
    }

    /// Leaves a slot whose memory was taken back, or not.
    fn leave(&self, region: &Region<O, P>, slot: usize, ended: &NotifiedEnd) {
        let quiet = region.with(slot, |slot| {
            let resume = slot.resume;
            (slot.phase, slot.unmap_debt) = match ended {
                NotifiedEnd::Quiet => (resume, None),
                NotifiedEnd::Mapped => (SlotPhase::Stuck, None),
                NotifiedEnd::Owed(generation) => (SlotPhase::Stuck, Some(*generation)),
            };
            match slot.unmap_debt {
                None => core::mem::take(&mut slot.leaving),
                Some(_) => 0,
            }
        });
        let lg2 = self.domain.granule().lg2();
        self.leaving.give(quiet.unwrap_or(0) << lg2);
    }

    /// Unmaps the mapped parts of `range`, whose slots are the caller's. Blocks go whole: no memory
    /// is needed for that.
    fn unmap_range(
        &self,
        region: &Region<O, P>,
        range: IovaRange,
        owed: &mut Gather,
    ) -> Result<u64, InvalidateError> {
        let mut granules = 0;
        let mut rest = Some(range);
        while let Some(found) = rest.and_then(|rest| self.first_mapped(region, rest)) {
            let whole = self.whole(region, range, found);
            if let Err(error) = self.domain.unmap(whole, owed) {
                let range = whole;
                return Err(InvalidateError::Unmap { range, error });
            }
            for gone in region.parts(whole) {
                granules += self.unmapped(region, gone);
            }
            let next = whole.last().checked_add(1);
            rest = next.and_then(|next| IovaRange::new(next, range.last()));
        }
        Ok(granules)
    }

    /// The first addresses of `range` that are mapped, from slot to slot as long as they are.
    fn first_mapped(&self, region: &Region<O, P>, range: IovaRange) -> Option<IovaRange> {
        let mut found: Option<IovaRange> = None;
        for part in region.parts(range) {
            let run = region.with(part.slot, |slot| slot.mapped.run_of(true, part.run));
            let Some(run) = run.flatten() else {
                match found {
                    Some(_) => break,
                    None => continue,
                }
            };
            let here = region.addresses(Part { run, ..part })?;
            let follows = |before: IovaRange| before.last().checked_add(1) == Some(here.start());
            match found {
                Some(before) if follows(before) => found = Some(before.hull(here)),
                Some(_) => break,
                None => found = Some(here),
            }
        }
        found
    }

    /// Notes that `part` is not mapped any more; its granules.
    fn unmapped(&self, region: &Region<O, P>, part: Part) -> u64 {
        let count = part.run.count();
        region.with(part.slot, |slot| {
            slot.mapped.clear(part.run);
            slot.lost.set(part.run);
            slot.leaving += count;
        });
        let bytes = count << self.domain.granule().lg2();
        self.leaving.add(bytes);
        self.mapped.give(bytes);
        count
    }

    /// `found`, which is mapped, and the blocks at its ends, in the slots of `range`, all of which
    /// are the caller's. Blocks above a slot are pinned ones, and the range of those is the region.
    fn whole(&self, region: &Region<O, P>, range: IovaRange, found: IovaRange) -> IovaRange {
        let block = |iova: Iova| {
            let leaf = self.domain.translate(iova)?;
            Some(IovaRange::page(iova, leaf.size))
        };
        let ends = [found.start(), found.last()];
        let hull = (ends.into_iter().filter_map(block)).fold(found, IovaRange::hull);
        let slots = ends.into_iter().filter_map(|end| region.around(end));
        let slots = slots.filter_map(|part| region.addresses(part));
        let entered = slots.fold(range, IovaRange::hull);
        hull.intersection(entered).unwrap_or(found)
    }
}
