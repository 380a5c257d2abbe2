//! Drivers on the model, and a run of everything that they can be asked for.

use crate::promised::{all_memory, promised};
use portolan_chips::chips::{RAVEN_RIDGE, SKYLAKE_SP};
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use portolan::addr::{Iova, IovaRange, PhysAddr, StreamId};
use portolan::inval::Gather;
use portolan::iommu::{Attach, AttachError, Domain, IommuError};
use portolan::platform::{Cpus, Mmio, Nanos, UnitParts, Word};
use portolan::table::Access;
use portolan::table::format::RiscvLevels;
use portolan_chips::amd::{AmdIdentification, AmdRegisters, AmdSetup};
use portolan_chips::inject::{DmaFault, Piece, RegisterFaults, Violation};
use portolan_chips::memory::{ModelMemory, Visibility};
use portolan_chips::riscv::{RiscvIdentification, RiscvRegisters, RiscvSetup};
use portolan_chips::smmuv3::{SmmuIdentification, SmmuRegisters, SmmuSetup};
use portolan_chips::tegra_smmu::TegraRegisters;
use portolan_chips::vtd::{VtdRegisters, VtdSetup};
use portolan_hw::{amd, riscv, smmuv3, vtd};
use portolan_sim::clock::{PollingClock, Tick, VirtualClock};
use portolan_sim::decode::AccessKind;

const LIMIT: Nanos = Nanos::from_millis(1);
const LOOK_NS: u64 = 1_000;
const BASE: Iova = Iova::new(0x4000_0000);
const PAGE: u64 = 4096;
const READ: AccessKind = AccessKind::Read;

/// A unit of the model.
pub trait Iommu: Mmio + Tick + 'static {
    fn inject(&self, faults: RegisterFaults);
    fn accesses(&self) -> u64;
    /// Commands taken so far, refused ones too; of a unit without a queue, writes.
    fn consumed(&self) -> u64;
    fn clock(&self) -> &Arc<VirtualClock>;
    fn now_ns(&self) -> u64 {
        Iommu::clock(self).now_ns()
    }
    fn violations(&self) -> Vec<Violation>;
    fn reaches(&self, stream: StreamId, iova: Iova) -> bool;
}

/// Lets a device access a unit.
pub type Dma<U> = fn(&U, StreamId, Iova) -> Result<Vec<Piece>, DmaFault>;

macro_rules! units {
    ($($unit:ty: $consumed:expr, $dma:expr;)*) => {$(
        impl $crate::rig::Iommu for $unit {
            fn inject(&self, faults: RegisterFaults) {
                self.inject(faults);
            }
            fn accesses(&self) -> u64 {
                self.accesses()
            }
            fn consumed(&self) -> u64 {
                let consumed: fn(&Self) -> u64 = $consumed;
                consumed(self)
            }
            fn clock(&self) -> &Arc<VirtualClock> {
                self.clock()
            }
            fn violations(&self) -> Vec<Violation> {
                self.violations()
            }
            fn reaches(&self, stream: StreamId, iova: Iova) -> bool {
                let dma: $crate::rig::Dma<Self> = $dma;
                dma(self, stream, iova).is_ok()
            }
        }
    )*};
}

pub(crate) use units;

units! {
    VtdRegisters: Self::consumed, |unit, stream, iova| unit.dma(stream, None, iova, READ, 4);
    SmmuRegisters: Self::consumed, |unit, stream, iova| unit.dma(stream, None, iova, READ, 4);
    AmdRegisters: Self::consumed, |unit, stream, iova| unit.dma(stream, iova, READ, 4);
    RiscvRegisters: Self::consumed, |unit, stream, iova| unit.dma(stream, None, iova, READ, 4);
    TegraRegisters: |unit| unit.counts().writes(), |unit, stream, iova| {
        unit.dma(stream, iova, READ, 4)
    };
}

/// Registers that a driver takes.
pub trait Regs: Mmio + 'static {}
impl<R: Mmio + 'static> Regs for R {}

/// A clock that a driver takes.
pub trait Time: Cpus {}
impl<C: Cpus> Time for C {}

pub type ModelClock<U> = Arc<PollingClock<Arc<U>>>;

