//! Pairs that one thread stores while others read them.

extern crate std;

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::CpuPairs;
use crate::platform::StorePairs as _;

#[repr(align(16))]
struct Aligned([AtomicU64; 3]);

impl Aligned {
    fn new() -> Self {
        Self([0, u64::MAX, 0].map(AtomicU64::new))
    }

    fn pair(&self, first: usize) -> &[AtomicU64; 2] {
        self.0[first..].first_chunk().unwrap()
    }
}

/// The CPU's stores of pairs; without them a test says that it is skipped.
fn detected() -> Option<&'static CpuPairs> {
    let pairs = CpuPairs::detect();
    if pairs.is_none() {
        std::println!("SKIP: this CPU has no stores of pairs");
    }
    pairs
}

fn values(pair: &[AtomicU64; 2]) -> [u64; 2] {
    [0, 1].map(|word: usize| pair[word].load(Ordering::Acquire))
}

#[test]
fn a_pair_is_stored_at_any_place() {
    let Some(pairs) = detected() else { return };
    let memory = Aligned::new();
    for first in [0, 1] {
        pairs.store_pair(memory.pair(first), [3 + first as u64, 4]);
        assert_eq!(values(memory.pair(first)), [3 + first as u64, 4]);
    }
    assert_eq!(memory.0[0].load(Ordering::Relaxed), 3);
}

/// A pair of which each word is the other's complement: what a reader in one access finds at any time.
#[test]
fn a_reader_of_both_words_finds_both_old_or_both_new() {
    let Some(pairs) = detected() else { return };
    let (memory, done) = (Aligned::new(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..200_000u64 {
                pairs.store_pair(memory.pair(0), [n, !n]);
            }
            done.store(true, Ordering::Release);
        });
        while !done.load(Ordering::Acquire) {
            let [low, high] = read_at_once(memory.pair(0));
            assert_eq!(low, !high);
        }
    });
}

/// Both words by one access of memory, as hardware reads them: the value is replaced by itself, or not at all.
#[cfg(all(target_arch = "x86_64", not(miri)))]
fn read_at_once(pair: &[AtomicU64; 2]) -> [u64; 2] {
    // SAFETY: the caller has found the instruction, and the pair is aligned and lives.
    unsafe { super::cpu::exchange(pair.as_ptr().cast_mut().cast(), [0; 2], [0; 2]) }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
fn read_at_once(pair: &[AtomicU64; 2]) -> [u64; 2] {
    values(pair)
}
