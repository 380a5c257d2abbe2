//! Bytes in memory, moved and filled.

use core::arch::asm;

/// Copies `bytes` bytes, the first one first.
///
/// # Safety
/// `from` is valid for reads and `to` for writes.
pub unsafe fn copy_up(to: *mut u8, from: *const u8, bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!("rep movsb", inout("rcx") bytes => _, inout("rdi") to => _, inout("rsi") from => _,
            options(nostack, preserves_flags));
    }
}

/// Copies `bytes` bytes, the last one first.
///
/// # Safety
/// As of [`copy_up`].
pub unsafe fn copy_down(to: *mut u8, from: *const u8, bytes: usize) {
    let last = bytes.wrapping_sub(1);
    // SAFETY: the caller's promise; nothing is moved if there are no bytes.
    unsafe {
        asm!("std", "rep movsb", "cld", inout("rcx") bytes => _,
            inout("rdi") to.wrapping_add(last) => _, inout("rsi") from.wrapping_add(last) => _,
            options(nostack));
    }
}

/// Fills `bytes` bytes.
///
/// # Safety
/// `to` is valid for writes.
pub unsafe fn fill(to: *mut u8, value: u8, bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!("rep stosb", inout("rcx") bytes => _, inout("rdi") to => _, in("al") value,
            options(nostack, preserves_flags));
    }
}
