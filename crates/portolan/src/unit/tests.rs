//! A domain of page tables over a queue that fails when it is told to.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::{Awaited, ContextHome, Domain, PagedDomain, SplitFailed, UnitError, UnmapPartFailed};
use crate::addr::{ContextId, Iova, IovaRange, PageSize, PhysAddr};
use crate::inval::{
    Caching, Capabilities, Gather, InvalidationQueue, LeafOnly, PageForm, Quirks, RangeForm, Step,
    SyncError, Walker, WriteBuffer,
};
use crate::platform::{Nanos, SlabTables};
use crate::table::format::{Armv8Config, Armv8Stage1, DirtyTracking, SplitRule};
use crate::table::{Access, PageTable};

const BLOCK: PageSize = PageSize::SIZE_2M;
const PAGE: PageSize = PageSize::SIZE_4K;
const LATE: UnitError = UnitError::TimedOut {
    awaited: Awaited::Completion,
    waited: Nanos::new(1),
};

#[derive(Default)]
struct Queue {
    late: AtomicBool,
}

impl InvalidationQueue for Queue {
    type Error = UnitError;

    fn execute(&self, steps: &mut dyn Iterator<Item = Step>) -> Result<(), UnitError> {
        steps.for_each(drop);
        match self.late.load(Ordering::Relaxed) {
            true => Err(LATE),
            false => Ok(()),
        }
    }
}

impl ContextHome for Queue {
    fn retire(&self, _context: ContextId) -> Result<(), UnitError> {
        Ok(())
    }
}

type Tables = PagedDomain<Armv8Stage1<12>, SlabTables<AtomicU64>, Queue>;

fn domain() -> Tables {
    let format = Armv8Stage1::new(Armv8Config {
        input_lg2: 39,
        output_lg2: 40,
        split: SplitRule::BreakBeforeMake,
        dirty: DirtyTracking::Off,
    });
    let memory = SlabTables::new(PhysAddr::new(1 << 31), PAGE, 64);
    let caps = Capabilities {
        granule: PAGE,
        page: PageForm::Granule,
        range: RangeForm::Absent,
        leaf_only: LeafOnly::Present,
        walker: Walker::Coherent,
        caching: Caching::PresentOnly,
        write_buffer: WriteBuffer::Absent,
    };
    let table = PageTable::new(format.unwrap(), memory).unwrap();
    let quirks = Quirks::default();
    PagedDomain::new(table, ContextId::new(1), caps, quirks, Queue::default())
}

fn block(domain: &Tables) -> IovaRange {
    let mut owed = Gather::new();
    let (at, pa) = (Iova::new(BLOCK.bytes()), PhysAddr::new(BLOCK.bytes()));
    let range = domain.map(at, pa, BLOCK.bytes(), Access::READ, &mut owed);
    range.unwrap()
}

/// Breaks the block, of which the first page was to be unmapped, and loses the sync.
fn broken() -> (Tables, IovaRange, Gather) {
    let domain = domain();
    let whole = block(&domain);
    let page = IovaRange::page(whole.start(), PAGE);
    domain.queue().late.store(true, Ordering::Relaxed);
    let mut owed = Gather::new();
    let failed = domain.unmap_part(page, &mut owed).unwrap_err();
    let late = SplitFailed::Sync(SyncError::Queue(LATE));
    assert_eq!(failed, UnmapPartFailed::Split(late));
    assert!(owed.unmapped().iter().any(|span| span.range == whole));
    domain.queue().late.store(false, Ordering::Relaxed);
    (domain, whole, owed)
}

#[test]
fn a_block_whose_split_timed_out_is_split_at_the_next_try() {
    let (domain, whole, mut owed) = broken();
    let page = IovaRange::page(whole.start(), PAGE);
    domain.unmap_part(page, &mut owed).unwrap();
    domain.sync(&mut owed).unwrap();
    assert_eq!(domain.translate(whole.start()), None);
    let found = domain.translate(whole.last()).unwrap();
    assert_eq!((found.pa.get() >> 21, found.size), (1, PAGE));
}

#[test]
fn a_block_whose_split_timed_out_can_be_unmapped_whole() {
    let (domain, whole, mut owed) = broken();
    domain.unmap(whole, &mut owed).unwrap();
    domain.sync(&mut owed).unwrap();
    assert_eq!(domain.table().pages(), 2, "the table in waiting came back");
    let again = block(&domain);
    assert_eq!(again, whole);
}
