//! Pinning of memory when a region is added, and unpinning when it is removed.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use super::error::{RecoverError, RegionError};
use super::owner::{Frames, Pager, Unreached};
use super::region::{Part, Region};
use super::space::Ioas;
use crate::addr::{Iova, IovaRange};
use crate::inval::Gather;
use crate::iommu::{Domain, DomainError};
use crate::platform::{Cpus, Lock};

impl<D: Domain, O: Pager, P: Cpus> Ioas<D, O, P> {
    /// Pins and maps all that is to be pinned of a region that is closed to faults.
    pub(super) fn pin_all(&self, region: &Region<O, P>) -> Result<(), RegionError> {
        let mut owed = Gather::new();
        let mut pinned = Ok(());
        for part in &region.pinned {
            pinned = self.pin_range(region, *part, &mut owed);
            if pinned.is_err() {
                break;
            }
            region.pins.with(|pins| {
                pins.whole += 1;
                pins.beginning = None;
            });
        }
        let settled = self.settle(owed, None);
        pinned?;
        settled.map_err(|unpaid| RecoverError::from(unpaid.cause).into())
    }

    /// Takes back the mappings of a region that is not added because of `error`, and unpins its
    /// memory. If that fails the region stays, and can be removed.
    pub(super) fn unwind(&self, region: &Arc<Region<O, P>>, error: RegionError) -> RegionError {
        match self.take_back(region, region.range) {
            Ok(_) => {
                self.forget(region);
                self.unpin_all(region);
                error
            }
            Err(failed) => {
                region.complete.store(true, Ordering::Relaxed);
                RegionError::NotQuiet(failed)
            }
        }
    }

    /// Pins and maps `range`, piece by piece, and notes the part of it that is pinned.
    fn pin_range(
        &self,
        region: &Region<O, P>,
        range: IovaRange,
        owed: &mut Gather,
    ) -> Result<(), RegionError> {
        let start = range.start();
        let mut at = Some(start);
        while let Some(rest) = at.and_then(|from| IovaRange::new(from, range.last())) {
            let last = self.pin_piece(region, rest, owed)?;
            let beginning = IovaRange::new(start, last);
            region.pins.with(|pins| pins.beginning = beginning);
            at = last.checked_add(1);
        }
        Ok(())
    }

    /// Pins and maps the first pieces of `rest`; its last address that is.
    fn pin_piece(
        &self,
        region: &Region<O, P>,
        rest: IovaRange,
        owed: &mut Gather,
    ) -> Result<Iova, RegionError> {
        let iova = rest.start();
        let mut frames = Frames::new();
        region.owner.pin(rest, region.access, &mut frames)?;
        let bytes = frames.bytes();
        let granule = self.domain.granule().bytes();
        let piece = IovaRange::from_len(iova, bytes).filter(|piece| rest.covers(*piece));
        let Some(piece) = piece.filter(|_| bytes % granule == 0) else {
            if let Some(piece) = piece {
                region.owner.unpin(&Unreached::new(piece));
            }
            return Err(RegionError::Short { iova, bytes });
        };
        let mapped = self.charge_pinned(bytes).and_then(|()| {
            let pieces = frames.whole(self.domain.granule());
            let mapped = pieces
                .map_err(DomainError::from)
                .and_then(|pieces| self.domain.map_sg(iova, pieces, region.access, owed));
            mapped.map_err(|error| {
                self.pinned.give(bytes);
                self.mapped.give(bytes);
                error.into()
            })
        });
        if let Err(error) = mapped {
            region.owner.unpin(&Unreached::new(piece));
            return Err(error);
        }
        for Part { slot, run } in region.parts(piece) {
            region.with(slot, |slot| slot.mapped.set(run));
        }
        Ok(piece.last())
    }

    fn charge_pinned(&self, bytes: u64) -> Result<(), RegionError> {
        self.pinned.take(bytes)?;
        if let Err(error) = self.mapped.take(bytes) {
            self.pinned.give(bytes);
            return Err(error.into());
        }
        Ok(())
    }

    /// Lets go of all that is pinned of a region, which is quiet.
    pub(super) fn unpin_all(&self, region: &Region<O, P>) {
        let pins = region.pins.with(core::mem::take);
        let whole = region.pinned.iter().take(pins.whole).copied();
        for part in whole.chain(pins.beginning) {
            self.unpin(region, part);
        }
    }

    /// Lets go of `part`.
    fn unpin(&self, region: &Region<O, P>, part: IovaRange) {
        region.owner.unpin(&Unreached::new(part));
        self.pinned.give(part.len_minus_one() + 1);
    }
}
