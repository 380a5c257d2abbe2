//! Memory that devices are given without a buffer: memory that domains map, and memory that a device
//! reaches untranslated.

use crate::addr::PhysRange;

/// Physical memory that devices may reach, for a domain to map.
///
/// Drivers need none: [`Device::map`](crate::dma::Device::map) and its kind take a
/// [`Buffer`](crate::dma::Buffer), whose promise is more than this one.
///
/// ```no_run
/// # use portolan::addr::{Iova, PhysRange};
/// # use portolan::inval::Gather;
/// # use portolan::iommu::{Domain, DomainError};
/// # use portolan::platform::DmaMemory;
/// # use portolan::table::Access;
/// /// A guest's memory at the guest's own addresses.
/// ///
/// /// # Safety
/// /// The memory stays pinned until it has been unmapped, and that was paid for.
/// unsafe fn lend(domain: &dyn Domain, guest: Iova, host: PhysRange) -> Result<Gather, DomainError> {
///     let mut owed = Gather::new();
///     // SAFETY: the caller's promise; the process reaches that memory by atomics alone.
///     let host = unsafe { DmaMemory::new(host) };
///     domain.map(guest, host, Access::READ_WRITE, &mut owed)?;
///     Ok(owed)
/// }
/// ```
///
/// *Context.* Interrupt: a value.
#[derive(Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct DmaMemory(PhysRange);

impl DmaMemory {
    /// Names `memory`.
    ///
    /// # Safety
    /// As long as the value is there, and then until all its mappings have been unmapped and
    /// [`Domain::sync`](crate::iommu::Domain::sync) has returned `Ok` for it, or the domains are gone:
    ///
    /// * the memory is as one of the two promises of [`Sharing`](crate::dma::Sharing) says, and all memory in
    ///   the same pages of a domain stays allocated;
    /// * devices may read it, and write it where the map's access has that.
    ///
    /// Devices are those that are attached to the domain meanwhile, by any caller.
    pub const unsafe fn new(memory: PhysRange) -> Self {
        Self(memory)
    }

    /// Names memory of a buffer, a pool or a region of firmware's, whose promise the caller has.
    pub(crate) const fn promised(memory: PhysRange) -> Self {
        Self(memory)
    }

    /// The same of a list.
    #[inline]
    pub(crate) const fn all_promised(list: &[PhysRange]) -> &[Self] {
        // SAFETY: the type is a range and nothing else, by its representation.
        unsafe { core::slice::from_raw_parts(list.as_ptr().cast(), list.len()) }
    }

    /// The ranges of a list.
    ///
    /// *Context.* Interrupt.
    #[inline]
    pub const fn ranges(list: &[Self]) -> &[PhysRange] {
        // SAFETY: as in `all_promised`.
        unsafe { core::slice::from_raw_parts(list.as_ptr().cast(), list.len()) }
    }

    /// The memory.
    ///
    /// *Context.* Interrupt.
    #[inline]
    pub const fn range(&self) -> PhysRange {
        self.0
    }
}

/// Leave for devices to reach all memory: untranslated, or by translations that they keep themselves.
///
/// It is needed for passing a stream through, a unit that is turned off or lets accesses pass while
/// it is off, streams that pass from the start, and device TLBs (ATS), whose accesses no unit
/// checks.
///
/// ```no_run
/// # use portolan::addr::StreamId;
/// # use portolan::dma::{Constraints, Device, DeviceError};
/// # use portolan::iommu::Iommu;
/// # use portolan::platform::{AllMemory, Platform};
/// # use std::sync::Arc;
/// fn display<P: Platform>(kernel: P, unit: Arc<dyn Iommu>) -> Result<Device<P>, DeviceError> {
///     // SAFETY: the display's driver hands it addresses of its mappings alone.
///     let all = unsafe { AllMemory::new() };
///     Device::identity(kernel, unit, StreamId::new(0x10), Constraints::trusted(), all)
/// }
/// ```
///
/// *Context.* Interrupt: a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllMemory(());

impl AllMemory {
    /// All physical memory.
    ///
    /// # Safety
    /// It and its copies are used for streams alone whose devices read and write only memory that is
    /// theirs though no hardware stops them: memory that was mapped for them by a
    /// [`Device`](crate::dma::Device), or that could be promised by [`DmaMemory::new`]. As long as such
    /// a stream is passed through, or may use a TLB of its own, that holds for its device, its firmware
    /// and its driver. Where a unit is off, these are all devices before it.
    pub const unsafe fn new() -> Self {
        Self(())
    }
}

/// Word that all that is mapped in a page table may be reached by the devices that are given it.
///
/// *Context.* Interrupt: a value.
#[derive(Debug, PartialEq, Eq)]
pub struct PromisedMappings(());

impl PromisedMappings {
    /// The word of the caller, for the table that it goes with.
    ///
    /// # Safety
    /// For all that is mapped in the table, [`DmaMemory::new`]'s promise is kept.
    pub const unsafe fn new() -> Self {
        Self(())
    }
}
