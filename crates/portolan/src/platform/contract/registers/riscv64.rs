//! Accesses of registers on RISC-V.
//!
//! RISC-V Unprivileged ISA, section 2.7 (`FENCE`, by which accesses of devices and of memory are ordered).

use core::arch::asm;

/// An access of a register: accesses before a write are visible to the device first, and accesses
/// behind a read happen later.
macro_rules! access {
    ($read:ident, $write:ident, $value:ty, $letter:literal) => {
        /// # Safety
        /// `at` is an aligned register that is mapped.
        pub(super) unsafe fn $read(at: *const $value) -> $value {
            let value;
            // SAFETY: the caller's promise.
            unsafe {
                asm!(concat!("l", $letter, " {v}, 0({at})"), "fence i, iorw",
                    at = in(reg) at, v = out(reg) value, options(nostack, preserves_flags));
            }
            value
        }

        /// # Safety
        /// `at` is an aligned register that is mapped.
        pub(super) unsafe fn $write(at: *mut $value, value: $value) {
            // SAFETY: the caller's promise.
            unsafe {
                asm!("fence iorw, o", concat!("s", $letter, " {v}, 0({at})"),
                    at = in(reg) at, v = in(reg) value, options(nostack, preserves_flags));
            }
        }
    };
}

access!(read16, write16, u16, "h");
access!(read32, write32, u32, "w");
access!(read64, write64, u64, "d");
