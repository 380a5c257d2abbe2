//! Leaf tables without entries that stay, full ones that go, and the mark of those.

use alloc::vec::Vec;
use core::sync::atomic::AtomicU64;

use crate::addr::{InvalTag, Iova, IovaRange, PageSize, PhysAddr};
use crate::inval::{
    Caching, Capabilities, Depth, Gather, InvalidationQueue, Quirks, Step, TablesLeft, Walker,
    WriteBuffer, owes_nothing,
};
use crate::platform::{SlabTables, TableMem};
use crate::table::format::{Armv8Config, Armv8Stage1, DirtyTracking, SplitRule};
use crate::table::{Access, Format, PageTable, TableUnmapError};

const BLOCK: u64 = 0x20_0000;
pub(in crate::table) const CAPS: Capabilities = Capabilities::new(PageSize::SIZE_4K);

type Table = PageTable<Armv8Stage1<12>, SlabTables<AtomicU64>>;

/// Carries everything out.
pub(in crate::table) struct Willing;

impl InvalidationQueue for Willing {
    type Error = ();

    fn pay(&self, steps: &mut dyn Iterator<Item = Step>, _: TablesLeft) -> Result<(), ()> {
        steps.for_each(drop);
        Ok(())
    }
}

fn table() -> Table {
    let memory = SlabTables::new(PhysAddr::new(1 << 31), PageSize::SIZE_4K, 64);
    let format = Armv8Stage1::new(Armv8Config {
        input_lg2: 39,
        output_lg2: 40,
        split: SplitRule::BreakBeforeMake,
        dirty: DirtyTracking::Off,
    });
    PageTable::new(format.unwrap(), memory).unwrap()
}

fn page(slot: u64) -> IovaRange {
    IovaRange::page(Iova::new(slot * BLOCK), PageSize::SIZE_4K)
}

/// Maps and unmaps one page of each of `slots`, and pays; returns the depth of the debt.
fn pass(table: &Table, slots: u64) -> Depth {
    let mut owed = Gather::new();
    for slot in 0..slots {
        let mut mapped = Gather::new();
        let at = page(slot).start();
        let pa = PhysAddr::new(0x1000);
        table.map(at, pa, 0x1000, Access::READ, &mut mapped).unwrap();
        assert!(owes_nothing(&CAPS, &mapped));
        table.unmap(page(slot), &mut owed).unwrap();
        assert!(!owes_nothing(&CAPS, &owed));
    }
    let deep = owed.unmapped().iter().any(|span| span.depth == Depth::AllLevels);
    let quirks = Quirks::default();
    let quiesced = table.sync(&Willing, InvalTag::new(1), &CAPS, &quirks, &mut owed);
    table.reclaim(quiesced.unwrap()).expect("a proof of this table");
    match deep {
        true => Depth::AllLevels,
        false => Depth::LeafOnly,
    }
}

/// Pays `owed` and takes back the tables that are quiet then.
fn pay(table: &Table, owed: &mut Gather) {
    pay_for(table, owed);
}

/// The same of any table.
pub(in crate::table) fn pay_for<F: Format, M: TableMem<F::Word>>(
    table: &PageTable<F, M>,
    owed: &mut Gather,
) {
    let quiesced = table.sync(&Willing, InvalTag::new(1), &CAPS, &Quirks::default(), owed);
    let back = table.reclaim(quiesced.unwrap());
    back.expect("a proof of this table");
}

/// Maps four blocks page by page, as memory that is not aligned to blocks is.
fn map_pages(table: &Table) -> IovaRange {
    let (pa, mut owed) = (PhysAddr::new(0x1000), Gather::new());
    let mapped = table.map(Iova::new(0), pa, 4 * BLOCK, Access::READ, &mut owed);
    pay(table, &mut owed);
    mapped.unwrap()
}

#[test]
fn a_map_across_tables_that_are_all_missing_reaches_its_end() {
    let table = table();
    let range = map_pages(&table);
    for block in 0..4 {
        let last = Iova::new((block + 1) * BLOCK - 1);
        let found = table.translate(last).unwrap();
        assert_eq!(found.pa.get(), last.get() + 0x1000);
    }
    assert_eq!(range.last(), Iova::new(4 * BLOCK - 1));
    assert_eq!(table.pages(), 6);
}

#[test]
fn emptied_tables_and_walk_caches_stay_until_they_are_pruned() {
    let table = table();
    assert_eq!(pass(&table, 4), Depth::LeafOnly);
    assert_eq!(table.pages(), 6);
    assert_eq!(pass(&table, 4), Depth::LeafOnly);
    assert_eq!(table.pages(), 6, "a table that was there was not used again");
    let mut owed = Gather::new();
    assert_eq!(table.prune(table.input_range(), &mut owed), Ok(5));
    let deep = owed.unmapped().iter().all(|span| span.depth == Depth::AllLevels);
    assert!(deep, "{owed:?}");
    pay(&table, &mut owed);
    assert_eq!((table.pages(), table.memory().live()), (1, 1));
}

