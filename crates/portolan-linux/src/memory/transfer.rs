//! Copies and fills of memory that others write meanwhile.
//!
//! On x86-64 by instructions that the compiler does not see into, which are no access that the
//! language knows of, so that a device or another thread that writes the same bytes is no data race:
//! the copy has old bytes or new ones. Elsewhere by relaxed atomics.

#![allow(unsafe_code)]

/// Places whose offsets within a page differ by less than this, the target's being the higher, make
/// the string instruction go byte by byte on some processors: 30 times slower was measured (AMD,
/// family 25).
#[cfg(target_arch = "x86_64")]
const NEAR: usize = 256;

/// Copies `bytes` bytes.
///
/// # Safety
/// Both places are readable and writable memory of this process, and stay so during the call.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(super) unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    let above = to.addr().wrapping_sub(from.addr()) & 0xfff;
    // SAFETY: the caller guarantees both places; `by_blocks` has at least a block to copy.
    unsafe {
        match above < NEAR && !above.is_multiple_of(32) {
            false => by_string(from, to, bytes),
            true if bytes < BLOCK => portable::copy(from, to, bytes),
            true => by_blocks(from, to, bytes),
        }
    }
}

/// Copies with the string instruction.
///
/// # Safety
/// As [`copy`].
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn by_string(from: *const u8, to: *mut u8, bytes: usize) {
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

/// Bytes that [`by_blocks`] copies in one turn.
#[cfg(target_arch = "x86_64")]
const BLOCK: usize = 64;

/// Copies blocks, and the last one, which may overlap the one before it.
///
/// # Safety
/// As [`copy`], and there are at least [`BLOCK`] bytes.
#[cfg(target_arch = "x86_64")]
unsafe fn by_blocks(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: the caller guarantees both places, and that a block before their ends is in them.
    unsafe {
        core::arch::asm!(
            "2:",
            "movdqu {a}, [{from}]",
            "movdqu {b}, [{from} + 16]",
            "movdqu {c}, [{from} + 32]",
            "movdqu {d}, [{from} + 48]",
            "movdqu [{to}], {a}",
            "movdqu [{to} + 16], {b}",
            "movdqu [{to} + 32], {c}",
            "movdqu [{to} + 48], {d}",
            "add {from}, 64",
            "add {to}, 64",
            "dec {blocks}",
            "jnz 2b",
            "movdqu {a}, [{from_end} - 64]",
            "movdqu {b}, [{from_end} - 48]",
            "movdqu {c}, [{from_end} - 32]",
            "movdqu {d}, [{from_end} - 16]",
            "movdqu [{to_end} - 64], {a}",
            "movdqu [{to_end} - 48], {b}",
            "movdqu [{to_end} - 32], {c}",
            "movdqu [{to_end} - 16], {d}",
            from = inout(reg) from => _,
            to = inout(reg) to => _,
            from_end = in(reg) from.add(bytes),
            to_end = in(reg) to.add(bytes),
            blocks = inout(reg) bytes / BLOCK => _,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            options(nostack)
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
    #[cfg_attr(all(target_arch = "x86_64", not(test)), allow(dead_code))]
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

    const LENGTH: usize = 1000;
    const PAGE: usize = 4096;

    fn bytes(seed: u8) -> Vec<u8> {
        (0..LENGTH).map(|at| (at * 31) as u8 ^ seed).collect()
    }

    /// Two pages, one with `bytes(1)` and one with `bytes(2)`, and where the first begins.
    fn pages() -> (Vec<u8>, usize) {
        let mut all = vec![0; 3 * PAGE];
        let start = all.as_ptr().addr().wrapping_neg() % PAGE;
        all[start..start + LENGTH].copy_from_slice(&bytes(1));
        all[start + PAGE..start + PAGE + LENGTH].copy_from_slice(&bytes(2));
        (all, start)
    }

    #[test]
    fn both_ways_copy_and_fill_what_is_asked_and_nothing_beside() {
        type Copy = unsafe fn(*const u8, *mut u8, usize);
        type Fill = unsafe fn(*mut u8, u8, usize);
        let ways: [(Copy, Fill); 2] =
            [(super::copy, super::fill), (portable::copy, portable::fill)];
        let lengths = [0, 1, 7, 8, 9, 63, 64, 65, 127, 128, 200, 700];
        let places = (0..70).map(|to| (3, to)).chain([(0, 0), (8, 7), (5, 261)]);
        for ((from, to), length) in places.flat_map(|places| lengths.map(|n| (places, n))) {
            for (copy, fill) in ways {
                let (mut all, start) = pages();
                let mut expected = all.clone();
                let target = start + PAGE + to;
                expected.copy_within(start + from..start + from + length, target);
                let pointer = all.as_mut_ptr();
                // SAFETY: both places are inside the vector.
                unsafe { copy(pointer.add(start + from), pointer.add(target), length) };
                assert!(all == expected, "{from} {to} {length}");
                expected[target..target + length].fill(0xa5);
                // SAFETY: the place is inside the vector.
                unsafe { fill(all.as_mut_ptr().add(target), 0xa5, length) };
                assert!(all == expected, "{to} {length}");
            }
        }
    }
}
