//! Runs of free slots in words of 64.

/// A search for `count` free slots, from one whose number is `phase` more than a multiple of `stride`.
///
/// *Context.* Interrupt: a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want {
    /// Slots of the run, at least 1.
    pub count: u32,
    /// Alignment of the run's first slot, in slots: a power of two.
    pub stride: u32,
    /// Remainder of the first slot's number by `stride`.
    pub phase: u32,
}

/// Slots in a word.
pub(super) const WORD: u32 = 64;

/// The lowest `count` bits.
pub(super) const fn ones(count: u32) -> u64 {
    match count {
        0 => 0,
        1..=63 => (1 << count) - 1,
        _ => u64::MAX,
    }
}

impl Want {
    /// The slots of any word where a run may begin, if the stride is no longer than a word.
    const fn starts(self) -> u64 {
        let mut starts = 1u64;
        let mut step = self.stride;
        while step < WORD {
            starts |= starts << step;
            step *= 2;
        }
        starts << self.phase
    }

    /// Bits of the word number `word` at which a run may begin.
    #[inline]
    pub(super) const fn starts_in(self, word: u32) -> u64 {
        if self.stride == 1 {
            return u64::MAX;
        }
        if self.stride <= WORD {
            return self.starts();
        }
        let inside = (word * WORD) & (self.stride - 1);
        let begins = self.phase & !(WORD - 1);
        if inside == begins { 1 << (self.phase & (WORD - 1)) } else { 0 }
    }

    /// The lowest slot, from `at` on, where a run may begin.
    pub const fn align_up(self, at: u32) -> u32 {
        let above = at.wrapping_sub(self.phase) & (self.stride - 1);
        if above == 0 { at } else { at + (self.stride - above) }
    }

    /// The first slot of a run that lies in the 64 slots of the word number `word`, of which the bits
    /// set in `free` are free.
    #[inline]
    pub fn find(self, free: u64, word: u32) -> Option<u32> {
        let mut runs = free;
        let mut length = 1;
        while length < self.count {
            let step = length.min(self.count - length);
            runs &= if step >= WORD { 0 } else { runs >> step };
            length += step;
        }
        let begins = runs & self.starts_in(word);
        if begins == 0 { None } else { Some(begins.trailing_zeros()) }
    }
}

/// The longest run of set bits in `words`, and the number of set bits.
pub(super) fn survey(words: impl Iterator<Item = u64>) -> (u32, u32) {
    let (mut longest, mut total, mut run) = (0, 0, 0u32);
    for word in words {
        total += word.count_ones();
        let mut left = WORD;
        let mut rest = word;
        loop {
            let set = rest.trailing_ones().min(left);
            run += set;
            longest = longest.max(run);
            if set == left {
                break;
            }
            rest >>= set;
            left -= set;
            let clear = rest.trailing_zeros().min(left);
            run = 0;
            rest = if clear >= WORD { 0 } else { rest >> clear };
            left -= clear;
        }
    }
    (longest, total)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bit by bit.
    fn naive(want: Want, free: u64, word: u32) -> Option<u32> {
        (0..WORD).find(|&at| {
            let number = word * WORD + at;
            number % want.stride == want.phase
                && at + want.count <= WORD
                && (at..at + want.count).all(|bit| free >> bit & 1 != 0)
        })
    }

    #[test]
    fn runs_are_found_where_a_bit_by_bit_search_finds_them() {
        let mut state = 0x1234_5678_9abc_def1u64;
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        for _ in 0..20_000 {
            let free = random() | random() | random();
            let stride = 1 << (random() % 9);
            let want = Want {
                count: 1 + (random() % 64) as u32,
                stride,
                phase: (random() % u64::from(stride)) as u32,
            };
            let word = (random() % 8) as u32;
            assert_eq!(want.find(free, word), naive(want, free, word), "{want:?} {free:#x}");
            let up = want.align_up(word);
            assert!(up >= word && up % stride == want.phase && up - word < stride);
        }
    }

    #[test]
    fn surveys_find_what_counting_bit_by_bit_finds() {
        let mut state = 0x0dd0_5eed_0dd0_5eedu64;
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        for turn in 0..5_000 {
            let words = [(); 3].map(|()| match turn % 3 {
                0 => random() & random(),
                1 => random() | random() | random(),
                _ => !(random() & random() & random() & random()),
            });
            let (mut longest, mut total, mut run) = (0, 0, 0);
            for bit in 0..3 * WORD {
                let set = words[(bit / WORD) as usize] >> (bit % WORD) & 1 != 0;
                run = if set { run + 1 } else { 0 };
                total += u32::from(set);
                longest = longest.max(run);
            }
            assert_eq!(survey(words.into_iter()), (longest, total), "{words:x?}");
        }
    }

    #[test]
    fn surveys_count_runs_across_words() {
        assert_eq!(survey([u64::MAX, 1].into_iter()), (65, 65));
        assert_eq!(survey([1 << 63, 0b11].into_iter()), (3, 3));
        assert_eq!(survey([0b1011, 0].into_iter()), (2, 3));
        assert_eq!(survey([0, 0].into_iter()), (0, 0));
    }
}
