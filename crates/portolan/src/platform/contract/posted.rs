//! Memory to which a unit posts interrupts.

use crate::addr::PhysAddr;

/// Address of a memory-resident interrupt file ([`MemoryInterruptFile`](crate::iommu::MemoryInterruptFile)): a
/// device's interrupt writes there.
///
/// *Context.* Interrupt: a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct InterruptFileAddress(PhysAddr);

impl InterruptFileAddress {
    /// Names the file at `at`.
    ///
    /// # Safety
    /// A file is there, and no other code uses its memory, as long as an entry of a unit leads to it: as for
    /// [`PostedAddress::new`].
    pub const unsafe fn new(at: PhysAddr) -> Self {
        Self(at)
    }

    /// The address.
    pub const fn get(self) -> PhysAddr {
        self.0
    }
}

/// Address of the backing page of a virtual interrupt controller
/// ([`GuestApicPage`](crate::iommu::GuestApicPage)): a device's interrupt writes there.
///
/// *Context.* Interrupt: a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ApicPageAddress(PhysAddr);

impl ApicPageAddress {
    /// Names the page at `at`.
    ///
    /// # Safety
    /// A page is there, and no other code uses its memory, as long as an entry of a unit leads to it: as for
    /// [`PostedAddress::new`].
    pub const unsafe fn new(at: PhysAddr) -> Self {
        Self(at)
    }

    /// The address.
    pub const fn get(self) -> PhysAddr {
        self.0
    }
}

/// Address of a posted-interrupt descriptor ([`PostedDescriptor`](crate::iommu::PostedDescriptor)): a device's
/// interrupt writes there.
///
/// *Context.* Interrupt: a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PostedAddress(PhysAddr);

impl PostedAddress {
    /// Names the descriptor at `at`.
    ///
    /// # Safety
    /// A descriptor is there, and no other code uses its memory, as long as an entry of a unit leads to it: until the
    /// interrupts that were posted there were sent elsewhere
    /// ([`RemapInterrupts::retarget`](crate::iommu::RemapInterrupts::retarget)) or given back, with `Ok`.
    pub const unsafe fn new(at: PhysAddr) -> Self {
        Self(at)
    }

    /// The address.
    pub const fn get(self) -> PhysAddr {
        self.0
    }
}
