//! The scenarios: Armv8 stage 1, 39-bit input addresses, 4 KiB granule, tables on the heap.
//!
//! Each starts from the state that its description names and comes back to it through the library
//! itself: unmap, plan, sync through a queue that does nothing, reclaim.

use std::hint::black_box;

use portolan::addr::{ContextId, Iova, IovaRange, PageSize, PhysAddr};
use portolan::inval::{
    Caching, Capabilities, Gather, InvalidationQueue, LeafOnly, PageForm, Plan, Quirks, RangeForm,
    Step, Walker, WriteBuffer, plan, sync,
};
use portolan::platform::HostTables;
use portolan::table::format::{Armv8Config, Armv8Stage1, DirtyTracking, SplitRule};
use portolan::table::{Access, PageTable, Segment};

use crate::plain::{StoreList, StoreRun, WalkStore};
use crate::{Failure, Workload};

type Table = PageTable<Armv8Stage1<12>, HostTables>;

const PAGE: u64 = 4096;
const BLOCK: u64 = 2 << 20;
const BASE: Iova = Iova::new(0x12_4000_0000);
const MEMORY: PhysAddr = PhysAddr::new(0x8_8000_0000);
const CONTEXT: ContextId = ContextId::new(1);
const LIST_PAGES: u64 = 8192;
/// Single pages per pass: every second page of one leaf table.
const SINGLES: u64 = 256;
/// Full leaf tables per pass.
const FULL_TABLES: u64 = 64;
const SEED: u64 = 0x706f_7274_6f6c_616e;

/// SMMUv3 with range invalidation and a coherent walker.
const CAPS: Capabilities = Capabilities {
    granule: PageSize::SIZE_4K,
    page: PageForm::Granule,
    range: RangeForm::NumScale {
        max_num: 32,
        max_scale: 31,
    },
    leaf_only: LeafOnly::Present,
    walker: Walker::Coherent,
    caching: Caching::PresentOnly,
    write_buffer: WriteBuffer::Absent,
};

/// State of the processor's caches when an operation starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    /// As the preparation leaves them.
    Hot,
    /// Filled with other data.
    Cold,
}

/// Figures from another machine, to be printed apart from what is measured here.
#[derive(Clone, Copy, Debug)]
pub struct Recorded {
    /// What was measured.
    pub peer: &'static str,
    /// Nanoseconds per unit.
    pub ns: f64,
    /// Instructions per unit, where they were counted.
    pub instructions: Option<f64>,
}

type Make = fn() -> Result<Box<dyn Workload>, Failure>;

/// One benchmark.
pub struct Scenario {
    /// Name, as given on the command line.
    pub name: &'static str,
    /// What is measured.
    pub what: &'static str,
    /// Bytes that one call maps or unmaps.
    pub size_bytes: u64,
    /// What a figure is per.
    pub unit: &'static str,
    /// State of the caches.
    pub cache: Cache,
    /// Of a comparable operation, recorded on another machine.
    pub recorded: Option<Recorded>,
    /// What the plain loop does.
    pub limit: &'static str,
    /// Makes the operation.
    pub make: Make,
    /// Makes the plain loop.
    pub make_limit: Make,
}

const fn linux(ns: f64, instructions: Option<f64>) -> Option<Recorded> {
    Some(Recorded {
        peer: "linux-6.12 (user space)",
        ns,
        instructions,
    })
}

const LIST: &str = "stores from the list";
const WALK: &str = "bare walk and store";

/// All scenarios.
pub fn all() -> Vec<Scenario> {
    let mut all = lists();
    all.extend(single_pages());
    all.extend(full_tables());
    all
}

fn lists() -> Vec<Scenario> {
    let hot = Scenario {
        name: "map_sg",
        what: "map_sg of 8192 scattered 4 KiB pages, 16 leaf tables allocated",
        size_bytes: LIST_PAGES * PAGE,
        unit: "ns per page",
        cache: Cache::Hot,
        recorded: linux(48.0, Some(487.0)),
        limit: LIST,
        make: || Ok(Box::new(MapList::new(Cache::Hot)?)),
        make_limit: || Ok(Box::new(StoreList::new(scattered(), Cache::Hot))),
    };
    let cold = Scenario {
        name: "map_sg_cold",
        what: "the same, list and tables not in the caches",
        cache: Cache::Cold,
        recorded: None,
        make: || Ok(Box::new(MapList::new(Cache::Cold)?)),
        make_limit: || Ok(Box::new(StoreList::new(scattered(), Cache::Cold))),
        ..hot
    };
    let run = Scenario {
        name: "map_2m_as_pages",
        what: "map of contiguous 2 MiB off alignment: 512 pages, leaf table allocated",
        size_bytes: BLOCK,
        recorded: linux(7.4, None),
        limit: "stores in order",
        make: || Ok(Box::new(MapRun::new()?)),
        make_limit: || Ok(Box::new(StoreRun::new((BLOCK / PAGE) as usize))),
        ..hot
    };
    vec![hot, cold, run]
}

