//! Leaf tables that are filled before they are linked, seen by a walker that reads memory alone.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::sync::atomic::AtomicU64;
use spin::Mutex;

use crate::addr::{Iova, PageSize, PhysAddr, PhysRange};
use crate::inval::Gather;
use crate::platform::{OutOfTableMemory, SlabTables, TableMem, Word};
use crate::table::format::{
    Armv8Config, Armv8Stage1, DirtyTracking, Entry, Format, SplitRule, span_lg2,
};
use crate::table::{Access, PageTable, Segment, TableMapError};

type Stage = Armv8Stage1<12>;

const PAGE: PageSize = PageSize::SIZE_4K;
/// Pages of a leaf table.
const SLOT: u64 = 512;
/// Contents of a page that were never cleared: a leaf, for who believes it.
const STALE: u64 = 0xdead_b000 | 0x403;

/// Table memory behind a cache. Its words reach memory when their lines are cleaned.
struct Behind {
    slab: SlabTables<AtomicU64>,
    /// Words of the memory, by address.
    memory: Mutex<BTreeMap<u64, u64>>,
    root: Mutex<Option<(PhysAddr, u32)>>,
    /// Memory that each page is to lead to.
    wanted: Mutex<BTreeMap<u64, u64>>,
}

impl Behind {
    fn new() -> Self {
        Self {
            slab: SlabTables::new(PhysAddr::new(1 << 31), PAGE, 64),
            memory: Mutex::default(),
            root: Mutex::default(),
            wanted: Mutex::default(),
        }
    }

    /// A page whose words are `raw`, in memory as well.
    fn page_of(&self, raw: u64) -> Result<PhysAddr, OutOfTableMemory> {
        let page = self.slab.alloc(PAGE)?;
        for (word, at) in self.slab.table(page, PAGE).iter().zip((page.get()..).step_by(8)) {
            Word::store(word, raw);
            self.memory.lock().insert(at, raw);
        }
        Ok(page)
    }

    /// Walks all of the table at `table`: each leaf is the one that is wanted.
    fn walk(&self, table: PhysAddr, level: u32, base: u64) {
        for index in 0..SLOT {
            let raw = self.memory.lock()[&(table.get() + 8 * index)];
            let iova = base + (index << span_lg2::<Stage>(level));
            match Stage::classify(raw, level) {
                Entry::Table(next) => self.walk(next, level - 1, iova),
                Entry::Leaf(pa) => assert_eq!(self.wanted.lock().get(&iova), Some(&pa.get())),
                _ => {}
            }
        }
    }
}

impl TableMem<AtomicU64> for &Behind {
    fn alloc(&self, _: PageSize) -> Result<PhysAddr, OutOfTableMemory> {
        self.page_of(0)
    }

    fn alloc_unfilled(&self, _: PageSize) -> Result<PhysAddr, OutOfTableMemory> {
        self.page_of(STALE)
    }

    fn free(&self, table: PhysAddr, size: PageSize) {
        self.slab.free(table, size);
    }

    fn table(&self, table: PhysAddr, size: PageSize) -> &[AtomicU64] {
        self.slab.table(table, size)
    }

    fn clean(&self, bytes: PhysRange) {
        for line in (bytes.start().get() & !63..=bytes.last().get()).step_by(8) {
            let page = PhysAddr::new(line).align_down(PAGE);
            let word = &self.slab.table(page, PAGE)[(line - page.get()) as usize / 8];
            self.memory.lock().insert(line, Word::load(word));
        }
    }

    fn clean_barrier(&self) {
        if let Some((root, levels)) = *self.root.lock() {
            self.walk(root, levels - 1, 0);
        }
    }

    fn invalidate(&self, _: PhysRange) {}
}

/// Runs of pages that are never as aligned as their addresses, so that no block is used.
fn runs(lengths: &[u64]) -> Vec<Segment> {
    let run = |(number, &pages): (usize, &u64)| Segment {
        pa: PhysAddr::new(((number as u64 + 1) << 23) + 0x1000),
        bytes: pages << 12,
    };
    lengths.iter().enumerate().map(run).collect()
}

#[test]
fn a_walker_finds_no_leaf_of_a_new_table_that_was_not_written() {
    let single = [1; 700];
    let lists: [&[u64]; 5] = [&[512], &[1024], &[3, 509, 512, 1], &single, &[700, 1, 1, 600]];
    for lengths in lists {
        for first in [0, 1, 511, 512] {
            let memory = Behind::new();
            let format = Stage::new(Armv8Config {
                input_lg2: 39,
                output_lg2: 40,
                split: SplitRule::BreakBeforeMake,
                dirty: DirtyTracking::Off,
            });
            let format = format.unwrap();
            let table = PageTable::new(format, &memory).unwrap();
            *memory.root.lock() = Some((table.root(), format.levels()));
            let list = runs(lengths);
            let pages =
                list.iter().flat_map(|run| (0..run.bytes >> 12).map(|n| run.pa.get() + (n << 12)));
            *memory.wanted.lock() = (first..).map(|page| page << 12).zip(pages).collect();
            let mut owed = Gather::new();
            let at = Iova::new(first << 12);
            let range = table.map_sg(at, list.iter().copied(), Access::READ, &mut owed).unwrap();
            for &lines in owed.lines() {
                (&memory).clean(lines);
            }
            (&memory).clean_barrier();
            for (&iova, &pa) in &*memory.wanted.lock() {
                let found = table.translate(Iova::new(iova)).map(|found| found.pa.get());
                assert_eq!(found, Some(pa), "{lengths:?} from {first}: {iova:#x}");
            }
            let after = range.last().checked_add(1).unwrap();
            assert_eq!(table.translate(after), None);
            table.unmap(range, &mut owed).unwrap();
            assert_eq!(table.translate(at), None);
        }
    }
}

#[test]
fn a_map_that_finds_too_little_memory_gives_unfilled_pages_back() {
    let memory = Behind::new();
    let held: Vec<_> = (0..59).map(|_| (&memory).alloc(PAGE).unwrap()).collect();
    let format = Stage::new(Armv8Config {
        input_lg2: 39,
        output_lg2: 40,
        split: SplitRule::BreakBeforeMake,
        dirty: DirtyTracking::Off,
    });
    let table = PageTable::new(format.unwrap(), &memory).unwrap();
    let list = runs(&[8 * SLOT]);
    let map = || table.map_sg(Iova::new(0), list.iter().copied(), Access::READ, &mut Gather::new());
    assert!(matches!(map(), Err(TableMapError::Memory(_))));
    assert_eq!((memory.slab.live(), table.pages()), (60, 1));
    held.iter().for_each(|&page| (&memory).free(page, PAGE));
    map().unwrap();
    assert_eq!(table.pages(), 10);
}
