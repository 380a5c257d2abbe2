//! Table memory: every write to it is owed, and all of it comes back.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::AtomicU64;

use crate::addr::{Iova, IovaRange, PageSize, PhysAddr, PhysRange};
use crate::inval::Gather;
use crate::platform::{SlabTables, TableMem, Word};
use crate::table::format::{Armv8Config, Armv8Stage1, DirtyTracking, SplitRule};
use crate::table::{Access, PageTable, TableMapError};

type Memory = Arc<SlabTables<AtomicU64>>;
type Table = PageTable<Armv8Stage1<12>, Memory>;

/// Three levels.
fn table(memory: &Memory) -> Table {
    let format = Armv8Stage1::new(Armv8Config {
        input_lg2: 39,
        output_lg2: 40,
        split: SplitRule::BreakBeforeMake,
        dirty: DirtyTracking::Off,
    });
    PageTable::new(format.unwrap(), memory.clone()).unwrap()
}

fn memory() -> Memory {
    let base = PhysAddr::new(1 << 31);
    Arc::new(SlabTables::new(base, PageSize::SIZE_4K, 64))
}

fn map(table: &Table, at: u64, pa: u64, bytes: u64) -> Gather {
    let mut owed = Gather::new();
    let mapped = table.map(Iova::new(at), PhysAddr::new(pa), bytes, Access::READ, &mut owed);
    mapped.unwrap();
    owed
}

#[test]
fn a_table_that_is_dropped_gives_all_its_pages_back() {
    let memory = memory();
    for keeps in [false, true] {
        let mut table = table(&memory);
        // Pages in two leaf tables of each of two tables above, and a block.
        for at in [0x5000, 0x20_5000, 0x4000_5000, 0x4020_5000] {
            let _ = map(&table, at, 0x1000, 0x1000);
        }
        let _ = map(&table, 0x40_0000, 0x40_0000, 0x20_0000);
        assert_eq!((table.pages(), memory.live()), (7, 7));
        if keeps {
            table.keep();
        }
        drop(table);
        assert_eq!(memory.live(), if keeps { 7 } else { 0 });
    }
}

/// The entries on the way to `at`, from the root.
fn entries(table: &Table, memory: &Memory, at: u64) -> [PhysRange; 3] {
    let mut of = table.root();
    [2, 1, 0].map(|level| {
        let index = (at >> (12 + 9 * level)) & 511;
        let raw = Word::load(&memory.table(of, PageSize::SIZE_4K)[index as usize]);
        let entry = PhysRange::from_len(PhysAddr::new(of.get() + 8 * index), 8);
        of = PhysAddr::new(raw & 0x0000_ffff_ffff_f000);
        entry.unwrap()
    })
}

#[test]
fn every_leaf_that_a_map_or_an_unmap_wrote_is_owed_as_a_line() {
    let memory = memory();
    let table = table(&memory);
    let at = 0x4060_7000;
    let owes = |owed: &Gather, entry: PhysRange| {
        let mut lines = owed.lines().iter();
        lines.any(|line| line.covers(entry))
    };
    let first = map(&table, at, 0x1000, 0x1000);
    let [root, .., leaf] = entries(&table, &memory, at);
    assert!(owes(&first, leaf));
    // Beside it, in tables that are there.
    let second = map(&table, at + 0x3000, 0x1000, 0x2000);
    assert!(!owes(&second, root) && !owes(&second, leaf));
    for page in [3, 4] {
        let [.., leaf] = entries(&table, &memory, at + (page << 12));
        assert!(owes(&second, leaf));
    }
    let mut owed = Gather::new();
    let range = IovaRange::from_len(Iova::new(at), 0x1000).unwrap();
    table.unmap(range, &mut owed).unwrap();
    assert_eq!(owed.lines(), [leaf]);
    // The last entries of a leaf table, and the entry that points at it once it is taken out.
    let [_, parent, first] = entries(&table, &memory, at + 0x3000);
    let mut owed = Gather::new();
    let range = IovaRange::from_len(Iova::new(at + 0x3000), 0x2000).unwrap();
    table.unmap(range, &mut owed).unwrap();
    let both = PhysRange::from_len(first.start(), 16).unwrap();
    assert_eq!(owed.lines(), [both]);
    let spanned = IovaRange::page(range.start(), PageSize::SIZE_2M);
    assert_eq!(table.prune(spanned, &mut owed), Ok(1));
    assert_eq!(owed.lines(), [both, parent]);
}