fn single_pages() -> Vec<Scenario> {
    let walk: Make = || Ok(Box::new(WalkStore::new(3, SINGLES as usize, 2)));
    let map = Scenario {
        name: "map_page",
        what: "map of one page with a new gather, neighbours mapped",
        size_bytes: PAGE,
        unit: "ns per operation",
        cache: Cache::Hot,
        recorded: linux(54.0, None),
        limit: WALK,
        make: || Ok(Box::new(Singles::new(Single::Map)?)),
        make_limit: walk,
    };
    let reused = Scenario {
        name: "map_page_reused",
        what: "the same into one gather that is kept",
        recorded: None,
        make: || Ok(Box::new(Singles::new(Single::MapIntoOne)?)),
        ..map
    };
    let unmap = Scenario {
        name: "unmap_page",
        what: "unmap of one page with a new gather, planned, commands counted",
        recorded: linux(58.0, None),
        make: || Ok(Box::new(Singles::new(Single::UnmapCounted)?)),
        ..map
    };
    let steps = Scenario {
        name: "unmap_page_steps",
        what: "the same with every step of the plan taken",
        recorded: None,
        make: || Ok(Box::new(Singles::new(Single::UnmapSteps)?)),
        ..map
    };
    let alone = Scenario {
        name: "unmap_page_alone",
        what: "unmap of one page with a new gather, not planned",
        recorded: None,
        make: || Ok(Box::new(Singles::new(Single::Unmap)?)),
        ..map
    };
    let cycle = Scenario {
        name: "page_cycle",
        what: "map, plan, unmap, sync through a queue that does nothing, reclaim",
        recorded: None,
        make: || Ok(Box::new(Singles::new(Single::Cycle)?)),
        ..map
    };
    vec![map, reused, alone, unmap, steps, cycle]
}

fn full_tables() -> Vec<Scenario> {
    let unmap = Scenario {
        name: "unmap_2m",
        what: "unmap of 512 pages that fill a leaf table, planned, commands counted",
        size_bytes: BLOCK,
        unit: "ns per operation",
        cache: Cache::Hot,
        recorded: linux(138.0, None),
        limit: WALK,
        make: || Ok(Box::new(Full::new(Finish::Counted)?)),
        make_limit: || Ok(Box::new(WalkStore::new(2, FULL_TABLES as usize, 1))),
    };
    let steps = Scenario {
        name: "unmap_2m_steps",
        what: "the same with every step of the plan taken",
        recorded: None,
        make: || Ok(Box::new(Full::new(Finish::Steps)?)),
        ..unmap
    };
    let reclaim = Scenario {
        name: "unmap_2m_reclaim",
        what: "unmap of 512 pages that fill a leaf table, new gather, sync through a queue that does nothing, and reclaim",
        recorded: None,
        make: || Ok(Box::new(Full::new(Finish::Reclaimed)?)),
        ..unmap
    };
    vec![unmap, steps, reclaim]
}

/// Fills the caches with other data.
pub(crate) struct Evictor(Vec<u64>);

impl Evictor {
    pub(crate) fn new(cache: Cache) -> Self {
        let bytes: usize = match cache {
            Cache::Hot => 0,
            Cache::Cold => 96 << 20,
        };
        Self(vec![0; bytes / 8])
    }

    pub(crate) fn evict(&mut self) {
        for line in self.0.chunks_mut(8) {
            line[0] = line[0].wrapping_add(1);
        }
        black_box(&self.0);
    }
}

/// Completes every sync at once.
struct NullQueue;

impl InvalidationQueue for NullQueue {
    type Error = ();

    #[inline]
    fn execute(&self, steps: &mut dyn Iterator<Item = Step>) -> Result<(), ()> {
        for step in steps {
            black_box(step);
        }
        Ok(())
    }
}

fn table(pages: u32) -> Result<Table, Failure> {
    let format = Armv8Stage1::new(Armv8Config {
        input_lg2: 39,
        output_lg2: 44,
        split: SplitRule::BreakBeforeMake,
        dirty: DirtyTracking::Off,
    })?;
    Ok(PageTable::new(
        format,
        HostTables::new(PageSize::SIZE_4K, pages),
    )?)
}

