//! A table format that is made up and tiny (two entries a table, two levels), so that a model checker's
//! search ends, and memory that watches the pages of its tables. The walker is the library's.
//!
//! In a build with `--cfg portolan_loom` an entry is the model checker's atomic with the library's own
//! accesses to it; otherwise a word of this file with the same orders.
#![allow(dead_code)] // Each test binary uses its part.

#[path = "runs.rs"]
mod runs;

use std::sync::Mutex;

use loom::cell::UnsafeCell;
#[cfg(portolan_loom)]
pub use loom::sync::atomic::AtomicU64 as Entry;
use portolan::addr::{Iova, IovaRange, PageSize, PageSizes, PhysAddr, TableId};
use portolan::inval::{
    Capabilities, Gather, InvalidationQueue, LeafOnly, Quirks, Step, TablesLeft,
};
use portolan::platform::{OutOfTableMemory, ProtocolStep, TableMem, Word};
use portolan::table::format::{DirtyTracking, Entry as Kind, Format, SplitRule};
use portolan::table::{Access, PageTable, TableAccessError};
#[cfg(not(portolan_loom))]
pub use word::Entry;

pub const PAGE: u64 = 16;
const VALID: u64 = 1;
const TABLE: u64 = 2;
const FILLED: u64 = 4;
const ADDRESS: u64 = 0xffff_fff0;
/// Value of a page that was given back: a leaf of no mapping.
const GONE: u64 = 0xdead_0000 | VALID;

#[cfg(not(portolan_loom))]
mod word {
    use loom::sync::atomic::{AtomicU64, Ordering};
    use portolan::platform::Word;

    pub struct Entry(AtomicU64);

