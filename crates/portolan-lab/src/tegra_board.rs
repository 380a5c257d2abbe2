//! A board with Tegra's SMMU: the driver on the model of its registers, with caches of the machine's
//! sizes, and what each way of mapping and unmapping makes it write.
//!
//! Nothing here has a price; whoever measures charges what was counted.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use anyhow::{Result, anyhow, bail};
use portolan::addr::{Iova, IovaRange, PageSize, PhysAddr, PhysRange};
use portolan::inval::Gather;
use portolan::iommu::{Attach as _, Domain as _};
use portolan::platform::Nanos;
use portolan::table::{Access, Segment};
use portolan_hw::tegra_smmu::{Chip, Config, TegraDomain, TegraSmmu};
use portolan_model::clock::PollingClock;
use portolan_model::decode::AccessKind;
use portolan_model::iommu::Temper;
use portolan_model::memory::{ModelMemory, Visibility};
use portolan_model::profile::Profile;
use portolan_model::tables::Lag;
use portolan_model::tegra_smmu::{RegisterUse, TegraChip, TegraCounts, TegraRegisters, TegraSetup};

use crate::reproduce::{Counts, Events, Grouping, RegisterWrites, Way};

type Memory = Arc<ModelMemory<AtomicU32>>;
type Clock = Arc<PollingClock<Arc<TegraRegisters>>>;
type Smmu = TegraSmmu<Arc<TegraRegisters>, Memory, Clock>;
type Domain = TegraDomain<Arc<TegraRegisters>, Memory, Clock>;

const PAGE: PageSize = PageSize::SIZE_4K;
/// What a page table spans.
const TABLE: PageSize = PageSize::of_lg2(22);
const RW: Access = Access::READ.union(Access::WRITE);

/// A board with one SMMU.
pub(crate) struct Board {
    model: Arc<TegraRegisters>,
    memory: Memory,
    smmu: Smmu,
    chip: TegraChip,
}

/// The chip of a machine, as the driver and the model name it, and where its tables are.
fn chip(profile: &Profile) -> Result<(Chip, TegraChip, PhysAddr)> {
    let low = PhysAddr::new(0x8000_0000);
    Ok(match profile.name() {
        "tegra30" => (Chip::Tegra30, TegraChip::Tegra30, low),
        "tegra114" => (Chip::Tegra114, TegraChip::Tegra114, low),
        "tegra124" => (Chip::Tegra124, TegraChip::Tegra124, low),
        "tegra210" => {
            let high = PhysAddr::new(0x2_8000_0000);
            (Chip::Tegra210, TegraChip::Tegra210, high)
        }
        other => bail!("the machine `{other}` has no Tegra SMMU; try --machine tegra210"),
    })
}

impl Board {
    /// The board of `profile`, with `tables` pages for tables.
    ///
    /// # Errors
    /// If the machine is another, or the driver does not take the model over, which is a defect.
    pub(crate) fn new(profile: &Profile, tables: u32) -> Result<Self> {
        /// Nanoseconds between two looks of a waiting driver.
        const LOOK_NS: u64 = 100;
        let (chip, model, base) = chip(profile)?;
        let late = Visibility::Late(Lag::CacheLines);
        let memory = Arc::new(ModelMemory::narrow(base, tables, late));
        let setup = TegraSetup {
            temper: Temper::Realistic(profile.caches()),
            ..TegraSetup::of(model)
        };
        let registers = Arc::new(TegraRegisters::new(setup, memory.clone()));
        let clock = PollingClock::new(registers.clock().clone(), LOOK_NS, registers.clone());
        let config = Config {
            limit: Nanos::from_millis(5),
            ..Config::of(chip)
        };
        let smmu = TegraSmmu::enable(registers.clone(), memory.clone(), Arc::new(clock), config)?;
        Ok(Self {
            model: registers,
            memory,
            smmu,
            chip: model,
        })
    }

    /// A domain that the camera is attached to, worked on in the given way.
    ///
    /// # Errors
    /// If the driver refuses, which is a defect.
    pub(crate) fn camera(&self, way: Way) -> Result<Space<'_>> {
        let domain = Arc::new(self.smmu.domain_with(way.quirks)?);
        self.smmu.attach(self.chip.camera(), &domain)?;
        Ok(Space {
            board: self,
            domain,
            grouping: way.grouping,
        })
    }

    /// What happened so far.
    pub(crate) fn counts(&self) -> TegraCounts {
        self.model.counts()
    }

    /// What the driver did that it must not do: nothing, or it is a defect.
    ///
    /// # Errors
    /// Saying what.
    pub(crate) fn is_sound(&self) -> Result<()> {
        let violations = self.model.violations();
        let freed = self.memory.reads_of_freed_pages();
        if violations.is_empty() && freed == 0 {
            return Ok(());
        }
        bail!("the model complains of the driver: {violations:?}, {freed} reads of freed tables")
    }
}

/// An address space on a board.
pub(crate) struct Space<'b> {
    board: &'b Board,
    domain: Arc<Domain>,
    grouping: Grouping,
}