fn access() -> Access {
    black_box(Access::READ | Access::WRITE)
}

/// 8192 pages in random order, no two of them neighbours in memory.
fn scattered() -> Vec<Segment> {
    let mut pages: Vec<u64> = (0..LIST_PAGES).collect();
    fastrand::Rng::with_seed(SEED).shuffle(&mut pages);
    let segment = |page: u64| Segment {
        pa: PhysAddr::new(MEMORY.get() + page * 2 * PAGE),
        bytes: PAGE,
    };
    pages.into_iter().map(segment).collect()
}

fn pay(table: &Table, owed: Gather) -> Result<(), Failure> {
    let quirks = Quirks::default();
    let quiet = sync(&NullQueue, CONTEXT, &CAPS, &quirks, owed).map_err(|_| Failure::Queue)?;
    table.reclaim(quiet);
    Ok(())
}

fn unmap_and_pay(table: &Table, range: IovaRange) -> Result<(), Failure> {
    let mut owed = Gather::new();
    table.unmap(range, &mut owed)?;
    pay(table, owed)
}

#[inline]
fn planned(owed: &Gather) -> Plan<'_> {
    plan(
        black_box(CONTEXT),
        black_box(&CAPS),
        black_box(&QUIRKS),
        owed,
    )
}

/// Plans what is owed and counts the commands.
#[inline]
fn count_commands(owed: &Gather) {
    black_box(planned(owed).counts());
}

/// Plans what is owed and takes every step.
#[inline]
fn take_steps(owed: &Gather) {
    let plan = planned(owed);
    for step in plan.steps() {
        black_box(&step);
    }
}

const QUIRKS: Quirks = Quirks {
    walk_flush: portolan::inval::WalkFlush::ByAddress,
    preference: portolan::inval::Preference::Fewest,
    context_above: u64::MAX,
    repeat: 1,
};

struct MapList {
    table: Table,
    list: Vec<Segment>,
    mapped: Option<IovaRange>,
    evictor: Evictor,
}

impl MapList {
    fn new(cache: Cache) -> Result<Self, Failure> {
        Ok(Self {
            table: table(64)?,
            list: scattered(),
            mapped: None,
            evictor: Evictor::new(cache),
        })
    }
}

impl Workload for MapList {
    fn units(&self) -> u64 {
        LIST_PAGES
    }

    fn prepare(&mut self) -> Result<(), Failure> {
        if let Some(range) = self.mapped.take() {
            unmap_and_pay(&self.table, range)?;
        }
        self.evictor.evict();
        Ok(())
    }

    fn run(&mut self) -> Result<(), Failure> {
        let mut owed = Gather::new();
        let list = self.list.iter().copied();
        self.mapped = Some(self.table.map_sg(BASE, list, access(), &mut owed)?);
        black_box(&owed);
        Ok(())
    }
}

struct MapRun {
    table: Table,
    mapped: Option<IovaRange>,
}

impl MapRun {
    fn new() -> Result<Self, Failure> {
        Ok(Self {
            table: table(64)?,
            mapped: None,
        })
    }
}

impl Workload for MapRun {
    fn units(&self) -> u64 {
        BLOCK / PAGE
    }

    fn prepare(&mut self) -> Result<(), Failure> {
        match self.mapped.take() {
            Some(range) => unmap_and_pay(&self.table, range),
            None => Ok(()),
        }
    }

    fn run(&mut self) -> Result<(), Failure> {
        let mut owed = Gather::new();
        let pa = PhysAddr::new(black_box(MEMORY.get() + PAGE));
        self.mapped = Some(self.table.map(BASE, pa, BLOCK, access(), &mut owed)?);
        black_box(&owed);
        Ok(())
    }
}

/// What is done with each of many single pages.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Single {
    Map,
    MapIntoOne,
    Unmap,
    UnmapCounted,
    UnmapSteps,
    Cycle,
}

struct Singles {
    table: Table,
    operation: Single,
    mapped: bool,
}

impl Singles {
    /// Every second page of a leaf table is mapped for good.
    fn new(operation: Single) -> Result<Self, Failure> {
        let this = Self {
            table: table(64)?,
            operation,
            mapped: false,
        };
        for i in 0..SINGLES {
            let mut owed = Gather::new();
            let iova = Iova::new(Self::page(i).get() + PAGE);
            this.table.map(iova, MEMORY, PAGE, access(), &mut owed)?;
        }
        Ok(this)
    }

    fn page(i: u64) -> Iova {
        Iova::new(BASE.get() + i * 2 * PAGE)
    }

