//! Walks that overlap or are held up, and a device that writes while its block is split.

use core::sync::atomic::AtomicU64;

use spin::Mutex;

use super::kept::pay_for;
use crate::addr::{Iova, IovaRange, PageSize, PhysAddr};
use crate::inval::Gather;
use crate::platform::{OutOfTableMemory, SlabTables, TableMem, Word};
use crate::table::format::{DirtyTracking, VtdLevels, VtdSecondStage};
use crate::table::{Access, PageTable};

type Table = PageTable<VtdSecondStage, SlabTables<AtomicU64>>;

/// Maps a page, unmaps it, and takes its leaf table out.
fn come_and_go(table: &Table, slot: u64) {
    let page = IovaRange::page(Iova::new(slot << 21), PageSize::SIZE_4K);
    let mut owed = Gather::new();
    let pa = PhysAddr::new(0x1000);
    table.map(page.start(), pa, 0x1000, Access::READ, &mut owed).unwrap();
    table.unmap(page, &mut owed).unwrap();
    let spanned = IovaRange::page(page.start(), PageSize::SIZE_2M);
    assert_eq!(table.prune(spanned, &mut owed), Ok(1));
    pay_for(table, &mut owed);
}

#[test]
fn walks_that_overlap_do_not_keep_pages_for_ever() {
    let memory = SlabTables::<AtomicU64>::new(PhysAddr::new(1 << 31), PageSize::SIZE_4K, 4096);
    let table = PageTable::new(VtdSecondStage::new(VtdLevels::Four, 46), memory).unwrap();
    // Each look is short, and ends before the next but one begins.
    let mut looking = table.begin_walk();
    for slot in 0..2000u64 {
        let next = table.begin_walk();
        drop(looking);
        looking = next;
        come_and_go(&table, slot);
    }
    let pages = table.pages();
    drop(looking);
    assert!(pages < 64, "{pages} table pages are kept, and nothing is mapped");
}

/// Whichever of the two counters a walk is counted in.
#[test]
fn a_walk_that_began_after_others_keeps_pages_as_they_do() {
    let memory = SlabTables::<AtomicU64>::new(PhysAddr::new(1 << 31), PageSize::SIZE_4K, 16);
    let table = PageTable::new(VtdSecondStage::new(VtdLevels::Four, 46), memory).unwrap();
    // The root and two more are upper tables.
    let first = table.begin_walk();
    come_and_go(&table, 0);
    let second = table.begin_walk();
    drop(first);
    come_and_go(&table, 1);
    assert_eq!(table.pages(), 4, "the second walk may read the second leaf table");
    drop(second);
    assert_eq!(table.pages(), 3);
}

/// A walk that never ends keeps few pages: the rest stays where it is, and is used again.
#[test]
fn a_walk_that_is_held_up_keeps_few_pages() {
    let memory = SlabTables::<AtomicU64>::new(PhysAddr::new(1 << 31), PageSize::SIZE_4K, 256);
    let table = PageTable::new(VtdSecondStage::new(VtdLevels::Four, 46), memory).unwrap();
    let walk = table.begin_walk();
    for round in 0..10_000u64 {
        let page = IovaRange::page(Iova::new((round % 64) << 21), PageSize::SIZE_4K);
        let mut owed = Gather::new();
        let pa = PhysAddr::new(0x1000);
        table.map(page.start(), pa, 0x1000, Access::READ, &mut owed).unwrap();
        table.unmap(page, &mut owed).unwrap();
        if let Some(empty) = table.next_empty_table(Iova::new(0)) {
            table.prune(empty, &mut owed).unwrap();
        }
        pay_for(&table, &mut owed);
    }
    assert!(table.pages() <= 3 + 2 * 64, "{} pages", table.pages());
    drop(walk);
    assert!(table.pages() <= 3 + 64, "{} pages", table.pages());
}

/// Tables whose device writes through a leaf, and so has it marked, while a page is allocated.
struct Written {
    slab: SlabTables<AtomicU64>,
    leaf: Mutex<Option<(PhysAddr, usize)>>,
}

impl TableMem<AtomicU64> for Written {
    fn alloc(&self, size: PageSize) -> Result<PhysAddr, OutOfTableMemory> {
        if let Some((table, index)) = self.leaf.lock().take() {
            let word = &self.slab.table(table, size)[index];
            Word::store(word, Word::load(word) | 1 << 9);
        }
        self.slab.alloc(size)
    }

    fn free(&self, table: PhysAddr, size: PageSize) {
        self.slab.free(table, size);
    }

    fn table(&self, table: PhysAddr, size: PageSize) -> &[AtomicU64] {
        self.slab.table(table, size)
    }

    fn clean(&self, _: crate::addr::PhysRange) {}

    fn clean_barrier(&self) {}

    fn invalidate(&self, _: crate::addr::PhysRange) {}
}

#[test]
fn a_write_of_the_device_does_not_prevent_a_split() {
    let base = 1u64 << 31;
    let memory = Written {
        slab: SlabTables::new(PhysAddr::new(base), PageSize::SIZE_4K, 16),
        leaf: Mutex::new(None),
    };
    let format = VtdSecondStage {
        dirty: DirtyTracking::Hardware,
        ..VtdSecondStage::new(VtdLevels::Four, 46)
    };
    let table = PageTable::new(format, memory).unwrap();
    let mut owed = Gather::new();
    let pa = PhysAddr::new(0x4000_0000);
    table.map(Iova::new(0), pa, 0x20_0000, Access::READ_WRITE, &mut owed).unwrap();
    let found = (0..16).find_map(|page| {
        let at = PhysAddr::new(base + (page << 12));
        let words = table.memory().table(at, PageSize::SIZE_4K);
        let large = words.iter().position(|word| Word::load(word) & 1 << 7 != 0);
        large.map(|index| (at, index))
    });
    *table.memory().leaf.lock() = Some(found.expect("the block"));
    let mut whole = Gather::new();
    let split = table.split(Iova::new(0x1000), &mut whole);
    assert!(split.is_ok(), "{split:?}: because a device wrote, once");
}