#[test]
fn pieces_that_touch_in_memory_become_one_block() {
    const PAGE: u64 = 0x1000;
    let memory = memory();
    let base = 0x1000_0000;
    // Pages from the block's beginning, and the pages behind them elsewhere.
    for pieces in [[512, 1, 1], [1, 100, 411], [256, 255, 1], [1, 1, 511]] {
        let table = table(&memory);
        let mut next = base;
        let mut list = pieces.map(|pages| {
            let pa = PhysAddr::new(next);
            next += pages * PAGE;
            PhysRange::from_len(pa, pages * PAGE).unwrap()
        });
        let whole = pieces[..2].iter().sum::<u64>() >= 512;
        if whole {
            // The last one is not behind the others.
            list[2] = PhysRange::from_len(PhysAddr::new(0x5000), PAGE).unwrap();
        }
        let at = Iova::new(0x20_0000);
        let mut owed = Gather::new();
        let range = table.map_around(at, &list, Access::READ, &mut owed);
        let leaves: Vec<_> = table.mappings(range.unwrap()).collect();
        assert_eq!(leaves[0].size, PageSize::SIZE_2M, "{pieces:?}");
        assert_eq!(leaves[0].pa, PhysAddr::new(base));
        let mut behind = pieces.iter().sum::<u64>() - 512;
        for leaf in &leaves[1..] {
            behind -= 1;
            assert_eq!(leaf.size, PageSize::SIZE_4K);
        }
        assert_eq!(behind, 0);
        let last = leaves.last().map(|leaf| leaf.pa.get() + leaf.size.bytes() - 1);
        assert!(!whole || last == Some(list[2].last().get()), "{pieces:?}");
    }
}

#[test]
fn pruning_says_how_many_tables_it_took() {
    let memory = memory();
    let table = table(&memory);
    let gigabyte = |at: u64| IovaRange::from_len(Iova::new(at << 30), 1 << 30).unwrap();
    for at in [0, 1] {
        let _ = map(&table, (at << 30) + 0x5000, 0x1000, 0x1000);
        let page = IovaRange::page(Iova::new((at << 30) + 0x5000), PageSize::SIZE_4K);
        let mut owed = Gather::new();
        table.unmap(page, &mut owed).unwrap();
        super::kept::pay_for(&table, &mut owed);
    }
    let mut owed = Gather::new();
    for at in [0, 1] {
        assert_eq!(table.prune(gigabyte(at), &mut owed), Ok(2));
        assert_eq!(table.prune(gigabyte(at), &mut owed), Ok(0));
    }
    super::kept::pay_for(&table, &mut owed);
    assert_eq!((table.pages(), memory.live()), (1, 1));
}

#[test]
fn memory_beyond_the_format_s_addresses_is_refused_however_round_its_address() {
    let table = table(&memory());
    let mut owed = Gather::new();
    let at = Iova::new(0x20_0000);
    for lg2 in 40..64 {
        let pa = PhysAddr::new(1 << lg2);
        let bytes = 0x20_0000;
        let wide = table.map(at, pa, bytes, Access::READ, &mut owed);
        assert_eq!(wide, Err(TableMapError::MemoryOutOfRange { pa, bytes }));
        let page = PhysRange::page(pa, PageSize::SIZE_4K);
        let bytes = 0x1000;
        let listed = table.map_around(at, &[page], Access::READ, &mut owed);
        assert_eq!(listed, Err(TableMapError::MemoryOutOfRange { pa, bytes }));
    }
    assert_eq!(table.translate(at), None);
}
