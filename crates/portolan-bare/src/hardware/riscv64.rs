//! RISC-V's own instructions, of a kernel in supervisor mode.
//!
//! RISC-V Instruction Set Manual, volume I (FENCE; Zicntr: the time; Zicbom: cache blocks) and volume II (`sstatus`).
//! The frequency of the time and the size of a cache block are in no register: a device tree says both.
//!
//! *Context.* Interrupt, all functions.

use core::arch::asm;
use core::num::NonZeroU64;

use portolan::addr::PageSize;

use crate::acpi::PowerTimer;

/// The bit of `sstatus` that lets interrupts in (SIE).
const INTERRUPTS: usize = 1 << 1;

pub(super) fn disable_interrupts() -> usize {
    let before: usize;
    // SAFETY: only the bit changes, and `restore_interrupts` puts it back.
    unsafe { asm!("csrrc {}, sstatus, {}", out(reg) before, in(reg) INTERRUPTS, options(nostack)) };
    before
}

pub(super) fn restore_interrupts(before: usize) {
    // SAFETY: the bit is set if it was set before.
    unsafe { asm!("csrs sstatus, {}", in(reg) before & INTERRUPTS, options(nostack)) };
}

/// The time, which all harts share. The fence keeps it from being read early.
pub(super) fn counter() -> u64 {
    let ticks;
    // SAFETY: it is read.
    unsafe {
        asm!("fence iorw, iorw", "rdtime {}", out(reg) ticks, options(nostack, preserves_flags))
    };
    ticks
}

/// No register says it.
pub(super) fn counter_hertz(_timer: Option<PowerTimer>) -> Option<NonZeroU64> {
    None
}

/// No register says it.
pub(super) const fn line() -> Option<PageSize> {
    None
}

/// # Safety
/// `at` is mapped, and the hart has Zicbom.
pub(super) unsafe fn clean_line(at: *const u8) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(".option push", ".option arch, +zicbom", "cbo.clean ({})", ".option pop",
            in(reg) at, options(nostack, preserves_flags));
    }
}

/// # Safety
/// `at` is mapped, and the hart has Zicbom.
pub(super) unsafe fn invalidate_line(at: *const u8) {
    // SAFETY: the caller's promise. It writes the block back before, if it was changed.
    unsafe {
        asm!(".option push", ".option arch, +zicbom", "cbo.flush ({})", ".option pop",
            in(reg) at, options(nostack, preserves_flags));
    }
}

pub(super) fn barrier() {
    // SAFETY: a barrier.
    unsafe { asm!("fence iorw, iorw", options(nostack, preserves_flags)) }
}

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
