//! Marks of written leaves, read over parts of tables: pages of three leaf tables and a block behind them.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::addr::{Iova, IovaRange, PageSize, PhysAddr};
use crate::inval::Gather;
use crate::platform::{SlabTables, TableMem};
use crate::table::format::{AmdLevels, AmdV1, DirtyTracking};
use crate::table::{Access, PageTable};

const PAGE: u64 = 0x1000;
const BLOCK: u64 = 0x20_0000;
const PAGES: u64 = 3 * 512;
/// The hardware's mark (48882, table 18).
const DIRTY: u64 = 1 << 6;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

type Table = PageTable<AmdV1, SlabTables<AtomicU64>>;

fn table() -> Table {
    let memory = SlabTables::new(PhysAddr::new(1 << 31), PageSize::SIZE_4K, 64);
    let format = AmdV1 { dirty: DirtyTracking::Hardware, ..AmdV1::new(AmdLevels::Three, 48) };
    let table = PageTable::new(format, memory).unwrap();
    let mut owed = Gather::new();
    let map = |at: u64, pa, bytes, owed: &mut Gather| {
        table.map(Iova::new(at), PhysAddr::new(pa), bytes, Access::READ_WRITE, owed).unwrap();
    };
    map(0, 0x8000_1000, PAGES * PAGE, &mut owed);
    map(PAGES * PAGE, 0xc000_0000, BLOCK, &mut owed);
    table
}

/// Leaf with the number `n`: a page, or the block.
fn leaf(n: u64) -> IovaRange {
    let size = if n < PAGES { PageSize::SIZE_4K } else { PageSize::SIZE_2M };
    IovaRange::page(Iova::new(n * PAGE), size)
}

/// Marks a leaf, as the hardware does.
fn mark(table: &Table, n: u64) {
    let (at, last) = (leaf(n).start().get(), u32::from(n >= PAGES));
    let mut page = table.root();
    for level in (last..3).rev() {
        let words = table.mem.table(page, PageSize::SIZE_4K);
        let word = &words[(at >> (12 + 9 * level)) as usize % 512];
        match level == last {
            true => drop(word.fetch_or(DIRTY, Ordering::Relaxed)),
            false => page = PhysAddr::new(word.load(Ordering::Relaxed) & ADDRESS),
        }
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// Leaves in `range` of those that are marked, in order.
fn within(marked: &BTreeSet<u64>, range: IovaRange) -> Vec<IovaRange> {
    let leaves = marked.iter().map(|n| leaf(*n));
    leaves.filter(|leaf| leaf.start() <= range.last() && range.start() <= leaf.last()).collect()
}

fn play(seed: u64) {
    let (table, mut random, mut marked) = (table(), Random(seed), BTreeSet::new());
    for step in 0..40 {
        for _ in 0..random.below(60) {
            // Neighbours more often than others, and the block now and then.
            let n = match random.below(8) {
                0 => PAGES,
                1..4 => random.below(PAGES / 64) * 64 + random.below(3) * 31,
                _ => random.below(PAGES),
            };
            mark(&table, n.min(PAGES));
            marked.insert(n.min(PAGES));
        }
        let (one, other) = (random.below(PAGES * PAGE + BLOCK), random.below(PAGES * PAGE + BLOCK));
        let range = IovaRange::new(Iova::new(one.min(other)), Iova::new(one.max(other))).unwrap();
        let wanted = within(&marked, range);
        let (mut found, mut owed) = (Vec::new(), Gather::new());
        table.read_dirty(range, |leaf| found.push(leaf)).unwrap();
        assert_eq!(found, wanted, "seed {seed}, step {step}");
        found.clear();
        table.read_and_clear_dirty(range, &mut owed, |leaf| found.push(leaf)).unwrap();
        assert_eq!(found, wanted, "seed {seed}, step {step}");
        for leaf in &wanted {
            let is_owed = owed.unmapped().iter().any(|span| span.range.covers(*leaf));
            assert!(is_owed, "seed {seed}, step {step}: {leaf:?}");
        }
        assert_eq!(wanted.is_empty(), owed.unmapped().is_empty());
        marked.retain(|n| !wanted.contains(&leaf(*n)));
    }
}

#[test]
fn each_mark_is_read_once_and_owed() {
    (1..9).for_each(|seed| play(seed * 0x9e37_79b9));
}

#[test]
fn clean_leaves_around_a_marked_one_are_not_owed() {
    let table = table();
    for n in [0, 63, 64, 700, PAGES - 1, PAGES] {
        mark(&table, n);
        let (mut found, mut owed) = (Vec::new(), Gather::new());
        let all = IovaRange::from_len(Iova::new(0), PAGES * PAGE + BLOCK).unwrap();
        table.read_and_clear_dirty(all, &mut owed, |leaf| found.push(leaf)).unwrap();
        assert_eq!(found, [leaf(n)]);
        let spans: Vec<_> = owed.unmapped().iter().map(|span| (span.range, span.leaf)).collect();
        let size = if n < PAGES { PageSize::SIZE_4K } else { PageSize::SIZE_2M };
        assert_eq!(spans, [(leaf(n), size)]);
    }
}
