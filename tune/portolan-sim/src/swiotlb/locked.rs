//! State of areas behind their lock: a list of free runs, or a bitmap.

use std::collections::TryReserveError;

use portolan::bounce::{GiveError, Want};

/// Slots in a word of a bitmap.
pub(super) const WORD: u32 = 64;

/// The lowest `count` bits.
const fn ones(count: u32) -> u64 {
    match count {
        0 => 0,
        1..=63 => (1 << count) - 1,
        _ => u64::MAX,
    }
}

/// Start of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// After the last run that was taken.
    Next,
    /// Begins at the run that was freed last.
    Recent,
}

/// Slots that a run cannot extend beyond a multiple of, in the list.
const SEGMENT: u32 = 128;

/// A number for each slot: how many free slots follow up to the end of the segment or area.
pub(super) struct List {
    free_from: Vec<u8>,
    next: u32,
}

impl List {
    pub(super) fn new(slots: u32) -> Result<Self, TryReserveError> {
        let mut free_from = Vec::new();
        free_from.try_reserve_exact(slots as usize)?;
        let until_end = |slot: u32| (SEGMENT - slot % SEGMENT).min(slots - slot);
        free_from.extend((0..slots).map(|slot| until_end(slot) as u8));
        Ok(Self { free_from, next: 0 })
    }

    pub(super) fn take(&mut self, want: Want) -> Option<u32> {
        let slots = self.free_from.len() as u32;
        if want.count > SEGMENT || want.count > slots {
            return None;
        }
        let begin = want.align_up(self.next);
        let begin = if begin >= slots { want.phase } else { begin };
        let mut at = begin;
        loop {
            if at < slots && u32::from(self.free_from[at as usize]) >= want.count {
                self.mark(at, want.count);
                self.next = if at + want.count < slots { at + want.count } else { 0 };
                return Some(at);
            }
            at += want.stride;
            if at >= slots {
                at = want.phase;
            }
            if at == begin {
                return None;
            }
        }
    }

    fn mark(&mut self, first: u32, count: u32) {
        for slot in first..first + count {
            self.free_from[slot as usize] = 0;
        }
        self.count_back(first);
    }

    /// Counts the free slots before `end`, which is taken or begins a segment.
    fn count_back(&mut self, end: u32) {
        let mut run = match self.free_from.get(end as usize) {
            Some(&run) if !end.is_multiple_of(SEGMENT) => run,
            _ => 0,
        };
        let segment = (end.saturating_sub(1)) / SEGMENT * SEGMENT;
        for slot in (segment..end).rev() {
            let free = &mut self.free_from[slot as usize];
            if *free == 0 {
                break;
            }
            run += 1;
            *free = run;
        }
    }

    pub(super) fn give(&mut self, first: u32, count: u32) -> Result<(), GiveError> {
        if !self.is_taken(first, count) {
            return Err(GiveError::AlreadyFree { slot: first });
        }
        for slot in (first..first + count).rev() {
            let after = match self.free_from.get(slot as usize + 1) {
                Some(&run) if !(slot + 1).is_multiple_of(SEGMENT) => run,
                _ => 0,
            };
            self.free_from[slot as usize] = after + 1;
        }
        self.count_back(first);
        Ok(())
    }

    pub(super) fn is_taken(&self, first: u32, count: u32) -> bool {
        let slots = self.free_from.iter().skip(first as usize);
        slots.take(count as usize).all(|free| *free == 0)
    }

    pub(super) fn survey(&self) -> (u32, u32) {
        let longest = self.free_from.iter().copied().max().unwrap_or(0);
        let free = self.free_from.iter().filter(|run| **run != 0).count();
        (longest.into(), free as u32)
    }
}

/// A bit for each slot, set while the slot is free.
pub(super) struct Bits {
    words: Vec<u64>,
    order: Order,
    /// Word at which the next search begins.
    from: u32,
}

impl Bits {
    pub(super) fn new(words: u32, order: Order) -> Result<Self, TryReserveError> {
        let mut all = Vec::new();
        all.try_reserve_exact(words as usize)?;
        all.resize(words as usize, u64::MAX);
        Ok(Self { words: all, order, from: 0 })
    }

    pub(super) fn take(&mut self, want: Want) -> Option<u32> {
        let slots = self.words.len() as u32 * WORD;
        let begin = want.align_up(self.from);
        let found = self.search(want, begin, slots).or_else(|| {
            self.search(want, want.phase, begin.saturating_add(want.count).min(slots))
        })?;
        self.set(found, want.count, |word, mask| word & !mask);
        if self.order == Order::Next {
            self.from = (found + want.count) % slots;
        }
        Some(found)
    }

    /// A free run that begins at `at` or later and ends before `end`.
    fn search(&self, want: Want, mut at: u32, end: u32) -> Option<u32> {
        while at.checked_add(want.count)? <= end {
            let word = at / WORD;
            let free = self.words[word as usize] & !ones(at % WORD);
            if want.count <= WORD
                && let Some(first) = want.find(free, word)
            {
                let found = word * WORD + first;
                return (found + want.count <= end).then_some(found);
            }
            match self.taken_in(at, want.count) {
                None => return Some(at),
                Some(taken) => at = want.align_up(taken + 1),
            }
        }
        None
    }

    /// The last taken slot of a run.
    fn taken_in(&self, first: u32, count: u32) -> Option<u32> {
        (first..first + count)
            .rev()
            .find(|slot| self.words[(slot / WORD) as usize] >> (slot % WORD) & 1 == 0)
    }

    fn set(&mut self, first: u32, count: u32, change: impl Fn(u64, u64) -> u64) {
        let end = first + count;
        for word in first / WORD..end.div_ceil(WORD) {
            let begin = word * WORD;
            let mask = ones((end - begin).min(WORD)) & !ones(first.saturating_sub(begin));
            let bits = &mut self.words[word as usize];
            *bits = change(*bits, mask);
        }
    }

    pub(super) fn give(&mut self, first: u32, count: u32) -> Result<(), GiveError> {
        if !self.is_taken(first, count) {
            return Err(GiveError::AlreadyFree { slot: first });
        }
        self.set(first, count, |word, mask| word | mask);
        if self.order == Order::Recent {
            self.from = first;
        }
        Ok(())
    }

    pub(super) fn is_taken(&self, first: u32, count: u32) -> bool {
        (first..first + count)
            .all(|slot| self.words[(slot / WORD) as usize] >> (slot % WORD) & 1 == 0)
    }

    pub(super) fn survey(&self) -> (u32, u32) {
        let (mut longest, mut free, mut run) = (0, 0, 0);
        for slot in 0..self.words.len() as u32 * WORD {
            run = if self.is_taken(slot, 1) { 0 } else { run + 1 };
            free += u32::from(run > 0);
            longest = longest.max(run);
        }
        (longest, free)
    }
}