    #[inline]
    fn map(&self, i: u64, owed: &mut Gather) -> Result<IovaRange, Failure> {
        let pa = PhysAddr::new(black_box(MEMORY.get() + i * PAGE));
        let iova = black_box(Self::page(i));
        Ok(self.table.map(iova, pa, black_box(PAGE), access(), owed)?)
    }

    fn map_all(&self) -> Result<(), Failure> {
        for i in 0..SINGLES {
            let mut owed = Gather::new();
            self.map(i, &mut owed)?;
            black_box(&owed);
        }
        Ok(())
    }

    fn unmap_all(&self) -> Result<(), Failure> {
        for i in 0..SINGLES {
            let range = black_box(IovaRange::page(Self::page(i), PageSize::SIZE_4K));
            unmap_and_pay(&self.table, range)?;
        }
        Ok(())
    }
}

impl Workload for Singles {
    fn units(&self) -> u64 {
        SINGLES
    }

    fn prepare(&mut self) -> Result<(), Failure> {
        let wanted = matches!(
            self.operation,
            Single::Unmap | Single::UnmapCounted | Single::UnmapSteps
        );
        match (self.mapped, wanted) {
            (false, true) => self.map_all()?,
            (true, false) => self.unmap_all()?,
            _ => {}
        }
        self.mapped = wanted;
        Ok(())
    }

    fn run(&mut self) -> Result<(), Failure> {
        match self.operation {
            Single::Map => self.map_all()?,
            Single::MapIntoOne => {
                let mut owed = Gather::new();
                for i in 0..SINGLES {
                    self.map(i, &mut owed)?;
                }
                black_box(&owed);
            }
            Single::Unmap | Single::UnmapCounted | Single::UnmapSteps => {
                for i in 0..SINGLES {
                    let mut owed = Gather::new();
                    let range = black_box(IovaRange::page(Self::page(i), PageSize::SIZE_4K));
                    self.table.unmap(range, &mut owed)?;
                    match self.operation {
                        Single::UnmapCounted => count_commands(&owed),
                        Single::UnmapSteps => take_steps(&owed),
                        _ => {}
                    }
                    black_box(&owed);
                }
            }
            Single::Cycle => {
                for i in 0..SINGLES {
                    let mut owed = Gather::new();
                    let range = self.map(i, &mut owed)?;
                    take_steps(&owed);
                    unmap_and_pay(&self.table, range)?;
                }
                return Ok(());
            }
        }
        self.mapped = !self.mapped;
        Ok(())
    }
}

/// How far the unmap of a full table goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Finish {
    /// The invalidation is planned and its commands counted.
    Counted,
    /// Each step of the plan is taken.
    Steps,
    /// The debt is synced and the table page given back.
    Reclaimed,
}

struct Full {
    table: Table,
    finish: Finish,
    owed: Vec<Gather>,
    mapped: bool,
}

impl Full {
    fn new(finish: Finish) -> Result<Self, Failure> {
        Ok(Self {
            table: table(FULL_TABLES as u32 + 64)?,
            finish,
            owed: Vec::with_capacity(FULL_TABLES as usize),
            mapped: false,
        })
    }

    fn block(i: u64) -> IovaRange {
        let start = Iova::new(BASE.get() + i * BLOCK);
        black_box(IovaRange::page(start, PageSize::SIZE_2M))
    }
}

impl Workload for Full {
    fn units(&self) -> u64 {
        FULL_TABLES
    }

    fn prepare(&mut self) -> Result<(), Failure> {
        for owed in self.owed.drain(..) {
            pay(&self.table, owed)?;
        }
        if !self.mapped {
            let pa = PhysAddr::new(MEMORY.get() + PAGE);
            for i in 0..FULL_TABLES {
                let mut owed = Gather::new();
                let start = Self::block(i).start();
                self.table.map(start, pa, BLOCK, access(), &mut owed)?;
            }
        }
        if self.finish != Finish::Reclaimed {
            self.owed.resize_with(FULL_TABLES as usize, Gather::new);
        }
        self.mapped = true;
        Ok(())
    }

    fn run(&mut self) -> Result<(), Failure> {
        if !self.mapped {
            return Err(Failure::NotPrepared);
        }
        if self.finish == Finish::Reclaimed {
            for i in 0..FULL_TABLES {
                unmap_and_pay(&self.table, Self::block(i))?;
            }
        }
        for (owed, i) in self.owed.iter_mut().zip(0u64..) {
            self.table.unmap(Self::block(i), owed)?;
            match self.finish {
                Finish::Counted => count_commands(owed),
                Finish::Steps | Finish::Reclaimed => take_steps(owed),
            }
        }
        self.mapped = false;
        Ok(())
    }
}
