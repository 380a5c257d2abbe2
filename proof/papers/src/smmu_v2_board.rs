//! A board with Qualcomm's SMMUv2: the driver on the model of its registers, with caches of the machine's sizes, and
//! the register writes of each way of mapping and unmapping.
//!
//! Counted are the register writes that the model has seen, not those that the driver reports. While the driver waits
//! for an invalidation, the device may go on with accesses of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, bail};
use portolan::addr::{Iova, IovaRange, PageSize, PhysAddr, StreamId};
use portolan::iommu::{self, Attach as _};
use portolan::platform::{Nanos, UnitParts};
use portolan_chips::chips::LS1088A;
use portolan_chips::memory::{ModelMemory, Visibility};
use portolan_chips::smmuv2::{SmmuV2Registers, SmmuV2Setup};
use portolan_hw::smmuv2::{
    Config, FirstStage, Implementation, SmmuV2, SmmuV2DomainOptions, WaitForSafe,
};
use portolan_sim::clock::{PollingClock, Tick};
use portolan_sim::decode::{AccessKind, TableFormat};
use portolan_sim::iommu::Temper;
use portolan_sim::profile::{Event, Profile};

use crate::measure::{
    CallPattern, CarriedOut, Events, MapOrUnmap, MeasuredSpace, Met, measure_in, range,
};
use portolan_tune::counts::CommandCounts;

type Clock = Arc<PollingClock<Arc<Hardware>>>;
/// Parts of the machine.
type Parts = UnitParts<Arc<SmmuV2Registers>, Arc<ModelMemory>, Clock>;
type Iommu = SmmuV2<Parts>;
type Domain = FirstStage<12, Parts>;

/// Span of a leaf table of 4 KiB pages.
pub(crate) const TABLE_SPAN: PageSize = PageSize::SIZE_2M;
/// The device.
const STREAM: StreamId = StreamId::new(1);
/// Longest wait of the driver, in virtual time, in addition to wait-for-safe.
const LIMIT: Nanos = Nanos::from_millis(100);
/// Virtual nanoseconds between two looks at the status; a longer wait is looked at so many times.
const LOOK_NS: u64 = 10;
const LOOKS: u64 = 64;

/// The unit, and the device that accesses its memory while the driver waits.
struct Hardware {
    registers: Arc<SmmuV2Registers>,
    /// First page that the device accesses while the driver waits, and the number of pages; 0 for none.
    busy: [AtomicU64; 2],
    /// Accesses, and successful ones.
    accesses: [AtomicU64; 2],
}

impl Hardware {
    fn touch(&self, iova: Iova) -> bool {
        let moved = self.registers.dma(STREAM, iova, AccessKind::Write, 4);
        moved.is_ok()
    }
}

impl Tick for Hardware {
    /// Lets the device access memory before the unit may notice that it is done.
    fn tick(&self) {
        let [start, pages] = [0, 1].map(|n| self.busy[n].load(Ordering::Relaxed));
        if pages > 0 {
            let number = self.accesses[0].fetch_add(1, Ordering::Relaxed);
            let iova = Iova::new(start + number % pages * PageSize::SIZE_4K.bytes());
            let passed = self.touch(iova).into();
            self.accesses[1].fetch_add(passed, Ordering::Relaxed);
        }
        self.registers.tick();
    }
}

/// A device of a machine, attached to an empty address space.
pub(crate) struct SmmuV2Board {
    hardware: Arc<Hardware>,
    memory: Arc<ModelMemory>,
    domain: Arc<Domain>,
    /// Outlives the domain's use.
    _unit: Iommu,
}

/// Maps or unmaps a scatter list of single pages of `bytes` bytes on `machine`, in the given way,
/// through the driver; invalidations do not wait for real-time devices.
///
/// # Errors
/// As [`measure_in`]; and if the machine's tables are not first-stage tables of 4 KiB pages.
pub(crate) fn measure(
    machine: &Profile,
    direction: MapOrUnmap,
    bytes: u64,
    way: CallPattern,
) -> Result<Events> {
    let leaf_tables = u32::try_from(range(bytes)?.pages(TABLE_SPAN)).context("size")?;
    let space = SmmuV2Board::new(machine, leaf_tables + 32, way, 0)?;
    measure_in(&space, direction, bytes, way.grouping)
}

impl SmmuV2Board {
    /// A board of `machine` with `pages` pages for tables, worked on in the given way. Each
    /// synchronisation waits `safe_ns` for real-time devices.
    ///
    /// # Errors
    /// If the machine has other tables; if the driver refuses, which is a defect.
    pub(crate) fn new(
        machine: &Profile,
        pages: u32,
        way: CallPattern,
        safe_ns: u64,
    ) -> Result<Self> {
        let format = machine.format();
        let (input, output) = (format.input_lg2(), format.output_lg2());
        let fits = TableFormat::armv8_stage1(PageSize::SIZE_4K, input, output);
        if fits != Ok(format) || machine.name() != "sm8150" {
            bail!("the machine `{}` has no Qualcomm SMMUv2; try --machine sm8150", machine.name());
        }
        let setup = SmmuV2Setup {
            temper: Temper::Realistic(machine.caches()),
            safe_ns,
            // 48 bits, and walks that snoop.
            identification: LS1088A.identification.coherent(),
            ..SmmuV2Setup::qualcomm(machine.price(Event::Sync)? as u64)
        };
        let base = PhysAddr::new(1 << 28);
        let memory = Arc::new(ModelMemory::new(base, pages, Visibility::AtOnce));
        let registers = Arc::new(SmmuV2Registers::new(setup, memory.clone()));
        let clock = registers.clock().clone();
        let hardware = Arc::new(Hardware {
            registers: registers.clone(),
            busy: Default::default(),
            accesses: Default::default(),
        });
        let look_ns = LOOK_NS.max(safe_ns / LOOKS);
        let clock = PollingClock::new(clock, look_ns, hardware.clone());
        let mut config = Config::default();
        config.limit = LIMIT;
        config.implementation = Implementation::Qualcomm(match safe_ns {
            0 => WaitForSafe::Off,
            longest => WaitForSafe::On { longest: Nanos::new(longest) },
        });
        let unit =
            SmmuV2::enable(registers, memory.clone(), UnitParts::new(Arc::new(clock)), config)?;
        let mut options = SmmuV2DomainOptions::default();
        options.input_lg2 = Some(input.into());
        options.capabilities = Some(machine.capabilities());
        options.quirks = Some(way.quirks);
        let domain = Arc::new(unit.first_stage(&options)?);
        unit.attach(STREAM, &domain)?;
        Ok(Self { hardware, memory, domain, _unit: unit })
    }

