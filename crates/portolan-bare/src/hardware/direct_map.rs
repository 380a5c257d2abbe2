//! Addresses at which the CPU sees physical memory and registers.
//!
//! *Context.* Interrupt: everything here is a value.

use core::ptr::NonNull;

use portolan::addr::{PhysAddr, PhysRange};
use portolan_tables::fdt;

use super::Registers;

/// The lowest physical addresses, mapped one to one from a virtual address on.
#[derive(Clone, Copy, Debug)]
pub struct DirectMap {
    offset: usize,
    last: PhysAddr,
}

impl DirectMap {
    /// Physical address 0 is at the virtual address `offset`, and so on up to `last`.
    ///
    /// # Safety
    /// From the first use of the map on, for good, all of it is mapped for reading and writing: RAM
    /// cached, but for memory of [`Machine::add_uncached`](super::Machine::add_uncached), and registers of devices
    /// not.
    pub const unsafe fn new(offset: usize, last: PhysAddr) -> Self {
        Self { offset, last }
    }

    /// The registers at `window`, for kernels that need some before there is a
    /// [`Machine`](super::Machine); `None` if a part of it is not mapped.
    ///
    /// # Safety
    /// The window is a device's, and no memory of the program is in it.
    pub unsafe fn registers(self, window: PhysRange) -> Option<Registers> {
        let bytes = usize::try_from(window.len_minus_one()).ok()?.checked_add(1)?;
        let first = self.virt(window)?;
        // SAFETY: it is mapped for good, and the caller's promise.
        Some(unsafe { Registers::new(first, bytes) })
    }

    /// The flattened device tree at `at`; `None` if there is none, or if a part of it is not mapped.
    ///
    /// # Safety
    /// The boot loader says that a device tree is there, and no code writes to it.
    pub unsafe fn device_tree(self, at: PhysAddr) -> Option<&'static [u8]> {
        let bytes = |bytes: usize| {
            let first = self.virt(PhysRange::from_len(at, bytes as u64)?)?;
            // SAFETY: it is mapped for good, and the caller's promise.
            Some(unsafe { core::slice::from_raw_parts(first.as_ptr(), bytes) })
        };
        bytes(fdt::length(bytes(fdt::HEADER_BYTES)?)?)
    }

    /// Address at which the first byte of `range` is seen; `None` if a part of it is not mapped.
    pub(super) fn virt(self, range: PhysRange) -> Option<NonNull<u8>> {
        if range.last() > self.last {
            return None;
        }
        let at = usize::try_from(range.start().get()).ok()?;
        let at = at.checked_add(self.offset)?;
        NonNull::new(core::ptr::with_exposed_provenance_mut(at))
    }

    /// The physical address of the byte that the CPU sees at `at`; `None` if it is not in the map.
    pub(super) fn phys(self, at: NonNull<u8>) -> Option<PhysAddr> {
        let above = at.as_ptr().expose_provenance().checked_sub(self.offset)?;
        let at = PhysAddr::new(above as u64);
        (at <= self.last).then_some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_mapped_is_seen() {
        // SAFETY: nothing is read or written there.
        let map = unsafe { DirectMap::new(0x10_0000, PhysAddr::new(0xffff)) };
        let range = |start, bytes| PhysRange::from_len(PhysAddr::new(start), bytes).unwrap();
        let seen = |start, bytes| map.virt(range(start, bytes)).map(|at| at.addr().get());
        assert_eq!(seen(0, 1), Some(0x10_0000));
        assert_eq!(seen(0xf000, 0x1000), Some(0x10_f000));
        assert_eq!(seen(0xf000, 0x1001), None);
        assert_eq!(seen(u64::MAX, 1), None);
        let at = |address| NonNull::new(core::ptr::without_provenance_mut(address)).unwrap();
        assert_eq!(map.phys(at(0x10_8000)), Some(PhysAddr::new(0x8000)));
        assert_eq!(map.phys(at(0xf_ffff)), None);
        assert_eq!(map.phys(at(0x11_0000)), None);
        // SAFETY: as above.
        let flat = unsafe { DirectMap::new(0, PhysAddr::new(0xffff)) };
        assert_eq!(flat.virt(range(0, 1)), None, "nobody can point at address 0");
    }
}
