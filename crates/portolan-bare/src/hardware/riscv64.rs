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
