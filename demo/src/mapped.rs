//! Addresses of this machine, for `virtio-drivers`.

use core::ptr::NonNull;

use portolan::addr::{PhysAddr, PhysRange};
use portolan_bare::Machine;
use portolan_virtio::Addresses;

pub struct Mapped(pub Machine);

// SAFETY: all of memory is in the direct map, the heap, the stack and statics included, and stays
// there; `mmio` gives out no memory of the heap, and registers stay mapped.
unsafe impl Addresses for Mapped {
    fn phys(&self, at: NonNull<u8>) -> Option<PhysAddr> {
        self.0.phys(at)
    }

    fn mmio(&self, window: PhysRange) -> Option<NonNull<u8>> {
        self.0.mmio(window)
    }
}
