//! A domain of page tables over a queue that fails when it is told to.

mod pages;

use crate::platform::promised::promised;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use spin::Mutex;

use super::{
    Attach, AttachError, Awaited, Domain, DomainError, DomainSplitError, DomainUnmapError,
    FaultEvent, Iommu, IommuError, PagedDomain, SpaceClaim, TagPool, UnmapPartError, WrongTable,
};
use crate::addr::{InvalTag, Iova, IovaRange, PageSize, Pasid, PhysAddr, StreamId, TableId};
use crate::inval::{
    Caching, Capabilities, CombineOptions, Combined, Command, Depth, Flushed, Gather,
    InvalidationQueue, PageForm, Quirks, Ranges, Step, SyncError, TablesLeft, Walker, WriteBuffer,
};
use crate::platform::tests::Still;
use crate::platform::{AllMemory, DmaMemory, ForeignTables, Nanos, SlabTables};
use crate::table::format::{Armv8Config, Armv8Stage1, DirtyTracking, SplitRule};
use crate::table::{Access, PageTable, SplitError, Translation};

const BLOCK: PageSize = PageSize::SIZE_2M;
const PAGE: PageSize = PageSize::SIZE_4K;
const LATE: IommuError =
    IommuError::TimedOut { awaited: Awaited::Completion, waited: Nanos::new(1) };

#[derive(Default)]
struct Queue {
    steps: Mutex<Vec<Step>>,
    late: AtomicBool,
    released: AtomicU64,
}

impl InvalidationQueue for Queue {
    type Error = IommuError;

    fn pay(&self, steps: &mut dyn Iterator<Item = Step>, _: TablesLeft) -> Result<(), IommuError> {
        self.steps.lock().extend(steps);
        match self.late.load(Ordering::Relaxed) {
            true => Err(LATE),
            false => Ok(()),
        }
    }
}

impl TagPool for Queue {
    fn release(&self, context: InvalTag) -> Result<(), IommuError> {
        self.released.store(context.get().into(), Ordering::Relaxed);
        match self.late.load(Ordering::Relaxed) {
            true => Err(LATE),
            false => Ok(()),
        }
    }
}

type Tables = PagedDomain<Armv8Stage1<12>, SlabTables<AtomicU64>, Queue>;

fn format() -> Armv8Stage1<12> {
    let format = Armv8Stage1::new(Armv8Config {
        input_lg2: 39,
        output_lg2: 40,
        split: SplitRule::BreakBeforeMake,
        dirty: DirtyTracking::Off,
    });
    format.unwrap()
}

fn domain() -> Tables {
    domain_of(Capabilities::new(PAGE))
}

fn domain_of(caps: Capabilities) -> Tables {
    let memory = SlabTables::new(PhysAddr::new(1 << 31), PAGE, 64);
    let table = PageTable::new(format(), memory).unwrap();
    let quirks = Quirks::default();
    PagedDomain::new(table, InvalTag::new(1), caps, quirks, Queue::default())
}

