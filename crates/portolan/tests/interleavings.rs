//! Every interleaving of two CPUs that work in the same leaf table, explored with a model checker.
//!
//! The format is made up and tiny (two entries a table, two levels) so that the search ends; the
//! walker is the real one. Freed pages are watched: a page freed twice, or reached after it was
//! freed, fails the test.
#![allow(missing_docs)]

use std::sync::Mutex;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use portolan::addr::{Iova, IovaRange, PageSize, PageSizes, PhysAddr};
use portolan::inval::{
    Capabilities, Gather, InvalidationQueue, LeafOnly, Quirks, Step, TablesLeft,
};
use portolan::platform::{OutOfTableMemory, TableMem, Word};
use portolan::table::format::{DirtyTracking, Entry, Format, LiveCount, SplitRule};
use portolan::table::{Access, PageTable, TableAccessError};

const PAGE: u64 = 16;
const VALID: u64 = 1;
const TABLE: u64 = 2;
const VACATED: u64 = 4;
const ADDRESS: u64 = 0xffff_fff0;

struct Checked(AtomicU64);

impl Word for Checked {
    const LG2_BYTES: u32 = 3;

    fn new(raw: u64) -> Self {
        Self(AtomicU64::new(raw))
    }

    fn load(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    fn store(&self, raw: u64) {
        self.0.store(raw, Ordering::Release);
    }

    fn compare_exchange(&self, old: u64, new: u64) -> Result<u64, u64> {
        self.0
            .compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire)
    }
}

#[derive(Clone, Copy, Debug)]
struct Tiny;

impl Format for Tiny {
    type Word = Checked;
    const GRANULE: PageSize = PageSize::of_lg2(4);
    const INDEX_LG2: u32 = 1;
    const LIVE_COUNT: LiveCount = LiveCount::InEntry;

    fn levels(&self) -> u32 {
        2
    }
    fn input_lg2(&self) -> u32 {
        6
    }
    fn output_lg2(&self) -> u32 {
        32
    }
    fn page_sizes(&self) -> PageSizes {
        PageSizes::default().with(Self::GRANULE)
    }
    fn split_rule(&self) -> SplitRule {
        SplitRule::Direct
    }
    fn dirty_tracking(&self) -> DirtyTracking {
        DirtyTracking::Off
    }
    fn template(&self, _access: Access, _level: u32) -> Result<u64, TableAccessError> {
        Ok(VALID)
    }
    fn leaf(template: u64, pa: PhysAddr) -> u64 {
        template | pa.get()
    }
    fn table(pa: PhysAddr, live: u32, _level: u32) -> u64 {
        pa.get() | VALID | TABLE | (u64::from(live) & 0xff) << 56
    }
    fn unlinked(pa: PhysAddr, tag: u64) -> u64 {
        pa.get() | VACATED | (tag & 0x1_ffff) << 32
    }
    fn tag(raw: u64) -> u64 {
        (raw >> 32) & 0x1_ffff
    }
    fn demote(raw: u64, _level: u32) -> u64 {
        raw & !ADDRESS
    }
    fn broken(_pa: PhysAddr) -> u64 {
        0
    }
    fn live(raw: u64) -> u32 {
        (raw >> 56) as u32
    }
    fn classify(raw: u64, level: u32) -> Entry {
        let pa = PhysAddr::new(raw & ADDRESS);
        match (
            raw & VALID != 0,
            level > 0 && raw & TABLE != 0,
            raw & VACATED != 0,
        ) {
            (true, true, _) => Entry::Table(pa),
            (true, false, _) => Entry::Leaf(pa),
            (false, _, true) => Entry::Unlinked(pa),
            (false, _, false) => Entry::Empty,
        }
    }
    fn access(&self, _raw: u64, _level: u32) -> Access {
        Access::READ
    }
    fn table_access(&self, _raw: u64, _level: u32) -> Access {
        Access::READ
    }
    fn is_reserved(&self, _raw: u64, _level: u32) -> bool {
        false
    }
    fn is_dirty(&self, _raw: u64) -> bool {
        false
    }
    fn cleaned(&self, raw: u64) -> u64 {
        raw
    }
}

/// Pages that are never used again once freed, so that every late access is seen.
struct Watched {
    pages: Vec<[Checked; 2]>,
    state: Mutex<Vec<State>>,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum State {
    Free,
    Live,
    Freed,
}

impl Watched {
    fn new(pages: usize) -> Self {
        Self {
            pages: (0..pages)
                .map(|_| [Checked::new(0), Checked::new(0)])
                .collect(),
            state: Mutex::new(vec![State::Free; pages]),
        }
    }

