//! Tables that another CPU makes between the two passes of a map.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::AtomicU64;

use spin::Mutex;

use super::kept::pay_for;
use crate::addr::{Iova, IovaRange, PageSize, PhysAddr, PhysRange};
use crate::inval::Gather;
use crate::platform::{OutOfTableMemory, SlabTables, TableMem};
use crate::table::format::{VtdLevels, VtdSecondStage};
use crate::table::{Access, PageTable};

const PAGE: u64 = 0x1000;

type Table = PageTable<VtdSecondStage, Arc<Interrupted>>;

/// Table memory during whose next allocation another CPU has its turn.
struct Interrupted {
    slab: SlabTables<AtomicU64>,
    turn: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl TableMem<AtomicU64> for Interrupted {
    fn alloc(&self, size: PageSize) -> Result<PhysAddr, OutOfTableMemory> {
        let turn = self.turn.lock().take();
        if let Some(turn) = turn {
            turn();
        }
        self.slab.alloc(size)
    }

    fn free(&self, table: PhysAddr, size: PageSize) {
        self.slab.free(table, size);
    }

    fn table(&self, table: PhysAddr, size: PageSize) -> &[AtomicU64] {
        self.slab.table(table, size)
    }

    fn clean(&self, _: PhysRange) {}

    fn clean_barrier(&self) {}

    fn invalidate(&self, _: PhysRange) {}
}

fn table() -> Arc<Table> {
    let slab = SlabTables::new(PhysAddr::new(1 << 31), PageSize::SIZE_4K, 16);
    let memory = Interrupted { slab, turn: Mutex::default() };
    let format = VtdSecondStage::new(VtdLevels::Four, 46);
    Arc::new(PageTable::new(format, Arc::new(memory)).unwrap())
}

/// The pages from `first` to below `end`.
fn pages(first: u64, end: u64) -> IovaRange {
    IovaRange::from_len(Iova::new(first * PAGE), (end - first) * PAGE).unwrap()
}

fn map(table: &Table, range: IovaRange) {
    let (pa, mut owed) = (PhysAddr::new(range.start().get() + 0x4000_0000), Gather::new());
    let bytes = range.len_minus_one() + 1;
    table.map(range.start(), pa, bytes, Access::READ, &mut owed).unwrap();
}

fn unmap(table: &Table, range: IovaRange) -> Gather {
    let mut owed = Gather::new();
    table.unmap(range, &mut owed).unwrap();
    owed
}

/// Maps `range` while another CPU, behind the first look at the table, does `other`.
fn map_meanwhile(
    table: &Arc<Table>,
    range: IovaRange,
    other: impl FnOnce(&Table) + Send + 'static,
) {
    let its = Arc::clone(table);
    *table.memory().turn.lock() = Some(Box::new(move || other(&its)));
    map(table, range);
    assert!(table.memory().turn.lock().is_none(), "the other CPU had no turn");
}

fn mapped(table: &Table) -> Vec<u64> {
    let runs = table.mappings(pages(0, 1024)).map(|run| run.range);
    runs.flat_map(|of| of.start().get() / PAGE..=of.last().get() / PAGE).collect()
}

#[test]
fn a_leaf_table_that_a_neighbour_made_meanwhile_is_used_by_both() {
    let table = table();
    map_meanwhile(&table, pages(0, 3), |table| map(table, pages(3, 8)));
    assert_eq!(mapped(&table), [0, 1, 2, 3, 4, 5, 6, 7]);
    // The root, two above the leaf table, and it.
    assert_eq!(table.pages(), 4, "a table that was not needed is kept");
    pay_for(&table, &mut unmap(&table, pages(3, 8)));
    assert_eq!(mapped(&table), [0, 1, 2], "gone with the neighbour's pages");
}

#[test]
fn a_leaf_table_that_a_neighbour_emptied_meanwhile_is_used_again() {
    let table = table();
    let owed = Arc::new(Mutex::new(Gather::new()));
    let left = Arc::clone(&owed);
    map_meanwhile(&table, pages(0, 3), move |table| {
        map(table, pages(3, 8));
        *left.lock() = unmap(table, pages(3, 8));
    });
    pay_for(&table, &mut owed.lock());
    assert_eq!((mapped(&table), table.pages()), (Vec::from([0, 1, 2]), 4));
    // Another neighbour comes and goes.
    map(&table, pages(3, 8));
    pay_for(&table, &mut unmap(&table, pages(3, 8)));
    assert_eq!(mapped(&table), [0, 1, 2], "gone with the neighbour's pages");
}
