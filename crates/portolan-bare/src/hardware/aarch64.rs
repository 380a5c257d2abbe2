//! AArch64's own instructions.
//!
//! Arm architecture reference manual for A-profile (DDI 0487), C5 (DC), C6 (loads, stores, barriers), D7
//! (caches), D12 (the generic timer).
//!
//! *Context.* Interrupt, all functions.

use core::arch::asm;
use core::num::NonZeroU64;

use portolan::addr::PageSize;

use crate::acpi::PowerTimer;

pub(super) fn disable_interrupts() -> usize {
    let before: usize;
    // SAFETY: only the mask changes, and `restore_interrupts` puts it back.
    unsafe { asm!("mrs {}, daif", "msr daifset, #3", out(reg) before, options(nostack)) };
    before
}

pub(super) fn restore_interrupts(before: usize) {
    // SAFETY: it is the mask as it was before.
    unsafe { asm!("msr daif, {}", in(reg) before, options(nostack)) };
}

/// The virtual counter of the generic timer.
pub(super) fn counter() -> u64 {
    let ticks;
    // SAFETY: it is read. The barrier keeps it from being read early.
    unsafe { asm!("isb", "mrs {}, cntvct_el0", out(reg) ticks, options(nostack, preserves_flags)) };
    ticks
}

/// Frequency of the counter in hertz, as firmware has written it down.
pub(super) fn counter_hertz(_timer: Option<PowerTimer>) -> Option<NonZeroU64> {
    let hertz: u64;
    // SAFETY: it is read.
    unsafe { asm!("mrs {}, cntfrq_el0", out(reg) hertz, options(nomem, nostack, preserves_flags)) };
    NonZeroU64::new(hertz)
}

/// Size of the smallest cache line of any data cache.
pub(super) fn line() -> Option<PageSize> {
    let caches: u64;
    // SAFETY: it is read.
    unsafe { asm!("mrs {}, ctr_el0", out(reg) caches, options(nomem, nostack, preserves_flags)) };
    // DminLine is an exponent of words of four bytes.
    Some(PageSize::of_lg2((caches >> 16 & 0xf) as u32 + 2))
}

/// # Safety
/// `at` is mapped.
pub(super) unsafe fn clean_line(at: *const u8) {
    // SAFETY: the caller's promise.
    unsafe { asm!("dc cvac, {}", in(reg) at, options(nostack, preserves_flags)) }
}

/// # Safety
/// `at` is mapped.
pub(super) unsafe fn invalidate_line(at: *const u8) {
    // SAFETY: the caller's promise. It writes the line back before, if it was changed.
    unsafe { asm!("dc civac, {}", in(reg) at, options(nostack, preserves_flags)) }
}

pub(super) fn barrier() {
    // SAFETY: a barrier.
    unsafe { asm!("dsb sy", options(nostack, preserves_flags)) }
}
