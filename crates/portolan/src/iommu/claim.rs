//! Claims of spaces on domains.
//!
//! *Context.* Interrupt: everything here is a value.

use crate::platform::atomic::{AtomicBool, Ordering};

/// Place for the one space whose addresses a domain has: two would give out the same ones, and take
/// each other's mappings for their own.
///
/// A domain has one, as a field, for [`Domain::claim`](super::Domain::claim).
///
/// ```
/// use portolan::iommu::SpaceClaim;
///
/// assert!(!SpaceClaim::default().is_taken());
/// ```
#[derive(Debug, Default)]
pub struct SpaceClaim(AtomicBool);

impl SpaceClaim {
    /// Takes it; returns `true` if it was free.
    pub(crate) fn take(&self) -> bool {
        // Accesses of the space before come first.
        !self.0.swap(true, Ordering::Acquire)
    }

    /// Gives it back, from the space that has it.
    pub(crate) fn give_back(&self) {
        self.0.store(false, Ordering::Release);
    }

    /// Tells if a space has the domain.
    pub fn is_taken(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
