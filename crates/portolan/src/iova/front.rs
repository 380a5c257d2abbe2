//! The front of a CPU's cache: a few free blocks of each kind, each in a word of its own, that are
//! taken and put back by one exchange of that word, without a lock.
//!
//! A hint says where the last block lies. It is read and written without an exchange, so a handler
//! that interrupts, a task that moves to another CPU, or a CPU that empties the fronts of all may
//! leave it wrong. Then the caller goes to the magazines, and the hint is put right by a step: a
//! block is in the word or in the hands of the caller that exchanged it, right or wrong as the hint
//! may be.
//!
//! *Context.* Interrupt: a few words are looked at.

use core::array;
use core::sync::atomic::Ordering;

use super::class::{CLASSES, Kind};
use super::magazine::Put;
use crate::platform::SharedWord;

/// Blocks of more than one granule; with the hint they fill a line of 64 bytes.
pub(super) const FRONT: usize = 7;
/// Blocks of one granule, which most buffers are: with the hint they fill eight such lines.
pub(super) const GRANULES: usize = 63;

/// Value of a word without a block. One with a block holds its first address and 1.
const NONE: u64 = 0;

/// Blocks of one kind.
#[repr(align(64))]
struct Front<W, const BLOCKS: usize> {
    /// Number of words from the first on that hold blocks, as a hint.
    filled: W,
    blocks: [W; BLOCKS],
}

/// A front of either size.
#[derive(Clone, Copy)]
struct AnyFront<'f, W> {
    filled: &'f W,
    blocks: &'f [W],
}

/// Blocks of all kinds in a zone.
struct ZoneFronts<W> {
    granules: Front<W, GRANULES>,
    larger: [Front<W, FRONT>; CLASSES - 1],
}

/// The blocks of a CPU, low ones and high ones.
pub(super) struct Fronts<W>([ZoneFronts<W>; 2]);

impl<W: SharedWord, const BLOCKS: usize> Front<W, BLOCKS> {
    fn new() -> Self {
        Self { filled: W::new(0), blocks: array::from_fn(|_| W::new(NONE)) }
    }

    #[inline(always)]
    fn any(&self) -> AnyFront<'_, W> {
        AnyFront { filled: &self.filled, blocks: &self.blocks }
    }
}

impl<W: SharedWord> Fronts<W> {
    pub fn new() -> Self {
        let larger = || array::from_fn(|_| Front::new());
        let zone = |_| ZoneFronts { granules: Front::new(), larger: larger() };
        Self(array::from_fn(zone))
    }

    /// The front of a kind.
    #[inline(always)]
    fn of(&self, kind: Kind) -> AnyFront<'_, W> {
        let [low, high] = &self.0;
        match kind.index() {
            0 => low.granules.any(),
            CLASSES => high.granules.any(),
            _ => self.of_larger(kind),
        }
    }

    fn of_larger(&self, kind: Kind) -> AnyFront<'_, W> {
        self.0[kind.index() / CLASSES].larger[kind.order() as usize - 1].any()
    }

    /// A block whose first address is at most `highest`, if the last one is such a block.
    ///
    /// # Errors
    /// A block that lies higher, and that came there at this moment: it is the caller's now.
    #[inline(always)]
    pub fn take(&self, kind: Kind, highest: u64) -> Result<Option<u64>, u64> {
        let front = self.of(kind);
        let last = front.filled.load(Ordering::Relaxed).wrapping_sub(1);
        let Some(word) = front.blocks.get(last as usize) else {
            return Ok(None);
        };
        let seen = word.load(Ordering::Relaxed);
        let start = seen.wrapping_sub(1);
        if seen == NONE || start > highest {
            return front.unfit(seen, last);
        }
        // The caller that unmapped the block did so before it was put here. The exchange need not wait
        // for the value seen, nor what follows for the value of the exchange: the branch foretells it.
        let held = word.swap(NONE, Ordering::Acquire);
        if held != seen {
            return front.exchanged(held, last, highest);
        }
        front.filled.store(last, Ordering::Relaxed);
        Ok(Some(start))
    }

    /// Puts a block back, if fewer than `room` are here.
    #[inline(always)]
    pub fn put(&self, kind: Kind, start: u64, room: usize) -> Put {
        let front = self.of(kind);
        let filled = front.filled.load(Ordering::Relaxed);
        let below = front.blocks.get(filled.wrapping_sub(1) as usize);
        if below.is_some_and(|word| word.load(Ordering::Relaxed) == start + 1) {
            return Put::Twice;
        }
        let word = match front.blocks.get(filled as usize) {
            Some(word) if (filled as usize) < room => word,
            _ => return Put::Full,
        };
        match word.compare_exchange_weak(NONE, start + 1, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => {
                front.filled.store(filled + 1, Ordering::Relaxed);
                Put::Done
            }
            Err(held) => front.occupied(held, filled),
        }
    }

    /// Takes out all blocks of a kind, of which at most `room` are here. The hint is left to sink.
    pub fn clear(&self, kind: Kind, room: usize) -> impl Iterator<Item = u64> + '_ {
        self.words(kind, room).filter_map(|word| {
            let held = match word.load(Ordering::Relaxed) {
                NONE => NONE,
                _ => word.swap(NONE, Ordering::Acquire),
            };
            held.checked_sub(1)
        })
    }

    /// The blocks of a kind, of which at most `room` are here.
    pub fn blocks(&self, kind: Kind, room: usize) -> impl Iterator<Item = u64> + '_ {
        let words = self.words(kind, room);
        words.filter_map(|word| word.load(Ordering::Relaxed).checked_sub(1))
    }

    fn words(&self, kind: Kind, room: usize) -> impl Iterator<Item = &W> {
        self.of(kind).blocks.iter().take(room)
    }
}

impl<W: SharedWord> AnyFront<'_, W> {
    /// There is no block where the hint says that the last one is, or it lies too high.
    #[cold]
    fn unfit(self, seen: u64, last: u64) -> Result<Option<u64>, u64> {
        if seen == NONE {
            self.filled.store(last, Ordering::Relaxed);
        }
        Ok(None)
    }

    /// Another caller was faster, and may have put another block in the word `last`.
    #[cold]
    fn exchanged(self, held: u64, last: u64, highest: u64) -> Result<Option<u64>, u64> {
        let Some(start) = held.checked_sub(1) else {
            return Ok(None);
        };
        self.filled.store(last, Ordering::Relaxed);
        if start <= highest { Ok(Some(start)) } else { Err(start) }
    }

    /// There is a block where the hint says that there is none.
    #[cold]
    fn occupied(self, held: u64, filled: u64) -> Put {
        if held != NONE {
            self.filled.store(filled + 1, Ordering::Relaxed);
        }
        Put::Full
    }
}

#[cfg(test)]
mod tests;
