//! Counts the events of mapping and unmapping, for several patterns of calls.
//!
//! The library's tables and its plan run against the model. The patterns differ only in the calls, in the number of
//! gathers that are synced, and in the quirks. Each runs in a [`MeasuredSpace`], the address space of a driver over
//! the model's registers ([`crate::reproduce`], [`crate::tegra_board`]).

use crate::buffers::promised;
use anyhow::{Result, anyhow};
use portolan::addr::{Iova, IovaRange, PageSize, PhysAddr};
use portolan::inval::{Gather, Preference, Quirks, WalkFlush};
use portolan::iommu::Domain;
use portolan::table::Access;

use portolan_tune::counts::{CommandCounts, RegisterWrites};

/// First device address of every measurement; 1 GiB, so that tables start with it.
const IOVA: u64 = 1 << 30;
/// Address of the scatter list's pages: every other page, so that no two are neighbours.
const MEMORY: u64 = 0x8000_0000;
/// Access of devices to the pages.
const RW: Access = Access::READ.union(Access::WRITE);

/// The two operations of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapOrUnmap {
    /// Mapping a scatter list.
    Map,
    /// Unmapping it.
    Unmap,
}

impl MapOrUnmap {
    /// The name of the case in the published tables and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Map => "map",
            Self::Unmap => "unmap",
        }
    }
}

/// Counts of one operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Events {
    /// Calls.
    pub calls: u64,
    /// Pages that were mapped or unmapped by a call of their own.
    pub single_pages: u64,
    /// Leaves that a call mapped or unmapped together with others: pages, or blocks.
    pub run_pages: u64,
    /// Table pages that left the tree.
    pub tables: u64,
    /// Cache lines written back.
    pub lines: u64,
    /// Commands.
    pub counts: CommandCounts,
    /// Registers written, where a driver of Tegra's wrote them.
    pub registers: Option<RegisterWrites>,
    /// Virtual nanoseconds that the driver waited for the model.
    pub waited_ns: u64,
}

/// Grouping of calls and of the debts that they leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grouping {
    /// Page by page, each page's debt paid at once.
    EachPage,
    /// Page by page, one debt for all.
    PagesTogether,
    /// A leaf table's worth of pages at a time, each with a debt of its own.
    EachTable,
    /// The whole in one call with one debt.
    Whole,
    /// The whole, of memory in one piece, for which tables may have blocks.
    OnePiece,
}

/// Calls of an operation, and the invalidations that they lead to.
#[derive(Clone, Copy, Debug)]
pub struct CallPattern {
    /// Grouping of calls and of their debts.
    pub grouping: Grouping,
    /// Preferences of the plan.
    pub quirks: Quirks,
}

impl CallPattern {
    /// One call for the whole, with the library's plan for a machine.
    pub(crate) fn whole(quirks: Quirks) -> Self {
        let grouping = Grouping::Whole;
        Self { grouping, quirks }
    }
}

/// Code that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Variant {
    /// Linux before a published change.
    Before,
    /// Linux after it.
    After,
    /// This library.
    Portolan,
}

impl Variant {
    pub(crate) const ALL: [Self; 3] = [Self::Before, Self::After, Self::Portolan];

    /// The name in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Before => "before",
            Self::After => "after",
            Self::Portolan => "portolan",
        }
    }

    /// Calls around the change that brought range flush; `own` is the library's plan.
    pub(crate) fn range_flush(self, own: Quirks) -> CallPattern {
        let (grouping, preference) = match self {
            Self::Before => (Grouping::EachPage, Preference::ByPage),
            Self::After => (Grouping::PagesTogether, Preference::ByContext),
            Self::Portolan => return CallPattern::whole(own),
        };
        let quirks = Quirks { preference, ..Quirks::default() };
        CallPattern { grouping, quirks }
    }

    /// Calls around the change that brought walk flush by context, for an operation on `bytes` bytes where a leaf
    /// table spans `table`; `own` is the library's plan.
    pub(crate) fn walk_flush(
        self,
        direction: MapOrUnmap,
        bytes: u64,
        table: u64,
        own: Quirks,
    ) -> CallPattern {
        let walk_flush = match self {
            Self::Before => WalkFlush::ByAddress,
            Self::After => WalkFlush::ByContext,
            Self::Portolan => return CallPattern::whole(own),
        };
        let quirks = Quirks { walk_flush, preference: Preference::ByPage, ..Quirks::default() };
        let grouping = match direction {
            MapOrUnmap::Unmap if bytes >= table => Grouping::EachTable,
            _ => Grouping::PagesTogether,
        };
        CallPattern { grouping, quirks }
    }
}

