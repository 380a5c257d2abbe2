//! Pages that devices wrote, for moving the memory to another machine.
//!
//! Not here: marks of buffers that are unmapped by their own types, which their drivers know to be written.

use super::{DmaRange, DmaSpace};
use crate::addr::IovaRange;
use crate::dma::error::{Failed, SpaceDirtyError, UnmapError};
use crate::dma::flush_queue::UnmapOutcome;
use crate::inval::Gather;
use crate::iommu::TrackDirtyError;
use crate::platform::Cpus;
use crate::table::format::DirtyTracking;

impl<P: Cpus + Clone> DmaSpace<P> {
    /// Switches marks of written pages on or off, as [`Domain::track_dirty`](crate::iommu::Domain::track_dirty).
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// As there.
    pub fn track_dirty(&self, marks: DirtyTracking) -> Result<(), TrackDirtyError> {
        self.domain.track_dirty(marks)
    }

    /// Hands to `visit` the mapped pages in `range` that devices wrote since the last time, each whole. When this
    /// returns, writes are marked again; bytes read afterwards are no older than the marks.
    ///
    /// *Context.* Task: looks at every page, and waits for the hardware.
    ///
    /// # Errors
    /// See [`SpaceDirtyError`]. Pages that were handed over stand.
    pub fn read_and_clear_dirty(
        &self,
        range: IovaRange,
        mut visit: impl FnMut(IovaRange),
    ) -> Result<(), SpaceDirtyError> {
        let mut owed = Gather::new();
        self.domain.read_and_clear_dirty(range, &mut owed, &mut visit)?;
        let paid = self.pay_rarely(&mut owed, None);
        paid.map(drop).map_err(|error| {
            self.fail_by(error);
            self.owe(owed);
            SpaceDirtyError::NotPaid(error)
        })
    }

    /// As [`DmaSpace::read_and_clear_dirty`], and leaves the marks.
    ///
    /// *Context.* Task: looks at every page.
    ///
    /// # Errors
    /// [`SpaceDirtyError::Domain`].
    pub fn read_dirty(
        &self,
        range: IovaRange,
        mut visit: impl FnMut(IovaRange),
    ) -> Result<(), SpaceDirtyError> {
        Ok(self.domain.read_dirty(range, &mut visit)?)
    }

    /// Unmaps as [`DmaSpace::unmap_range`] does under [`Policy::Strict`](super::super::Policy::Strict), and hands to
    /// `visit` the pages that devices wrote since they were last read; all of them where there are no marks.
    ///
    /// *Context.* Task: looks at every page, and waits for the hardware.
    ///
    /// # Errors
    /// As there. Without a range in the error, the pages were handed over.
    pub fn unmap_range_and_read_dirty(
        &self,
        range: DmaRange,
        mut visit: impl FnMut(IovaRange),
    ) -> Result<(), Failed<Option<DmaRange>, UnmapError>> {
        if let Err(error) = self.check(&range) {
            return Err(Failed { error, value: Some(range) });
        }
        let (addresses, mut owed) = (range.addresses(), Gather::new());
        let unmapped = self.domain.unmap_and_read_dirty(addresses, &mut owed, &mut visit);
        if let Err(error) = unmapped {
            return Err(Failed { error: error.into(), value: Some(range) });
        }
        self.trace_unmap(addresses);
        self.pay_rarely(&mut owed, Some(addresses)).map(drop).map_err(|error| {
            if let UnmapOutcome::Waits(wait) = self.hold_after(error, addresses, &mut owed) {
                self.keep(&wait);
            }
            Failed { error, value: None }
        })
    }
}
