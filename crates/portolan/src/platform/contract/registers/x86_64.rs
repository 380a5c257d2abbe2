//! Accesses of registers on x86-64.
//!
//! Intel SDM (253668), section 9.2 (memory ordering): the CPU keeps accesses of uncached memory in order with all
//! others, and `asm!` keeps the compiler's order.

use core::arch::asm;

/// An access of a register: stores before it are visible to the device first, and loads after it come
/// later. The CPU keeps that order where registers are not cached; `asm!` keeps the compiler's.
macro_rules! access {
    ($read:ident, $write:ident, $value:ty, $width:literal, $class:ident, $form:literal) => {
        /// # Safety
        /// `at` is an aligned register that is mapped.
        pub(super) unsafe fn $read(at: *const $value) -> $value {
            let value;
            // SAFETY: the caller's promise.
            unsafe {
                asm!(concat!("mov {v", $form, "}, ", $width, " ptr [{at}]"),
                    at = in(reg) at, v = out($class) value, options(nostack, preserves_flags));
            }
            value
        }

        /// # Safety
        /// `at` is an aligned register that is mapped.
        pub(super) unsafe fn $write(at: *mut $value, value: $value) {
            // SAFETY: the caller's promise.
            unsafe {
                asm!(concat!("mov ", $width, " ptr [{at}], {v", $form, "}"),
                    at = in(reg) at, v = in($class) value, options(nostack, preserves_flags));
            }
        }
    };
}

access!(read16, write16, u16, "word", reg, ":x");
access!(read32, write32, u32, "dword", reg, ":e");
access!(read64, write64, u64, "qword", reg, ":r");