    impl Word for Entry {
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
            self.0.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire)
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Tiny;

impl Format for Tiny {
    type Word = Entry;
    const GRANULE: PageSize = PageSize::of_lg2(4);
    const INDEX_LG2: u32 = 1;
    const FILLED: u64 = FILLED;

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
    fn table(pa: PhysAddr, _level: u32) -> u64 {
        pa.get() | VALID | TABLE
    }
    fn demote(raw: u64, _level: u32) -> u64 {
        raw & !ADDRESS
    }
    fn broken(_pa: PhysAddr) -> u64 {
        0
    }
    fn classify(raw: u64, level: u32) -> Kind {
        let pa = PhysAddr::new(raw & ADDRESS);
        match (raw & VALID != 0, level > 0 && raw & TABLE != 0) {
            (true, true) => Kind::Table(pa),
            (true, false) => Kind::Leaf(pa),
            (false, _) => Kind::Empty,
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

/// Memory of tables whose pages are used again only once there are no others, so that late accesses are seen.
///
/// The model checker fails a test in which a page is freed without all that reached it before being
/// done. It is written over then, so that a walk that still reads there finds an address of no mapping.
pub struct Watched {
    pages: Vec<[Entry; 2]>,
    reached: Vec<Reached>,
    state: Mutex<Vec<State>>,
}

/// Uses of a page, for the model checker to compare.
struct Reached(UnsafeCell<()>);

// SAFETY: it holds nothing.
unsafe impl Sync for Reached {}

#[derive(Clone, Copy, PartialEq, Debug)]
enum State {
    Free,
    Live,
    Freed,
}

impl Watched {
    pub fn new(pages: usize) -> Self {
        let page = |_| [<Entry as Word>::new(0), <Entry as Word>::new(0)];
        Self {
            pages: (0..pages).map(page).collect(),
            reached: (0..pages).map(|_| Reached(UnsafeCell::new(()))).collect(),
            state: Mutex::new(vec![State::Free; pages]),
        }
    }

    fn index(table: PhysAddr) -> usize {
        (table.get() / PAGE - 1) as usize
    }
}

impl TableMem<Entry> for Watched {
    fn alloc(&self, size: PageSize) -> Result<PhysAddr, OutOfTableMemory> {
        let mut state = self.state.lock().unwrap();
        let find = |wanted| state.iter().position(|state| *state == wanted);
        let index = find(State::Free).or_else(|| find(State::Freed));
        let index = index.ok_or(OutOfTableMemory { size })?;
        let before = std::mem::replace(&mut state[index], State::Live);
        drop(state);
        if before == State::Freed {
            self.reached[index].0.with_mut(|_| ());
            for word in &self.pages[index] {
                Word::store(word, 0);
            }
        }
        Ok(PhysAddr::new((index as u64 + 1) * PAGE))
    }

    fn free(&self, table: PhysAddr, _size: PageSize) {
        let index = Self::index(table);
        let before = std::mem::replace(&mut self.state.lock().unwrap()[index], State::Freed);
        assert_eq!(before, State::Live, "page {index} freed twice");
        self.reached[index].0.with_mut(|_| ());
        for word in &self.pages[index] {
            Word::store(word, GONE);
        }
    }

    fn table(&self, table: PhysAddr, _size: PageSize) -> &[Entry] {
        let index = Self::index(table);
        let state = self.state.lock().unwrap()[index];
        assert_eq!(state, State::Live, "page {index} reached late");
        self.reached[index].0.with(|_| ());
        &self.pages[index]
    }

    fn clean(&self, _: portolan::addr::PhysRange) {}

    fn clean_barrier(&self) {}

    fn invalidate(&self, _: portolan::addr::PhysRange) {}

    fn protocol_step(&self, of: TableId, step: ProtocolStep) {
        runs::tell(of, step);
    }
}

struct Prompt;

impl InvalidationQueue for Prompt {
    type Error = ();

    fn pay(&self, steps: &mut dyn Iterator<Item = Step>, _: TablesLeft) -> Result<(), ()> {
        steps.for_each(drop);
        Ok(())
    }
}

const CAPS: Capabilities =
    Capabilities { leaf_only: LeafOnly::Absent, ..Capabilities::new(Tiny::GRANULE) };

pub type Table = PageTable<Tiny, Watched>;

fn mapped(page: u64) -> PhysAddr {
    PhysAddr::new((page + 100) * PAGE)
}

pub fn map(table: &Table, page: u64) {
    let mut gather = Gather::new();
    let iova = Iova::new(page * PAGE);
    table.map(iova, mapped(page), PAGE, Access::READ, &mut gather).unwrap();
    look(table, page, Found::Mapped);
}

pub fn unmap(table: &Table, page: u64) -> Gather {
    let mut gather = Gather::new();
    let range = IovaRange::from_len(Iova::new(page * PAGE), PAGE).unwrap();
    table.unmap(range, &mut gather).unwrap();
    gather
}

/// Takes the leaf table for `page` out if it is empty; the caller owns all that it spans.
pub fn prune(table: &Table, page: u64, gather: &mut Gather) -> usize {
    let slot = IovaRange::page(Iova::new(page * PAGE), PageSize::of_lg2(5));
    table.prune(slot, gather).unwrap()
}

/// Unmaps the only page of a leaf table, and takes that out.
pub fn unmap_last(table: &Table, page: u64) -> Gather {
    let mut gather = unmap(table, page);
    assert_eq!(prune(table, page, &mut gather), 1);
    gather
}

pub fn pay(table: &Table, mut gather: Gather) {
    let quiet =
        table.sync(&Prompt, Default::default(), &CAPS, &Quirks::default(), &mut gather).unwrap();
    table.reclaim(quiet).unwrap();
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Found {
    Mapped,
    MappedOrNot,
}

/// Looks where `page` leads: there where it is mapped, or nowhere.
pub fn look(table: &Table, page: u64, expected: Found) {
    let found = table.translate(Iova::new(page * PAGE)).map(|t| t.pa);
    let fits = match found {
        Some(pa) => pa == mapped(page),
        None => expected == Found::MappedOrNot,
    };
    assert!(fits, "{found:x?}: in a page that was given back?");
}

pub fn explore(preemptions: usize, body: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(move || {
        runs::begin();
        body();
    });
    runs::say();
}
