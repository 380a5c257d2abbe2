//! A board with Tegra's SMMU: the driver on the model of its registers, with caches of the machine's
//! sizes, and what each way of mapping and unmapping makes it write.
//!
//! Nothing here has a price; whoever measures charges what was counted.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use anyhow::{Result, bail};
use portolan::addr::{Iova, IovaRange, PageSize, PhysAddr};
use portolan::iommu::{self, Attach as _};
use portolan::platform::Nanos;
use portolan_hw::tegra_smmu::{Chip, Config, TegraDomain, TegraSmmu};
use portolan_model::clock::PollingClock;
use portolan_model::decode::AccessKind;
use portolan_model::iommu::Temper;
use portolan_model::memory::{ModelMemory, Visibility};
use portolan_model::profile::Profile;
use portolan_model::tables::Lag;
use portolan_model::tegra_smmu::{RegisterUse, TegraChip, TegraCounts, TegraRegisters, TegraSetup};

use crate::counts::{Counts, RegisterWrites};
use crate::measure::{self, CarriedOut, Way};

type Memory = Arc<ModelMemory<AtomicU32>>;
type Clock = Arc<PollingClock<Arc<TegraRegisters>>>;
type Smmu = TegraSmmu<Arc<TegraRegisters>, Memory, Clock>;
type Domain = TegraDomain<Arc<TegraRegisters>, Memory, Clock>;

const PAGE: PageSize = PageSize::SIZE_4K;
/// What a page table spans.
pub(crate) const TABLE: PageSize = PageSize::of_lg2(22);

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
        let mut config = Config::of(chip);
        config.limit = Nanos::from_millis(5);
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
}

impl Space<'_> {
    /// Has the camera write once to each page of `range`; a fault is counted by the model.
    pub(crate) fn fill(&self, range: IovaRange) {
        let camera = self.board.chip.camera();
        for page in 0..range.pages(PAGE) {
            let iova = Iova::new(range.start().get() + page * PAGE.bytes());
            let _ = self.board.model.dma(camera, iova, AccessKind::Write, 4);
        }
    }
}

impl measure::Space for Space<'_> {
    fn domain(&self) -> &dyn iommu::Domain {
        &*self.domain
    }

    fn table_span(&self) -> PageSize {
        TABLE
    }

    fn carried_out(&self) -> CarriedOut {
        let seen = self.board.model.counts();
        let registers = RegisterWrites {
            writes: seen.writes(),
            ptc_flush_all: seen.of(RegisterUse::PtcFlushAll),
            ptc_flush_hi: seen.of(RegisterUse::PtcFlushHi),
            ptc_flush_line: seen.of(RegisterUse::PtcFlushLine),
            tlb_flush_asid: seen.of(RegisterUse::TlbFlushAsid),
            tlb_flush_section: seen.of(RegisterUse::TlbFlushSection),
            tlb_flush_group: seen.of(RegisterUse::TlbFlushGroup),
            read_backs: seen.of(RegisterUse::ReadBack),
        };
        CarriedOut {
            counts: Counts {
                page: registers.tlb_flush_group,
                range: registers.tlb_flush_section,
                context: registers.tlb_flush_asid,
                sync: registers.read_backs,
            },
            lines: self.board.memory.cleaned_lines(),
            registers: Some(registers),
        }
    }
}