impl Space<'_> {
    /// Maps the pages that `place` gives, one by one, at `range`.
    ///
    /// # Errors
    /// If the driver or the model refuses.
    pub(crate) fn map(&self, range: IovaRange, place: impl Fn(u64) -> PhysAddr) -> Result<Events> {
        let pages = range.pages(PAGE);
        let piece = |page| Segment {
            pa: place(page),
            bytes: PAGE.bytes(),
        };
        let mut meter = Meter::new(self);
        let mut owed = Gather::new();
        match self.grouping {
            Grouping::EachPage | Grouping::PagesTogether => {
                for page in 0..pages {
                    let iova = Iova::new(range.start().get() + page * PAGE.bytes());
                    let at = piece(page);
                    self.domain.map(iova, at.pa, at.bytes, RW, &mut owed)?;
                    meter.events.single_pages += 1;
                    if self.grouping == Grouping::EachPage {
                        meter.pay(std::mem::take(&mut owed))?;
                    }
                }
            }
            Grouping::EachTable | Grouping::Whole => {
                let list = (0..pages).filter_map(|page| {
                    let at = piece(page);
                    PhysRange::from_len(at.pa, at.bytes)
                });
                let list: Vec<_> = list.collect();
                self.domain.map_sg(range.start(), &list, RW, &mut owed)?;
                meter.events.run_pages += pages;
            }
        }
        meter.pay(owed)?;
        Ok(meter.finish())
    }

    /// Unmaps `range`.
    ///
    /// # Errors
    /// If the driver or the model refuses.
    pub(crate) fn unmap(&self, range: IovaRange) -> Result<Events> {
        let step = match self.grouping {
            Grouping::EachPage | Grouping::PagesTogether => PAGE.bytes(),
            Grouping::EachTable => TABLE.bytes(),
            Grouping::Whole => range.len_minus_one() + 1,
        };
        let mut meter = Meter::new(self);
        let mut owed = Gather::new();
        let mut at = Some(range.start());
        while let Some(start) = at.filter(|start| *start <= range.last()) {
            let part = IovaRange::from_len(start, step)
                .and_then(|part| part.intersection(range))
                .ok_or_else(|| anyhow!("{step} bytes at {start} are no range"))?;
            self.domain.unmap(part, &mut owed)?;
            match self.grouping {
                Grouping::EachPage | Grouping::PagesTogether => meter.events.single_pages += 1,
                _ => meter.events.run_pages += part.pages(PAGE),
            }
            if matches!(self.grouping, Grouping::EachPage | Grouping::EachTable) {
                meter.pay(std::mem::take(&mut owed))?;
            }
            at = part.last().checked_add(1);
        }
        meter.pay(owed)?;
        Ok(meter.finish())
    }

    /// Has the camera write once to each page of `range`; a fault is counted by the model.
    pub(crate) fn fill(&self, range: IovaRange) {
        let camera = self.board.chip.camera();
        for page in 0..range.pages(PAGE) {
            let iova = Iova::new(range.start().get() + page * PAGE.bytes());
            let _ = self.board.model.dma(camera, iova, AccessKind::Write, 4);
        }
    }
}

/// Pays debts through the driver and says what that took.
struct Meter<'a> {
    space: &'a Space<'a>,
    before: TegraCounts,
    lines: u64,
    events: Events,
}

impl<'a> Meter<'a> {
    fn new(space: &'a Space<'a>) -> Self {
        Self {
            space,
            before: space.board.model.counts(),
            lines: space.board.memory.cleaned_lines(),
            events: Events {
                calls: 1,
                ..Events::default()
            },
        }
    }

    fn pay(&mut self, mut owed: Gather) -> Result<()> {
        self.events.tables += owed.table_pages() as u64;
        let paid = self.space.domain.sync(&mut owed);
        paid.map_err(|error| anyhow!("the driver could not flush: {error}"))
    }

    fn finish(mut self) -> Events {
        let after = self.space.board.model.counts();
        let of = |what| after.of(what) - self.before.of(what);
        let registers = RegisterWrites {
            writes: after.writes() - self.before.writes(),
            ptc_flush_all: of(RegisterUse::PtcFlushAll),
            ptc_flush_hi: of(RegisterUse::PtcFlushHi),
            ptc_flush_line: of(RegisterUse::PtcFlushLine),
            tlb_flush_asid: of(RegisterUse::TlbFlushAsid),
            tlb_flush_section: of(RegisterUse::TlbFlushSection),
            tlb_flush_group: of(RegisterUse::TlbFlushGroup),
            read_backs: of(RegisterUse::ReadBack),
        };
        self.events.lines = self.space.board.memory.cleaned_lines() - self.lines;
        self.events.counts = Counts {
            page: registers.tlb_flush_group,
            range: registers.tlb_flush_section,
            context: registers.tlb_flush_asid,
            sync: registers.read_backs,
        };
        self.events.registers = Some(registers);
        self.events
    }
}
