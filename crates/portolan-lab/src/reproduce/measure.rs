//! Runs the library's tables and plan against the model, and counts what each way of mapping and
//! unmapping causes.
//!
//! The ways differ only in the calls made, in how many gathers are synced, and in the quirks; the
//! plan is the library's own in all of them. A [`Space`] is where they are tried: the address space
//! of a driver over the model's registers ([`super::smmu_v2`]).

use anyhow::{Result, anyhow};
use portolan::addr::{Iova, IovaRange, PageSize, PhysAddr};
use portolan::inval::{Gather, Quirks};
use portolan::table::{Access, Segment};

use super::published::Direction;
use super::rows::{Counts, RegisterWrites};

/// First device address of every measurement; 1 GiB, so that tables start with it.
const IOVA: u64 = 1 << 30;
/// Where the pages of the scatter list lie: every other page, so that no two are neighbours.
const MEMORY: u64 = 0x8000_0000;
/// What devices may do with the pages.
pub(super) const RW: Access = Access::READ.union(Access::WRITE);

/// What one operation caused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Events {
    /// Calls.
    pub calls: u64,
    /// Pages that were mapped or unmapped by a call of their own.
    pub single_pages: u64,
    /// Pages that a call mapped or unmapped together with others.
    pub run_pages: u64,
    /// Table pages that left the tree.
    pub tables: u64,
    /// Cache lines written back.
    pub lines: u64,
    /// Commands.
    pub counts: Counts,
    /// Registers written, where a driver of Tegra's wrote them.
    pub registers: Option<RegisterWrites>,
}

/// How calls are made and debts are paid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grouping {
    /// Page by page, each page's debt paid at once.
    EachPage,
    /// Page by page, one debt for all.
    PagesTogether,
    /// One leaf table's worth at a time, each with its own debt.
    EachTable,
    /// The whole in one call with one debt.
    Whole,
}

/// One way of doing an operation.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    /// How calls are made and debts are paid.
    pub grouping: Grouping,
    /// What the plan prefers.
    pub quirks: Quirks,
}

/// An address space on a machine, and what its debts cost so far.
pub(super) trait Space {
    /// Maps a scatter list.
    fn map<I>(&self, iova: Iova, list: I, owed: &mut Gather) -> Result<()>
    where
        I: Iterator<Item = Segment> + Clone;

    /// Unmaps.
    fn unmap(&self, range: IovaRange, owed: &mut Gather) -> Result<()>;

    /// Pays a debt in the space's way.
    fn pay(&self, owed: Gather) -> Result<()>;

    /// Smallest page, and what a leaf table spans.
    fn sizes(&self) -> (PageSize, PageSize);

    /// Commands carried out and lines written back so far.
    fn carried_out(&self) -> (Counts, u64);
}

/// The range of every measurement of `bytes` bytes.
pub(super) fn range(bytes: u64) -> Result<IovaRange> {
    IovaRange::from_len(Iova::new(IOVA), bytes)
        .ok_or_else(|| anyhow!("nothing to measure in {bytes} bytes"))
}

/// Maps or unmaps a scatter list of single pages of `bytes` bytes in a space that is empty.
///
/// A neighbour outside the range keeps the last leaf table in use where the range does not cover
/// it whole: operating systems do not free a table that empties page by page.
///
/// # Errors
/// If the library or the model refuses: a size that is not a multiple of the granule, or too large.
pub(super) fn measure_in(
    space: &impl Space,
    direction: Direction,
    bytes: u64,
    grouping: Grouping,
) -> Result<Events> {
    let range = range(bytes)?;
    let stage = Stage { space, range };
    match direction {
        Direction::Map => stage.map(grouping),
        Direction::Unmap => {
            stage.map(Grouping::Whole)?;
            stage.keep_last_table()?;
            stage.unmap(grouping)
        }
    }
}

struct Stage<'a, S> {
    space: &'a S,
    range: IovaRange,
}

