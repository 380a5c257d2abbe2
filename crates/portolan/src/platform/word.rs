//! One entry of a page table as an atomic word, 32 or 64 bits wide.
//!
//! *Context.* Interrupt, all methods.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// An atomic table entry; its value travels as 64 bits at any width of its own.
pub trait Word: Send + Sync + 'static {
    /// Exponent of the entry's size in bytes.
    const LG2_BYTES: u32;

    /// A word that holds `raw`.
    fn new(raw: u64) -> Self;

    /// Reads with acquire ordering.
    fn load(&self) -> u64;

    /// Writes with release ordering.
    fn store(&self, raw: u64);

    /// Replaces `old` by `new` in one step.
    ///
    /// # Errors
    /// The value that was there instead.
    fn compare_exchange(&self, old: u64, new: u64) -> Result<u64, u64>;
}

/// Stores of two words of table memory at once.
///
/// *Implementer's duties.* Hardware that reads both words by one access has both old ones or both new ones, and so has
/// a CPU; what was stored before is visible to it first.
pub trait StorePairs<W: Word> {
    /// Writes the words of `pair`, which is aligned to its size: a word of an even number of a page, and the next.
    fn store_pair(&self, pair: &[W; 2], words: [u64; 2]);
}

macro_rules! word {
    ($atomic:ident, $raw:ty, $lg2:literal) => {
        impl Word for $atomic {
            const LG2_BYTES: u32 = $lg2;

            #[inline]
            fn new(raw: u64) -> Self {
                Self::new(raw as $raw)
            }

            #[inline]
            #[allow(clippy::unnecessary_cast)]
            fn load(&self) -> u64 {
                self.load(Ordering::Acquire) as u64
            }

            #[inline]
            fn store(&self, raw: u64) {
                self.store(raw as $raw, Ordering::Release);
            }

            #[inline]
            #[allow(clippy::unnecessary_cast)]
            fn compare_exchange(&self, old: u64, new: u64) -> Result<u64, u64> {
                self.compare_exchange(old as $raw, new as $raw, Ordering::AcqRel, Ordering::Acquire)
                    .map(|raw| raw as u64)
                    .map_err(|raw| raw as u64)
            }
        }
    };
}

word!(AtomicU32, u32, 2);
word!(AtomicU64, u64, 3);

/// The model checker's, for the tests that explore walks.
#[cfg(portolan_loom)]
mod explored {
    use super::Word;
    use loom::sync::atomic::{AtomicU64, Ordering};

    word!(AtomicU64, u64, 3);
}
