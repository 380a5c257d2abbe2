//! Emptied leaf tables that stay, and those that go.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::addr::{InvalTag, Iova, IovaRange, PageSize, PhysAddr};
use crate::inval::{
    Caching, Capabilities, Depth, Gather, InvalidationQueue, Quirks, Step, TablesLeft, Walker,
    WriteBuffer, owes_nothing,
};
use crate::platform::{SlabTables, TableMem};
use crate::table::format::{Armv8Config, Armv8Stage1, DirtyTracking, SplitRule, TAG_BITS};
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
fn tables_that_stayed_empty_and_were_filled_go_when_they_are_empty_again() {
    let table = table();
    table.keep_empty_tables(6);
    pass(&table, 4);
    assert_eq!(table.pages(), 6);
    map_pages(&table);
    table.keep_empty_tables(0);
    // In halves of blocks: the rest of a block is counted, not looked at.
    let mut owed = Gather::new();
    for half in 0..8 {
        let half = IovaRange::from_len(Iova::new(half * BLOCK / 2), BLOCK / 2);
        table.unmap(half.unwrap(), &mut owed).unwrap();
    }
    pay(&table, &mut owed);
    assert_eq!(table.pages(), 2);
}

#[test]
fn without_leave_to_stay_emptied_tables_go() {
    let table = table();
    assert_eq!(pass(&table, 4), Depth::AllLevels);
    // The root and one below it.
    assert_eq!(table.pages(), 2);
}

#[test]
fn few_tables_stay_and_walk_caches_with_them() {
    let table = table();
    table.keep_empty_tables(6);
    assert_eq!(pass(&table, 4), Depth::LeafOnly);
    assert_eq!(table.pages(), 6);
    // With more than those, each that becomes empty goes.
    assert_eq!(pass(&table, 8), Depth::AllLevels);
    assert!(table.pages() <= 6, "{} pages", table.pages());
    let mut owed = Gather::new();
    table.prune(table.input_range(), &mut owed).unwrap();
    let quiesced = table.sync(&Willing, InvalTag::new(1), &CAPS, &Quirks::default(), &mut owed);
    table.reclaim(quiesced.unwrap()).expect("a proof of this table");
    assert_eq!(table.pages(), 1);
    assert_eq!(table.memory().live(), 1);
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

#[test]
fn a_debt_that_is_as_many_events_old_as_there_are_tags_frees_nothing() {
    let table = table();
    let empty = |owed: &mut Gather| {
        let (pa, mut mapped) = (PhysAddr::new(0x1000), Gather::new());
        let at = page(0).start();
        table.map(at, pa, 0x1000, Access::READ, &mut mapped).unwrap();
        table.unmap(page(0), owed).unwrap();
    };
    let (mut old, mut new) = (Gather::new(), Gather::new());
    empty(&mut old);
    let pages = table.pages();
    // The event whose number has the same tag.
    table.vacancies.store(1 << TAG_BITS, Ordering::Relaxed);
    empty(&mut new);
    pay(&table, &mut old);
    assert_eq!(table.pages(), pages, "the new debt is not paid");
    pay(&table, &mut new);
    assert_eq!(table.prune(table.input_range(), &mut new), Ok(2));
    pay(&table, &mut new);
    assert_eq!((table.pages(), table.memory().live()), (1, 1));
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
