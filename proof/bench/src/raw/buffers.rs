//! Buffers without an owner.

use alloc::boxed::Box;

use portolan::addr::{PageSize, PhysAddr, PhysRange};
use portolan::dma::{Buffer, Pieces, Unowned};
use portolan::platform::{DmaMemory, TrustedBase};

/// Parts of a machine that no device is behind.
pub(crate) fn no_device() -> TrustedBase {
    // SAFETY: nothing is reached through them.
    unsafe { TrustedBase::new() }
}

/// Memory to be mapped.
#[inline]
pub(crate) fn unowned(memory: PhysRange) -> Unowned {
    // SAFETY: there is no device, so nothing reaches the memory.
    unsafe { Unowned::new(memory) }
}

/// Promised memory of a domain's device.
#[inline]
pub(crate) fn promised(pa: PhysAddr, bytes: u64) -> DmaMemory {
    let memory = PhysRange::from_len(pa, bytes).unwrap_or(PhysRange::page(pa, PageSize::of_lg2(0)));
    // SAFETY: as above.
    unsafe { DmaMemory::new(memory) }
}

/// Memory in pieces, to be mapped.
pub(crate) struct Scattered(pub(crate) Box<[PhysRange]>);

// SAFETY: there is no device, so nothing reaches the memory; the pieces stay the same.
unsafe impl Buffer for Scattered {
    #[inline]
    fn pieces(&self) -> Pieces<'_> {
        Pieces::List(&self.0)
    }

    fn device_may_write(&self) -> bool {
        true
    }
}
