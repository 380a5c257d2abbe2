//! Functions that a program for Linux's target has from its C library: here it has none.
//!
//! `no_builtins` (in `main.rs`) keeps the compiler from making calls of these functions of their loops.

/// Bytes that are moved at once.
const WIDE: usize = 8;

/// # Safety
/// As of C's.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, bytes: usize) -> *mut u8 {
    let mut at = 0;
    // SAFETY: the caller's promise; all that is moved lies below `bytes`.
    unsafe {
        while at + WIDE <= bytes {
            let word = from.add(at).cast::<u64>().read_unaligned();
            to.add(at).cast::<u64>().write_unaligned(word);
            at += WIDE;
        }
        while at < bytes {
            to.add(at).write(from.add(at).read());
            at += 1;
        }
    }
    to
}

/// # Safety
/// As of C's.
#[unsafe(no_mangle)]
unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, bytes: usize) -> *mut u8 {
    // No byte is overwritten before it was read.
    if to.addr().wrapping_sub(from.addr()) >= bytes {
        // SAFETY: the caller's promise.
        return unsafe { memcpy(to, from, bytes) };
    }
    for at in (0..bytes).rev() {
        // SAFETY: the caller's promise.
        unsafe { to.add(at).write(from.add(at).read()) };
    }
    to
}

/// # Safety
/// As of C's.
#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, value: i32, bytes: usize) -> *mut u8 {
    let wide = u64::from_ne_bytes([value as u8; WIDE]);
    let mut at = 0;
    // SAFETY: the caller's promise; all that is filled lies below `bytes`.
    unsafe {
        while at + WIDE <= bytes {
            to.add(at).cast::<u64>().write_unaligned(wide);
            at += WIDE;
        }
        while at < bytes {
            to.add(at).write(value as u8);
            at += 1;
        }
    }
    to
}

/// # Safety
/// As of C's.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(one: *const u8, other: *const u8, bytes: usize) -> i32 {
    for at in 0..bytes {
        // SAFETY: the caller's promise.
        let (one, other) = unsafe { (one.add(at).read(), other.add(at).read()) };
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
    while unsafe { text.add(bytes).read() } != 0 {
        bytes += 1;
    }
    bytes
}

/// Symbol that the target's `core` names, because it was compiled to unwind; never called.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}

/// Symbol that the target's `core` names, like `rust_eh_personality`; never called.
#[unsafe(no_mangle)]
extern "C" fn _Unwind_Resume() -> ! {
    panic!("nothing here unwinds");
}