    /// Lets the device access the pages of `range` in turn whenever the driver waits.
    pub(crate) fn keep_busy_in(&self, range: IovaRange) {
        let [start, pages] = &self.hardware.busy;
        start.store(range.start().get(), Ordering::Relaxed);
        pages.store(range.pages(PageSize::SIZE_4K), Ordering::Relaxed);
    }
}

impl MeasuredSpace for SmmuV2Board {
    fn domain(&self) -> &dyn iommu::Domain {
        &*self.domain
    }

    fn table_span(&self) -> PageSize {
        TABLE_SPAN
    }

    fn carried_out(&self) -> CarriedOut {
        let registers = &self.hardware.registers;
        let seen = registers.counts();
        let counts = CommandCounts {
            page: seen.of("TLBIVA") + seen.of("TLBIVAL"),
            range: 0,
            context: seen.of("TLBIASID"),
            sync: seen.of("TLBSYNC") + seen.of("sTLBGSYNC"),
        };
        CarriedOut { counts, waited_ns: registers.clock().now_ns(), ..CarriedOut::default() }
    }

    fn touch(&self, iova: Iova) {
        self.hardware.touch(iova);
    }

    fn met(&self) -> Met {
        let counts = self.hardware.registers.counts();
        Met {
            faults: counts.faults,
            misses: counts.misses,
            reads: counts.walk_steps,
            meanwhile: self.hardware.accesses[1].load(Ordering::Relaxed),
        }
    }

    fn is_sound(&self) -> Result<()> {
        let violations = self.hardware.registers.violations();
        let freed = self.memory.reads_of_freed_pages();
        if violations.is_empty() && freed == 0 {
            return Ok(());
        }
        bail!("the model complains of the driver: {violations:?}, {freed} reads of freed tables")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Grouping;
    use portolan::inval::{Preference, Quirks, WalkFlush};

    /// Writes of each kind for 32 MiB, as the published change counts them.
    #[test]
    fn register_writes_of_32_mib() {
        let machine = Profile::by_name("sm8150").unwrap();
        let seen = |walk_flush, grouping| {
            let quirks = Quirks { walk_flush, preference: Preference::ByPage, ..Quirks::default() };
            let way = CallPattern { grouping, quirks };
            let space = SmmuV2Board::new(&machine, 64, way, 0).unwrap();
            measure_in(&space, MapOrUnmap::Unmap, 32 << 20, grouping).unwrap();
            let counts = space.hardware.registers.counts();
            space.is_sound().unwrap();
            ["TLBIVA", "TLBIVAL", "TLBIASID", "TLBSYNC"].map(|name| counts.of(name))
        };
        let each = Grouping::EachTable;
        assert_eq!(seen(WalkFlush::ByAddress, each), [8192, 0, 0, 16]);
        assert_eq!(seen(WalkFlush::ByContext, each), [0, 0, 16, 16]);
        assert_eq!(seen(WalkFlush::ByContext, Grouping::Whole), [0, 0, 1, 1]);
    }

    /// Each synchronisation waits for wait-for-safe, and the device's accesses continue.
    #[test]
    fn lookups_go_on_while_an_invalidation_waits() {
        let machine = Profile::by_name("sm8150").unwrap();
        let run = |safe_ns| {
            let way = CallPattern::whole(Implementation::Qualcomm(WaitForSafe::Off).quirks());
            let space = SmmuV2Board::new(&machine, 64, way, safe_ns).unwrap();
            let kept = IovaRange::from_len(Iova::new(1 << 31), 16 << 12).unwrap();
            map_kept(&space, kept);
            space.keep_busy_in(kept);
            let events = measure_in(&space, MapOrUnmap::Unmap, 4 << 20, way.grouping).unwrap();
            space.is_sound().unwrap();
            assert_eq!(space.met().faults, 0);
            (events, space.met().meanwhile)
        };
        let ((off, few), (on, many)) = (run(0), run(1_000_000));
        assert_eq!((off.counts, off.counts.sync), (on.counts, 1));
        let longer = on.waited_ns - off.waited_ns;
        assert!((990_000..1_050_000).contains(&longer), "{longer}");
        assert!(few > 0 && many >= 60, "{few} {many}");
    }

    fn map_kept(space: &SmmuV2Board, kept: IovaRange) {
        let memory = PhysAddr::new(0x7000_0000);
        crate::measure::map(space, kept, memory, Grouping::Whole).unwrap();
    }
}
