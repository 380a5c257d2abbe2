//! A board with Tegra's SMMU: the driver on the model of its registers, with caches of the machine's sizes, and the
//! register writes of each way of mapping and unmapping.
//!
//! Nothing here has a price; callers that measure charge the counts.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use anyhow::{Result, bail};
use portolan::addr::{Iova, PageSize, PhysAddr};
use portolan::iommu::{self, Attach as _};
use portolan::platform::{Nanos, UnitParts};
use portolan_chips::memory::{ModelMemory, Visibility};
use portolan_chips::tegra_smmu::{RegisterUse, TegraChip, TegraRegisters, TegraSetup};
use portolan_hw::tegra_smmu::{Chip, Config, TegraDomain, TegraSmmu};
use portolan_sim::clock::PollingClock;
use portolan_sim::decode::AccessKind;
use portolan_sim::iommu::Temper;
use portolan_sim::profile::Profile;
use portolan_sim::tables::Lag;

use crate::measure::{self, CallPattern, CarriedOut, Events, Met};
use portolan_tune::counts::{CommandCounts, RegisterWrites};

type Memory = Arc<ModelMemory<AtomicU32>>;
type Clock = Arc<PollingClock<Arc<TegraRegisters>>>;
/// Parts of the machine.
type Parts = UnitParts<Arc<TegraRegisters>, Memory, Clock>;
type Smmu = TegraSmmu<Parts>;
type Domain = TegraDomain<Parts>;

/// Span of a page table.
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
        let setup =
            TegraSetup { temper: Temper::Realistic(profile.caches()), ..TegraSetup::of(model) };
        let registers = Arc::new(TegraRegisters::new(setup, memory.clone()));
        let clock = PollingClock::new(registers.clock().clone(), LOOK_NS, registers.clone());
        let mut config = Config::of(chip);
        config.limit = Nanos::from_millis(5);
        let smmu = TegraSmmu::enable(
            registers.clone(),
            memory.clone(),
            UnitParts::new(Arc::new(clock)),
            config,
        )?;
        Ok(Self { model: registers, memory, smmu, chip: model })
    }

    /// A domain that the camera is attached to, worked on in the given way.
    ///
    /// # Errors
    /// If the driver refuses, which is a defect.
    pub(crate) fn camera(&self, way: CallPattern) -> Result<TegraSpace<'_>> {
        let domain = Arc::new(self.smmu.domain_with(way.quirks)?);
        self.smmu.attach(self.chip.camera(), &domain)?;
        Ok(TegraSpace { board: self, domain })
    }

    /// Takes `space` down: blocks its device, and gives the address space up with all its mappings. Returns the
    /// counts of that.
    ///
    /// # Errors
    /// If the driver refuses, which is a defect.
    pub(crate) fn tear_down(&self, space: TegraSpace<'_>) -> Result<Events> {
        use iommu::Iommu as _;
        self.is_sound()?;
        let (before, tables) = (self.carried_out(), self.memory.live());
        self.smmu.block(self.chip.camera())?;
        drop(space);
        self.is_sound()?;
        let after = self.carried_out();
        let registers = after.registers.zip(before.registers);
        Ok(Events {
            tables: (tables - self.memory.live()) as u64,
            lines: after.lines - before.lines,
            counts: after.counts.since(before.counts),
            registers: registers.map(|(after, before)| after.since(before)),
            ..Events::default()
        })
    }

    fn is_sound(&self) -> Result<()> {
        let violations = self.model.violations();
        let freed = self.memory.reads_of_freed_pages();
        if violations.is_empty() && freed == 0 {
            return Ok(());
        }
        bail!("the model complains of the driver: {violations:?}, {freed} reads of freed tables")
    }

    fn carried_out(&self) -> CarriedOut {
        let seen = self.model.counts();
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
            counts: CommandCounts {
                page: registers.tlb_flush_group,
                range: registers.tlb_flush_section,
                context: registers.tlb_flush_asid,
                sync: registers.read_backs,
            },
            lines: self.memory.cleaned_lines(),
            registers: Some(registers),
            ..CarriedOut::default()
        }
    }
}

/// An address space on a board.
pub(crate) struct TegraSpace<'b> {
    board: &'b Board,
    domain: Arc<Domain>,
}

impl measure::MeasuredSpace for TegraSpace<'_> {
    fn domain(&self) -> &dyn iommu::Domain {
        &*self.domain
    }

    fn table_span(&self) -> PageSize {
        TABLE
    }

    fn carried_out(&self) -> CarriedOut {
        self.board.carried_out()
    }

    fn touch(&self, iova: Iova) {
        let camera = self.board.chip.camera();
        let _ = self.board.model.dma(camera, iova, AccessKind::Write, 4);
    }

    fn met(&self) -> Met {
        let counts = self.board.model.counts();
        Met { faults: counts.faults, misses: counts.misses, reads: counts.line_reads, meanwhile: 0 }
    }

    fn is_sound(&self) -> Result<()> {
        self.board.is_sound()
    }
}
