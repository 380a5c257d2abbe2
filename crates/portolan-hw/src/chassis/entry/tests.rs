//! Every state that hardware can read while an entry changes.

use super::*;
use crate::amd::{ENTRY as AMD, MOVING_ENTRY as AMD_MOVING, WIDE_ENTRY as AMD_INTERRUPT};
use crate::riscv::CONTEXT as RISCV;
use crate::smmuv3::{CONTEXT, STREAM};
use crate::vtd::{ENTRY as VTD, REMAPPING as VTD_INTERRUPT};
use alloc::vec::Vec;
use portolan::addr::PageSize;
use portolan::platform::{OutOfTableMemory, SlabTables};
use spin::Mutex;

/// Meaning of an entry; nothing if it is closed.
type Meaning = Option<[u64; WORDS]>;

/// The bits that count, written from the architecture and not from the driver's masks.
fn stream_meaning(entry: &Words) -> Meaning {
    let config = entry[0] >> 1 & 7;
    let stage1 = [
        entry[0] & 0x000f_ffff_ffff_ffc0,
        entry[0] >> 59 | (entry[0] >> 4 & 3) << 8,
        entry[1] & 0xff,
        entry[1] >> 27 & 0x19,
    ];
    let stage2 = [entry[2] >> 32 & 0x07ff_ffff, entry[3] & 0x000f_ffff_ffff_fff0];
    let mut means = [0; WORDS];
    means[0] = match config {
        0..4 => 1,
        4 => 2 | (entry[1] >> 44 & 3) << 8,
        // The identifier, and what becomes of the device's own translations.
        _ => config | (entry[2] & 0xffff) << 8 | (entry[1] >> 28 & 3) << 32,
    };
    if config & 5 == 5 {
        means[1..5].copy_from_slice(&stage1);
    }
    if config & 6 == 6 {
        means[5..7].copy_from_slice(&stage2);
    }
    (entry[0] & 1 != 0).then_some(means)
}

fn context_meaning(descriptor: &Words) -> Meaning {
    let [w0, w1, w2, w3, w4, ..] = *descriptor;
    let high = if w0 & 1 << 30 == 0 { w2 } else { 0 };
    (w0 & 1 << 31 != 0).then_some([w0, w1, high, w3, w4, 0, 0, 0])
}

fn vtd_meaning(entry: &Words) -> Meaning {
    (entry[0] & 1 != 0).then_some(*entry)
}

fn amd_meaning(entry: &Words) -> Meaning {
    let blocks = entry[0] & 3 == 3 && entry[0] >> 61 & 3 == 0;
    (!blocks).then_some(*entry)
}

fn riscv_meaning(entry: &Words) -> Meaning {
    (entry[0] & 1 != 0).then_some(*entry)
}

/// Present, as the bit 0 of VT-d's and AMD's interrupt entries says.
fn interrupt_meaning(entry: &Words) -> Meaning {
    (entry[0] & 1 != 0).then_some(*entry)
}

/// A kind, and the meaning of its entries.
type Of = (Kind, fn(&Words) -> Meaning);

const KINDS: [Of; 8] = [
    (STREAM, stream_meaning),
    (CONTEXT, context_meaning),
    (VTD, vtd_meaning),
    (AMD, amd_meaning),
    (AMD_MOVING, amd_meaning),
    (RISCV, riscv_meaning),
    (VTD_INTERRUPT, interrupt_meaning),
    (AMD_INTERRUPT, interrupt_meaning),
];

const BOTH: [Stores; 2] = [Stores::Words, Stores::Pairs];

/// The entries that hardware can read between two syncs, after any of `writes`.
fn mixes(now: &Words, writes: &[Step]) -> Vec<Words> {
    let of = |mix: u32| {
        let mut entry = *now;
        let done = writes.iter().enumerate().filter(|(bit, _)| mix >> bit & 1 != 0);
        done.for_each(|(_, step)| carry_out(&mut entry, *step));
        entry
    };
    (0..1 << writes.len()).map(of).collect()
}

fn carry_out(entry: &mut Words, step: Step) {
    match step {
        Step::Write { word, value } => entry[word] = value,
        Step::WritePair { first, values } => {
            assert_eq!(first % 2, 0);
            entry[first..first + 2].copy_from_slice(&values);
        }
        Step::Sync(_) => {}
    }
}

