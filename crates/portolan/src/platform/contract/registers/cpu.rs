//! Accesses of registers on an architecture that is not known.

use core::sync::atomic::{Ordering, fence};

macro_rules! access {
    ($read:ident, $write:ident, $value:ty) => {
        /// # Safety
        /// `at` is an aligned register that is mapped.
        pub(super) unsafe fn $read(at: *const $value) -> $value {
            // SAFETY: the caller's promise.
            let value = unsafe { at.read_volatile() };
            fence(Ordering::SeqCst);
            value
        }

        /// # Safety
        /// `at` is an aligned register that is mapped.
        pub(super) unsafe fn $write(at: *mut $value, value: $value) {
            fence(Ordering::SeqCst);
            // SAFETY: the caller's promise.
            unsafe { at.write_volatile(value) }
        }
    };
}

access!(read16, write16, u16);
access!(read32, write32, u32);
access!(read64, write64, u64);
