//! Use of an address, for handlers of faults.

use super::space::DmaSpace;
use crate::addr::{Iova, IovaRange};
use crate::platform::{Cpus, Lock};
use crate::table::Translation;

/// Use of an address of a space.
///
/// *Context.* Interrupt: a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum IovaUse {
    /// It is mapped. [`Mapping::offset_of`](super::Mapping::offset_of) tells if it is a given mapping's.
    Mapped(Translation),
    /// It was unmapped, and its invalidation is still to come: the device used it too late.
    Deferred {
        /// The mapping's addresses.
        range: IovaRange,
    },
    /// No mapping is given it, since the unit or the embedder has reserved it.
    Reserved {
        /// Addresses that were set aside.
        range: IovaRange,
    },
    /// None of these.
    Unused,
    /// It lies outside of the space's window.
    Outside,
}

impl<P: Cpus + Clone> DmaSpace<P> {
    /// Returns the present use of `iova`. Addresses that are being flushed at this moment count as
    /// unused.
    ///
    /// ```
    /// # use portolan::dma::{DmaSpace, IovaUse};
    /// # use portolan::iommu::FaultRecord;
    /// # use portolan::platform::Platform;
    /// fn explain<P: Platform>(space: &DmaSpace<P>, fault: &FaultRecord) -> &'static str {
    ///     match fault.iova.map(|iova| space.find(iova)) {
    ///         Some(IovaUse::Mapped(_)) => "mapped, but not for this kind of access",
    ///         Some(IovaUse::Deferred { .. }) => "the device used a buffer that was unmapped",
    ///         _ => "the device used an address that it never got",
    ///     }
    /// }
    /// ```
    ///
    /// *Context.* Interrupt: one walk, and one look at the waiting ranges in each CPU's queue.
    pub fn find(&self, iova: Iova) -> IovaUse {
        if let Some(found) = self.domain.translate(iova) {
            return IovaUse::Mapped(found);
        }
        let held = || self.regions.with(|known| known.held_with(iova));
        if let Some(range) = self.pending.find(iova).or_else(held) {
            return IovaUse::Deferred { range };
        }
        if let Some(range) = self.regions.with(|known| known.set_aside(iova)) {
            return IovaUse::Reserved { range };
        }
        match self.iova.window().contains(iova) {
            true => IovaUse::Unused,
            false => IovaUse::Outside,
        }
    }
}
