//! Granules that devices wrote, for moving the memory to another machine.

use super::error::ReadDirtyError;
use super::owner::Pager;
use super::region::Part;
use super::space::Ioas;
use crate::addr::IovaRange;
use crate::inval::Gather;
use crate::iommu::{Domain, PagedDomain, TagPool};
use crate::platform::{Cpus, Lock, TableMem};
use crate::table::{Access, DirtyError, Format};

/// A domain whose tables know the pages that were written.
///
/// *Context.* Task.
pub trait DirtyDomain: Domain {
    /// As [`PageTable::read_and_clear_dirty`](crate::table::PageTable::read_and_clear_dirty).
    ///
    /// # Errors
    /// If the format keeps no dirty state.
    fn read_and_clear_dirty(
        &self,
        range: IovaRange,
        owed: &mut Gather,
        visit: &mut dyn FnMut(IovaRange),
    ) -> Result<(), DirtyError>;
}

impl<F: Format, M: TableMem<F::Word>, Q: TagPool> DirtyDomain for PagedDomain<F, M, Q> {
    fn read_and_clear_dirty(
        &self,
        range: IovaRange,
        owed: &mut Gather,
        visit: &mut dyn FnMut(IovaRange),
    ) -> Result<(), DirtyError> {
        self.table().read_and_clear_dirty(range, owed, visit)
    }
}

impl<D: DirtyDomain, O: Pager, P: Cpus> Ioas<D, O, P> {
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
        let cleared = self.each_region(range, |region, inside| {
            if !region.access.contains(Access::WRITE) {
                return Ok(());
            }
            for part in region.parts(inside) {
                // The table first: granules that are taken back after that are found lost.
                if let Some(range) = region.addresses(part) {
                    self.domain.read_and_clear_dirty(range, &mut owed, &mut visit)?;
                }
                let lost = |slot: &mut super::region::RegionSlot| {
                    let run = slot.lost.run_of(true, part.run)?;
                    slot.lost.clear(run);
                    Some(run)
                };
                while let Some(run) = region.with(part.slot, lost).flatten() {
                    if let Some(range) = region.addresses(Part { run, ..part }) {
                        visit(range);
                    }
                }
            }
            Ok(())
        });
        // Marks that an earlier dirty read did not pay for may be missing still.
        let earlier = self.marks.with(|marks| *marks);
        let settled = self.settle(owed, earlier);
        if let Err(unpaid) = settled {
            let generation = Some(unpaid.generation);
            self.marks.with(|marks| *marks = (*marks).max(generation));
        }
        cleared.map_err(ReadDirtyError::Table)?;
        settled.map_err(|unpaid| ReadDirtyError::NotPaid(unpaid.cause.into()))
    }
}