/// The entry that is left over is the first, the last, and each one of some in between.
#[test]
fn a_table_with_one_entry_is_not_empty() {
    for index in [0, 1, 2, 3, 7, 8, 255, 256, 509, 510, 511] {
        let table = table();
        let at = Iova::new((5 * 512 + index) << 12);
        let mut owed = Gather::new();
        table.map(at, PhysAddr::new(0x1000), 0x1000, Access::READ, &mut owed).unwrap();
        assert_eq!(table.next_empty_table(Iova::new(0)), None, "{index}");
        assert_eq!(table.prune(table.input_range(), &mut owed), Ok(0), "{index}");
        assert!(table.translate(at).is_some());
        table.unmap(IovaRange::page(at, PageSize::SIZE_4K), &mut owed).unwrap();
        let spanned = IovaRange::from_len(Iova::new(5 * BLOCK), BLOCK);
        assert_eq!(table.next_empty_table(Iova::new(0)), spanned, "{index}");
        assert_eq!(table.next_empty_table(spanned.unwrap().last()), spanned, "{index}");
        assert_eq!(table.next_empty_table(Iova::new(6 * BLOCK)), None, "{index}");
    }
}

#[test]
fn empty_tables_are_found_in_order_and_those_above_once_they_are_empty() {
    const GIGABYTE: u64 = 1 << 30;
    let table = table();
    let starts = [0, 3 * BLOCK, GIGABYTE - BLOCK, 7 * GIGABYTE, 511 * GIGABYTE + 511 * BLOCK];
    for at in starts {
        let (at, mut owed) = (Iova::new(at), Gather::new());
        table.map(at, PhysAddr::new(0x1000), 0x1000, Access::READ, &mut owed).unwrap();
        table.unmap(IovaRange::page(at, PageSize::SIZE_4K), &mut owed).unwrap();
        pay(&table, &mut owed);
    }
    // A block on the way, and a table that is in use.
    let mut owed = Gather::new();
    for (at, bytes) in [(2 * GIGABYTE, GIGABYTE), (5 * BLOCK, 0x1000)] {
        let pa = PhysAddr::new(GIGABYTE);
        table.map(Iova::new(at), pa, bytes, Access::READ, &mut owed).unwrap();
    }
    let all = |table: &Table| {
        let (mut found, mut next) = (Vec::new(), Some(Iova::new(0)));
        while let Some(range) = next.and_then(|from| table.next_empty_table(from)) {
            found.push((range.start().get(), range.len_minus_one() + 1));
            next = range.last().checked_add(1);
        }
        found
    };
    assert_eq!(all(&table), starts.map(|start| (start, BLOCK)));
    for start in starts {
        let spanned = IovaRange::from_len(Iova::new(start), BLOCK).unwrap();
        assert_eq!(table.prune(spanned, &mut owed), Ok(1));
    }
    let above = [7, 511].map(|number| (number * GIGABYTE, GIGABYTE));
    assert_eq!(all(&table), above);
}

#[test]
fn hardware_that_has_to_be_told_of_a_map_is_owed() {
    let table = table();
    let mut owed = Gather::new();
    let at = page(0).start();
    let pa = PhysAddr::new(0x1000);
    table.map(at, pa, 0x1000, Access::READ, &mut owed).unwrap();
    let caching = Capabilities { caching: Caching::NotPresentToo, ..CAPS };
    let late = Capabilities { walker: Walker::NonCoherent, ..CAPS };
    let buffered = Capabilities { write_buffer: WriteBuffer::MustFlush, ..CAPS };
    for caps in [caching, late, buffered] {
        assert!(!owes_nothing(&caps, &owed), "{caps:?}");
        assert!(owes_nothing(&caps, &Gather::new()), "{caps:?}");
    }
}

/// Pages, all but one, of the leaf tables from `first` on: a hole at `hole`, if it lies there.
fn map_all_but(table: &Table, first: u64, tables: u64, hole: Option<u64>) {
    let pages = first * 512..(first + tables) * 512;
    for number in pages.filter(|number| Some(*number) != hole) {
        let (iova, mut owed) = (Iova::new(number << 12), Gather::new());
        let pa = PhysAddr::new(number << 12);
        table.map(iova, pa, 0x1000, Access::READ, &mut owed).unwrap();
    }
}

#[test]
fn full_tables_in_a_row_go_together_and_those_beside_them_stay() {
    let table = table();
    map_all_but(&table, 3, 5, None);
    let before = table.pages();
    let middle = IovaRange::from_len(Iova::new(4 * BLOCK), 3 * BLOCK).unwrap();
    let mut owed = Gather::new();
    table.unmap(middle, &mut owed).unwrap();
    let [span] = owed.unmapped() else {
        panic!("{owed:?}");
    };
    let (range, leaf) = (span.range, PageSize::SIZE_4K);
    assert_eq!((range, span.depth), (middle, Depth::AllLevels));
    assert_eq!((span.leaf, span.largest), (leaf, leaf));
    assert_eq!(owed.table_pages(), 3);
    assert_eq!(owed.lines().len(), 1);
    for number in 3 * 512..8 * 512 {
        let iova = Iova::new(number << 12);
        let stays = !middle.contains(iova);
        assert_eq!(table.translate(iova).is_some(), stays, "{number}");
    }
    assert_eq!(table.pages(), before);
    pay(&table, &mut owed);
    assert_eq!(table.pages(), before - 3);
    assert_eq!(table.memory().live(), table.pages());
}

