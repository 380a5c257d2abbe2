//! Promises that the compiler cannot check: a platform's memory and registers for drivers, that a
//! machine is as it is described, and that drivers do what their traits say.
//!
//! The only module of the crate in which `unsafe` is allowed.
//!
//! *Context.* Interrupt: values.
#![allow(unsafe_code)]

use portolan::addr::{InvalTag, IovaRange, PhysAddr, PhysRange};
use portolan::inval::{Capabilities, Quirks};
use portolan::iommu::{PagedDomain, TagPool};
use portolan::platform::{
    AllMemory, DmaMemory, Platform, PreservedMemory, PromisedMappings, RawMemory, TableMem,
    TrustedBase,
};
use portolan::table::{Format, PageTable};

/// A promise that a machine is as it is described: by firmware's tables, or by an embedder.
///
/// Tables have the registers of units, the memory that firmware's devices go on using, and the
/// places where messages of devices become interrupts. A program that reads another machine's
/// tables, or made them up, drives units where there is memory, and lets devices reach memory that
/// was not lent to them. So functions that act on a description take this value; reading one
/// ([`Topology::survey`](crate::topology::Topology::survey)) takes none.
///
/// ```no_run
/// # use portolan::platform::Platform;
/// # use portolan_hw::TrustedDescription;
/// # use portolan_hw::topology::{EnableError, Iommus, Options, Topology};
/// fn start<K: Platform>(kernel: K, tables: &[&[u8]]) -> Result<Iommus<K>, EnableError> {
///     // SAFETY: the boot loader handed over where firmware has put its tables.
///     let described = unsafe { TrustedDescription::new() };
///     let topology = Topology::from_acpi(tables.iter().copied())?;
///     topology.enable(kernel, Options::default(), described)
/// }
/// ```
///
/// *Context.* Interrupt: a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrustedDescription(());

impl TrustedDescription {
    /// A promise for the description that is handed over with it.
    ///
    /// # Safety
    /// Of the machine of the [`Platform`] or of the registers with which it, or a copy of it, is handed over:
    ///
    /// * where the description has a unit's registers, that unit's are, and nothing else drives it;
    /// * regions that devices use at their own addresses
    ///   ([`ReservedKind::direct`](portolan::iommu::ReservedKind::direct)) are as [`DmaMemory::new`] asks, for the
    ///   devices of their streams. Until these are opened, [`AllMemory::new`]'s promise is kept for them;
    /// * interrupt files and other registers for messages hold no memory, and devices may write there.
    pub const unsafe fn new() -> Self {
        Self(())
    }
}

/// The registers of a unit, for its driver.
pub(crate) fn registers_of_unit<P: Platform>(
    platform: &P,
    window: PhysRange,
    _description: TrustedDescription,
) -> Option<P::Registers> {
    // SAFETY: by the promise they are an IOMMU's, which only drivers of this crate get, with the platform's memory.
    unsafe { platform.registers(window) }
}

/// Leave for devices to pass through that firmware has at work.
pub(crate) fn of_devices_at_work(_description: TrustedDescription) -> AllMemory {
    // SAFETY: it is part of that promise.
    unsafe { AllMemory::new() }
}

/// Memory for a driver's queues and tables.
pub(crate) fn for_driver<P: Platform>(platform: &P) -> RawMemory<P> {
    // SAFETY: drivers of this crate reach only pages that they have allocated and not freed, and
    // hand the memory to page tables, which do the same.
    unsafe { RawMemory::new(platform.clone()) }
}

/// The memory of a region that devices reach at its own addresses. Regions that are mapped come from
/// [`Reservations`](crate::reservations::Reservations), of which a driver takes none without
/// [`TrustedDescription`].
pub(crate) fn of_firmware(region: IovaRange) -> Option<DmaMemory> {
    let [first, last] = [region.start(), region.last()].map(|at| PhysAddr::new(at.get()));
    // SAFETY: that is part of that promise.
    PhysRange::new(first, last).map(|memory| unsafe { DmaMemory::new(memory) })
}

/// A domain whose tables lead to regions of firmware's already, and nowhere else.
pub(crate) fn leading_to_firmware<F: Format, M: TableMem<F::Word>, Q: TagPool>(
    table: PageTable<F, M>,
    context: InvalTag,
    caps: Capabilities,
    quirks: Quirks,
    queue: Q,
) -> PagedDomain<F, M, Q> {
    // SAFETY: as in `of_firmware`.
    let promised = unsafe { PromisedMappings::new() };
    PagedDomain::with_mappings(table, promised, context, caps, quirks, queue)
}

/// Tables of a former kernel that were checked: each leaf leads to memory of `memory`.
pub(crate) fn of_former_kernel(_memory: &PreservedMemory<'_>) -> PromisedMappings {
    // SAFETY: it is part of that promise.
    unsafe { PromisedMappings::new() }
}

/// The drivers of this crate and their domains.
pub(crate) fn drivers() -> TrustedBase {
    // SAFETY: what they owe their traits is what the tests of this crate and of `portolan-verify` are about. The
    // memory and the CPUs that they stand on are a platform's, or were promised with the registers.
    unsafe { TrustedBase::new() }
}

#[cfg(test)]
pub(crate) mod tests;
