//! An area without a lock: one bit a slot, set while it is free.
//!
//! A run inside a word is claimed by one compare-exchange. A longer one, or one across words, is
//! claimed word by word, and given back if a word in the middle was taken meanwhile: no other
//! caller waits, and each bit has one owner at any time. The search begins at the word that was
//! freed last, whose slots are the likeliest to be in a cache.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::area::{Area, Want};
use super::bits::{WORD, ones, survey};
use super::error::GiveError;
use crate::platform::SharedWord;

/// An [`Area`] without a lock: one bit a slot.
pub struct LockFree<W> {
    /// The word that was freed last.
    recent: W,
    words: Box<[W]>,
}

impl<W: SharedWord> LockFree<W> {
    /// An area of `64 * words` slots, all free.
    ///
    /// *Context.* Task: allocates.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn new(words: u32) -> Result<Self, alloc::collections::TryReserveError> {
        let mut all = Vec::new();
        all.try_reserve_exact(words as usize)?;
        all.extend((0..words).map(|_| W::new(u64::MAX)));
        Ok(Self { recent: W::new(0), words: all.into_boxed_slice() })
    }

    #[inline]
    fn take_in(&self, word: usize, want: Want) -> Option<u32> {
        let bits = self.words.get(word)?;
        let mut free = bits.load(Relaxed);
        loop {
            let first = want.find(free, word as u32)?;
            let mask = ones(want.count) << first;
            match bits.compare_exchange_weak(free, free & !mask, Acquire, Relaxed) {
                Ok(_) => return Some(word as u32 * WORD + first),
                Err(now) => free = now,
            }
        }
    }

    /// A run across words: the first one that is free when it is looked at and still free when it
    /// is claimed.
    #[cold]
    fn take_across(&self, want: Want) -> Option<u32> {
        let slots = self.words.len() as u32 * WORD;
        let mut at = want.align_up(0);
        while at.checked_add(want.count)? <= slots {
            let taken = match self.last_taken(at, want.count) {
                None if self.claim(at, want.count) => return Some(at),
                // It changed under the search.
                None => at,
                Some(taken) => taken,
            };
            at = want.align_up(taken + 1);
        }
        None
    }

    /// The last slot of the run that is taken, if any: a run cannot begin before it.
    fn last_taken(&self, first: u32, count: u32) -> Option<u32> {
        pieces(first, count)
            .filter_map(|(word, mask)| {
                let taken = !self.words[word].load(Relaxed) & mask;
                let highest = (WORD - 1).checked_sub(taken.leading_zeros())?;
                Some(word as u32 * WORD + highest)
            })
            .last()
    }

    fn claim(&self, first: u32, count: u32) -> bool {
        for (word, mask) in pieces(first, count) {
            let bits = &self.words[word];
            let mut free = bits.load(Relaxed);
            loop {
                if free & mask != mask {
                    let before = (word as u32 * WORD).saturating_sub(first);
                    for (word, mask) in pieces(first, before) {
                        self.words[word].fetch_or(mask, Relaxed);
                    }
                    return false;
                }
                match bits.compare_exchange_weak(free, free & !mask, Acquire, Relaxed) {
                    Ok(_) => break,
                    Err(now) => free = now,
                }
            }
        }
        true
    }
}

impl<W: SharedWord> Area for LockFree<W> {
    #[inline]
    fn take(&self, want: Want) -> Option<u32> {
        let words = self.words.len();
        let recent = self.recent.load(Relaxed) as usize;
        if want.count <= WORD {
            // Most callers end here: the word that was freed last.
            if let Some(first) = self.take_in(recent, want) {
                return Some(first);
            }
            let others = (recent + 1..words).chain(0..recent);
            for word in others {
                if let Some(first) = self.take_in(word, want) {
                    self.recent.store(word as u64, Relaxed);
                    return Some(first);
                }
            }
            if want.count == 1 {
                return None;
            }
        }
        self.take_across(want)
    }

    #[inline(always)]
    fn give(&self, first: u32, count: u32) -> Result<(), GiveError> {
        let inside = first % WORD;
        if inside + count <= WORD {
            let word = (first / WORD) as usize;
            let mask = ones(count) << inside;
            let before = self.words[word].fetch_or(mask, Release);
            if before & mask != 0 {
                return Err(GiveError::AlreadyFree { slot: first });
            }
            if self.recent.load(Relaxed) != word as u64 {
                self.recent.store(word as u64, Relaxed);
            }
            return Ok(());
        }
        let mut again = Ok(());
        for (word, mask) in pieces(first, count) {
            if self.words[word].fetch_or(mask, Release) & mask != 0 {
                again = Err(GiveError::AlreadyFree { slot: first });
            }
        }
        self.recent.store(u64::from(first / WORD), Relaxed);
        again
    }

    fn is_taken(&self, first: u32, count: u32) -> bool {
        pieces(first, count).all(|(word, mask)| self.words[word].load(Relaxed) & mask == 0)
    }

    fn survey(&self) -> (u32, u32) {
        survey(self.words.iter().map(|word| word.load(Relaxed)))
    }
}

/// The words of a run, and its bits in each.
fn pieces(first: u32, count: u32) -> impl Iterator<Item = (usize, u64)> {
    let end = first + count;
    let words = if count == 0 { 0..0 } else { first / WORD..end.div_ceil(WORD) };
    words.map(move |word| {
        let begin = word * WORD;
        let low = first.saturating_sub(begin);
        let high = (end - begin).min(WORD);
        (word as usize, ones(high) & !ones(low))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicU64;

    /// `count` slots anywhere.
    const fn any(count: u32) -> Want {
        Want { count, stride: 1, phase: 0 }
    }

    fn full(words: u32) -> LockFree<AtomicU64> {
        let area = LockFree::new(words).unwrap();
        for word in 0..words {
            assert_eq!(area.take(any(WORD)), Some(word * WORD));
        }
        area
    }

    #[test]
    fn the_word_that_was_freed_last_comes_first() {
        // A slot, a run in a word, and runs across words.
        for (first, count) in [(130, 1), (140, 5), (126, 4), (100, 120)] {
            let area = full(4);
            area.give(3, 1).unwrap();
            area.give(first, count).unwrap();
            assert_eq!(area.take(any(1)), Some(first));
            let left: u32 = (1..count).map(|_| u32::from(area.take(any(1)).is_some())).sum();
            assert_eq!((left, area.take(any(1))), (count - 1, Some(3)));
            assert_eq!(area.take(any(1)), None);
        }
    }

    #[test]
    fn a_short_run_may_lie_across_words() {
        for count in [2, 4, 64] {
            let area = full(3);
            let first = 2 * WORD - count / 2;
            area.give(first, count).unwrap();
            assert_eq!(area.take(any(count + 1)), None);
            assert_eq!(area.take(any(count)), Some(first));
            assert_eq!(area.survey(), (0, 0));
        }
    }

    #[test]
    fn a_claim_that_finds_a_slot_taken_gives_back_what_it_had() {
        for taken in [64, 69, 128, 130] {
            let area = LockFree::<AtomicU64>::new(4).unwrap();
            assert!(area.claim(taken, 1));
            // From the first word to the third.
            assert!(!area.claim(60, 100));
            let (_, free) = area.survey();
            assert_eq!(free, 4 * WORD - 1, "{taken}");
        }
    }
}
