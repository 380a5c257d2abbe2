//! Every state that the unit can read while an entry changes.

use super::*;
use alloc::vec::Vec;

/// What an entry means, written from the architecture and not from the driver's masks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    Invalid,
    Abort,
    Bypass(u64),
    Translate {
        stage1: Option<[u64; 4]>,
        stage2: Option<[u64; 2]>,
        vmid: u64,
        eats: u64,
    },
}

fn stream_meaning(entry: &[u64; 8]) -> Meaning {
    if entry[0] & 1 == 0 {
        return Meaning::Invalid;
    }
    let stage1 = [
        entry[0] & 0x000f_ffff_ffff_ffc0,
        entry[0] >> 59 | (entry[0] >> 4 & 3) << 8,
        entry[1] & 0xff,
        entry[1] >> 27 & 0x19,
    ];
    let stage2 = [
        entry[2] >> 32 & 0x07ff_ffff,
        entry[3] & 0x000f_ffff_ffff_fff0,
    ];
    match entry[0] >> 1 & 7 {
        0..4 => Meaning::Abort,
        4 => Meaning::Bypass(entry[1] >> 44 & 3),
        config => Meaning::Translate {
            stage1: (config & 1 != 0).then_some(stage1),
            stage2: (config & 2 != 0).then_some(stage2),
            vmid: entry[2] & 0xffff,
            eats: entry[1] >> 28 & 3,
        },
    }
}

/// A descriptor: none if invalid, else all that counts.
fn context_meaning(descriptor: &[u64; 8]) -> Option<[u64; 5]> {
    let [w0, w1, w2, w3, w4, ..] = *descriptor;
    let high = if w0 & 1 << 30 == 0 { w2 } else { 0 };
    (w0 & 1 << 31 != 0).then_some([w0, w1, high, w3, w4])
}

/// Everything that can be read while `plan` is carried out on `old`, and what is left.
fn readable(plan: &EntryPlan, old: &[u64; 8]) -> (Vec<[u64; 8]>, [u64; 8]) {
    let mut seen = Vec::new();
    let mut now = *old;
    for round in plan.steps().split(|step| *step == EntryStep::Forget) {
        let writes: Vec<_> = round
            .iter()
            .map(|step| match *step {
                EntryStep::Write { word, value } => (word, value),
                EntryStep::Forget => unreachable!("split there"),
            })
            .collect();
        for mix in 0..1u32 << writes.len() {
            let mut entry = now;
            for (bit, &(word, value)) in writes.iter().enumerate() {
                if mix >> bit & 1 != 0 {
                    entry[word] = value;
                }
            }
            seen.push(entry);
        }
        for (word, value) in writes {
            now[word] = value;
        }
    }
    (seen, now)
}

fn streams() -> Vec<[u64; 8]> {
    let stage1 = |pointer: u64| pointer | 0b101 << 1 | 1;
    let second = |vmid: u64| 1 << 51 | 4 << 48 | 25 << 32 | 1 << 58 | vmid;
    vec_of(&[
        [0; 8],
        [0xffff_ffff_ffff_fffe, 7, 7, 7, 0, 0, 0, 0],
        [1, 0, 0, 0, 0, 0, 0, 0],
        [0b1001, 1 << 44, 0, 0, 0, 0, 0, 0],
        [stage1(0x4000), 0xd4 | 1 << 44, 0, 0, 0, 0, 0, 0],
        [stage1(0x4040), 0xd4 | 1 << 44, 0, 0, 0, 0, 0, 0],
        [stage1(0x4040), 0xd4 | 1 << 44 | 1 << 28, 0, 0, 0, 0, 0, 0],
        [stage1(0x8000) | 3 << 59, 0xd6 | 1 << 44, 0, 0, 0, 0, 0, 0],
        [0b1101, 1 << 44, second(3), 0x9000, 0, 0, 0, 0],
        [0b1101, 1 << 44, second(4), 0x9000, 0, 0, 0, 0],
        [0b1101, 1 << 44, second(4), 0xa000, 0, 0, 0, 0],
        [
            0x5000 | 0b1111,
            0xd4 | 1 << 44 | 1 << 27,
            second(4),
            0xa000,
            0,
            0,
            0,
            0,
        ],
    ])
}

