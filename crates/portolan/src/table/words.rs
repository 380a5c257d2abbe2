//! Loops over entries in a row.
//!
//! Eight entries a turn, a constant: a branch of the loop is taken for each eighth entry, and none of them is
//! combined with another, since entries are atomic.
//!
//! *Context.* Interrupt.

use crate::platform::Word;

const TURN: usize = 8;

/// All bits that are set in any of `words`.
#[inline]
pub(super) fn bits_of<W: Word>(words: &[W]) -> u64 {
    let gather = |bits, words: &[W]| words.iter().fold(bits, |bits, word| bits | word.load());
    let (mut bits, mut turns) = (0, words.chunks_exact(TURN));
    for turn in &mut turns {
        bits = gather(bits, turn);
    }
    gather(bits, turns.remainder())
}

/// Index of the first of `words` that is 0.
#[inline(never)]
pub(super) fn first_empty<W: Word>(words: &[W]) -> Option<usize> {
    let full = |words: &[W]| words.iter().all(|word| word.load() != 0);
    let mut turns = words.chunks_exact(TURN);
    if turns.by_ref().all(full) && full(turns.remainder()) {
        return None;
    }
    words.iter().position(|word| word.load() == 0)
}

/// Makes all of `words` 0.
#[inline(never)]
pub(super) fn clear<W: Word>(words: &[W]) {
    write_run(words, 0, 0);
}

/// Writes `first` and the numbers that follow it, `step` apart.
#[inline]
pub(super) fn write_run<W: Word>(words: &[W], first: u64, step: u64) {
    let write = |words: &[W], first: u64| {
        for (word, number) in words.iter().zip(0u64..) {
            word.store(first.wrapping_add(number * step));
        }
    };
    let (mut next, mut turns) = (first, words.chunks_exact(TURN));
    for turn in &mut turns {
        write(turn, next);
        next = next.wrapping_add(TURN as u64 * step);
    }
    write(turns.remainder(), next);
}