impl<S: Space> Stage<'_, S> {
    fn page(&self, index: u64) -> (Iova, Segment) {
        let granule = self.space.sizes().0;
        let lg2 = granule.lg2();
        let iova = Iova::new(self.range.start().get() + (index << lg2));
        let pa = PhysAddr::new(MEMORY + (index << (lg2 + 1)));
        let bytes = granule.bytes();
        (iova, Segment { pa, bytes })
    }

    fn map(&self, grouping: Grouping) -> Result<Events> {
        let pages = self.range.pages(self.space.sizes().0);
        let mut meter = Meter::new(self.space);
        let mut gather = Gather::new();
        match grouping {
            Grouping::EachPage | Grouping::PagesTogether => {
                for index in 0..pages {
                    let (iova, at) = self.page(index);
                    self.space.map(iova, std::iter::once(at), &mut gather)?;
                    meter.events.single_pages += 1;
                    if grouping == Grouping::EachPage {
                        meter.pay(std::mem::take(&mut gather))?;
                    }
                }
            }
            Grouping::EachTable | Grouping::Whole => {
                let list = (0..pages).map(|index| self.page(index).1);
                self.space.map(self.range.start(), list, &mut gather)?;
                meter.events.run_pages += pages;
            }
        }
        meter.pay(gather)?;
        Ok(meter.finish())
    }

    fn keep_last_table(&self) -> Result<()> {
        let (granule, span) = self.space.sizes();
        let next = self.range.last().get() + 1;
        if next & (span.bytes() - 1) == 0 {
            return Ok(());
        }
        let mut gather = Gather::new();
        let (iova, at) = self.page(self.range.pages(granule));
        self.space.map(iova, std::iter::once(at), &mut gather)?;
        self.space.pay(gather)
    }

    fn unmap(&self, grouping: Grouping) -> Result<Events> {
        let mut meter = Meter::new(self.space);
        let mut gather = Gather::new();
        let (granule, span) = self.space.sizes();
        let step = match grouping {
            Grouping::EachPage | Grouping::PagesTogether => granule.bytes(),
            Grouping::EachTable => span.bytes(),
            Grouping::Whole => self.range.len_minus_one() + 1,
        };
        let mut at = self.range.start();
        while at <= self.range.last() {
            let part = IovaRange::from_len(at, step)
                .and_then(|part| part.intersection(self.range))
                .ok_or_else(|| anyhow!("{step} bytes at {at} are no range"))?;
            self.space.unmap(part, &mut gather)?;
            match grouping {
                Grouping::EachPage | Grouping::PagesTogether => meter.events.single_pages += 1,
                _ => meter.events.run_pages += part.pages(granule),
            }
            if matches!(grouping, Grouping::EachPage | Grouping::EachTable) {
                meter.pay(std::mem::take(&mut gather))?;
            }
            let Some(next) = part.last().checked_add(1) else {
                break;
            };
            at = next;
        }
        meter.pay(gather)?;
        Ok(meter.finish())
    }
}

/// Pays debts and adds up what that took.
struct Meter<'a, S> {
    space: &'a S,
    before: (Counts, u64),
    events: Events,
}

impl<'a, S: Space> Meter<'a, S> {
    fn new(space: &'a S) -> Self {
        let calls = 1;
        Self {
            space,
            before: space.carried_out(),
            events: Events {
                calls,
                ..Events::default()
            },
        }
    }

    fn pay(&mut self, gather: Gather) -> Result<()> {
        self.events.tables += gather.table_pages() as u64;
        self.space.pay(gather)
    }

    fn finish(mut self) -> Events {
        let ((before, cleaned), (after, lines)) = (self.before, self.space.carried_out());
        self.events.lines = lines - cleaned;
        self.events.counts = Counts {
            page: after.page - before.page,
            range: after.range - before.range,
            context: after.context - before.context,
            sync: after.sync - before.sync,
        };
        self.events
    }
}