/// A driver in one of its modes.
pub trait Driver {
    const NAME: &'static str;
    const LIMIT: Nanos = LIMIT;
    /// Bytes of registers that identify the unit.
    const IDENTIFICATION: usize;
    /// Registers that the driver reads back once it has set them: tables' addresses.
    const BASES: &[usize] = &[];
    /// First address of memory, and the visibility of stores to it.
    const MEMORY: (PhysAddr, Visibility) = (PhysAddr::new(0x8000_0000), Visibility::AtOnce);
    /// Pages of it.
    const PAGES: u32 = 1 << 12;
    /// The two existing streams.
    const STREAMS: [StreamId; 2] = [StreamId::new(0x20), StreamId::new(0x128)];
    /// Bytes that are mapped.
    const MAPPED: u64 = 5 * PAGE;
    type Word: Word;
    type Iommu: Iommu;
    type Driver<R: Regs, C: Time>: portolan::iommu::Iommu + Attach<Self::Domain<R, C>>;
    type Domain<R: Regs, C: Time>: Domain;

    fn unit(memory: Arc<ModelMemory<Self::Word>>) -> Self::Iommu;
    fn enable<R: Regs, C: Time>(
        regs: R,
        memory: Arc<ModelMemory<Self::Word>>,
        clock: C,
    ) -> Result<Self::Driver<R, C>, IommuError>;
    fn domain<R: Regs, C: Time>(
        driver: &Self::Driver<R, C>,
    ) -> Result<Self::Domain<R, C>, IommuError>;
    fn close<R: Regs, C: Time>(driver: Self::Driver<R, C>) -> Result<(), IommuError>;
}

macro_rules! vtd {
    ($($name:ident: $text:literal, $identification:expr, $mode:ident, $way:ident;)*) => {$(
        pub struct $name;

        impl Driver for $name {
            const NAME: &'static str = $text;
            const IDENTIFICATION: usize = 0x18;
            const BASES: &[usize] = &[0x20, 0xb8];
            type Word = AtomicU64;
            type Iommu = VtdRegisters;
            type Driver<R: Regs, C: Time> =
                vtd::Vtd<UnitParts<R, Arc<ModelMemory>, C>>;
            type Domain<R: Regs, C: Time> =
                vtd::SecondDomain<UnitParts<R, Arc<ModelMemory>, C>>;

            fn unit(memory: Arc<ModelMemory>) -> VtdRegisters {
                let identification = $identification;
                VtdRegisters::new(VtdSetup { identification, ..VtdSetup::default() }, memory)
            }

            fn enable<R: Regs, C: Time>(
                regs: R,
                memory: Arc<ModelMemory>,
                clock: C,
            ) -> Result<Self::Driver<R, C>, IommuError> {
                let mut config = vtd::Config::default();
                config.limit = LIMIT;
                config.mode = vtd::Mode::$mode;
                config.invalidation = vtd::Invalidation::$way;
                vtd::Vtd::enable(regs, memory, UnitParts::new(clock), config)
            }

            fn domain<R: Regs, C: Time>(
                driver: &Self::Driver<R, C>,
            ) -> Result<Self::Domain<R, C>, IommuError> {
                driver.second_stage()
            }

            fn close<R: Regs, C: Time>(
                driver: Self::Driver<R, C>,
            ) -> Result<(), IommuError> {
                driver.release(all_memory())
            }
        }
    )*};
}

vtd! {
    Legacy: "VT-d, legacy", SKYLAKE_SP.identification.caching_mode().write_buffer(), Legacy, Best;
    Scalable: "VT-d, scalable", SKYLAKE_SP.identification.scalable(), Scalable, Best;
    Registers: "VT-d, registers", SKYLAKE_SP.identification.without_queue(), Legacy, Registers;
}

pub struct SmmuV3;

impl Driver for SmmuV3 {
    const NAME: &'static str = "SMMUv3";
    const IDENTIFICATION: usize = 0x20;
    const BASES: &[usize] = &[0x80, 0x88];
    type Word = AtomicU64;
    type Iommu = SmmuRegisters;
    type Driver<R: Regs, C: Time> = smmuv3::Smmu<UnitParts<R, Arc<ModelMemory>, C>>;
    type Domain<R: Regs, C: Time> = smmuv3::FirstStage<12, UnitParts<R, Arc<ModelMemory>, C>>;

