//! Every interleaving, and every order that C11 allows, of a CPU that merely looks and others that take
//! the tables out meanwhile.
//!
//! A page that was given back is written over, so that a walk that still reads there finds an address
//! that nothing has mapped. `RUSTFLAGS="--cfg portolan_loom" cargo test -p portolan --test walks` runs it,
//! as does `cargo xtask test`.
#![cfg(portolan_loom)]
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
/// Value of a page that was given back: a leaf of no mapping.
const GONE: u64 = 0xdead_0000 | VALID;

#[derive(Debug)]
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

/// Pages that are never used again; one that was freed is written over.
struct Watched {
    pages: Vec<[Checked; 2]>,
    /// 0: free, 1: in use, 2: freed.
    state: Mutex<Vec<u8>>,
}

impl Watched {
    fn new(pages: usize) -> Self {
        Self {
            pages: (0..pages)
                .map(|_| [Checked::new(0), Checked::new(0)])
                .collect(),
            state: Mutex::new(vec![0; pages]),
        }
    }

    fn index(table: PhysAddr) -> usize {
        (table.get() / PAGE - 1) as usize
    }
}

impl TableMem<Checked> for Watched {
    fn alloc(&self, size: PageSize) -> Result<PhysAddr, OutOfTableMemory> {
        let mut state = self.state.lock().unwrap();
        let index = state.iter().position(|&state| state == 0);
        let index = index.ok_or(OutOfTableMemory { size })?;
        state[index] = 1;
        Ok(PhysAddr::new((index as u64 + 1) * PAGE))
    }

    fn free(&self, table: PhysAddr, _size: PageSize) {
        let index = Self::index(table);
        let before = std::mem::replace(&mut self.state.lock().unwrap()[index], 2);
        assert_eq!(before, 1, "page {index} freed twice");
        for word in &self.pages[index] {
            word.store(GONE);
        }
    }

    fn table(&self, table: PhysAddr, _size: PageSize) -> &[Checked] {
        let index = Self::index(table);
        assert_eq!(
            self.state.lock().unwrap()[index],
            1,
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
}

fn unmap_and_pay(table: &Table, page: u64) {
    let mut gather = Gather::new();
    let range = IovaRange::from_len(Iova::new(page * PAGE), PAGE).unwrap();
    table.unmap(range, &mut gather).unwrap();
    let facts = (&CAPS, &Quirks::default());
    let quiet = table
        .sync(&Prompt, Default::default(), facts, &mut gather)
        .unwrap();
    table.reclaim(quiet).unwrap();
}

fn look(table: &Table, page: u64) {
    let found = table.translate(Iova::new(page * PAGE)).map(|t| t.pa.get());
    let mapped = (page + 100) * PAGE;
    assert!(
        found.is_none_or(|pa| pa == mapped),
        "{found:#x?} in a page that was given back"
    );
}

fn explore(preemptions: usize, body: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(body);
}

#[test]
fn a_walk_reads_in_no_page_that_was_given_back() {
    explore(3, || {
        let table = Arc::new(Table::new(Tiny, Watched::new(4)).unwrap());
        map(&table, 0);
        let other = Arc::clone(&table);
        let looker = loom::thread::spawn(move || look(&other, 0));
        unmap_and_pay(&table, 0);
        looker.join().unwrap();
        assert_eq!(table.pages(), 1, "a parked page stayed");
    });
}

#[test]
fn two_walks_and_a_page_that_is_parked() {
    explore(3, || {
        let table = Arc::new(Table::new(Tiny, Watched::new(4)).unwrap());
        map(&table, 0);
        let lookers = [(); 2].map(|()| {
            let other = Arc::clone(&table);
            loom::thread::spawn(move || look(&other, 0))
        });
        unmap_and_pay(&table, 0);
        for looker in lookers {
            looker.join().unwrap();
        }
        assert_eq!(table.pages(), 1, "a parked page stayed");
    });
}

/// The second walk may be counted where the first is, or where it is not.
#[test]
fn walks_that_follow_each_other_and_two_pages_that_are_parked() {
    explore(2, || {
        let table = Arc::new(Table::new(Tiny, Watched::new(6)).unwrap());
        map(&table, 0);
        let other = Arc::clone(&table);
        let looker = loom::thread::spawn(move || {
            look(&other, 0);
            look(&other, 0);
        });
        unmap_and_pay(&table, 0);
        map(&table, 2);
        unmap_and_pay(&table, 2);
        looker.join().unwrap();
        assert_eq!(table.pages(), 1, "a parked page stayed");
    });
}
