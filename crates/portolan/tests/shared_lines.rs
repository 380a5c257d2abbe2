//! Lines of table memory that a CPU writes when it maps and unmaps in a leaf table that it shares.
//!
//! Each word of the tables notes its writes. A plain store and a compare-exchange count alike: either
//! takes the line away from the other CPUs, and so does an exchange that fails.
#![allow(missing_docs)]

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use portolan::addr::{InvalTag, Iova, IovaRange, PageSize, PageSizes, PhysAddr, PhysRange};
use portolan::inval::{Capabilities, Gather, InvalidationQueue, Quirks, Step, TablesLeft};
use portolan::platform::{OutOfTableMemory, TableMem, Word};
use portolan::table::format::{Entry, SplitRule, VtdLevels, VtdSecondStage};
use portolan::table::{Access, Format, PageTable, TableAccessError};

const PAGE: u64 = 0x1000;
/// Bytes of a line, and of a pair of lines that some processors fetch together.
const LINE: usize = 128;
/// Pages of which the leaves are in one such pair.
const PAGES_OF_A_LINE: u64 = LINE as u64 / 8;

/// Addresses of the words that were written, in order.
static WRITTEN: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// An entry that notes its writes.
struct Noted(AtomicU64);

impl Noted {
    fn note(&self) {
        WRITTEN.lock().unwrap().push(std::ptr::from_ref(self) as usize);
    }
}

impl Word for Noted {
    const LG2_BYTES: u32 = 3;

    fn new(raw: u64) -> Self {
        Self(AtomicU64::new(raw))
    }

    fn load(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    fn store(&self, raw: u64) {
        self.note();
        self.0.store(raw, Ordering::Release);
    }

    fn compare_exchange(&self, old: u64, new: u64) -> Result<u64, u64> {
        self.note();
        self.0.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire)
    }
}

/// VT-d's second stage in words that note their writes.
#[derive(Clone, Copy, Debug)]
struct Tables(VtdSecondStage);

type Vtd = VtdSecondStage;

impl Format for Tables {
    type Word = Noted;
    const GRANULE: PageSize = Vtd::GRANULE;
    const INDEX_LG2: u32 = Vtd::INDEX_LG2;
    const FILLED: u64 = Vtd::FILLED;

    fn levels(&self) -> u32 {
        self.0.levels()
    }
    fn input_lg2(&self) -> u32 {
        self.0.input_lg2()
    }
    fn output_lg2(&self) -> u32 {
        self.0.output_lg2()
    }
    fn page_sizes(&self) -> PageSizes {
        self.0.page_sizes()
    }
    fn split_rule(&self) -> SplitRule {
        self.0.split_rule()
    }
    fn template(&self, access: Access, level: u32) -> Result<u64, TableAccessError> {
        self.0.template(access, level)
    }
    fn leaf(template: u64, pa: PhysAddr) -> u64 {
        Vtd::leaf(template, pa)
    }
    fn table(pa: PhysAddr, level: u32) -> u64 {
        Vtd::table(pa, level)
    }
    fn demote(raw: u64, level: u32) -> u64 {
        Vtd::demote(raw, level)
    }
    fn broken(pa: PhysAddr) -> u64 {
        Vtd::broken(pa)
    }
    fn classify(raw: u64, level: u32) -> Entry {
        Vtd::classify(raw, level)
    }
    fn access(&self, raw: u64, level: u32) -> Access {
        self.0.access(raw, level)
    }
    fn table_access(&self, raw: u64, level: u32) -> Access {
        self.0.table_access(raw, level)
    }
    fn is_reserved(&self, raw: u64, level: u32) -> bool {
        self.0.is_reserved(raw, level)
    }
}

/// A table, on lines of its own.
#[repr(align(4096))]
struct TablePage([Noted; 512]);

struct Pages {
    pages: Vec<TablePage>,
    given: AtomicU64,
}

impl TableMem<Noted> for Pages {
    fn alloc(&self, size: PageSize) -> Result<PhysAddr, OutOfTableMemory> {
        let given = self.given.fetch_add(1, Ordering::Relaxed);
        match (given as usize) < self.pages.len() {
            true => Ok(PhysAddr::new((given + 1) * PAGE)),
            false => Err(OutOfTableMemory { size }),
        }
    }

    fn free(&self, _: PhysAddr, _: PageSize) {}

    fn table(&self, table: PhysAddr, _: PageSize) -> &[Noted] {
        &self.pages[(table.get() / PAGE - 1) as usize].0
    }

    fn clean(&self, _: PhysRange) {}

    fn clean_barrier(&self) {}

    fn invalidate(&self, _: PhysRange) {}
}

struct Prompt;

impl InvalidationQueue for Prompt {
    type Error = ();

    fn pay(&self, steps: &mut dyn Iterator<Item = Step>, _: TablesLeft) -> Result<(), ()> {
        steps.for_each(drop);
        Ok(())
    }
}

fn pages(first: u64, count: u64) -> IovaRange {
    IovaRange::from_len(Iova::new(first * PAGE), count * PAGE).unwrap()
}

struct Written {
    lines: BTreeSet<usize>,
    writes: usize,
}

/// Maps `range`, unmaps it and pays; what was written.
fn written(table: &PageTable<Tables, Pages>, range: IovaRange) -> Written {
    WRITTEN.lock().unwrap().clear();
    let (pa, bytes) = (PhysAddr::new(0x4000_1000), range.len_minus_one() + 1);
    let (mut mapped, mut owed) = (Gather::new(), Gather::new());
    table.map(range.start(), pa, bytes, Access::READ, &mut mapped).unwrap();
    table.unmap(range, &mut owed).unwrap();
    let (caps, quirks) = (Capabilities::new(PageSize::SIZE_4K), Quirks::default());
    let paid = table.sync(&Prompt, InvalTag::new(1), &caps, &quirks, &mut owed).unwrap();
    table.reclaim(paid).unwrap();
    let words = WRITTEN.lock().unwrap();
    Written { lines: words.iter().map(|word| word / LINE).collect(), writes: words.len() }
}

#[test]
fn cpus_in_one_leaf_table_write_no_line_in_common() {
    let page = |_| TablePage(std::array::from_fn(|_| Noted::new(0)));
    let memory = Pages { pages: (0..16).map(page).collect(), given: AtomicU64::new(0) };
    let table = PageTable::new(Tables(Vtd::new(VtdLevels::Four, 46)), memory).unwrap();
    // Full at first, so that the mark of that goes with the first unmap.
    let whole = pages(512, 512);
    let mut owed = Gather::new();
    let pa = PhysAddr::new(0x4000_1000);
    table.map(whole.start(), pa, 512 * PAGE, Access::READ, &mut owed).unwrap();
    for first in (0..512).step_by(64) {
        table.unmap(pages(512 + first, 64), &mut owed).unwrap();
    }
    // Each CPU has addresses of its own, and each has its turn again and again. In between, its are the
    // only ones that are mapped in the table, and it empties it.
    let mut lines = [BTreeSet::new(), BTreeSet::new()];
    for round in 0..64 {
        let cpu = round % 2;
        let count = 1 + round as u64 / 2 % PAGES_OF_A_LINE;
        let first = 512 + cpu as u64 * PAGES_OF_A_LINE;
        let wrote = written(&table, pages(first, count));
        assert_eq!(wrote.writes as u64, 2 * count, "{count} pages");
        lines[cpu].extend(wrote.lines);
    }
    assert_eq!(lines.each_ref().map(BTreeSet::len), [1, 1]);
    assert!(lines[0].is_disjoint(&lines[1]));
}