#[test]
fn a_hole_in_one_of_many_tables_leaves_all_of_them_as_they_were() {
    for hole in [4 * 512, 5 * 512 + 17, 7 * 512 - 1] {
        let table = table();
        map_all_but(&table, 4, 3, Some(hole));
        let range = IovaRange::from_len(Iova::new(4 * BLOCK), 3 * BLOCK).unwrap();
        let mut owed = Gather::new();
        let iova = Iova::new(hole << 12);
        assert_eq!(table.unmap(range, &mut owed), Err(TableUnmapError::NotMapped { iova }));
        assert!(owed.unmapped().is_empty() && !owed.holds_tables());
        for number in (4 * 512..7 * 512).filter(|number| *number != hole) {
            assert!(table.translate(Iova::new(number << 12)).is_some());
        }
    }
}

#[test]
fn the_table_above_goes_with_all_that_it_points_at() {
    let memory = SlabTables::new(PhysAddr::new(1 << 31), PageSize::SIZE_4K, 600);
    let format = *table().format();
    let table = PageTable::new(format, memory).unwrap();
    let (bytes, mut owed) = (512 * BLOCK, Gather::new());
    let pa = PhysAddr::new(0x1000);
    let range = table.map(Iova::new(0), pa, bytes, Access::READ, &mut owed);
    assert_eq!(table.pages(), 1 + 1 + 512);
    let mut owed = Gather::new();
    table.unmap(range.unwrap(), &mut owed).unwrap();
    pay(&table, &mut owed);
    assert_eq!((table.pages(), table.memory().live()), (1, 1));
}

/// Of blocks that were mapped in one call: one page, some of one table, and some of two.
#[test]
fn a_table_is_no_longer_full_once_a_page_of_it_was_unmapped() {
    for (hole, bytes) in
        [(BLOCK + 0x7000, 0x1000), (2 * BLOCK - 0x3000, 0x3000), (BLOCK - 0x1000, 0x2000)]
    {
        let table = table();
        let range = map_pages(&table);
        let (iova, mut owed) = (Iova::new(hole), Gather::new());
        table.unmap(IovaRange::from_len(iova, bytes).unwrap(), &mut owed).unwrap();
        pay(&table, &mut owed);
        let not_mapped = Err(TableUnmapError::NotMapped { iova });
        assert_eq!(table.unmap(range, &mut owed), not_mapped);
        let block = IovaRange::page(iova, PageSize::SIZE_2M);
        assert_eq!(table.unmap(block, &mut owed), not_mapped);
        let beside = Iova::new(hole - 0x1000);
        assert!(table.translate(beside).is_some() && table.translate(iova).is_none());
    }
}

/// A map of a part of an empty table that stayed does not make it full.
#[test]
fn a_table_of_which_a_half_is_mapped_is_not_full() {
    let table = table();
    pass(&table, 1);
    let (pa, mut owed) = (PhysAddr::new(0x1000), Gather::new());
    table.map(Iova::new(0), pa, BLOCK / 2, Access::READ, &mut owed).unwrap();
    let iova = Iova::new(BLOCK / 2);
    let block = IovaRange::page(Iova::new(0), PageSize::SIZE_2M);
    assert_eq!(table.unmap(block, &mut owed), Err(TableUnmapError::NotMapped { iova }));
}

/// A map of all that an empty table spans, which stays in the tree, marks it as a new one.
#[test]
fn a_table_that_stayed_is_full_once_all_of_it_is_mapped() {
    let table = table();
    pass(&table, 4);
    let range = map_pages(&table);
    let mut owed = Gather::new();
    table.unmap(range, &mut owed).unwrap();
    assert_eq!(owed.table_pages(), 4);
    pay(&table, &mut owed);
    assert_eq!(table.pages(), 2);
    map_pages(&table);
    let one = IovaRange::from_len(Iova::new(BLOCK), BLOCK).unwrap();
    table.unmap(one, &mut owed).unwrap();
    assert_eq!(owed.table_pages(), 1);
}

#[test]
fn a_split_that_is_completed_owes_what_was_cached_of_the_break() {
    let table = table();
    let mut owed = Gather::new();
    let pa = PhysAddr::new(BLOCK);
    table.map(Iova::new(0), pa, BLOCK, Access::READ, &mut owed).unwrap();
    pay(&table, &mut owed);
    let pending = table.split(Iova::new(0), &mut owed).unwrap();
    let block = pending.block();
    let paid =
        table.sync(&Willing, InvalTag::new(1), &CAPS, &Quirks::default(), &mut owed).unwrap();
    let done = table.complete_split(pending, &paid, &mut owed);
    assert!(done.is_ok());
    // Devices that cache absence found none of it while it was broken.
    assert_eq!(owed.mapped().iter().map(|span| span.range).collect::<Vec<_>>(), [block]);
    table.reclaim(paid).unwrap();
}
