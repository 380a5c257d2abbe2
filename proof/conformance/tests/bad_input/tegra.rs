//! Tegra's SMMU, which has no queue that could stand still or refuse anything: gone at any access,
//! registers that tell nonsense, streams that it does not have.

use crate::promised::{all_memory, promised};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use portolan::addr::{Iova, IovaRange, PhysAddr, StreamId};
use portolan::inval::Gather;
use portolan::iommu::{Attach, AttachError, Domain, Iommu as _, IommuError};
use portolan::platform::{Nanos, UnitParts};
use portolan::table::Access;
use portolan_chips::inject::RegisterFaults;
use portolan_chips::memory::{ModelMemory, Visibility};
use portolan_chips::tegra_smmu::{TegraRegisters, TegraSetup};
use portolan_hw::tegra_smmu::{Chip, Config, TegraDomain, TegraSmmu};
use portolan_sim::clock::PollingClock;
use portolan_sim::decode::AccessKind;
use portolan_sim::tables::Lag;
use portolan_verify::backend::tegra::{Memory, model_of};

use crate::rig::{self, Driver, Iommu as _, ModelClock, Regs, Time};

const LIMIT: Nanos = Nanos::from_millis(1);
const LOOK_NS: u64 = 1_000;
const BASE: Iova = Iova::new(0x4000_0000);
const CHIP: Chip = Chip::Tegra210;
const LATE: Visibility = Visibility::Late(Lag::CacheLines);

/// Two devices of the model that read and write.
const fn streams(chip: Chip) -> [StreamId; 2] {
    let [first, second, _] = model_of(chip).0.clients();
    [first.stream, second.stream]
}

pub struct Tegra;

impl Driver for Tegra {
    const NAME: &'static str = "Tegra's SMMU";
    /// Bytes up to the end of the registers that are read: faults, configuration, address spaces.
    const IDENTIFICATION: usize = 0x2a0;
    const MEMORY: (PhysAddr, Visibility) = (model_of(CHIP).1, LATE);
    const PAGES: u32 = 64;
    const STREAMS: [StreamId; 2] = streams(CHIP);
    const MAPPED: u64 = 5 << 20;
    type Word = AtomicU32;
    type Iommu = TegraRegisters;
    type Driver<R: Regs, C: Time> = TegraSmmu<UnitParts<R, Memory, C>>;
    type Domain<R: Regs, C: Time> = TegraDomain<UnitParts<R, Memory, C>>;

    fn unit(memory: Memory) -> TegraRegisters {
        TegraRegisters::new(TegraSetup::of(model_of(CHIP).0), memory)
    }

    fn enable<R: Regs, C: Time>(
        regs: R,
        memory: Memory,
        clock: C,
    ) -> Result<Self::Driver<R, C>, IommuError> {
        enable(CHIP, regs, memory, clock)
    }

    fn domain<R: Regs, C: Time>(
        driver: &Self::Driver<R, C>,
    ) -> Result<Self::Domain<R, C>, IommuError> {
        driver.domain()
    }

    /// Keeps translation on, so there is nothing to wait for.
    fn close<R: Regs, C: Time>(driver: Self::Driver<R, C>) -> Result<(), IommuError> {
        drop(driver);
        Ok(())
    }
}

crate::of! {
    Tegra: every_driver {
        never_acknowledges()
        nonsense_in_registers()
    }
}

/// The driver on the model.
type Taken = TegraSmmu<UnitParts<Arc<TegraRegisters>, Memory, ModelClock<TegraRegisters>>>;

struct Bench {
    chip: Chip,
    unit: Arc<TegraRegisters>,
    memory: Memory,
}

impl Bench {
    fn new(chip: Chip) -> Self {
        let (model, base) = model_of(chip);
        let memory = Arc::new(ModelMemory::narrow(base, 64, LATE).checked());
        let unit = TegraRegisters::new(TegraSetup::of(model), memory.clone());
        let unit = Arc::new(unit);
        Self { chip, unit, memory }
    }

    /// Takes the unit over with the driver.
    fn enable(&self) -> Result<Taken, IommuError> {
        enable(self.chip, self.unit.clone(), self.memory.clone(), self.clock())
    }

    fn clock(&self) -> ModelClock<TegraRegisters> {
        let clock = self.unit.clock().clone();
        Arc::new(PollingClock::new(clock, LOOK_NS, self.unit.clone()))
    }

    fn is_sound(&self) {
        assert_eq!(self.unit.violations(), []);
        assert_eq!(self.memory.reads_of_freed_pages(), 0);
    }
}

