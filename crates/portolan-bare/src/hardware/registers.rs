//! Registers of a device.
//!
//! *Context.* Interrupt, all functions.

use core::ptr::NonNull;

use portolan::platform::Mmio;

use super::cpu;
use crate::fw_cfg::Selector;

/// A window of registers. Accesses outside of it, or that are not aligned, read all ones and write
/// nothing.
#[derive(Clone, Copy, Debug)]
pub struct Registers {
    first: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the window is mapped for all CPUs, and each access is one of the device's.
unsafe impl Send for Registers {}
// SAFETY: as above.
unsafe impl Sync for Registers {}

impl Registers {
    /// # Safety
    /// `bytes` bytes from `first` are mapped for good, and they are registers, not memory.
    pub(super) const unsafe fn new(first: NonNull<u8>, bytes: usize) -> Self {
        Self { first, bytes }
    }

    fn at<T>(&self, offset: usize) -> Option<*mut T> {
        let after = offset.checked_add(size_of::<T>())?;
        if after > self.bytes || offset % size_of::<T>() != 0 {
            return None;
        }
        // SAFETY: it is inside the window.
        let at = unsafe { self.first.add(offset) }.cast::<T>();
        at.is_aligned().then_some(at.as_ptr())
    }

    /// Reads two bytes.
    pub fn read16(&self, offset: usize) -> u16 {
        // SAFETY: it is an aligned register of the window, which is mapped.
        self.at(offset).map_or(u16::MAX, |at| unsafe { cpu::read16(at) })
    }

    /// Writes two bytes.
    pub fn write16(&self, offset: usize, value: u16) {
        if let Some(at) = self.at(offset) {
            // SAFETY: it is an aligned register of the window, which is mapped.
            unsafe { cpu::write16(at, value) }
        }
    }
}

impl Selector for Registers {
    fn write16(&self, offset: usize, value: u16) {
        Self::write16(self, offset, value);
    }
}

impl Mmio for Registers {
    fn read32(&self, offset: usize) -> u32 {
        // SAFETY: it is an aligned register of the window, which is mapped.
        self.at(offset).map_or(u32::MAX, |at| unsafe { cpu::read32(at) })
    }

    fn write32(&self, offset: usize, value: u32) {
        if let Some(at) = self.at(offset) {
            // SAFETY: it is an aligned register of the window, which is mapped.
            unsafe { cpu::write32(at, value) }
        }
    }

    fn read64(&self, offset: usize) -> u64 {
        // SAFETY: it is an aligned register of the window, which is mapped.
        self.at(offset).map_or(u64::MAX, |at| unsafe { cpu::read64(at) })
    }

    fn write64(&self, offset: usize, value: u64) {
        if let Some(at) = self.at(offset) {
            // SAFETY: it is an aligned register of the window, which is mapped.
            unsafe { cpu::write64(at, value) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_outside_or_not_aligned_reads_all_ones_and_is_not_written() {
        let mut memory = [0x0807_0605_0403_0201u64, 0x1817_1615_1413_1211, 0x5555];
        let first = NonNull::from(&mut memory).cast();
        // SAFETY: the memory stays, and is looked at through the window alone until the end.
        let window = unsafe { Registers::new(first, 16) };
        assert_eq!((window.read32(4), window.read16(2)), (0x0807_0605, 0x0403));
        assert_eq!(window.read64(8), 0x1817_1615_1413_1211);
        assert_eq!(
            (window.read32(14), window.read32(16), window.read32(usize::MAX)),
            (u32::MAX, u32::MAX, u32::MAX)
        );
        assert_eq!(
            (window.read64(4), window.read64(12), window.read16(1)),
            (u64::MAX, u64::MAX, u16::MAX)
        );
        window.write32(16, 0);
        window.write64(12, 0);
        window.write16(16, 0);
        window.write32(2, 0);
        window.write64(0, 7);
        window.write32(12, 9);
        window.write16(8, 3);
        assert_eq!(memory, [7, 0x9_1413_0003, 0x5555]);
    }
}