fn vec_of(entries: &[[u64; 8]]) -> Vec<[u64; 8]> {
    entries.to_vec()
}

#[test]
fn a_stream_is_never_a_mix() {
    for old in streams() {
        for new in streams() {
            let plan = EntryPlan::stream(&old, &new);
            let (seen, left) = readable(&plan, &old);
            assert_eq!(left, new);
            let (from, to) = (stream_meaning(&old), stream_meaning(&new));
            for entry in seen {
                let met = stream_meaning(&entry);
                let broken = met == Meaning::Invalid && plan.manner() == Manner::Interrupted;
                assert!(
                    met == from || met == to || broken,
                    "{old:x?} {new:x?} {entry:x?}"
                );
            }
        }
    }
}

#[test]
fn a_descriptor_is_never_a_mix() {
    let word = |asid: u64| asid << 48 | 1 << 41 | 1 << 31 | 1 << 30 | 16;
    let all = vec_of(&[
        [0; 8],
        [word(1), 0x1000, 0, 0x4ff, 0, 0, 0, 0],
        [word(1), 0x2000, 0, 0x4ff, 0, 0, 0, 0],
        [word(2), 0x2000, 0x77, 0x4ff, 0, 0, 0, 0],
        [word(2) & !(1 << 30), 0x2000, 0x77, 0x4ff, 0, 0, 0, 0],
        [word(3), 0x3000, 0, 0xff, 0, 1, 2, 3],
    ]);
    for old in &all {
        for new in &all {
            let plan = EntryPlan::context(old, new);
            let (seen, left) = readable(&plan, old);
            assert_eq!(left, *new);
            let (from, to) = (context_meaning(old), context_meaning(new));
            for entry in seen {
                let met = context_meaning(&entry);
                let broken = met.is_none() && plan.manner() == Manner::Interrupted;
                assert!(
                    met == from || met == to || broken,
                    "{old:x?} {new:x?} {entry:x?}"
                );
            }
        }
    }
}

#[test]
fn random_entries_are_never_a_mix() {
    let seed = 0x57e;
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..2_000 {
        let mut entry = || {
            let mut entry = [(); 8].map(|()| random.u64(..));
            entry[0] |= u64::from(random.u8(0..4) != 0);
            // Half of the time most words agree, so that both manners are met.
            if random.bool() {
                entry[1..].fill(0x5555);
            }
            entry
        };
        let (old, new) = (entry(), entry());
        let plan = EntryPlan::stream(&old, &new);
        let (seen, left) = readable(&plan, &old);
        assert_eq!(left, new, "seed {seed:#x}");
        for entry in seen {
            let met = stream_meaning(&entry);
            let fine = met == Meaning::Invalid
                || met == stream_meaning(&old)
                || met == stream_meaning(&new);
            assert!(fine, "seed {seed:#x}: {old:x?} {new:x?} {entry:x?}");
        }
    }
}

#[test]
fn hitless_where_it_can_be() {
    let all = streams();
    let manner = |from: usize, to: usize| EntryPlan::stream(&all[from], &all[to]).manner();
    // From nothing, to nothing, between pass-through and stage 1, from one descriptor to another.
    for (from, to) in [
        (0, 4),
        (4, 0),
        (3, 4),
        (4, 3),
        (4, 5),
        (2, 8),
        (8, 2),
        (8, 9),
        (3, 8),
    ] {
        assert_eq!(manner(from, to), Manner::Hitless, "{from} {to}");
    }
    // Another identifier and another table lie in different words.
    assert_eq!(manner(9, 10), Manner::Hitless);
    assert_eq!(manner(8, 10), Manner::Interrupted);
    assert!(EntryPlan::stream(&all[4], &all[4]).steps().is_empty());
}
