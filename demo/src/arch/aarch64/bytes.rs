//! Bytes in memory, moved and filled.

use core::arch::asm;

/// Copies `bytes` bytes, the first one first.
///
/// # Safety
/// `from` is valid for reads and `to` for writes.
pub unsafe fn copy_up(to: *mut u8, from: *const u8, bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "2:", "cmp {n}, #8", "b.lo 3f",
            "ldr {v}, [{from}], #8", "str {v}, [{to}], #8", "sub {n}, {n}, #8", "b 2b",
            "3:", "cbz {n}, 4f",
            "ldrb {v:w}, [{from}], #1", "strb {v:w}, [{to}], #1", "sub {n}, {n}, #1", "b 3b",
            "4:",
            n = inout(reg) bytes => _, from = inout(reg) from => _, to = inout(reg) to => _,
            v = out(reg) _, options(nostack),
        );
    }
}

/// Copies `bytes` bytes, the last one first.
///
/// # Safety
/// As of [`copy_up`].
pub unsafe fn copy_down(to: *mut u8, from: *const u8, bytes: usize) {
    let (to, from) = (to.wrapping_add(bytes), from.wrapping_add(bytes));
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "2:", "cbz {n}, 3f",
            "ldrb {v:w}, [{from}, #-1]!", "strb {v:w}, [{to}, #-1]!", "sub {n}, {n}, #1", "b 2b",
            "3:",
            n = inout(reg) bytes => _, from = inout(reg) from => _, to = inout(reg) to => _,
            v = out(reg) _, options(nostack),
        );
    }
}

/// Fills `bytes` bytes.
///
/// # Safety
/// `to` is valid for writes.
pub unsafe fn fill(to: *mut u8, value: u8, bytes: usize) {
    let eight = u64::from_ne_bytes([value; 8]);
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "2:", "cmp {n}, #8", "b.lo 3f", "str {v}, [{to}], #8", "sub {n}, {n}, #8", "b 2b",
            "3:", "cbz {n}, 4f", "strb {v:w}, [{to}], #1", "sub {n}, {n}, #1", "b 3b",
            "4:",
            n = inout(reg) bytes => _, to = inout(reg) to => _, v = in(reg) eight, options(nostack),
        );
    }
}