    fn unit(memory: Arc<ModelMemory>) -> SmmuRegisters {
        SmmuRegisters::new(SmmuSetup::of(SmmuIdentification::able()), memory)
    }

    fn enable<R: Regs, C: Time>(
        regs: R,
        memory: Arc<ModelMemory>,
        clock: C,
    ) -> Result<Self::Driver<R, C>, IommuError> {
        let mut config = smmuv3::Config::default();
        config.limit = LIMIT;
        smmuv3::Smmu::enable(regs, memory, UnitParts::new(clock), config)
    }

    fn domain<R: Regs, C: Time>(
        driver: &Self::Driver<R, C>,
    ) -> Result<Self::Domain<R, C>, IommuError> {
        driver.first_stage(&smmuv3::SmmuDomainOptions::default())
    }

    fn close<R: Regs, C: Time>(driver: Self::Driver<R, C>) -> Result<(), IommuError> {
        driver.disable()
    }
}

pub struct Amd;

impl Amd {
    fn identification() -> AmdIdentification {
        RAVEN_RIDGE.identification.caching_absence()
    }
}

impl Driver for Amd {
    const NAME: &'static str = "AMD-Vi";
    const IDENTIFICATION: usize = 0x38;
    const BASES: &[usize] = &[0, 0x8, 0x10, 0x20];
    type Word = AtomicU64;
    type Iommu = AmdRegisters;
    type Driver<R: Regs, C: Time> = amd::AmdVi<UnitParts<R, Arc<ModelMemory>, C>>;
    type Domain<R: Regs, C: Time> = amd::AmdDomain<UnitParts<R, Arc<ModelMemory>, C>>;

    fn unit(memory: Arc<ModelMemory>) -> AmdRegisters {
        let setup = AmdSetup { identification: Self::identification(), ..AmdSetup::default() };
        AmdRegisters::new(setup, memory)
    }

    fn enable<R: Regs, C: Time>(
        regs: R,
        memory: Arc<ModelMemory>,
        clock: C,
    ) -> Result<Self::Driver<R, C>, IommuError> {
        let mut config = amd::Config::default();
        config.limit = LIMIT;
        config.streams_lg2 = 9;
        let capability = amd::Capability::parse(Self::identification().capability)
            .expect("the block of an IOMMU");
        amd::AmdVi::enable(regs, memory, UnitParts::new(clock), capability, config)
    }

    fn domain<R: Regs, C: Time>(
        driver: &Self::Driver<R, C>,
    ) -> Result<Self::Domain<R, C>, IommuError> {
        driver.domain()
    }

    fn close<R: Regs, C: Time>(driver: Self::Driver<R, C>) -> Result<(), IommuError> {
        driver.release(all_memory())
    }
}

/// A machine with one unit.
pub struct Bench<D: Driver> {
    pub unit: Arc<D::Iommu>,
    pub memory: Arc<ModelMemory<D::Word>>,
}

/// Memory of so many pages for a driver.
pub fn memory<D: Driver>(pages: u32) -> Arc<ModelMemory<D::Word>> {
    let (base, visibility) = D::MEMORY;
    Arc::new(ModelMemory::of_words(base, pages, visibility).checked())
}

type Made<D> = <D as Driver>::Driver<Arc<<D as Driver>::Iommu>, ModelClock<<D as Driver>::Iommu>>;

/// Operations of one run; see [`Run::all`].
pub const OPERATIONS: u32 = 12;

/// Reaction to an operation that fails.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Help {
    /// The unit is as good as new, and the operation is tried again, and has to succeed.
    Comes,
    /// No faults.
    Never,
}

/// A run over some unit: model, or noise.
pub struct Run<'a> {
    name: &'static str,
    now_ns: &'a dyn Fn() -> u64,
    inject: &'a dyn Fn(RegisterFaults),
    help: Help,
    /// Faults to inject, and the number of the operation before which that happens.
    then: Option<(u32, RegisterFaults)>,
    done: RefCell<u32>,
    errors: RefCell<Vec<IommuError>>,
    tried: RefCell<Vec<StreamId>>,
    reaches: &'a dyn Fn(StreamId) -> bool,
}

