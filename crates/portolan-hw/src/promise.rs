//! What the compiler cannot check: a platform's memory for drivers, memory that firmware's devices reach at
//! its own addresses, and that drivers do what their traits say.
//!
//! The only module of the crate in which `unsafe` is allowed.
//!
//! *Context.* Interrupt: values.
#![allow(unsafe_code)]

use portolan::addr::{InvalTag, IovaRange, PhysAddr, PhysRange};
use portolan::inval::{Capabilities, Quirks};
use portolan::iommu::{PagedDomain, TagPool};
use portolan::platform::{DmaMemory, Platform, PromisedMappings, RawMemory, TableMem, TrustedBase};
use portolan::table::{Format, PageTable};

/// Memory for a driver's queues and tables.
pub(crate) fn for_driver<P: Platform>(platform: &P) -> RawMemory<P> {
    // SAFETY: drivers of this crate reach only pages that they have allocated and not freed, and
    // hand the memory to page tables, which do the same.
    unsafe { RawMemory::new(platform.clone()) }
}

/// The memory of a region that devices reach at its own addresses.
pub(crate) fn of_firmware(region: IovaRange) -> Option<DmaMemory> {
    let [first, last] = [region.start(), region.last()].map(|at| PhysAddr::new(at.get()));
    // SAFETY: firmware keeps it for these devices: who configures the unit says so.
    PhysRange::new(first, last).map(|memory| unsafe { DmaMemory::new(memory) })
}

/// A domain whose tables lead to regions of firmware's already, and nowhere else.
pub(crate) fn leading_to_firmware<F: Format, M: TableMem<F::Word>, Q: TagPool>(
    table: PageTable<F, M>,
    context: InvalTag,
    (caps, quirks): (Capabilities, Quirks),
    queue: Q,
) -> PagedDomain<F, M, Q> {
    // SAFETY: as in `of_firmware`.
    let promised = unsafe { PromisedMappings::new() };
    PagedDomain::with_mappings((table, promised), context, caps, quirks, queue)
}

/// The drivers of this crate and their domains.
pub(crate) fn drivers() -> TrustedBase {
    // SAFETY: what they owe their traits is what the tests of this crate and of `portolan-verify` are about. The
    // memory and the CPUs that they stand on are a platform's, or were promised with the registers.
    unsafe { TrustedBase::new() }
}

#[cfg(test)]
pub(crate) mod tests;
