//! What a program for Linux's target has from its C library: here it has none.

use crate::arch::bytes::{copy_down, copy_up, fill};

/// # Safety
/// As of C's.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, bytes: usize) -> *mut u8 {
    // SAFETY: the caller's promise.
    unsafe { copy_up(to, from, bytes) };
    to
}

/// # Safety
/// As of C's.
#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, value: i32, bytes: usize) -> *mut u8 {
    // SAFETY: the caller's promise.
    unsafe { fill(to, value as u8, bytes) };
    to
}

/// # Safety
/// As of C's.
#[unsafe(no_mangle)]
unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, bytes: usize) -> *mut u8 {
    // No byte is overwritten before it was read.
    let up = to.addr().wrapping_sub(from.addr()) >= bytes;
    let copy = if up { copy_up } else { copy_down };
    // SAFETY: the caller's promise.
    unsafe { copy(to, from, bytes) };
    to
}

/// # Safety
/// As of C's.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(one: *const u8, other: *const u8, bytes: usize) -> i32 {
    for at in 0..bytes {
        // SAFETY: the caller's promise. Volatile, or the compiler makes it a call of this function.
        let (one, other) = unsafe { (one.add(at).read_volatile(), other.add(at).read_volatile()) };
        if one != other {
            return i32::from(one) - i32::from(other);
        }
    }
    0
}

/// # Safety
/// As of C's.
#[unsafe(no_mangle)]
unsafe extern "C" fn bcmp(one: *const u8, other: *const u8, bytes: usize) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { memcmp(one, other, bytes) }
}

/// # Safety
/// As of C's.
#[unsafe(no_mangle)]
unsafe extern "C" fn strlen(text: *const u8) -> usize {
    let mut bytes = 0;
    // SAFETY: the caller's promise.
    while unsafe { text.add(bytes).read_volatile() } != 0 {
        bytes += 1;
    }
    bytes
}

/// Named by the target's `core`, which was compiled to unwind. Nothing here does.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}

/// As above.
#[unsafe(no_mangle)]
extern "C" fn _Unwind_Resume() -> ! {
    panic!("nothing here unwinds");
}