/// Checks everything that can be read while a plan is carried out on `old`; returns its syncs.
fn check((kind, meaning): Of, stores: Stores, old: &Words, new: &Words) -> Vec<After> {
    let plan = kind.plan(old, new, stores);
    let (mut now, mut writes, mut syncs) = (*old, Vec::new(), Vec::new());
    for step in &plan.steps {
        match *step {
            Step::Write { .. } | Step::WritePair { .. } => writes.push(*step),
            Step::Sync(after) => {
                for entry in mixes(&now, &writes) {
                    let met = meaning(&entry);
                    let fine = met == meaning(old)
                        || met == meaning(new)
                        || met.is_none() && plan.steps[1] == Step::Sync(After::Closed);
                    assert!(fine, "{old:x?} to {new:x?} through {entry:x?}: {plan:?}");
                }
                writes.drain(..).for_each(|step| carry_out(&mut now, step));
                // The old is stale before a word of the new is written.
                assert!(after != After::Closed || syncs.is_empty() && meaning(&now).is_none());
                syncs.push(after);
            }
        }
    }
    assert_eq!((now, writes.len()), (*new, 0), "{plan:?}");
    assert_eq!(plan.steps.is_empty(), old == new);
    if kind.live == Live::Closed && old != new {
        assert_eq!(syncs[0] == After::Closed, meaning(old).is_some());
        assert_eq!(syncs.contains(&After::Changed), meaning(new).is_some());
    }
    syncs
}

fn streams() -> [Words; 12] {
    let stage1 = |pointer: u64| pointer | 0b101 << 1 | 1;
    let second = |vmid: u64| 1 << 51 | 4 << 48 | 25 << 32 | 1 << 58 | vmid;
    let (shared, stalls) = (0xd4 | 1 << 44, 1 << 27);
    [
        [0; 8],
        [0xffff_ffff_ffff_fffe, 7, 7, 7, 0, 0, 0, 0],
        [1, 0, 0, 0, 0, 0, 0, 0],
        [0b1001, 1 << 44, 0, 0, 0, 0, 0, 0],
        [stage1(0x4000), shared, 0, 0, 0, 0, 0, 0],
        [stage1(0x4040), shared, 0, 0, 0, 0, 0, 0],
        [stage1(0x4040), shared | 1 << 28, 0, 0, 0, 0, 0, 0],
        [stage1(0x8000) | 3 << 59, shared | 2, 0, 0, 0, 0, 0, 0],
        [0b1101, 1 << 44, second(3), 0x9000, 0, 0, 0, 0],
        [0b1101, 1 << 44, second(4), 0x9000, 0, 0, 0, 0],
        [0b1101, 1 << 44, second(4), 0xa000, 0, 0, 0, 0],
        [0x5000 | 0b1111, shared | stalls, second(4), 0xa000, 0, 0, 0, 0],
    ]
}

fn others() -> Vec<Words> {
    let context = |asid: u64| asid << 48 | 1 << 41 | 1 << 31 | 1 << 30 | 16;
    let amd = |access: u64, root: u64| 3 | access << 61 | 4 << 9 | root << 12;
    Vec::from([
        [context(1), 0x1000, 0, 0x4ff, 0, 0, 0, 0],
        [context(1), 0x2000, 0, 0x4ff, 0, 0, 0, 0],
        [context(2), 0x2000, 0x77, 0x4ff, 0, 0, 0, 0],
        [context(2) & !(1 << 30), 0x2000, 0x77, 0x4ff, 0, 0, 0, 0],
        [context(3), 0x3000, 0, 0xff, 0, 1, 2, 3],
        [3, 0, 0, 0, 0, 0, 0, 0],
        [3, 7, 0, 0, 0, 0, 0, 0],
        [amd(3, 1), 2, 0, 0, 0, 0, 0, 0],
        [amd(1, 5), 9, 0, 0, 0, 0, 0, 0],
        [amd(2, 3), 4, 0x55, 0xaa, 0, 0, 0, 0],
        [0x3001, 0x6000, 0x9000, 0xc000, 5, 6, 7, 8],
        [0x5001, 0x6000, 0x9000, 0xc000, 5, 6, 7, 9],
        [0x9000, 0x6000, 1, 0, 0, 0, 0, 0],
    ])
}

#[test]
fn an_entry_is_never_a_mix() {
    let mut all = others();
    all.extend(streams());
    for (of, stores) in KINDS.iter().flat_map(|of| BOTH.map(|stores| (*of, stores))) {
        for old in &all {
            for new in &all {
                check(of, stores, old, new);
            }
        }
    }
}

#[test]
fn random_entries_are_never_a_mix() {
    let mut random = fastrand::Rng::with_seed(0x57e);
    for round in 0..4_000 {
        let mut entry = || {
            let mut entry = [(); 8].map(|()| random.u64(..));
            entry[0] |= u64::from(random.u8(0..4) != 0);
            // Half of the time most words agree, so that both ways are met.
            if random.bool() {
                entry[1..].fill(0x5555);
            }
            entry
        };
        let (old, new) = (entry(), entry());
        let stores = BOTH[usize::from(random.bool())];
        check(KINDS[round % KINDS.len()], stores, &old, &new);
    }
}

