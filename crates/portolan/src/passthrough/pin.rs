//! What is pinned when a region is added, and let go of when it is removed.

use super::error::RegionError;
use super::owner::{Frames, MemoryOwner};
use super::region::{Part, Phase, Region};
use super::space::Passthrough;
use crate::addr::{Iova, IovaRange};
use crate::inval::Gather;
use crate::platform::Cpus;
use crate::unit::Domain;

impl<D: Domain, O: MemoryOwner, P: Cpus> Passthrough<D, O, P> {
    /// Pins and maps all that is to be pinned of a region that is closed to faults.
    pub(super) fn pin_all(&self, region: &Region<O, P>) -> Result<(), RegionError> {
        let mut owed = Gather::new();
        for (at, part) in region.pinned.iter().enumerate() {
            let done = self.pin_range(region, *part, &mut owed);
            if let Err((error, pinned)) = done {
                let before = region.pinned.iter().take(at).copied();
                let _ = self.settle(owed);
                self.unwind(region, before.chain(pinned))?;
                return Err(error);
            }
        }
        match self.settle(owed) {
            Ok(()) => Ok(()),
            Err(error) => {
                self.unwind(region, region.pinned.iter().copied())?;
                Err(error.into())
            }
        }
    }

    /// Takes back what was pinned so far.
    fn unwind(
        &self,
        region: &Region<O, P>,
        pinned: impl Iterator<Item = IovaRange>,
    ) -> Result<(), RegionError> {
        use super::error::InvalidateError;
        match self.take_back(region, region.range, Phase::Closed) {
            Ok(_) => {}
            Err(InvalidateError::Unit(error)) => return Err(error.into()),
            // Nothing but whole maps of this region is unmapped, which has no reason to fail; if it
            // does, devices may reach what was pinned, which therefore stays so.
            Err(_) => return Ok(()),
        }
        for part in pinned {
            self.unpin(region, part);
        }
        Ok(())
    }

    /// Pins and maps `range`. An error comes with what of it was pinned and has to be let go of.
    fn pin_range(
        &self,
        region: &Region<O, P>,
        range: IovaRange,
        owed: &mut Gather,
    ) -> Result<(), (RegionError, Option<IovaRange>)> {
        let start = range.start();
        let mut at = Some(start);
        let before = |at: Iova| at.get().checked_sub(1).map(Iova::new);
        while let Some(from) = at {
            let Some(rest) = IovaRange::new(from, range.last()) else {
                break;
            };
            let pinned = || before(from).and_then(|last| IovaRange::new(start, last));
            let last = self
                .pin_piece(region, rest, owed)
                .map_err(|error| (error, pinned()))?;
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
                region.owner.unpin(piece);
            }
            return Err(RegionError::Short { iova, bytes });
        };
        let mapped = self.charge_pinned(bytes).and_then(|()| {
            let pieces = frames.pieces().iter().copied();
            let mapped = self.domain.map_sg(iova, pieces, region.access, owed);
            mapped.map_err(|error| {
                self.pinned.give(bytes);
                self.mapped.give(bytes);
                error.into()
            })
        });
        if let Err(error) = mapped {
            region.owner.unpin(piece);
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

    /// Lets go of `part`, which is quiet.
    pub(super) fn unpin(&self, region: &Region<O, P>, part: IovaRange) {
        region.owner.unpin(part);
        self.pinned.give(part.len_minus_one() + 1);
    }
}
