//! Shortages that end when what waits in the queues has been paid for: addresses, and table pages.
//!
//! One rule for all who may wait: what lacks such a thing flushes, and is done again. Who may not wait
//! says what is missing.

use super::space::DmaSpace;
use crate::iommu::DomainError;
use crate::iova::{FreeError, IovaError};
use crate::platform::Cpus;
use crate::table::MapError;

/// An error that may be one of what waits in the queues.
pub(super) trait Shortage {
    /// Whether a flush may end it.
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
        matches!(self, Self::Map(MapError::Memory(_)))
    }
}

impl<P: Cpus + Clone> DmaSpace<P> {
    /// Flushes if that may end `shortage`; whether what failed is to be done again then. What cannot be
    /// made quiet does not come back, and another CPU may have made it quiet meanwhile: so it is, whatever
    /// became of the flush.
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

    /// Does `act`, and once more after a flush if it lacks what that may bring back.
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
}
