//! Copies and fills of memory that others write meanwhile.
//!
//! On x86-64 by string instructions, which are no access that the language knows of, so that a
//! device or another thread that writes the same bytes is no data race: the copy has old bytes or
//! new ones. Elsewhere by relaxed atomics.

#![allow(unsafe_code)]

/// Copies `bytes` bytes.
///
/// # Safety
/// Both places are readable and writable memory of this process, and stay so during the call.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(super) unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: the caller guarantees both places. The direction flag is clear, as the ABI has it.
    unsafe {
        core::arch::asm!(
            "rep movsb",
            inout("rcx") bytes => _,
            inout("rsi") from => _,
            inout("rdi") to => _,
            options(nostack, preserves_flags)
        );
    }
}

/// Sets `bytes` bytes to `value`.
///
/// # Safety
/// The place is writable memory of this process, and stays so during the call.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(super) unsafe fn fill(to: *mut u8, value: u8, bytes: usize) {
    // SAFETY: the caller guarantees the place. The direction flag is clear, as the ABI has it.
    unsafe {
        core::arch::asm!(
            "rep stosb",
            inout("rcx") bytes => _,
            inout("rdi") to => _,
            in("al") value,
            options(nostack, preserves_flags)
        );
    }
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) use portable::{copy, fill};

#[cfg(any(test, not(target_arch = "x86_64")))]
mod portable {
    use core::sync::atomic::Ordering::Relaxed;
    use core::sync::atomic::{AtomicU8, AtomicU64};

    const WORD: usize = size_of::<AtomicU64>();

    /// Copies `bytes` bytes, by words where both places are aligned alike.
    ///
    /// # Safety
    /// Both places are readable and writable memory of this process, and stay so during the call.
    pub(in super::super) unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
        let alike = from.addr() % WORD == to.addr() % WORD;
        let mut at = 0;
        while at < bytes {
            // SAFETY: `at` is below `bytes`, and a word is used only where it is aligned and ends
            // within `bytes`; the caller guarantees the places.
            unsafe {
                let (from, to) = (from.add(at), to.add(at));
                if alike && to.addr().is_multiple_of(WORD) && bytes - at >= WORD {
                    let word = AtomicU64::from_ptr(from.cast_mut().cast()).load(Relaxed);
                    AtomicU64::from_ptr(to.cast()).store(word, Relaxed);
                    at += WORD;
                } else {
                    let byte = AtomicU8::from_ptr(from.cast_mut()).load(Relaxed);
                    AtomicU8::from_ptr(to).store(byte, Relaxed);
                    at += 1;
                }
            }
        }
    }

    /// Sets `bytes` bytes to `value`.
    ///
    /// # Safety
    /// The place is writable memory of this process, and stays so during the call.
    pub(in super::super) unsafe fn fill(to: *mut u8, value: u8, bytes: usize) {
        let mut at = 0;
        while at < bytes {
            // SAFETY: as in `copy`.
            unsafe {
                let to = to.add(at);
                if to.addr().is_multiple_of(WORD) && bytes - at >= WORD {
                    let word = u64::from_ne_bytes([value; WORD]);
                    AtomicU64::from_ptr(to.cast()).store(word, Relaxed);
                    at += WORD;
                } else {
                    AtomicU8::from_ptr(to).store(value, Relaxed);
                    at += 1;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::portable;

    fn bytes(seed: u8) -> Vec<u8> {
        (0..200u8)
            .map(|at| at.wrapping_mul(31).wrapping_add(seed))
            .collect()
    }

    #[test]
    fn both_ways_copy_and_fill_what_is_asked_and_nothing_beside() {
        for (from, to, length) in [(0, 0, 200), (3, 11, 64), (1, 2, 100), (8, 7, 0), (5, 5, 1)] {
            let source = bytes(1);
            let mut expected = bytes(2);
            expected[to..to + length].copy_from_slice(&source[from..from + length]);
            let mut filled = bytes(2);
            filled[to..to + length].fill(0xa5);
            type Copy = unsafe fn(*const u8, *mut u8, usize);
            type Fill = unsafe fn(*mut u8, u8, usize);
            let ways: [(Copy, Fill); 2] =
                [(super::copy, super::fill), (portable::copy, portable::fill)];
            for (copy, fill) in ways {
                let mut target = bytes(2);
                // SAFETY: both ranges are inside their vectors.
                unsafe { copy(source[from..].as_ptr(), target[to..].as_mut_ptr(), length) };
                assert_eq!(target, expected);
                let mut target = bytes(2);
                // SAFETY: the range is inside the vector.
                unsafe { fill(target[to..].as_mut_ptr(), 0xa5, length) };
                assert_eq!(target, filled);
            }
        }
    }
}
