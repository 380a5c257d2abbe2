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
    /// Does `act`, and once more after a flush if it lacks what that may bring back. What cannot be
    /// made quiet does not come back: the error is the second one's, whatever became of the flush.
    /// Another CPU may have made it quiet meanwhile, so that `act` is repeated in any case.
    ///
    /// *Context.* Atomic.
    #[inline]
    pub(super) fn or_flushed<T, E: Shortage>(
        &self,
        mut act: impl FnMut() -> Result<T, E>,
    ) -> Result<T, E> {
        match act() {
            Err(error) if error.may_end() => {
                let _ = self.flush();
                act()
            }
            done => done,
        }
    }
}
