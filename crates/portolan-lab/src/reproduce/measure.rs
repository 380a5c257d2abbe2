//! Runs the library's table, plan and sync against the model, and counts what each way of mapping
//! and unmapping causes.
//!
//! The ways differ only in the calls made, in how many gathers are synced, and in the quirks; the
//! plan is the library's own in all of them.

use anyhow::{Context, Result, anyhow};
use portolan::addr::{Iova, IovaRange, PageSize, PhysAddr};
use portolan::inval::{Gather, Quirks};
use portolan::platform::SlabTables;
use portolan::table::{Access, Format, PageTable, Segment};
use portolan_model::profile::Profile;

use super::published::Direction;
use super::rows::{Counts, RegisterWrites};
use crate::rig::Rig;

/// First device address of every measurement; 1 GiB, so that tables start with it.
const IOVA: u64 = 1 << 30;
/// Where the pages of the scatter list lie: every other page, so that no two are neighbours.
const MEMORY: u64 = 0x8000_0000;

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
    /// Registers written, where a driver wrote them.
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

/// Maps or unmaps a scatter list of single pages of `bytes` bytes on `machine`, in the given way.
///
/// A neighbour outside the range keeps the last leaf table in use where the range does not cover
/// it whole: operating systems do not free a table that empties page by page.
///
/// # Errors
/// If the library or the model refuses: a size that is not a multiple of the granule, or too large.
pub fn measure<F: Format>(
    machine: &Profile,
    format: F,
    direction: Direction,
    bytes: u64,
    way: Way,
) -> Result<Events> {
    let granule = F::GRANULE;
    let range = IovaRange::from_len(Iova::new(IOVA), bytes)
        .ok_or_else(|| anyhow!("nothing to measure in {bytes} bytes"))?;
    let leaf_tables = u32::try_from(range.pages(table_span::<F>())).context("size")?;
    let memory = SlabTables::<F::Word>::new(PhysAddr::new(1 << 28), granule, leaf_tables + 16);
    let table = PageTable::new(format, &memory)?;
    let stage = Stage {
        machine,
        table: &table,
        range,
    };
    let quiet = Quirks::default();
    match direction {
        Direction::Map => stage.map(way),
        Direction::Unmap => {
            stage.map(Way {
                grouping: Grouping::Whole,
                quirks: quiet,
            })?;
            stage.keep_last_table()?;
            stage.unmap(way)
        }
    }
}

/// What one leaf table spans.
pub fn table_span<F: Format>() -> PageSize {
    PageSize::of_lg2(F::GRANULE.lg2() + F::INDEX_LG2)
}

struct Stage<'a, F: Format> {
    machine: &'a Profile,
    table: &'a PageTable<F, &'a SlabTables<F::Word>>,
    range: IovaRange,
}

impl<F: Format> Stage<'_, F> {
    fn page(&self, index: u64) -> (Iova, Segment) {
        let lg2 = F::GRANULE.lg2();
        let iova = Iova::new(self.range.start().get() + (index << lg2));
        let pa = PhysAddr::new(MEMORY + (index << (lg2 + 1)));
        (
            iova,
            Segment {
                pa,
                bytes: F::GRANULE.bytes(),
            },
        )
    }

    fn map(&self, way: Way) -> Result<Events> {
        let access = Access::READ | Access::WRITE;
        let pages = self.range.pages(F::GRANULE);
        let mut meter = Meter::new(self, way.quirks)?;
        let mut gather = Gather::new();
        meter.events.calls = 1;
        match way.grouping {
            Grouping::EachPage | Grouping::PagesTogether => {
                for index in 0..pages {
                    let (iova, at) = self.page(index);
                    self.table.map(iova, at.pa, at.bytes, access, &mut gather)?;
                    meter.events.single_pages += 1;
                    if way.grouping == Grouping::EachPage {
                        meter.pay(std::mem::take(&mut gather))?;
                    }
                }
            }
            Grouping::EachTable | Grouping::Whole => {
                let list = (0..pages).map(|index| self.page(index).1);
                self.table
                    .map_sg(self.range.start(), list, access, &mut gather)?;
                meter.events.run_pages += pages;
            }
        }
        meter.pay(gather)?;
        Ok(meter.finish())
    }

    fn keep_last_table(&self) -> Result<()> {
        let next = self.range.last().get() + 1;
        if next & (table_span::<F>().bytes() - 1) == 0 {
            return Ok(());
        }
        let mut gather = Gather::new();
        let (_, at) = self.page(self.range.pages(F::GRANULE));
        self.table
            .map(Iova::new(next), at.pa, at.bytes, Access::READ, &mut gather)?;
        Meter::new(self, Quirks::default())?.pay(gather)
    }

    fn unmap(&self, way: Way) -> Result<Events> {
        let mut meter = Meter::new(self, way.quirks)?;
        let mut gather = Gather::new();
        meter.events.calls = 1;
        let step = match way.grouping {
            Grouping::EachPage | Grouping::PagesTogether => F::GRANULE.bytes(),
            Grouping::EachTable => table_span::<F>().bytes(),
            Grouping::Whole => self.range.len_minus_one() + 1,
        };
        let mut at = self.range.start();
        while at <= self.range.last() {
            let part = IovaRange::from_len(at, step)
                .and_then(|part| part.intersection(self.range))
                .ok_or_else(|| anyhow!("{step} bytes at {at} are no range"))?;
            self.table.unmap(part, &mut gather)?;
            match way.grouping {
                Grouping::EachPage | Grouping::PagesTogether => meter.events.single_pages += 1,
                _ => meter.events.run_pages += part.pages(F::GRANULE),
            }
            if matches!(way.grouping, Grouping::EachPage | Grouping::EachTable) {
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

/// Pays debts through the model and adds up what that took.
struct Meter<'a, F: Format> {
    stage: &'a Stage<'a, F>,
    rig: Rig<'a, F>,
    quirks: Quirks,
    events: Events,
}

impl<'a, F: Format> Meter<'a, F> {
    fn new(stage: &'a Stage<'a, F>, quirks: Quirks) -> Result<Self> {
        let memory = *stage.table.memory();
        let rig = Rig::new(stage.machine, memory, stage.table.root())?;
        Ok(Self {
            stage,
            rig,
            quirks,
            events: Events::default(),
        })
    }

    fn pay(&mut self, gather: Gather) -> Result<()> {
        self.events.tables += gather.table_pages() as u64;
        let caps = self.stage.machine.capabilities();
        let quiet = self.rig.pay(&caps, &self.quirks, gather)?;
        self.stage.table.reclaim(quiet);
        Ok(())
    }

    fn finish(mut self) -> Events {
        let counters = self.rig.counters();
        self.events.lines = counters.cleaned_lines;
        self.events.counts = Counts {
            page: counters.invalidations.page,
            range: counters.invalidations.range,
            context: counters.invalidations.context,
            sync: counters.syncs,
        };
        self.events
    }
}