/// Counts of a driver's model so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CarriedOut {
    /// Commands.
    pub(crate) counts: CommandCounts,
    /// Cache lines written back.
    pub(crate) lines: u64,
    /// Registers of Tegra's written.
    pub(crate) registers: Option<RegisterWrites>,
    /// Virtual nanoseconds that the driver waited.
    pub(crate) waited_ns: u64,
}

/// Counts of a device's accesses so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Met {
    /// Accesses that were refused.
    pub(crate) faults: u64,
    /// Accesses that no translation was cached for.
    pub(crate) misses: u64,
    /// Reads of table memory for them: entries, or lines of them where hardware caches lines.
    pub(crate) reads: u64,
    /// Accesses that went through while an invalidation was under way.
    pub(crate) meanwhile: u64,
}

/// An address space of a driver, on the model of its registers.
pub(crate) trait MeasuredSpace {
    /// Its domain.
    fn domain(&self) -> &dyn Domain;

    /// Span of a leaf table.
    fn table_span(&self) -> PageSize;

    /// Counts of the work carried out so far.
    fn carried_out(&self) -> CarriedOut;

    /// Lets the device write to memory at `iova`.
    fn touch(&self, iova: Iova);

    /// Counts of its accesses so far.
    fn met(&self) -> Met;

    /// Fails if the driver did something that it must not do, which is a defect.
    ///
    /// # Errors
    /// A description of the defect.
    fn is_sound(&self) -> Result<()>;
}

/// The range of every measurement of `bytes` bytes.
pub(crate) fn range(bytes: u64) -> Result<IovaRange> {
    IovaRange::from_len(Iova::new(IOVA), bytes)
        .ok_or_else(|| anyhow!("nothing to measure in {bytes} bytes"))
}

/// Maps or unmaps a scatter list of single pages of `bytes` bytes in a space that is empty, or as much
/// in one piece.
///
/// A neighbour outside the range keeps the last leaf table in use where the range does not cover
/// it whole: operating systems do not free a table that empties page by page.
///
/// # Errors
/// If the library or the model refuses: a size that is not a multiple of the granule, or too large.
pub(crate) fn measure_in(
    space: &dyn MeasuredSpace,
    direction: MapOrUnmap,
    bytes: u64,
    grouping: Grouping,
) -> Result<Events> {
    let range = range(bytes)?;
    let memory = PhysAddr::new(MEMORY);
    if direction == MapOrUnmap::Map {
        return map(space, range, memory, grouping);
    }
    let before = match grouping {
        Grouping::OnePiece => grouping,
        _ => Grouping::Whole,
    };
    map(space, range, memory, before)?;
    let next = range.last().checked_add(1);
    if let Some(next) = next.filter(|next| !next.is_aligned(space.table_span())) {
        let granule = space.domain().granule();
        let after = place(memory, range.pages(granule), granule);
        map(space, IovaRange::page(next, granule), after, Grouping::Whole)?;
    }
    unmap(space, range, grouping)
}

/// Address of page `index`, counted from `memory`.
fn place(memory: PhysAddr, index: u64, granule: PageSize) -> PhysAddr {
    PhysAddr::new(memory.get() + (index << (granule.lg2() + 1)))
}

