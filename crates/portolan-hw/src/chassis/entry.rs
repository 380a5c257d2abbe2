//! Entries of several words in memory that hardware reads at any time: a change of one to another,
//! as data, and the carrying out.
//!
//! Hardware reads an entry word by word, or some by pairs of words, keeps the words until it is told to
//! forget them, and may read between any two writes. A plan is a list of writes of a word, or of a pair at
//! once where memory has such stores, and of points at which the writes before become visible and hardware
//! forgets its copy. Between two such points it may have any mix of old and new values of what was written
//! there; the plan is made so that every such mix means the old entry, the new one, or a closed one,
//! through which nothing is reached.
//!
//! *Context.* Interrupt: plans are values. [`At::change`]: that of the function that it is given.

use arrayvec::ArrayVec;
use core::sync::atomic::{AtomicU64, Ordering, fence};
use portolan::addr::{PageSize, PhysAddr, PhysRange};
use portolan::inval::Walker;
use portolan::platform::{TableMem, Word};

/// Words of the longest entry.
pub(crate) const WORDS: usize = 8;

/// An entry; zeros behind its own words.
pub(crate) type Words = [u64; WORDS];

/// Rule for changes of an open entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Live {
    /// By one store, if the bits that hardware reads differ in one word only; else through a closed
    /// entry.
    OneWord,
    /// As `OneWord`, and by one store of two words, the first of which has an even number, where memory
    /// has it: hardware reads them by one access.
    OnePair,
    /// Through a closed entry.
    Closed,
}

/// The widest store of a memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stores {
    Words,
    Pairs,
}

impl Stores {
    /// Those of `mem`.
    pub(crate) fn of(mem: &impl TableMem<AtomicU64>) -> Self {
        if mem.pairs().is_some() { Self::Pairs } else { Self::Words }
    }
}

/// A kind of entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    /// Bits of word 0 that decide if the entry is closed. Of a closed entry hardware reads no
    /// others.
    pub(crate) deciding: u64,
    /// Word 0 of a closed entry.
    pub(crate) closed: u64,
    /// The bits that hardware reads of an open entry: a function of bits that it reads.
    pub(crate) reads: fn(&Words) -> Words,
    pub(crate) live: Live,
}

/// State of the entry after a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    /// The entry was open and is closed: hardware's copy of it, and translations through it, are
    /// stale.
    Closed,
    /// Words changed that hardware does not read as the entry is.
    Unread,
    /// One store carried the change to the new entry.
    Changed,
}

/// One step of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Write a word of the entry.
    Write { word: usize, value: u64 },
    /// Write two words of the entry at once.
    WritePair { first: usize, values: [u64; 2] },
    /// Make the writes visible, and make hardware forget its copy.
    Sync(After),
}

/// The steps of one change in order: at most twice all words, twice one, and a sync for each round.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    steps: ArrayVec<Step, { 2 * WORDS + 6 }>,
    now: Words,
}

impl Kind {
    /// Tells if nothing is reached through an entry with this word 0.
    pub(crate) const fn is_closed(&self, word: u64) -> bool {
        word & self.deciding == self.closed & self.deciding
    }

    fn counts(&self, entry: &Words) -> Words {
        let mut bits = match self.is_closed(entry[0]) {
            true => [0; WORDS],
            false => (self.reads)(entry),
        };
        bits[0] |= self.deciding;
        bits
    }

    /// `old` with all of `new` that hardware does not read yet, and the words that then still differ
    /// for hardware.
    fn prepared(&self, old: &Words, new: &Words) -> (Words, impl Iterator<Item = usize> + use<>) {
        let (before, after) = (self.counts(old), self.counts(new));
        let early: Words =
            core::array::from_fn(|word| old[word] & before[word] | new[word] & !before[word]);
        let new = *new;
        let differs = move |word: &usize| (early[*word] ^ new[*word]) & after[*word] != 0;
        (early, (0..WORDS).filter(differs))
    }

    /// Tells if one of `stores` takes an open entry from `old` to `new`.
    pub(crate) fn changes_in_place(&self, old: &Words, new: &Words, stores: Stores) -> bool {
        let lg2_words = u32::from((self.live, stores) == (Live::OnePair, Stores::Pairs));
        let mut places = self.prepared(old, new).1.map(|word| word >> lg2_words);
        let first = places.next();
        self.live != Live::Closed && places.all(|place| Some(place) == first)
    }

    /// The steps from `old` to `new`, by `stores`.
    pub(crate) fn plan(&self, old: &Words, new: &Words, stores: Stores) -> Plan {
        let steps = ArrayVec::new();
        let mut plan = Plan { steps, now: *old };
        if old == new {
            return plan;
        }
        if !self.is_closed(old[0]) && !self.changes_in_place(old, new, stores) {
            plan.write(0, self.closed);
            plan.sync(After::Closed);
        }
        let (early, mut differing) = self.prepared(&plan.now, new);
        let carriers = [differing.next(), differing.next()];
        for (word, &value) in early.iter().enumerate() {
            if !carriers.contains(&Some(word)) {
                plan.write(word, value);
            }
        }
        plan.sync(After::Unread);
        match carriers {
            [Some(first), Some(second)] => plan.write_pair(first, [new[first], new[second]]),
            [Some(word), None] => plan.write(word, new[word]),
            [None, _] => {}
        }
        plan.sync(After::Changed);
        // What the change left without meaning.
        for (word, &value) in new.iter().enumerate() {
            plan.write(word, value);
        }
        plan.sync(After::Unread);
        plan
    }
}

