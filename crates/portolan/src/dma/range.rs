//! Ranges that a driver of its own bookkeeping maps and unmaps.

use crate::addr::{IovaRange, TableId};

/// A mapped range of one address space; not a number that can be copied, so that it is unmapped
/// once. One that is dropped stays mapped, and its addresses stay out of use.
///
/// ```no_run
/// # use portolan::dma::{Constraints, DmaSpace, Unowned};
/// # use portolan::platform::Platform;
/// # use portolan::table::Access;
/// fn lend<P: Platform>(space: &DmaSpace<P>, memory: Unowned) {
///     let lent = space.map_range(memory, Access::READ, &Constraints::trusted());
///     let (range, first) = lent.expect("addresses and table pages");
///     // ... the device reads at `first`, and is done some time ...
///     space.unmap_range(range).expect("the unit answered");
/// }
/// ```
///
/// *Context.* Interrupt: a value.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "what is mapped stays reachable"]
pub struct DmaRange {
    pub(super) range: IovaRange,
    pub(super) space: TableId,
}

impl DmaRange {
    /// The addresses, whole granules.
    #[inline]
    pub fn addresses(&self) -> IovaRange {
        self.range
    }
}
