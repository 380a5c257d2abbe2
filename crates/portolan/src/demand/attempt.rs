//! One attempt to map for a fault: memory is populated, the granules are claimed, and the map is
//! written without a lock.

use super::bits::{GRANULES, GranuleRun};
use super::debt::{Unpaid, UnpaidReason};
use super::error::FaultError;
use super::owner::{Frames, Pager};
use super::region::{Part, Region, SlotPhase};
use super::space::Ioas;
use crate::addr::Iova;
use crate::inval::Gather;
use crate::iommu::{Domain, DomainError};
use crate::platform::Cpus;

/// End of an attempt to map.
pub(super) enum Attempt {
    Done(GranuleRun),
    /// Memory was taken back, or another fault mapped.
    Raced,
}

impl<D: Domain, O: Pager, P: Cpus> Ioas<D, O, P> {
    /// Populates the beginning of `part` and maps it, if the slot's sequence is still `sequence`.
    pub(super) fn attempt(
        &self,
        region: &Region<O, P>,
        part: Part,
        sequence: u64,
    ) -> Result<Attempt, FaultError> {
        let Some(range) = region.addresses(part) else {
            return Ok(Attempt::Raced);
        };
        let lg2 = self.domain.granule().lg2();
        let mut frames = Frames::new();
        region.owner.populate(range, region.access, &mut frames)?;
        let granules = (frames.bytes() >> lg2).min(GRANULES.into()) as u32;
        let iova = range.start();
        let run = granules.checked_sub(1).map(|more| part.run.first + more);
        let run = run.and_then(|last| GranuleRun::new(part.run.first, last.min(part.run.last)));
        let Some(run) = run else {
            let bytes = frames.bytes();
            return Err(FaultError::Short { iova, bytes });
        };
        let bytes = run.count() << lg2;
        frames.truncate(bytes);
        self.mapped.take(bytes)?;
        let Some(mut filling) = Filling::begin(region, Part { run, ..part }, sequence) else {
            self.mapped.give(bytes);
            return Ok(Attempt::Raced);
        };
        let mut owed = Gather::new();
        let pieces = frames.whole(self.domain.granule());
        let mapped = pieces
            .map_err(DomainError::from)
            .and_then(|pieces| self.domain.map_sg(iova, pieces, region.access, &mut owed));
        if let Err(error) = mapped {
            drop(filling);
            self.mapped.give(bytes);
            return Err(error.into());
        }
        filling.written();
        // A map mostly owes nothing; then the debts of others are left to them.
        let settled = match self.domain.is_due(&owed) {
            true => self.settle(owed, None),
            false => Ok(()),
        };
        filling.paid(settled);
        match settled {
            Ok(()) => Ok(Attempt::Done(run)),
            Err(unpaid) => Err(not_paid(unpaid.cause, iova)),
        }
    }
}

/// Progress of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AttemptStage {
    /// Being written, without the slot's lock: a CPU that takes memory back there waits.
    Writing,
    /// Written; its debt is being paid.
    Paying,
}

/// Granules that a fault has claimed. Dropped while they are being written, they are free again.
struct Filling<'r, O, P: Cpus> {
    region: &'r Region<O, P>,
    part: Part,
    stage: AttemptStage,
}

impl<'r, O, P: Cpus> Filling<'r, O, P> {
    /// Claims `part`, if no other fault has mapped there and no memory was taken back since
    /// `sequence` was seen.
    fn begin(region: &'r Region<O, P>, part: Part, sequence: u64) -> Option<Self> {
        let begun = region.with(part.slot, |slot| {
            let stands = slot.phase == SlotPhase::Open && slot.sequence == sequence;
            let free = stands && slot.mapped.run_of(true, part.run).is_none();
            if free {
                slot.mapped.set(part.run);
                slot.filling += 1;
            }
            free
        });
        let stage = AttemptStage::Writing;
        (begun == Some(true)).then(|| Self { region, part, stage })
    }

    /// They are mapped; their debt is still to be paid.
    fn written(&mut self) {
        self.stage = AttemptStage::Paying;
        self.region.with(self.part.slot, |slot| {
            slot.filling -= 1;
            slot.unpaid += 1;
        });
    }

    /// Notes that the debt was paid, or was kept.
    fn paid(self, settled: Result<(), Unpaid>) {
        if let Err(unpaid) = settled {
            self.region.with(self.part.slot, |slot| {
                slot.map_debt = slot.map_debt.max(Some(unpaid.generation));
            });
        }
    }
}

impl<O, P: Cpus> Drop for Filling<'_, O, P> {
    fn drop(&mut self) {
        self.region.with(self.part.slot, |slot| match self.stage {
            AttemptStage::Writing => {
                slot.filling -= 1;
                slot.mapped.clear(self.part.run);
            }
            AttemptStage::Paying => slot.unpaid -= 1,
        });
    }
}

/// Error of a fault whose debt is not paid.
pub(super) fn not_paid(cause: UnpaidReason, iova: Iova) -> FaultError {
    match cause {
        UnpaidReason::Iommu(error) => FaultError::Iommu(error),
        UnpaidReason::Turn { .. } => FaultError::Busy { iova },
    }
}
