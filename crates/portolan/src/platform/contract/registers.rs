//! Registers that a kernel has mapped, with the barriers that [`Mmio`] asks for.
//!
//! Supported: x86-64, AArch64, RISC-V of 64 bits. On other architectures each access has a full barrier of the
//! compiler's (`fence`), which need not order memory with registers there.
//!
//! *Context.* Interrupt, all functions.

#[cfg_attr(all(target_arch = "x86_64", not(miri)), path = "registers/x86_64.rs")]
#[cfg_attr(all(target_arch = "aarch64", not(miri)), path = "registers/aarch64.rs")]
#[cfg_attr(all(target_arch = "riscv64", not(miri)), path = "registers/riscv64.rs")]
mod cpu;

use core::ptr::NonNull;

use crate::platform::Mmio;

/// A window of registers that is mapped. Accesses outside of it, or that are not aligned, read all ones and
/// write nothing.
///
/// A write is made after all earlier writes to memory are visible to the device, and a read before all later
/// reads of memory: a doorbell does not overtake the descriptor that it is for.
///
/// ```no_run
/// use core::ptr::NonNull;
/// use portolan::platform::{MappedRegisters, Mmio};
///
/// /// Starts a device whose registers are mapped, uncached, at `first`.
/// fn start(first: NonNull<u8>) -> u32 {
///     // SAFETY: 4 KiB of registers are mapped there for good.
///     let registers = unsafe { MappedRegisters::new(first, 4096) };
///     registers.write32(0x14, 1);
///     registers.read32(0x1c)
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct MappedRegisters {
    first: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the window is mapped for all CPUs, and each access is one of the device's.
unsafe impl Send for MappedRegisters {}
// SAFETY: as above.
unsafe impl Sync for MappedRegisters {}

impl MappedRegisters {
    /// The registers that the CPU sees from `first` on.
    ///
    /// # Safety
    /// `bytes` bytes from `first` are mapped for good, uncached, on all CPUs, and they are registers of a device,
    /// not memory.
    pub const unsafe fn new(first: NonNull<u8>, bytes: usize) -> Self {
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

impl Mmio for MappedRegisters {
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
        let window = unsafe { MappedRegisters::new(first, 16) };
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