fn enable<R: Regs, C: Time>(
    chip: Chip,
    regs: R,
    memory: Memory,
    clock: C,
) -> Result<TegraSmmu<UnitParts<R, Memory, C>>, IommuError> {
    let mut config = Config::of(chip);
    config.limit = LIMIT;
    TegraSmmu::enable(regs, memory, UnitParts::new(clock), config)
}

/// Gone, it translates nothing, and the driver finds out from the values that it reads, without any wait.
#[test]
fn gone_from_any_access() {
    let mut told = 0;
    for n in 1.. {
        let bench = rig::Bench::<Tegra>::new();
        bench.unit.inject(RegisterFaults { gone_from: Some(n), ..RegisterFaults::default() });
        let errors = match bench.enable() {
            Ok(smmu) => bench.everything_without_help(&smmu),
            Err(error) => vec![error],
        };
        if bench.unit.accesses() < n {
            assert_eq!(errors, []);
            assert_ne!(bench.memory.steps(), 0, "no step of its tables is told");
            break;
        }
        assert!(!bench.is_reached(), "access {n}");
        let gone = |error: &IommuError| *error == IommuError::Gone;
        assert!(errors.iter().all(gone), "access {n}: {errors:?}");
        told += u64::from(!errors.is_empty());
        bench.is_sound();
        assert!(bench.unit.now_ns() < LIMIT.get(), "access {n}");
    }
    println!("told of {told} departures");
    assert!(told > 100);
}

#[test]
fn swgroups_that_it_does_not_have() {
    for chip in Chip::ALL {
        let bench = Bench::new(chip);
        let smmu = bench.enable().expect("a unit");
        let domain = Arc::new(smmu.domain().expect("a domain"));
        let before = bench.unit.accesses();
        let mut unknown = 0;
        for number in (0..300).chain([1 << 16, u32::MAX]) {
            let stream = StreamId::new(number);
            if chip.swgroup(stream).is_some() {
                continue;
            }
            unknown += 1;
            let refused = Err(AttachError::NoSuchStream { stream });
            assert_eq!(smmu.attach(stream, &domain), refused);
            assert_eq!(smmu.block(stream), refused);
            assert_eq!(smmu.pass_through(stream, all_memory()), refused);
        }
        assert!(unknown > 200 && bench.unit.accesses() == before);
        // Those of another unit fit neither.
        let elsewhere = Bench::new(chip);
        let other = elsewhere.enable().expect("a unit");
        let moved = other.attach(streams(chip)[0], &domain);
        assert_eq!(moved, Err(AttachError::Mismatch));
    }
}

/// A table that leaves the tree is forgotten before its page is used again: all of its lines.
#[test]
fn a_page_of_a_table_is_used_again() {
    for chip in Chip::ALL {
        let bench = Bench::new(chip);
        let smmu = bench.enable().expect("a unit");
        let domain = Arc::new(smmu.domain().expect("a domain"));
        let stream = streams(chip)[0];
        smmu.attach(stream, &domain).expect("attached");
        let rw = Access::READ | Access::WRITE;
        // A page off a section, which would take no table.
        let old = PhysAddr::new(0x9000_1000);
        let new = PhysAddr::new(0xa000_0000);
        let map = |pa, bytes| {
            let mut owed = Gather::new();
            domain.map(BASE, promised(pa, bytes), rw, &mut owed).expect("mapped");
            domain.sync(&mut owed).map_err(IommuError::from).expect("paid");
        };
        let reach = |page: u64| {
            let iova = Iova::new(BASE.get() + page * 4096);
            let done = bench.unit.dma(stream, iova, AccessKind::Read, 4);
            done.ok().map(|pieces| pieces[0].pa)
        };
        map(old, 4 << 20);
        for page in 0..1024 {
            assert_eq!(reach(page), old.checked_add(page * 4096));
        }
        let mut owed = Gather::new();
        let range = IovaRange::from_len(BASE, 4 << 20).expect("a range");
        domain.unmap(range, &mut owed).expect("unmapped");
        assert_eq!(owed.table_pages(), 1);
        domain.sync(&mut owed).map_err(IommuError::from).expect("paid");
        assert_eq!(reach(77), None);
        // The next table is in the same page, whose other entries must not be the old ones.
        map(new, 4096);
        assert_eq!((reach(0), reach(1), reach(77)), (Some(new), None, None));
        bench.is_sound();
    }
}
