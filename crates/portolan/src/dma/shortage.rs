//! Shortages that end when the waiting ranges in the queues have been paid for: of addresses, and
//! of table pages.
//!
//! One rule for all callers that may wait: an operation that lacks one of them flushes, and is done
//! again. Callers that may not wait return the error.

use super::error::MapError;
use super::space::DmaSpace;
use crate::addr::IovaRange;
use crate::iommu::DomainError;
use crate::iova::{FreeError, IovaError, Request};
use crate::platform::Cpus;
use crate::table;

/// An error that may be a shortage of things that wait in the queues.
pub(super) trait Shortage {
    /// Tells if a flush may end it.
    fn may_end(&self) -> bool;
}

impl Shortage for IovaError {
    fn may_end(&self) -> bool {
        matches!(self, Self::Full { .. })
    }
}

impl Shortage for FreeError {
    fn may_end(&self) -> bool {
        matches!(self, Self::InUse { .. })
    }
}

impl Shortage for DomainError {
    fn may_end(&self) -> bool {
        matches!(self, Self::Map(table::TableMapError::Memory(_)))
    }
}

impl<P: Cpus + Clone> DmaSpace<P> {
    /// Flushes if that may end `shortage`, and tells if the operation that failed is to be done
    /// again then. Ranges that cannot be made quiet do not come back, and another CPU may have made
    /// them quiet meanwhile: so it is, after a flush that failed as well.
    ///
    /// *Context.* Atomic.
    #[cold]
    pub(super) fn ends_by_flush(&self, shortage: &impl Shortage) -> bool {
        let may_end = shortage.may_end();
        if may_end {
            let _ = self.flush();
        }
        may_end
    }

    /// Does `act`, and once more after a flush if it lacks something that the flush may bring back.
    ///
    /// *Context.* Atomic.
    pub(super) fn or_flushed<T, E: Shortage>(
        &self,
        mut act: impl FnMut() -> Result<T, E>,
    ) -> Result<T, E> {
        match act() {
            Err(error) if self.ends_by_flush(&error) => act(),
            done => done,
        }
    }

    /// Fills the reserve for handlers.
    #[inline]
    pub(super) fn replenish(&self) {
        if self.iova.is_short() {
            // Without memory, they are told that there is none in reserve.
            let _ = self.iova.replenish();
        }
    }

    /// Addresses for handlers, which touch no heap.
    #[inline]
    pub(super) fn allocate_sparing(&self, request: &Request) -> Result<IovaRange, MapError> {
        let found = self.iova.try_alloc(request);
        if self.iova.is_short() {
            // The worker that calls `tick` fills the reserve as well.
            self.cpus.flush_wanted();
        }
        found.map_err(|error| match error {
            IovaError::Full { .. } => MapError::WouldWait,
            IovaError::Memory => MapError::NoReserve,
            other => other.into(),
        })
    }
}