/// Maps every other page from `memory` on at `range`, or all memory from there on.
///
/// # Errors
/// If the driver or the model refuses.
pub(crate) fn map(
    space: &dyn MeasuredSpace,
    range: IovaRange,
    memory: PhysAddr,
    grouping: Grouping,
) -> Result<Events> {
    let (domain, granule) = (space.domain(), space.domain().granule());
    let page = |index| promised(place(memory, index, granule), granule.bytes());
    let pages = range.pages(granule);
    let mut meter = Meter::new(space);
    let mut owed = Gather::new();
    let together: Option<Vec<_>> = match grouping {
        Grouping::EachTable | Grouping::Whole => Some((0..pages).map(page).collect()),
        Grouping::OnePiece => {
            let piece = promised(memory, range.len_minus_one() + 1);
            Some([piece].into_iter().collect())
        }
        Grouping::EachPage | Grouping::PagesTogether => None,
    };
    if let Some(list) = together {
        domain.map_sg(range.start(), &list, RW, &mut owed)?;
        meter.events.run_pages += leaves(domain, range);
        return meter.finish(owed);
    }
    for index in 0..pages {
        let iova = Iova::new(range.start().get() + (index << granule.lg2()));
        domain.map_sg(iova, &[page(index)], RW, &mut owed)?;
        meter.events.single_pages += 1;
        if grouping == Grouping::EachPage {
            meter.pay(&mut owed)?;
        }
    }
    meter.finish(owed)
}

/// Number of leaves that translate `range`, which is mapped completely.
fn leaves(domain: &dyn Domain, range: IovaRange) -> u64 {
    let mut leaves = 0;
    let mut at = Some(range.start());
    while let Some(iova) = at.filter(|iova| range.contains(*iova)) {
        let found = domain.translate(iova);
        leaves += u64::from(found.is_some());
        at = found.and_then(|leaf| IovaRange::page(iova, leaf.size).last().checked_add(1));
    }
    leaves
}

/// Unmaps `range`.
///
/// # Errors
/// If the driver or the model refuses.
pub(crate) fn unmap(
    space: &dyn MeasuredSpace,
    range: IovaRange,
    grouping: Grouping,
) -> Result<Events> {
    let (domain, granule) = (space.domain(), space.domain().granule());
    let step = match grouping {
        Grouping::EachPage | Grouping::PagesTogether => granule.bytes(),
        Grouping::EachTable => space.table_span().bytes(),
        Grouping::Whole | Grouping::OnePiece => range.len_minus_one() + 1,
    };
    let mut meter = Meter::new(space);
    let mut owed = Gather::new();
    let mut at = Some(range.start());
    while let Some(start) = at.filter(|start| *start <= range.last()) {
        let part = IovaRange::from_len(start, step)
            .and_then(|part| part.intersection(range))
            .ok_or_else(|| anyhow!("{step} bytes at {start} are no range"))?;
        match grouping {
            Grouping::EachPage | Grouping::PagesTogether => meter.events.single_pages += 1,
            _ => meter.events.run_pages += leaves(domain, part),
        }
        domain.unmap(part, &mut owed)?;
        if matches!(grouping, Grouping::EachPage | Grouping::EachTable) {
            meter.pay(&mut owed)?;
        }
        at = part.last().checked_add(1);
    }
    meter.finish(owed)
}

/// Pays debts and adds up their commands.
struct Meter<'a> {
    space: &'a dyn MeasuredSpace,
    before: CarriedOut,
    events: Events,
}

impl<'a> Meter<'a> {
    fn new(space: &'a dyn MeasuredSpace) -> Self {
        Self {
            space,
            before: space.carried_out(),
            events: Events { calls: 1, ..Events::default() },
        }
    }

    fn pay(&mut self, owed: &mut Gather) -> Result<()> {
        self.events.tables += owed.table_pages() as u64;
        let paid = self.space.domain().sync(owed).map(drop);
        paid.map_err(|error| anyhow!("the driver did not complete: {error}"))
    }

    fn finish(mut self, mut owed: Gather) -> Result<Events> {
        self.pay(&mut owed)?;
        let (before, after) = (self.before, self.space.carried_out());
        self.events.lines = after.lines - before.lines;
        self.events.counts = after.counts.since(before.counts);
        let registers = after.registers.zip(before.registers);
        self.events.registers = registers.map(|(after, before)| after.since(before));
        self.events.waited_ns = after.waited_ns - before.waited_ns;
        Ok(self.events)
    }
}
