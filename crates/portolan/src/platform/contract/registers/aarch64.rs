//! Accesses of registers on AArch64.
//!
//! Arm Architecture Reference Manual (DDI 0487), section B2.3 (ordering): a barrier for stores of the outer shareable
//! domain before a write, and one for loads after a read.

use core::arch::asm;

/// An access of a register: stores before it are visible to the device first, and loads after it come
/// later. Of the instructions that a hypervisor can emulate, without a write-back of the address.
macro_rules! access {
    ($read:ident, $write:ident, $value:ty, $letter:literal, $form:literal) => {
        /// # Safety
        /// `at` is an aligned register that is mapped.
        pub(super) unsafe fn $read(at: *const $value) -> $value {
            let value;
            // SAFETY: the caller's promise.
            unsafe {
                asm!(concat!("ldr", $letter, " {v", $form, "}, [{at}]"), "dmb oshld",
                    at = in(reg) at, v = out(reg) value, options(nostack, preserves_flags));
            }
            value
        }

        /// # Safety
        /// `at` is an aligned register that is mapped.
        pub(super) unsafe fn $write(at: *mut $value, value: $value) {
            // SAFETY: the caller's promise.
            unsafe {
                asm!("dmb oshst", concat!("str", $letter, " {v", $form, "}, [{at}]"),
                    at = in(reg) at, v = in(reg) value, options(nostack, preserves_flags));
            }
        }
    };
}

access!(read16, write16, u16, "h", ":w");
access!(read32, write32, u32, "", ":w");
access!(read64, write64, u64, "", ":x");
