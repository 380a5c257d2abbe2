//! Registers of a device, read and written by offset.
//!
//! *Context.* Interrupt, all methods.

/// The register window of one device.
///
/// *Implementer's duties.* Each access is one access of its width at `offset` bytes from the start
/// of the window, little-endian on the bus, in program order with the others through the same
/// instance. A write is made after all earlier writes to memory are visible to the device, and a
/// read before all later reads of memory. An access outside the window, to a device that is gone or
/// has no power, or that the bus aborts, reads all ones and writes nothing; it does not panic or wait.
pub trait Mmio: Send + Sync {
    /// Reads four bytes.
    fn read32(&self, offset: usize) -> u32;

    /// Writes four bytes.
    fn write32(&self, offset: usize, value: u32);

    /// Reads eight bytes: in one access, or the low half first where the bus has no wider one.
    fn read64(&self, offset: usize) -> u64 {
        let low = self.read32(offset);
        let high = self.read32(offset.wrapping_add(4));
        u64::from(high) << 32 | u64::from(low)
    }

    /// Writes eight bytes: in one access, or the low half first where the bus has no wider one.
    fn write64(&self, offset: usize, value: u64) {
        self.write32(offset, value as u32);
        self.write32(offset.wrapping_add(4), (value >> 32) as u32);
    }
}

macro_rules! forward {
    ($($pointer:ty),*) => {$(
        impl<R: Mmio + ?Sized> Mmio for $pointer {
            fn read32(&self, offset: usize) -> u32 {
                (**self).read32(offset)
            }

            fn write32(&self, offset: usize, value: u32) {
                (**self).write32(offset, value);
            }

            fn read64(&self, offset: usize) -> u64 {
                (**self).read64(offset)
            }

            fn write64(&self, offset: usize, value: u64) {
                (**self).write64(offset, value);
            }
        }
    )*};
}

forward!(&R, alloc::sync::Arc<R>);

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use std::sync::Mutex;
    extern crate std;

    /// A bus of 32 bits, which remembers the words that were written.
    struct Narrow(Mutex<Vec<(usize, u32)>>);

    impl Mmio for Narrow {
        fn read32(&self, offset: usize) -> u32 {
            offset as u32 * 3
        }

        fn write32(&self, offset: usize, value: u32) {
            self.0.lock().unwrap().push((offset, value));
        }
    }

    #[test]
    fn eight_bytes_are_two_accesses_on_a_narrow_bus_the_low_half_first() {
        let narrow = Narrow(Mutex::default());
        assert_eq!(narrow.read64(0x10), 0x3c_0000_0030);
        narrow.write64(0x20, 0x1122_3344_5566_7788);
        let written = narrow.0.into_inner().unwrap();
        assert_eq!(written, [(0x20, 0x5566_7788), (0x24, 0x1122_3344)]);
    }
}