fn unit_error(error: AttachError) -> IommuError {
    match error {
        AttachError::Iommu(error) => error,
        // A unit that seems to have few streams, or another format.
        _ => IommuError::Unsupported,
    }
}

impl<'a> Run<'a> {
    /// A run without help after failures.
    pub fn over(
        name: &'static str,
        now_ns: &'a dyn Fn() -> u64,
        reaches: &'a dyn Fn(StreamId) -> bool,
    ) -> Self {
        Self {
            name,
            now_ns,
            inject: &|_| {},
            help: Help::Never,
            then: None,
            done: RefCell::default(),
            errors: RefCell::default(),
            tried: RefCell::default(),
            reaches,
        }
    }

    /// Number of operations that failed.
    pub fn failures(&self) -> usize {
        self.errors.borrow().len()
    }

    fn step<T>(&self, mut operation: impl FnMut() -> Result<T, IommuError>) -> Option<T> {
        let before = (self.now_ns)();
        let number = *self.done.borrow();
        *self.done.borrow_mut() += 1;
        if let Some((_, faults)) = self.then.filter(|(at, _)| *at == number) {
            (self.inject)(faults);
        }
        let result = operation();
        let waited = (self.now_ns)() - before;
        assert!(waited < 12 * LIMIT.get(), "operation {number}: {waited} ns");
        let error = match result {
            Ok(done) => return Some(done),
            Err(error) => error,
        };
        self.errors.borrow_mut().push(error);
        if self.help == Help::Never {
            return None;
        }
        (self.inject)(RegisterFaults::default());
        match operation() {
            Ok(done) => Some(done),
            Err(error) => panic!("{}: operation {number} again: {error}", self.name),
        }
    }

    fn sync(&self, domain: &impl Domain, mut owed: Gather) {
        self.step(|| domain.sync(&mut owed).map_err(IommuError::from));
    }

    fn map<D: Driver>(&self, domain: &impl Domain) {
        let mut owed = Gather::new();
        let (pa, access) = (PhysAddr::new(0x8010_0000), Access::READ | Access::WRITE);
        domain.map(BASE, promised(pa, D::MAPPED), access, &mut owed).unwrap();
        self.sync(domain, owed);
    }

    fn unmap<D: Driver>(&self, domain: &impl Domain) {
        let mut owed = Gather::new();
        let range = IovaRange::from_len(BASE, D::MAPPED).unwrap();
        domain.unmap(range, &mut owed).unwrap();
        self.sync(domain, owed);
    }

    fn attach<D: Domain>(&self, unit: &impl Attach<D>, stream: StreamId, domain: &Arc<D>) {
        let known = self.tried.borrow().contains(&stream);
        self.tried.borrow_mut().push(stream);
        self.step(|| {
            let result = unit.attach(stream, domain).map_err(unit_error);
            // A stream that was blocked stays blocked.
            assert!(known || result.is_ok() || !(self.reaches)(stream));
            result
        });
    }

    /// The twelve operations.
    pub fn all<D: Driver, R: Regs, C: Time>(&self, unit: &D::Driver<R, C>) -> Option<()> {
        use portolan::iommu::Iommu as _;
        let first = Arc::new(self.step(|| D::domain(unit))?);
        self.map::<D>(&*first);
        self.attach(unit, D::STREAMS[0], &first);
        let second = Arc::new(self.step(|| D::domain(unit))?);
        self.attach(unit, D::STREAMS[1], &second);
        self.attach(unit, D::STREAMS[0], &second);
        self.unmap::<D>(&*first);
        self.attach(unit, D::STREAMS[1], &first);
        self.step(|| unit.block(D::STREAMS[0]).map_err(unit_error));
        self.step(|| unit.pass_through(D::STREAMS[1], all_memory()).map_err(unit_error));
        self.step(|| unit.block(D::STREAMS[1]).map_err(unit_error));
        self.step(|| unit.next_fault().map(|_| ()));
        if self.help == Help::Comes && self.then.is_some() {
            // Domains go while the unit is well.
            (self.inject)(RegisterFaults::default());
        }
        Some(())
    }
}

impl<D: Driver> Bench<D> {
    pub fn new() -> Self {
        Self::with_pages(D::PAGES)
    }

