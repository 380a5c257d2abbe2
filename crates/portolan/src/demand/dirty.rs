//! Granules that devices wrote, for moving the memory to another machine.

use super::bits::GranuleRun;
use super::error::ReadDirtyError;
use super::owner::Pager;
use super::region::{Part, Region};
use super::space::Ioas;
use crate::addr::IovaRange;
use crate::inval::Gather;
use crate::iommu::{Domain, TrackDirtyError};
use crate::platform::{Cpus, Lock};
use crate::table::format::DirtyTracking;
use crate::table::{Access, DirtyError};

/// Marks of granules that were taken back, once they were handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Handed {
    Kept,
    Cleared,
}

impl<D: Domain, O: Pager, P: Cpus> Ioas<D, O, P> {
    /// Switches marks of written pages on or off, as [`Domain::track_dirty`]. Granules that were taken back before stay
    /// among those that the next read hands over.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// As there.
    pub fn track_dirty(&self, marks: DirtyTracking) -> Result<(), TrackDirtyError> {
        self.domain.track_dirty(marks)
    }

    /// Hands to `visit` the granules that devices wrote in `range` since the last time, and those
    /// that were writable and taken back since then, written or not. A range may be handed over
    /// twice. When this returns, writes are marked again; bytes read afterwards are no older than
    /// the marks.
    ///
    /// *Context.* Task: it looks at every page, and calls `visit` without a lock.
    ///
    /// # Errors
    /// See [`ReadDirtyError`]. Ranges that were handed over stand.
    pub fn read_and_clear_dirty(
        &self,
        range: IovaRange,
        mut visit: impl FnMut(IovaRange),
    ) -> Result<(), ReadDirtyError> {
        let mut owed = Gather::new();
        let cleared = self.each_writable(range, |region, part| {
            // The table first: granules that are taken back after that are found lost.
            if let Some(range) = region.addresses(part) {
                self.domain.read_and_clear_dirty(range, &mut owed, &mut visit)?;
            }
            lost(region, part, Handed::Cleared, &mut visit);
            Ok(())
        });
        // Marks that an earlier dirty read did not pay for may be missing still.
        let earlier = self.marks.with(|marks| *marks);
        let settled = self.settle(owed, earlier);
        if let Err(unpaid) = settled {
            let generation = Some(unpaid.generation);
            self.marks.with(|marks| *marks = (*marks).max(generation));
        }
        cleared?;
        settled.map_err(|unpaid| ReadDirtyError::NotPaid(unpaid.cause.into()))
    }

    /// As [`Ioas::read_and_clear_dirty`], and leaves the marks.
    ///
    /// *Context.* Task: it looks at every page, and calls `visit` without a lock.
    ///
    /// # Errors
    /// [`ReadDirtyError::Table`]. Ranges that were handed over stand.
    pub fn read_dirty(
        &self,
        range: IovaRange,
        mut visit: impl FnMut(IovaRange),
    ) -> Result<(), ReadDirtyError> {
        let read = self.each_writable(range, |region, part| {
            if let Some(range) = region.addresses(part) {
                self.domain.read_dirty(range, &mut visit)?;
            }
            lost(region, part, Handed::Kept, &mut visit);
            Ok(())
        });
        Ok(read?)
    }

    /// Calls `each` for the parts of writable regions that `range` touches.
    fn each_writable(
        &self,
        range: IovaRange,
        mut each: impl FnMut(&Region<O, P>, Part) -> Result<(), DirtyError>,
    ) -> Result<(), DirtyError> {
        self.each_region(range, |region, inside| match region.access.contains(Access::WRITE) {
            true => region.parts(inside).try_for_each(|part| each(region, part)),
            false => Ok(()),
        })
    }
}

/// Hands over the granules of `part` that were taken back.
fn lost<O, P: Cpus>(
    region: &Region<O, P>,
    part: Part,
    handed: Handed,
    visit: &mut impl FnMut(IovaRange),
) {
    let mut rest = Some(part.run);
    while let Some(within) = rest {
        let next = region.with(part.slot, |slot| {
            let run = slot.lost.run_of(true, within)?;
            if handed == Handed::Cleared {
                slot.lost.clear(run);
            }
            Some(run)
        });
        let Some(run) = next.flatten() else {
            return;
        };
        if let Some(range) = region.addresses(Part { run, ..part }) {
            visit(range);
        }
        rest = GranuleRun::new(run.last + 1, within.last);
    }
}
