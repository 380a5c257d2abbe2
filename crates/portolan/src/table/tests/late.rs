//! Structural entries reach a walker that does not snoop, in any order of payment of the debts.

use alloc::vec::Vec;
use core::sync::atomic::AtomicU64;
use spin::Mutex;

use crate::addr::{Iova, PageSize, PhysAddr, PhysRange};
use crate::inval::Gather;
use crate::platform::{OutOfTableMemory, SlabTables, TableMem, Word};
use crate::table::format::{VtdLevels, VtdSecondStage};
use crate::table::{Access, PageTable};

const PAGE: u64 = 0x1000;
const BLOCK: u64 = 0x20_0000;

/// Remembers the lines that were cleaned on the spot, and the value of one entry when they were in
/// memory.
struct Cleaned {
    slab: SlabTables<AtomicU64>,
    lines: Mutex<Vec<PhysRange>>,
    /// The entry that is watched, in its table.
    watched: Mutex<Option<(PhysAddr, usize)>>,
    /// Value of the entry at each barrier, and number of lines that were cleaned by then.
    barriers: Mutex<Vec<(u64, usize)>>,
}

impl TableMem<AtomicU64> for Cleaned {
    fn alloc(&self, size: PageSize) -> Result<PhysAddr, OutOfTableMemory> {
        self.slab.alloc(size)
    }

    fn free(&self, table: PhysAddr, size: PageSize) {
        self.slab.free(table, size);
    }

    fn table(&self, table: PhysAddr, size: PageSize) -> &[AtomicU64] {
        self.slab.table(table, size)
    }

    fn clean(&self, bytes: PhysRange) {
        self.lines.lock().push(bytes);
    }

    fn clean_barrier(&self) {
        if let Some((table, index)) = *self.watched.lock() {
            let entry = Word::load(&self.slab.table(table, PageSize::SIZE_4K)[index]);
            let lines = self.lines.lock().len();
            self.barriers.lock().push((entry, lines));
        }
    }

    fn invalidate(&self, _: PhysRange) {}
}

impl Cleaned {
    fn new() -> Self {
        Self {
            slab: SlabTables::new(PhysAddr::new(0x8000_0000), PageSize::SIZE_4K, 64),
            lines: Mutex::default(),
            watched: Mutex::default(),
            barriers: Mutex::default(),
        }
    }

    fn has(&self, entry: u64) -> bool {
        let entry = PhysAddr::new(entry);
        self.lines.lock().iter().any(|line| line.contains(entry))
    }
}

fn new(memory: &Cleaned) -> PageTable<VtdSecondStage, &Cleaned> {
    let format = VtdSecondStage::new(VtdLevels::Three, 46);
    PageTable::new(format, memory).unwrap()
}

fn map(table: &PageTable<VtdSecondStage, &Cleaned>, iova: u64, bytes: u64) {
    // The debt stays open; it holds no tables.
    let mut owed = Gather::new();
    let (iova, pa) = (Iova::new(iova), PhysAddr::new(iova + 0x4000_0000));
    table.map(iova, pa, bytes, Access::READ, &mut owed).unwrap();
}

/// Address of the entry for address 0 in the table below the root.
fn middle_entry(table: &PageTable<VtdSecondStage, &Cleaned>) -> u64 {
    let root = table.memory().table(table.root(), PageSize::SIZE_4K);
    Word::load(&root[0]) & !0xfff & !(0xfff << 52)
}

#[test]
fn a_neighbour_finds_new_tables_before_their_debt_is_paid() {
    let memory = Cleaned::new();
    let table = new(&memory);
    map(&table, 0, PAGE);
    assert!(memory.has(table.root().get()), "the root's entry is late");
    assert!(memory.has(middle_entry(&table)), "the middle's entry is late");
}

#[test]
fn a_split_block_is_gone_before_its_debt_is_paid() {
    let memory = Cleaned::new();
    let table = new(&memory);
    map(&table, 0, BLOCK);
    memory.lines.lock().clear();
    let mut owed = Gather::new();
    let _pending = table.split(Iova::new(PAGE), &mut owed).unwrap();
    assert!(memory.has(middle_entry(&table)), "the old block is still in memory");
}

#[test]
fn a_table_is_in_memory_before_it_takes_the_place_of_a_block() {
    let memory = Cleaned::new();
    let table = new(&memory);
    map(&table, 0, BLOCK);
    let middle = PhysAddr::new(middle_entry(&table));
    let entry = || Word::load(&memory.slab.table(middle, PageSize::SIZE_4K)[0]);
    let block = entry();
    memory.lines.lock().clear();
    *memory.watched.lock() = Some((middle, 0));
    let mut owed = Gather::new();
    let _pending = table.split(Iova::new(PAGE), &mut owed).unwrap();
    let below = PhysAddr::new(entry() & !0xfff & !(0xfff << 52));
    let whole = PhysRange::page(below, PageSize::SIZE_4K);
    let lines = memory.lines.lock();
    let cleaned = lines.iter().position(|line| line.covers(whole));
    let cleaned = cleaned.expect("the new table was written back");
    let barriers = memory.barriers.lock();
    let waited = barriers.iter().any(|&(said, lines)| said == block && lines > cleaned);
    assert!(waited, "the walker may find the table before its entries");
}