#[test]
fn hitless_where_it_can_be() {
    let all = streams();
    let hitless = |from: usize, to: usize| {
        let syncs = check((STREAM, stream_meaning), Stores::Pairs, &all[from], &all[to]);
        !syncs.contains(&After::Closed)
    };
    // From nothing, to nothing, between pass-through and stage 1, from one descriptor to another, and
    // to another table.
    let hit = [(0, 4), (4, 0), (3, 4), (4, 3), (4, 5), (2, 8), (8, 2), (8, 9), (3, 8), (9, 10)];
    for (from, to) in hit {
        assert!(hitless(from, to), "{from} {to}");
    }
    // Another identifier and another table lie in different words.
    assert!(!hitless(8, 10));
}

#[test]
fn a_first_attachment_by_hand() {
    let write = |word, value| Step::Write { word, value };
    for (kind, old, first) in [(VTD, 0, 0x5001), (AMD, 3, 0x6000_0000_0000_5803)] {
        let (mut from, mut to) = ([0; WORDS], [0; WORDS]);
        from[0] = old;
        to[..2].copy_from_slice(&[first, 0x201]);
        let (body, whole) = (Step::Sync(After::Unread), Step::Sync(After::Changed));
        let wanted = [write(1, 0x201), body, write(0, first), whole];
        assert_eq!(kind.plan(&from, &to, Stores::Pairs).steps.as_slice(), wanted);
    }
}

/// Words by hand: an interrupt that goes to another CPU with another vector, as AMD's entry has them in both words.
#[test]
fn an_open_entry_of_a_pair_changes_by_one_store_or_is_closed() {
    let (mut old, mut new) = ([0; WORDS], [0; WORDS]);
    old[..2].copy_from_slice(&[0x0501, 0x52]);
    new[..2].copy_from_slice(&[0x0601, 0x0200_0000_0000_0053]);
    let write = |word, value| Step::Write { word, value };
    for kind in [VTD_INTERRUPT, AMD_INTERRUPT] {
        let pair = [new[0], new[1]];
        let at_once = [Step::WritePair { first: 0, values: pair }, Step::Sync(After::Changed)];
        assert_eq!(kind.plan(&old, &new, Stores::Pairs).steps.as_slice(), at_once);
        let [closed, changed] = [After::Closed, After::Changed].map(Step::Sync);
        let closing = [write(0, 0), closed, write(1, new[1]), Step::Sync(After::Unread)];
        let plan = kind.plan(&old, &new, Stores::Words).steps;
        assert_eq!(plan[..4], closing);
        assert_eq!(plan[4..], [write(0, new[0]), changed]);
        // Two stores instead of one: hardware can read what is neither.
        let torn = mixes(&old, &[write(0, new[0]), write(1, new[1])]);
        assert!(torn.iter().any(|mix| *mix != old && *mix != new));
        assert!(mixes(&old, &at_once[..1]).iter().all(|mix| *mix == old || *mix == new));
    }
}

/// Memory that notes the ranges that are cleaned.
struct Noted(SlabTables<AtomicU64>, Mutex<Vec<PhysRange>>);

impl TableMem<AtomicU64> for Noted {
    fn alloc(&self, size: PageSize) -> Result<PhysAddr, OutOfTableMemory> {
        self.0.alloc(size)
    }

    fn free(&self, table: PhysAddr, size: PageSize) {
        self.0.free(table, size);
    }

    fn table(&self, table: PhysAddr, size: PageSize) -> &[AtomicU64] {
        self.0.table(table, size)
    }

    fn clean(&self, bytes: PhysRange) {
        self.1.lock().push(bytes);
    }

    fn clean_barrier(&self) {}

    fn invalidate(&self, _: PhysRange) {}
}

#[test]
fn an_entry_is_cleaned_from_its_first_byte_to_its_last_for_a_walker_that_does_not_snoop() {
    let size = PageSize::SIZE_4K;
    let slab = SlabTables::new(PhysAddr::new(0x8000_0000), size, 1);
    let mem = Noted(slab, Mutex::default());
    let table = mem.alloc(size).unwrap();
    for (first, words) in [(0, 2), (6, 2), (8, 4), (8, 8)] {
        let at = At { table, size, first, words };
        at.publish(&mem, Walker::Coherent);
        at.publish(&mem, Walker::NonCoherent);
        let start = PhysAddr::new(table.get() + 8 * first as u64);
        let entry = PhysRange::from_len(start, 8 * words as u64).unwrap();
        assert_eq!(core::mem::take(&mut *mem.1.lock()), [entry]);
    }
}
