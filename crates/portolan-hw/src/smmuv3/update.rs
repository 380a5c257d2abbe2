//! How a live stream table entry or context descriptor becomes another, as data.
//!
//! The unit reads an entry of 64 bytes word by word, whenever it likes, and keeps it until told to
//! forget it (IHI 0070, sections 3.21.3 and 4.3). A plan is a list of writes of one word and of
//! points at which the unit has to forget what it read. Between two such points it may have any mix
//! of the old and new values of the words written there; the plan is made so that every such mix
//! means the old entry, the new one, or an invalid one.
//!
//! Hitless where only one word that counts changes; through an invalid entry otherwise.
//!
//! *Context.* Interrupt: everything here is a value.

use super::spec::{cd, ste};
use arrayvec::ArrayVec;

/// Words of an entry, of either kind.
const WORDS: usize = 8;

/// One step of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryStep {
    /// Write a word.
    Write {
        /// Its number.
        word: usize,
        /// Its value.
        value: u64,
    },
    /// Have the unit forget the entry, and wait.
    Forget,
}

/// Whether the entry stays usable while it changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// Each access meets the old entry or the new one.
    Hitless,
    /// For a moment the entry is invalid, and accesses fault.
    Interrupted,
}

/// A change of one entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryPlan {
    manner: Manner,
    /// At most three rounds of eight writes and a wait.
    steps: ArrayVec<EntryStep, 27>,
}

/// Which bits of an entry count, given the entry itself: a function of bits that count.
type Counts = fn(&[u64; WORDS]) -> [u64; WORDS];

impl EntryPlan {
    /// From one stream table entry to another.
    pub fn stream(old: &ste::Ste, new: &ste::Ste) -> Self {
        Self::between(old, new, stream_bits, ste::V.mask())
    }

    /// From one context descriptor to another.
    pub fn context(old: &cd::Cd, new: &cd::Cd) -> Self {
        Self::between(old, new, context_bits, cd::V.mask())
    }

    /// The steps, in order.
    pub fn steps(&self) -> &[EntryStep] {
        &self.steps
    }

    /// Whether the entry stays usable.
    pub fn manner(&self) -> Manner {
        self.manner
    }

    fn between(old: &[u64; WORDS], new: &[u64; WORDS], counts: Counts, valid: u64) -> Self {
        let (counts_old, counts_new) = (counts(old), counts(new));
        // What does not count yet can be written at any time.
        let early: [u64; WORDS] = core::array::from_fn(|word| {
            old[word] & counts_old[word] | new[word] & !counts_old[word]
        });
        let differs = |word: usize| (early[word] ^ new[word]) & counts_new[word] != 0;
        let mut plan = Self {
            manner: Manner::Hitless,
            steps: ArrayVec::new(),
        };
        let mut now = *old;
        if (0..WORDS).filter(|&word| differs(word)).count() > 1 {
            plan.manner = Manner::Interrupted;
            plan.write(&mut now, 0, old[0] & !valid);
            plan.forget();
            for (word, &value) in new.iter().enumerate().skip(1) {
                plan.write(&mut now, word, value);
            }
            plan.forget();
            plan.write(&mut now, 0, new[0]);
            plan.forget();
            return plan;
        }
        for (word, &value) in early.iter().enumerate() {
            plan.write(&mut now, word, value);
        }
        plan.forget();
        // One word carries the change; what it leaves without meaning follows.
        for word in (0..WORDS).filter(|&word| differs(word)) {
            plan.write(&mut now, word, new[word]);
        }
        plan.forget();
        for (word, &value) in new.iter().enumerate() {
            plan.write(&mut now, word, value);
        }
        plan.forget();
        plan
    }

    fn write(&mut self, now: &mut [u64; WORDS], word: usize, value: u64) {
        if now[word] != value {
            now[word] = value;
            self.steps.push(EntryStep::Write { word, value });
        }
    }

    /// A wait, unless nothing was written since the last.
    fn forget(&mut self) {
        if matches!(self.steps.last(), Some(EntryStep::Write { .. })) {
            self.steps.push(EntryStep::Forget);
        }
    }
}

fn stream_bits(entry: &ste::Ste) -> ste::Ste {
    let mut bits = [0; WORDS];
    bits[0] = ste::V.mask();
    if ste::V.get(entry) == 0 {
        return bits;
    }
    bits[0] |= ste::CONFIG.mask();
    let config = ste::CONFIG.get(entry);
    if config & ste::config::BYPASS == 0 {
        return bits;
    }
    let mut count = |fields: &[super::spec::Field]| {
        for field in fields {
            bits[field.word] |= field.mask();
        }
    };
    count(&[ste::ATTRIBUTES_LOW, ste::ATTRIBUTES_HIGH]);
    if config & 1 != 0 {
        count(&[ste::S1FMT, ste::S1CONTEXTPTR, ste::S1CDMAX, ste::S1DSS]);
        count(&[ste::S1CIR, ste::S1COR, ste::S1CSH, ste::S1STALLD, ste::STRW]);
    }
    if config & 0b10 != 0 {
        count(&[ste::S2CONTROL, ste::S2TTB]);
    }
    if config & 0b11 != 0 {
        count(&[ste::S2VMID, ste::EATS]);
    }
    bits
}

fn context_bits(descriptor: &cd::Cd) -> cd::Cd {
    if cd::V.get(descriptor) == 0 {
        return [cd::V.mask(), 0, 0, 0, 0, 0, 0, 0];
    }
    // The second table counts unless its walks are disabled; the last words are not read.
    let high = if cd::EPD1.get(descriptor) == 0 {
        u64::MAX
    } else {
        0
    };
    [u64::MAX, u64::MAX, high, u64::MAX, u64::MAX, 0, 0, 0]
}

#[cfg(test)]
mod tests;