impl Plan {
    fn write(&mut self, word: usize, value: u64) {
        if self.now[word] != value {
            self.now[word] = value;
            self.steps.push(Step::Write { word, value });
        }
    }

    fn write_pair(&mut self, first: usize, values: [u64; 2]) {
        self.now[first..first + 2].copy_from_slice(&values);
        self.steps.push(Step::WritePair { first, values });
    }

    /// A sync, unless nothing was written since the last.
    fn sync(&mut self, after: After) {
        if matches!(self.steps.last(), Some(Step::Write { .. } | Step::WritePair { .. })) {
            self.steps.push(Step::Sync(after));
        }
    }
}

/// Place of an entry in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct At {
    /// The block of table memory that holds it.
    pub(crate) table: PhysAddr,
    /// The size of that block.
    pub(crate) size: PageSize,
    /// Number of its first word in the block.
    pub(crate) first: usize,
    /// Number of its words.
    pub(crate) words: usize,
}

impl At {
    fn entry<M: TableMem<AtomicU64>>(self, mem: &M) -> &[AtomicU64] {
        let table = mem.table(self.table, self.size);
        table.get(self.first..self.first + self.words).unwrap_or(&[])
    }

    /// Returns the words of the entry.
    pub(crate) fn read<M: TableMem<AtomicU64>>(self, mem: &M) -> Words {
        let mut words = [0; WORDS];
        for (value, word) in words.iter_mut().zip(self.entry(mem)) {
            *value = Word::load(word);
        }
        words
    }

    /// Writes one word, which stays invisible to a walker that does not snoop until
    /// [`At::publish`].
    pub(crate) fn write<M: TableMem<AtomicU64>>(self, mem: &M, word: usize, value: u64) {
        if let Some(word) = self.entry(mem).get(word) {
            Word::store(word, value);
        }
    }

    /// Writes two words at once from the word `first` on, whose number is even. Tells if `mem` has such stores.
    pub(crate) fn write_pair<M: TableMem<AtomicU64>>(
        self,
        mem: &M,
        first: usize,
        values: [u64; 2],
    ) -> bool {
        let pair = self.entry(mem).get(first..).and_then(|words| words.first_chunk());
        let written = mem.pairs().zip(pair);
        written.map(|(pairs, pair)| pairs.store_pair(pair, values)).is_some()
    }

    /// Replaces word 0 by the value that `new` makes of the words, unless it is `None`, in one step: other callers may
    /// change the entry meanwhile. Tells if there was a value.
    pub(crate) fn update<M: TableMem<AtomicU64>>(
        self,
        mem: &M,
        new: impl Fn(&Words) -> Option<u64>,
    ) -> bool {
        let Some(word) = self.entry(mem).first() else { return false };
        loop {
            let words = self.read(mem);
            let Some(value) = new(&words) else { return false };
            if Word::compare_exchange(word, words[0], value).is_ok() {
                return true;
            }
        }
    }

    /// Writes an entry that hardware does not look at yet.
    pub(crate) fn fill<M: TableMem<AtomicU64>>(self, mem: &M, walker: Walker, new: &Words) {
        for (word, &value) in new.iter().enumerate() {
            self.write(mem, word, value);
        }
        self.publish(mem, walker);
    }

    /// Makes the writes visible to `walker` before anything that follows.
    pub(crate) fn publish<M: TableMem<AtomicU64>>(self, mem: &M, walker: Walker) {
        fence(Ordering::Release);
        if walker == Walker::NonCoherent {
            let start = self.table.checked_add(self.first as u64 * 8);
            if let Some(bytes) = start.and_then(|at| PhysRange::from_len(at, self.words as u64 * 8))
            {
                mem.clean(bytes);
            }
            mem.clean_barrier();
        }
    }

    /// Changes the entry to `new` step by step. `forget` waits until hardware has forgotten its
    /// copy at that point.
    ///
    /// # Errors
    /// That of `forget`. Hardware may then still use the old entry, and memory holds the old one, a
    /// closed one or the new one: the caller closes it.
    pub(crate) fn change<M: TableMem<AtomicU64>, E>(
        self,
        mem: &M,
        walker: Walker,
        kind: &Kind,
        new: &Words,
        mut forget: impl FnMut(After) -> Result<(), E>,
    ) -> Result<(), E> {
        for step in kind.plan(&self.read(mem), new, Stores::of(mem)).steps {
            match step {
                Step::Write { word, value } => self.write(mem, word, value),
                Step::WritePair { first, values } => {
                    self.write_pair(mem, first, values);
                }
                Step::Sync(after) => {
                    self.publish(mem, walker);
                    forget(after)?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
