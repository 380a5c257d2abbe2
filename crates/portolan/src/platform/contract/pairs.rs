//! Stores of two words at once, by an instruction of the CPU's own.
//!
//! Intel 64 and IA-32 Architectures Software Developer's Manual (325462), volume 2: CMPXCHG16B, and CPUID, leaf 1
//! (CX16). IOMMUs of x86 machines read an entry of two words by one access of memory, which is before or behind such a
//! store.
//!
//! Not supported: other architectures, whose IOMMUs read word by word.

use core::sync::atomic::AtomicU64;

use crate::platform::{StorePairs, Word};

/// Stores of two words at once by the CPU's own instruction, for [`Platform::pairs`](super::Platform::pairs).
///
/// *Context.* Interrupt.
#[derive(Debug)]
pub struct CpuPairs {
    _detected: (),
}

static PAIRS: CpuPairs = CpuPairs { _detected: () };

impl CpuPairs {
    /// The CPU's stores of pairs, if it has them.
    pub fn detect() -> Option<&'static Self> {
        cpu::has_pairs().then_some(&PAIRS)
    }
}

impl StorePairs<AtomicU64> for CpuPairs {
    fn store_pair(&self, pair: &[AtomicU64; 2], words: [u64; 2]) {
        if !cpu::store_pair(pair, words) {
            pair.iter().zip(words).for_each(|(word, new)| Word::store(word, new));
        }
    }
}

// Miri carries out no instruction of an architecture.
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod cpu {
    use core::arch::asm;
    use core::arch::x86_64::__cpuid;
    use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

    use crate::platform::Word;

    /// CX16 of leaf 1, in ECX.
    const CX16: u32 = 1 << 13;

    /// Results of CPUID, which hypervisors trap: it is asked once.
    const UNASKED: u8 = 0;
    const ABSENT: u8 = 1;
    const PRESENT: u8 = 2;
    static ANSWER: AtomicU8 = AtomicU8::new(UNASKED);

    fn ask() -> u8 {
        // SAFETY: each x86-64 CPU has the instruction. Newer compilers know that.
        #[allow(unused_unsafe)]
        let leaf = unsafe { __cpuid(1) };
        if leaf.ecx & CX16 != 0 { PRESENT } else { ABSENT }
    }

    pub(super) fn has_pairs() -> bool {
        let mut answer = ANSWER.load(Ordering::Relaxed);
        if answer == UNASKED {
            answer = ask();
            ANSWER.store(answer, Ordering::Relaxed);
        }
        answer == PRESENT
    }

    /// Stores `new` if the words at `at` are `old`; returns those that were there. The compiler's own function for it
    /// becomes a call of a library once it is inlined where the instruction is not enabled.
    ///
    /// # Safety
    /// The CPU has the instruction, and `at` is aligned to 16 bytes and valid for atomic reads and writes.
    pub(super) unsafe fn exchange(at: *mut u128, old: [u64; 2], new: [u64; 2]) -> [u64; 2] {
        let ([mut low, mut high], [new_low, new_high]) = (old, new);
        // SAFETY: the caller's promise. RBX, which the compiler keeps for itself, is put back.
        unsafe {
            asm!("xchg {new_low}, rbx", "lock cmpxchg16b xmmword ptr [rdi]", "mov rbx, {new_low}",
                new_low = inout(reg) new_low => _, in("rcx") new_high, in("rdi") at,
                inout("rax") low, inout("rdx") high, options(nostack));
        }
        [low, high]
    }

    /// Stores a pair that is aligned to its size; tells if it is.
    pub(super) fn store_pair(pair: &[AtomicU64; 2], words: [u64; 2]) -> bool {
        let at = pair.as_ptr().cast::<u128>().cast_mut();
        if !at.is_aligned() {
            return false;
        }
        let [low, high] = pair;
        let mut old = [Word::load(low), Word::load(high)];
        loop {
            // SAFETY: the instruction is there, or there were no value of `CpuPairs` to store by. Both words are
            // atomics, which may be written through a shared reference, and `at` is aligned.
            let found = unsafe { exchange(at, old, words) };
            if found == old {
                return true;
            }
            old = found;
        }
    }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
mod cpu {
    use core::sync::atomic::AtomicU64;

    pub(super) fn has_pairs() -> bool {
        false
    }

    pub(super) fn store_pair(_: &[AtomicU64; 2], _: [u64; 2]) -> bool {
        false
    }
}

#[cfg(test)]
mod tests;