    /// Makes a bench with little memory, which is quick.
    pub fn small() -> Self {
        Self::with_pages(D::PAGES.min(512))
    }

    fn with_pages(pages: u32) -> Self {
        let memory = memory::<D>(pages);
        let unit = Arc::new(D::unit(memory.clone()));
        Self { unit, memory }
    }

    pub fn enable(&self) -> Result<Made<D>, IommuError> {
        D::enable(self.unit.clone(), self.memory.clone(), self.clock())
    }

    pub fn clock(&self) -> ModelClock<D::Iommu> {
        let clock = Iommu::clock(&*self.unit).clone();
        Arc::new(PollingClock::new(clock, LOOK_NS, self.unit.clone()))
    }

    /// Tells if a stream of the runs reaches the pages that they map.
    pub fn is_reached(&self) -> bool {
        let mut streams = D::STREAMS.into_iter();
        streams.any(|stream| self.unit.reaches(stream, BASE))
    }

    fn run(
        &self,
        driver: &Made<D>,
        help: Help,
        then: Option<(u32, RegisterFaults)>,
    ) -> Vec<IommuError> {
        let run = Run {
            name: D::NAME,
            now_ns: &|| self.unit.now_ns(),
            inject: &|faults| self.unit.inject(faults),
            help,
            then,
            done: RefCell::default(),
            errors: RefCell::default(),
            tried: RefCell::default(),
            reaches: &|stream| self.unit.reaches(stream, BASE),
        };
        let _ = run.all::<D, _, _>(driver);
        run.errors.into_inner()
    }

    /// Does everything, trying again without faults after each failure; returns the failures.
    pub fn everything(&self, driver: &Made<D>) -> Vec<IommuError> {
        self.run(driver, Help::Comes, None)
    }

    /// Runs [`Bench::everything`], injecting `faults` before operation `n`.
    pub fn everything_from(
        &self,
        driver: &Made<D>,
        n: u32,
        faults: RegisterFaults,
    ) -> Vec<IommuError> {
        self.run(driver, Help::Comes, Some((n, faults)))
    }

    /// Does everything, and goes on after each failure; returns the failures.
    pub fn everything_without_help(&self, driver: &Made<D>) -> Vec<IommuError> {
        self.run(driver, Help::Never, None)
    }

    /// Lets devices look everywhere.
    pub fn reach_everything(&self) {
        for stream in D::STREAMS {
            for page in 0..8 {
                let iova = Iova::new(BASE.get() + page * PAGE);
                self.unit.reaches(stream, iova);
            }
        }
    }

    /// The driver did nothing that it must not do, and the unit walked nothing that was freed.
    pub fn is_sound(&self) {
        assert_eq!(self.unit.violations(), []);
        assert_eq!(self.memory.reads_of_freed_pages(), 0);
    }
}

pub struct Riscv;

impl Driver for Riscv {
    const NAME: &'static str = "RISC-V IOMMU";
    const IDENTIFICATION: usize = 0x8;
    type Word = AtomicU64;
    type Iommu = RiscvRegisters;
    type Driver<R: Regs, C: Time> = riscv::RiscvIommu<UnitParts<R, Arc<ModelMemory>, C>>;
    type Domain<R: Regs, C: Time> = riscv::FirstDomain<UnitParts<R, Arc<ModelMemory>, C>>;

    fn unit(memory: Arc<ModelMemory>) -> RiscvRegisters {
        RiscvRegisters::new(RiscvSetup::of(RiscvIdentification::able()), memory)
    }

    fn enable<R: Regs, C: Time>(
        regs: R,
        memory: Arc<ModelMemory>,
        clock: C,
    ) -> Result<Self::Driver<R, C>, IommuError> {
        let mut config = riscv::Config::default();
        config.limit = LIMIT;
        riscv::RiscvIommu::enable(regs, memory, UnitParts::new(clock), config)
    }

    fn domain<R: Regs, C: Time>(
        driver: &Self::Driver<R, C>,
    ) -> Result<Self::Domain<R, C>, IommuError> {
        driver.first_stage(RiscvLevels::Four)
    }

    fn close<R: Regs, C: Time>(driver: Self::Driver<R, C>) -> Result<(), IommuError> {
        driver.release(all_memory())
    }
}
