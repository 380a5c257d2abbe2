//! Changes of device table entries, as lists of what to do.
//!
//! AMD I/O Virtualization Technology (IOMMU) Specification (48882), revision 3.10, sections 2.2.2.1
//! (an entry without V lets everything through) and 2.2.2.2 (changing entries). Hardware reads
//! an entry whole, between any two writes of 64 bits, and keeps what it read. So an entry that lets anything
//! through is first made to block by one write of word 0, and what was kept is invalidated; the
//! other words are written while it blocks; and word 0 comes last. At no time is an entry without V.
//!
//! *Context.* Interrupt: everything here is a value.

use arrayvec::ArrayVec;

use super::spec::entry::{IR, IW, TV, V, WORDS};

/// Word 0 of an entry that blocks: translation counts, and neither reads nor writes are let through.
pub const BLOCKED: u64 = V | TV;

/// All words, the first twice, three publications, two invalidations.
const MAX_STEPS: usize = WORDS + 6;

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
    /// Make what was written visible to hardware before anything that follows.
    Publish,
    /// Forget what hardware kept of the old entry, and all that was reached through it.
    ForgetOld,
    /// Forget that the entry blocked.
    ForgetBlocked,
}

/// The steps of one change, in order.
pub type Plan = ArrayVec<Update, MAX_STEPS>;

/// Whether word 0 lets nothing through.
pub const fn blocks(word: u64) -> bool {
    word & (V | TV) == V | TV && word & (IR | IW) == 0
}

/// The steps from `old` to `new`.
pub fn plan(old: &[u64; WORDS], new: &[u64; WORDS]) -> Plan {
    let mut plan = Plan::new();
    if old == new {
        return plan;
    }
    let mut first = old[0];
    if !blocks(first) {
        first = BLOCKED;
        let value = first;
        plan.push(Update::Write { word: 0, value });
        plan.extend([Update::Publish, Update::ForgetOld]);
    }
    let rest = new.iter().zip(old).enumerate().skip(1);
    for (word, (&value, &was)) in rest {
        if value != was {
            plan.push(Update::Write { word, value });
        }
    }
    plan.push(Update::Publish);
    if new[0] != first {
        let value = new[0];
        plan.push(Update::Write { word: 0, value });
        plan.push(Update::Publish);
    }
    plan.push(Update::ForgetBlocked);
    plan
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn entry(root: u64, domain: u64) -> [u64; WORDS] {
        let word = BLOCKED | IR | IW | 4 << 9 | root << 12;
        [word, domain, 0, 0]
    }

    fn cases() -> Vec<[u64; WORDS]> {
        let pass = [BLOCKED | IR | IW, 1, 0, 0];
        let read_only = [BLOCKED | IR | 3 << 9 | 5 << 12, 9, 0, 0];
        Vec::from([
            [0; WORDS],
            [BLOCKED, 0, 0, 0],
            [BLOCKED, 7, 0, 0],
            pass,
            read_only,
            entry(1, 2),
            entry(3, 4),
            [BLOCKED | IW, 4, 0x55, 0xaa],
        ])
    }

    /// What hardware may have read of the entry, between any two steps.
    fn seen(old: &[u64; WORDS], plan: &Plan) -> Vec<[u64; WORDS]> {
        let mut entry = *old;
        let mut seen = alloc::vec![entry];
        for step in plan {
            if let Update::Write { word, value } = *step {
                entry[word] = value;
                seen.push(entry);
            }
        }
        seen
    }

    #[test]
    fn every_state_between_is_old_or_blocked_or_new() {
        for old in cases() {
            for new in cases() {
                let plan = plan(&old, &new);
                let seen = seen(&old, &plan);
                assert_eq!(*seen.last().unwrap(), new, "{plan:?}");
                for state in seen {
                    let fine = state == old || state == new || blocks(state[0]);
                    assert!(fine, "{old:x?} to {new:x?} through {state:x?}");
                }
            }
        }
    }

    #[test]
    fn the_old_is_forgotten_before_the_new_is_written() {
        for old in cases() {
            for new in cases() {
                let plan = plan(&old, &new);
                if old == new {
                    assert!(plan.is_empty());
                    continue;
                }
                let forgets = plan.iter().position(|step| *step == Update::ForgetOld);
                assert_eq!(forgets.is_some(), !blocks(old[0]));
                if let Some(forgets) = forgets {
                    let value = BLOCKED;
                    assert_eq!(plan[0], Update::Write { word: 0, value });
                    assert_eq!((plan[1], forgets), (Update::Publish, 2));
                }
                assert_eq!(plan.last(), Some(&Update::ForgetBlocked));
            }
        }
    }

    #[test]
    fn a_first_attachment_by_hand() {
        let steps = plan(&[3, 0, 0, 0], &[0x6000_0000_0000_5803, 2, 0, 0]);
        let wanted = [
            Update::Write { word: 1, value: 2 },
            Update::Publish,
            Update::Write {
                word: 0,
                value: 0x6000_0000_0000_5803,
            },
            Update::Publish,
            Update::ForgetBlocked,
        ];
        assert_eq!(steps.as_slice(), wanted);
    }
}