fn block(domain: &Tables) -> IovaRange {
    let mut owed = Gather::new();
    let (at, pa) = (Iova::new(BLOCK.bytes()), PhysAddr::new(BLOCK.bytes()));
    let range = domain.map(at, promised(pa, BLOCK.bytes()), Access::READ, &mut owed);
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
    let late = DomainSplitError::Sync(SyncError::Queue(LATE));
    assert_eq!(failed, UnmapPartError::Split(late));
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

/// Tables alone take any address; a domain takes promised memory.
#[test]
fn what_was_mapped_in_a_table_is_not_mapped_in_its_domain() {
    let slab = Arc::new(SlabTables::new(PhysAddr::new(1 << 31), PAGE, 64));
    let table = PageTable::new(*domain().table().format(), slab.clone()).unwrap();
    let (at, pa) = (Iova::new(0x20_0000), PhysAddr::new(0x1000));
    let (mut owed, access) = (Gather::new(), Access::READ);
    table.map(at, pa, 0x1000, access, &mut owed).unwrap();
    assert_eq!(slab.live(), 3);
    let (tag, caps) = (InvalTag::new(1), Capabilities::new(PAGE));
    let domain = PagedDomain::new(table, tag, caps, Quirks::default(), Queue::default());
    assert_eq!(domain.translate(at), None);
    assert_eq!((slab.live(), domain.table().pages()), (1, 1));
    let memory = promised(pa, 0x1000);
    domain.map(at, memory, access, &mut Gather::new()).unwrap();
    assert_eq!(domain.translate(at).map(|found| found.pa), Some(pa));
}

/// Two blocks, of which the range takes the end of one and the beginning of the other.
#[test]
fn a_range_that_cuts_two_blocks_splits_both() {
    let domain = domain();
    let (at, bytes) = (BLOCK.bytes(), 2 * BLOCK.bytes());
    let mut owed = Gather::new();
    let mapped =
        domain.map(Iova::new(at), promised(PhysAddr::new(at), bytes), Access::READ, &mut owed);
    let whole = mapped.unwrap();
    let inner = IovaRange::from_len(Iova::new(at + 0x5000), bytes - 0xa000).unwrap();
    domain.unmap_part(inner, &mut owed).unwrap();
    domain.sync(&mut owed).unwrap();
    let there = |at: u64| domain.translate(Iova::new(at)).is_some();
    assert!(there(inner.start().get() - 1) && there(inner.last().get() + 1));
    assert!(!there(inner.start().get()) && !there(inner.last().get()));
    assert!(there(whole.start().get()) && there(whole.last().get()));
    assert_eq!(domain.context(), InvalTag::new(1));
}

#[test]
fn a_map_is_not_due_where_absence_is_not_cached_and_an_unmap_is() {
    let domain = domain();
    let range = IovaRange::page(Iova::new(0), PAGE);
    let mut owed = Gather::new();
    let (pa, bytes) = (PhysAddr::new(0x1000), PAGE.bytes());
    domain.map(range.start(), promised(pa, bytes), Access::READ, &mut owed).unwrap();
    assert!(owed.is_empty() && !domain.is_due(&owed));
    assert_eq!(domain.steps(&owed).count(), 0);
    domain.unmap(range, &mut owed).unwrap();
    assert!(domain.is_due(&owed));
    // An invalidation and a wait.
    assert_eq!(domain.steps(&owed).count(), 2);
    let mut all = Gather::new();
    domain.absorb(&mut all, &mut owed).unwrap();
    assert!(domain.is_due(&all) && !domain.is_due(&owed));
    domain.sync(&mut all).unwrap();
    assert_eq!(domain.translate(range.start()), None);
}

/// Of one page and of a list, at addresses with a table and without.
#[test]
fn a_map_notes_a_debt_on_each_unit_that_has_to_be_told_of_it_and_on_no_other() {
    let units = [Caching::PresentOnly, Caching::NotPresentToo].into_iter().flat_map(|caching| {
        let buffers = [WriteBuffer::Absent, WriteBuffer::MustFlush];
        buffers.map(|write_buffer| (caching, write_buffer))
    });
    for (caching, write_buffer) in units {
        for walker in [Walker::Coherent, Walker::NonCoherent] {
            let caps = Capabilities { caching, write_buffer, walker, ..Capabilities::new(PAGE) };
            let told = caching == Caching::NotPresentToo || write_buffer == WriteBuffer::MustFlush;
            let domain = domain_of(caps);
            for (page, pages) in [(0, 1), (1, 1), (2, 2), (511, 2), (1024, 512)] {
                let at = Iova::new(page << 12);
                let memory = promised(PhysAddr::new(page << 12), pages << 12);
                let mut owed = Gather::new();
                domain.map(at, memory, Access::READ, &mut owed).unwrap();
                assert_eq!(owed.mapped().is_empty(), !told, "{caps:?} {page}");
                assert_eq!(owed.lines().is_empty(), walker == Walker::Coherent, "{caps:?} {page}");
                let due = told || walker == Walker::NonCoherent;
                assert_eq!(domain.is_due(&owed), due, "{caps:?} {page}");
            }
        }
    }
}

#[test]
fn a_first_stage_that_executes_only_what_it_reads_grants_both() {
    let (domain, both) = (domain(), Access::READ | Access::EXECUTE);
    assert_eq!(domain.grants(Access::EXECUTE), Some(both));
    assert_eq!(domain.grants(Access::READ), Some(Access::READ));
}

/// A domain that defines no more than it has to.
struct Plain(Tables);

impl Domain for Plain {
    fn id(&self) -> TableId {
        self.0.id()
    }

    fn claim(&self) -> &SpaceClaim {
        self.0.claim()
    }

    fn input_range(&self) -> IovaRange {
        self.0.input_range()
    }

    fn granule(&self) -> PageSize {
        PAGE
    }

    fn grants(&self, access: Access) -> Option<Access> {
        Some(access)
    }

    fn map_sg(
        &self,
        iova: Iova,
        pieces: &[DmaMemory],
        access: Access,
        owed: &mut Gather,
    ) -> Result<IovaRange, DomainError> {
        self.0.map_sg(iova, pieces, access, owed)
    }

    fn absorb(&self, into: &mut Gather, from: &mut Gather) -> Result<(), WrongTable> {
        self.0.absorb(into, from)
    }

    fn map(
        &self,
        iova: Iova,
        memory: DmaMemory,
        access: Access,
        owed: &mut Gather,
    ) -> Result<IovaRange, DomainError> {
        self.0.map(iova, memory, access, owed)
    }

    fn unmap(&self, range: IovaRange, owed: &mut Gather) -> Result<(), DomainUnmapError> {
        self.0.unmap(range, owed)
    }

    fn sync(&self, owed: &mut Gather) -> Result<Flushed, SyncError<IommuError>> {
        self.0.sync(owed)
    }

    fn translate(&self, iova: Iova) -> Option<Translation> {
        self.0.translate(iova)
    }

    fn shadowing(&self) -> crate::iommu::Shadowing {
        crate::iommu::Shadowing::None
    }
}

#[test]
fn a_domain_that_says_nothing_of_splits_refuses_them_and_everything_owed_is_due() {
    let domain = Plain(domain());
    let whole = block(&domain.0);
    let mut owed = Gather::new();
    assert!(!domain.is_due(&owed));
    let inside = Iova::new(whole.start().get() + PAGE.bytes());
    let none = DomainSplitError::Split(SplitError::NoBlock { iova: inside });
    assert_eq!(domain.split(inside, &mut owed), Err(none));
    domain.unmap(whole, &mut owed).unwrap();
    assert!(domain.is_due(&owed));
    domain.sync(&mut owed).unwrap();
}

#[test]
fn a_tag_goes_back_to_the_queue_however_it_is_reached() {
    let queue = alloc::sync::Arc::new(Queue::default());
    let released = || queue.released.load(Ordering::Relaxed);
    queue.clone().release(InvalTag::new(4)).unwrap();
    assert_eq!(released(), 4);
    let combined = Combined::new(Still, queue.clone(), Ranges::ABSENT, CombineOptions::default());
    combined.release(InvalTag::new(5)).unwrap();
    assert_eq!(released(), 5);
    queue.late.store(true, Ordering::Relaxed);
    assert_eq!(combined.release(InvalTag::new(6)), Err(LATE));
}

#[test]
fn empty_tables_stay_until_a_domain_is_pruned() {
    let domain = domain();
    let range = IovaRange::page(Iova::new(0x20_5000), PAGE);
    let mut owed = Gather::new();
    let (pa, bytes) = (PhysAddr::new(0x1000), PAGE.bytes());
    domain.map(range.start(), promised(pa, bytes), Access::READ, &mut owed).unwrap();
    assert_eq!(domain.next_empty_table(Iova::new(0)), None);
    domain.unmap(range, &mut owed).unwrap();
    domain.sync(&mut owed).unwrap();
    assert_eq!(domain.table_pages(), 3);
    let spanned = IovaRange::page(Iova::new(0x20_0000), PageSize::SIZE_2M);
    assert_eq!(domain.next_empty_table(Iova::new(0)), Some(spanned));
    assert_eq!(domain.prune(spanned, &mut owed), Ok(1));
    assert_eq!((owed.table_pages(), domain.table_pages()), (1, 3));
    domain.sync(&mut owed).unwrap();
    assert_eq!(domain.table_pages(), 2);
    assert!(owed.is_empty() && owed.table().is_none(), "{owed:?}");
}

/// A unit that defines no more than it has to.
struct Terse;

impl Iommu for Terse {
    fn block(&self, _stream: StreamId) -> Result<(), AttachError> {
        Ok(())
    }

    fn pass_through(&self, _stream: StreamId, _all: AllMemory) -> Result<(), AttachError> {
        Ok(())
    }

    fn next_fault(&self) -> Result<Option<FaultEvent>, IommuError> {
        Ok(None)
    }

    fn reserved(&self, _: StreamId, _: &mut dyn FnMut(crate::iommu::ReservedRegion)) {}
}

impl Attach<Tables> for Terse {
    fn attach(
        &self,
        _stream: StreamId,
        _domain: &alloc::sync::Arc<Tables>,
    ) -> Result<(), AttachError> {
        Ok(())
    }
}

#[test]
fn a_unit_that_says_nothing_of_pasids_refuses_them() {
    let (stream, pasid) = (StreamId::new(1), Pasid::new(1));
    let refused = Err(AttachError::NoPasids);
    assert_eq!(Terse.block_pasid(stream, pasid), refused);
    let domain = alloc::sync::Arc::new(domain());
    assert_eq!(Terse.attach_pasid(stream, pasid, &domain), refused);
}

#[test]
fn a_domain_whose_tag_the_unit_still_has_leaves_its_tables_where_they_are() {
    for (late, live) in [(false, 0), (true, 3)] {
        let memory =
            alloc::sync::Arc::new(SlabTables::<AtomicU64>::new(PhysAddr::new(1 << 31), PAGE, 64));
        let table = PageTable::new(format(), memory.clone()).unwrap();
        let (caps, quirks) = (Capabilities::new(PAGE), Quirks::default());
        let domain = PagedDomain::new(table, InvalTag::new(1), caps, quirks, Queue::default());
        let (pa, mut owed) = (PhysAddr::new(0x1000), Gather::new());
        let mapped = domain.map(Iova::new(0), promised(pa, PAGE.bytes()), Access::READ, &mut owed);
        mapped.unwrap();
        domain.queue().late.store(late, Ordering::Relaxed);
        drop(domain);
        assert_eq!(memory.live(), live, "{late}");
    }
}

#[test]
#[allow(unsafe_code)]
fn tables_that_a_kernel_took_out_of_its_own_are_forgotten_by_walk_caches_too() {
    // SAFETY: no unit walks them: the root is a name.
    let tables = unsafe { ForeignTables::at(PhysAddr::new(0x7000)) };
    let table = PageTable::foreign(format(), tables);
    let caps = Capabilities { page: PageForm::Granule, ..Capabilities::new(PAGE) };
    let domain =
        PagedDomain::new(table, InvalTag::new(1), caps, Quirks::default(), Queue::default());
    let page = IovaRange::page(Iova::new(0x5000), PAGE);
    domain.invalidate(page).unwrap();
    let steps = domain.queue().steps.lock();
    let [Step::Invalidate(Command::Page { iova, depth, .. }), Step::Sync] = steps[..] else {
        panic!("{steps:?}");
    };
    assert_eq!((iova, depth), (page.start(), Depth::AllLevels));
}
