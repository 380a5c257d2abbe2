//! Measurements through a driver: Qualcomm's SMMUv2 by its registers, on the model.
//!
//! What is counted are the register writes that the model has seen, not what the driver says.

use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use portolan::addr::{PageSize, PhysAddr, StreamId};
use portolan::iommu::{self, Attach as _};
use portolan::platform::Nanos;
use portolan_hw::smmuv2::{Config, DomainOptions, FirstStage, Implementation, SmmuV2, WaitForSafe};
use portolan_model::clock::PollingClock;
use portolan_model::iommu::Temper;
use portolan_model::memory::{ModelMemory, Visibility};
use portolan_model::profile::{Event, Profile};
use portolan_model::smmuv2::{SmmuV2Registers, SmmuV2Setup};

use crate::counts::Counts;
use crate::measure::{CarriedOut, Direction, Events, Space, Way, measure_in, range};

type Clock = Arc<PollingClock<Arc<SmmuV2Registers>>>;
type Iommu = SmmuV2<Arc<SmmuV2Registers>, Arc<ModelMemory>, Clock>;
type Domain = FirstStage<12, Arc<SmmuV2Registers>, Arc<ModelMemory>, Clock>;

/// What a leaf table of 4 KiB pages spans.
pub const TABLE_SPAN: PageSize = PageSize::SIZE_2M;
/// The device.
const STREAM: StreamId = StreamId::new(1);
/// Longest wait of the driver, in virtual time.
const LIMIT: Nanos = Nanos::from_millis(100);
/// Virtual nanoseconds between two looks at the status.
const LOOK_NS: u64 = 10;

/// A device of `machine`, attached to an empty address space.
struct ThroughDriver {
    registers: Arc<SmmuV2Registers>,
    domain: Arc<Domain>,
    /// Outlives the domain's use.
    _unit: Iommu,
}

/// Maps or unmaps a scatter list of single pages of `bytes` bytes on `machine`, in the given way,
/// through the driver.
///
/// # Errors
/// As [`measure_in`]; and if the machine's tables are not first-stage tables of 4 KiB pages.
pub fn measure(machine: &Profile, direction: Direction, bytes: u64, way: Way) -> Result<Events> {
    let leaf_tables = u32::try_from(range(bytes)?.pages(TABLE_SPAN)).context("size")?;
    let space = ThroughDriver::new(machine, leaf_tables + 32, way)?;
    measure_in(&space, direction, bytes, way.grouping)
}

impl ThroughDriver {
    fn new(machine: &Profile, pages: u32, way: Way) -> Result<Self> {
        let format = machine.format();
        let fits = portolan_model::decode::TableFormat::armv8_stage1(
            PageSize::SIZE_4K,
            format.input_lg2(),
            format.output_lg2(),
        );
        if fits != Ok(format) {
            return Err(anyhow!("{}: not tables of this driver", machine.name()));
        }
        let setup = SmmuV2Setup {
            temper: Temper::Realistic(machine.caches()),
            ..SmmuV2Setup::qualcomm(machine.price(Event::Sync)? as u64)
        };
        let base = PhysAddr::new(1 << 28);
        let memory = Arc::new(ModelMemory::new(base, pages, Visibility::AtOnce));
        let registers = Arc::new(SmmuV2Registers::new(setup, memory.clone()));
        let clock = PollingClock::new(registers.clock().clone(), LOOK_NS, registers.clone());
        let mut config = Config::default();
        config.limit = LIMIT;
        config.implementation = Implementation::Qualcomm(WaitForSafe::Off);
        let unit = SmmuV2::enable(registers.clone(), memory, Arc::new(clock), config)?;
        let mut options = DomainOptions::default();
        options.input_lg2 = Some(format.input_lg2().into());
        options.capabilities = Some(machine.capabilities());
        options.quirks = Some(way.quirks);
        let domain = Arc::new(unit.first_stage(&options)?);
        unit.attach(STREAM, &domain)?;
        Ok(Self {
            registers,
            domain,
            _unit: unit,
        })
    }
}

impl Space for ThroughDriver {
    fn domain(&self) -> &dyn iommu::Domain {
        &*self.domain
    }

    fn table_span(&self) -> PageSize {
        TABLE_SPAN
    }

    fn carried_out(&self) -> CarriedOut {
        let seen = self.registers.counts();
        let counts = Counts {
            page: seen.of("TLBIVA") + seen.of("TLBIVAL"),
            range: 0,
            context: seen.of("TLBIASID"),
            sync: seen.of("TLBSYNC") + seen.of("sTLBGSYNC"),
        };
        CarriedOut {
            counts,
            ..CarriedOut::default()
        }
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
            let quirks = Quirks {
                walk_flush,
                preference: Preference::ByPage,
                ..Quirks::default()
            };
            let way = Way { grouping, quirks };
            let space = ThroughDriver::new(&machine, 64, way).unwrap();
            measure_in(&space, Direction::Unmap, 32 << 20, grouping).unwrap();
            let counts = space.registers.counts();
            assert_eq!(space.registers.violations(), []);
            ["TLBIVA", "TLBIVAL", "TLBIASID", "TLBSYNC"].map(|name| counts.of(name))
        };
        let each = Grouping::EachTable;
        assert_eq!(seen(WalkFlush::ByAddress, each), [8192, 0, 0, 16]);
        assert_eq!(seen(WalkFlush::ByContext, each), [0, 0, 16, 16]);
        assert_eq!(seen(WalkFlush::ByContext, Grouping::Whole), [0, 0, 1, 1]);
    }
}
