//! Changes of root, context and PASID entries, as lists of what to do.
//!
//! Hardware may read an entry between any two writes of 64 bits and keep what it read (6.2). So an
//! entry that is present is first made absent by one write, and what was kept is invalidated; the
//! other words are written while it is absent; and the word with the present bit comes last.
//! Between any two steps an access sees the old entry, none, or the new one.
//!
//! *Context.* Interrupt: everything here is a value.

use arrayvec::ArrayVec;

use super::spec::entry::P;

/// Words of the longest entry.
pub const MAX_WORDS: usize = 8;

/// Steps of the longest plan: all words, the first twice more, three publications, two invalidations.
const MAX_STEPS: usize = MAX_WORDS + 6;

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Update {
    /// Write a word of the entry.
    Write {
        /// Its number.
        word: usize,
        /// Its value.
        value: u64,
    },
    /// Make what was written visible to hardware: clean its cache lines, flush the write buffer.
    Publish,
    /// Forget what hardware kept of the old entry, and all that was reached through it.
    ForgetOld,
    /// Forget what hardware that caches absence kept of there being no entry.
    ForgetAbsence,
}

/// The steps of one change, in order.
pub type Plan = ArrayVec<Update, MAX_STEPS>;

/// The steps from `old` to `new`, which have the same number of words, [`MAX_WORDS`] at most.
pub fn plan(old: &[u64], new: &[u64]) -> Plan {
    let mut plan = Plan::new();
    if old == new || old.len() != new.len() || old.is_empty() || old.len() > MAX_WORDS {
        return plan;
    }
    let mut before = [0; MAX_WORDS];
    before[..old.len()].copy_from_slice(old);
    if old[0] & P != 0 {
        before[0] = 0;
        plan.push(Update::Write { word: 0, value: 0 });
        plan.extend([Update::Publish, Update::ForgetOld]);
    }
    let present = new[0] & P != 0;
    let rest = new.iter().zip(before).enumerate().skip(1);
    for (word, (&value, was)) in rest {
        if value != was {
            plan.push(Update::Write { word, value });
        }
    }
    let rest_changed = matches!(plan.last(), Some(Update::Write { word: 1.., .. }));
    if present && rest_changed {
        // The words are in memory before the bit that makes them count.
        plan.push(Update::Publish);
    }
    if new[0] != before[0] {
        let value = new[0];
        plan.push(Update::Write { word: 0, value });
    }
    plan.push(Update::Publish);
    if present {
        plan.push(Update::ForgetAbsence);
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    /// What hardware may have read of an entry in whatever moment between `plan`'s steps, with each
    /// cache line in memory at any time after it was written.
    fn seen(old: &[u64], plan: &Plan) -> Vec<Vec<u64>> {
        let mut entry = old.to_vec();
        let mut seen = alloc::vec![entry.clone()];
        for step in plan {
            if let Update::Write { word, value } = *step {
                entry[word] = value;
                seen.push(entry.clone());
            }
        }
        seen
    }

    fn cases() -> Vec<Vec<u64>> {
        [2, 4, 8]
            .into_iter()
            .flat_map(|words| {
                let make = move |present: u64, fill: u64| {
                    (0..words as u64)
                        .map(|w| ((fill << 12) * (w + 1)) | if w == 0 { present } else { 0 })
                        .collect::<Vec<_>>()
                };
                [make(0, 0), make(1, 3), make(1, 5), make(0, 9), make(1, 0)]
            })
            .collect()
    }

    #[test]
    fn every_state_between_is_old_or_absent_or_new() {
        for old in cases() {
            for new in cases().into_iter().filter(|new| new.len() == old.len()) {
                let plan = plan(&old, &new);
                let seen = seen(&old, &plan);
                assert_eq!(*seen.last().unwrap(), new, "{plan:?}");
                for state in seen {
                    let fine = state == old || state == new || state[0] & P == 0;
                    assert!(fine, "{old:x?} to {new:x?} through {state:x?}");
                }
            }
        }
    }

    #[test]
    fn the_old_is_forgotten_before_the_first_word_of_the_new() {
        for old in cases() {
            for new in cases().into_iter().filter(|new| new.len() == old.len()) {
                let plan = plan(&old, &new);
                if old == new {
                    assert!(plan.is_empty());
                    continue;
                }
                let at = |wanted| plan.iter().position(|step| *step == wanted);
                let forgets = at(Update::ForgetOld);
                assert_eq!(forgets.is_some(), old[0] & P != 0);
                if let Some(forgets) = forgets {
                    assert_eq!(plan[0], Update::Write { word: 0, value: 0 });
                    assert_eq!((forgets, plan[1]), (2, Update::Publish));
                }
                let absence = at(Update::ForgetAbsence);
                assert_eq!(absence.is_some(), new[0] & P != 0);
            }
        }
    }

    #[test]
    fn the_present_bit_is_published_after_the_rest() {
        let steps = plan(&[0, 0], &[0x5001, 0x201]);
        let wanted = [
            Update::Write {
                word: 1,
                value: 0x201,
            },
            Update::Publish,
            Update::Write {
                word: 0,
                value: 0x5001,
            },
            Update::Publish,
            Update::ForgetAbsence,
        ];
        assert_eq!(steps.as_slice(), wanted);
    }
}