    fn index(table: PhysAddr) -> usize {
        (table.get() / PAGE - 1) as usize
    }
}

impl TableMem<Checked> for Watched {
    fn alloc(&self, size: PageSize) -> Result<PhysAddr, OutOfTableMemory> {
        let mut state = self.state.lock().unwrap();
        let index = state
            .iter()
            .position(|&s| s == State::Free)
            .ok_or(OutOfTableMemory { size })?;
        state[index] = State::Live;
        Ok(PhysAddr::new((index as u64 + 1) * PAGE))
    }

    fn free(&self, table: PhysAddr, _size: PageSize) {
        let mut state = self.state.lock().unwrap();
        let index = Self::index(table);
        assert_eq!(state[index], State::Live, "page {index} freed twice");
        state[index] = State::Freed;
    }

    fn table(&self, table: PhysAddr, _size: PageSize) -> &[Checked] {
        let index = Self::index(table);
        assert_eq!(
            self.state.lock().unwrap()[index],
            State::Live,
            "page {index} reached late"
        );
        &self.pages[index]
    }

    fn clean(&self, _: portolan::addr::PhysRange) {}

    fn clean_barrier(&self) {}

    fn invalidate(&self, _: portolan::addr::PhysRange) {}
}

struct Prompt;

impl InvalidationQueue for Prompt {
    type Error = ();

    fn pay(&self, steps: &mut dyn Iterator<Item = Step>, _: TablesLeft) -> Result<(), ()> {
        steps.for_each(drop);
        Ok(())
    }
}

const CAPS: Capabilities = Capabilities {
    leaf_only: LeafOnly::Absent,
    ..Capabilities::new(Tiny::GRANULE)
};

type Table = PageTable<Tiny, Watched>;

fn map(table: &Table, page: u64) {
    let mut gather = Gather::new();
    let (iova, pa) = (Iova::new(page * PAGE), PhysAddr::new((page + 100) * PAGE));
    table
        .map(iova, pa, PAGE, Access::READ, &mut gather)
        .unwrap();
    assert_eq!(table.translate(iova).map(|t| t.pa), Some(pa));
}

fn unmap(table: &Table, page: u64) -> Gather {
    let mut gather = Gather::new();
    let range = IovaRange::from_len(Iova::new(page * PAGE), PAGE).unwrap();
    table.unmap(range, &mut gather).unwrap();
    gather
}

fn pay(table: &Table, mut gather: Gather) {
    let facts = (&CAPS, &Quirks::default());
    let quiet = table
        .sync(&Prompt, Default::default(), facts, &mut gather)
        .unwrap();
    table.reclaim(quiet).unwrap();
}

fn explore(body: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(body);
}

#[test]
fn two_cpus_map_and_unmap_in_one_leaf_table() {
    explore(|| {
        let table = Arc::new(Table::new(Tiny, Watched::new(8)).unwrap());
        let other = Arc::clone(&table);
        let cpu = loom::thread::spawn(move || {
            map(&other, 1);
            let owed = unmap(&other, 1);
            pay(&other, owed);
        });
        map(&table, 0);
        let owed = unmap(&table, 0);
        pay(&table, owed);
        cpu.join().unwrap();
        assert_eq!(table.pages(), 1, "an emptied table stayed behind");
    });
}

#[test]
fn a_map_takes_back_the_table_that_another_cpu_empties() {
    explore(|| {
        let table = Arc::new(Table::new(Tiny, Watched::new(8)).unwrap());
        map(&table, 0);
        let other = Arc::clone(&table);
        let cpu = loom::thread::spawn(move || map(&other, 1));
        let owed = unmap(&table, 0);
        pay(&table, owed);
        cpu.join().unwrap();
        assert!(
            table.translate(Iova::new(PAGE)).is_some(),
            "a mapping was lost"
        );
        assert!(table.translate(Iova::new(0)).is_none());
        assert_eq!(table.pages(), 2);
    });
}

#[test]
fn a_table_emptied_twice_is_freed_by_the_later_debt_only() {
    explore(|| {
        let table = Table::new(Tiny, Watched::new(8)).unwrap();
        map(&table, 0);
        let first = unmap(&table, 0);
        map(&table, 1);
        let second = unmap(&table, 1);
        pay(&table, first);
        assert_eq!(table.pages(), 2, "freed while the later debt was open");
        pay(&table, second);
        assert_eq!(table.pages(), 1);
    });
}
