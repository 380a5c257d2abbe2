//! Tegra's SMMU, which has no queue that could stand still or refuse anything: gone at any access,
//! registers that tell nonsense, streams that it does not have.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use fastrand::Rng;
use portolan::addr::{Iova, IovaRange, PhysAddr, StreamId};
use portolan::inval::Gather;
use portolan::iommu::{Attach, AttachError, Awaited, Domain, Iommu as _, IommuError};
use portolan::platform::Nanos;
use portolan::table::Access;
use portolan_hw::tegra_smmu::{Chip, Config, TegraDomain, TegraSmmu};
use portolan_model::clock::PollingClock;
use portolan_model::decode::AccessKind;
use portolan_model::inject::{Drain, RegisterFaults};
use portolan_model::memory::{ModelMemory, Visibility};
use portolan_model::tables::Lag;
use portolan_model::tegra_smmu::{TegraRegisters, TegraSetup};
use portolan_verify::backend::tegra::{Memory, model_of};

use crate::noise::{Looks, Noise, Twisted};
use crate::rig::{Iommu as _, ModelClock, Regs, Time};

const LIMIT: Nanos = Nanos::from_millis(1);
const LOOK_NS: u64 = 1_000;
const BASE: Iova = Iova::new(0x4000_0000);
const RANGE: u64 = 5 << 20;
const SEEDS: u64 = 600;
const CHIP: Chip = Chip::Tegra210;

/// Two devices of the model that read and write.
fn streams(chip: Chip) -> [StreamId; 2] {
    let [first, second, _] = model_of(chip).0.clients();
    [first.stream, second.stream]
}

/// The driver on the model.
type Taken = TegraSmmu<Arc<TegraRegisters>, Memory, ModelClock<TegraRegisters>>;

struct Bench {
    chip: Chip,
    unit: Arc<TegraRegisters>,
    memory: Memory,
}

impl Bench {
    fn new(chip: Chip) -> Self {
        let (model, base) = model_of(chip);
        let late = Visibility::Late(Lag::CacheLines);
        let memory = Arc::new(ModelMemory::narrow(base, 64, late));
        let unit = TegraRegisters::new(TegraSetup::of(model), memory.clone());
        let unit = Arc::new(unit);
        Self { chip, unit, memory }
    }

    /// Has the driver take the unit over.
    fn enable(&self) -> Result<Taken, IommuError> {
        enable(
            self.chip,
            self.unit.clone(),
            self.memory.clone(),
            self.clock(),
        )
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
) -> Result<TegraSmmu<R, Memory, C>, IommuError> {
    let mut config = Config::of(chip);
    config.limit = LIMIT;
    TegraSmmu::enable(regs, memory, clock, config)
}

/// What failed so far.
#[derive(Default)]
struct Errors(Vec<IommuError>);

impl Errors {
    fn note<T>(&mut self, result: Result<T, IommuError>) -> Option<T> {
        result.map_err(|error| self.0.push(error)).ok()
    }

    fn moved(&mut self, result: Result<(), AttachError>) {
        match result {
            Ok(()) => {}
            Err(AttachError::Iommu(error)) => self.0.push(error),
            Err(other) => panic!("{other}"),
        }
    }

    fn sync<R: Regs, C: Time>(&mut self, domain: &TegraDomain<R, Memory, C>, mut owed: Gather) {
        let done = domain.sync(&mut owed);
        // What is still owed is dropped with its tables, which are never freed.
        self.note(done.map_err(IommuError::from));
    }
}

/// Everything that the driver can be asked for, whatever fails.
fn everything<R: Regs, C: Time>(
    chip: Chip,
    smmu: &TegraSmmu<R, Memory, C>,
    errors: &mut Errors,
) -> Option<()> {
    let [one, other] = streams(chip);
    let first = Arc::new(errors.note(smmu.domain())?);
    let mut owed = Gather::new();
    let (pa, access) = (PhysAddr::new(0x8010_0000), Access::READ | Access::WRITE);
    let mapped = first.map(BASE, pa, RANGE, access, &mut owed);
    if mapped.is_ok() {
        errors.sync(&first, owed);
    }
    errors.moved(smmu.attach(one, &first));
    let second = Arc::new(errors.note(smmu.domain())?);
    errors.moved(smmu.attach(other, &second));
    errors.moved(smmu.attach(one, &second));
    if mapped.is_ok() {
        let mut owed = Gather::new();
        let range = IovaRange::from_len(BASE, RANGE)?;
        first.unmap(range, &mut owed).expect("it is mapped");
        errors.sync(&first, owed);
    }
    errors.moved(smmu.attach(other, &first));
    errors.moved(smmu.block(one));
    errors.moved(smmu.pass_through(other));
    errors.moved(smmu.block(other));
    errors.note(smmu.next_fault());
    Some(())
}

#[test]
fn gone_from_any_access() {
    let mut told = 0;
    for n in 1.. {
        let bench = Bench::new(CHIP);
        let faults = RegisterFaults {
            gone_from: Some(n),
            ..RegisterFaults::default()
        };
        bench.unit.inject(faults);
        let mut errors = Errors::default();
        if let Some(smmu) = errors.note(bench.enable()) {
            let _ = everything(CHIP, &smmu, &mut errors);
            for stream in streams(CHIP) {
                let gone = bench.unit.accesses() >= n;
                let reaches = |access| bench.unit.dma(stream, BASE, access, 4).is_ok();
                let any = reaches(AccessKind::Read) || reaches(AccessKind::Write);
                assert!(!gone || !any, "access {n}");
            }
            let used_up = bench.unit.accesses() < n;
            drop(smmu);
            if used_up {
                assert_eq!(errors.0, []);
                break;
            }
        }
        let gone = |error: &IommuError| *error == IommuError::Gone;
        assert!(errors.0.iter().all(gone), "access {n}: {:?}", errors.0);
        told += u64::from(!errors.0.is_empty());
        bench.is_sound();
        // Found out from what is read, without any wait.
        assert!(bench.unit.now_ns() < LIMIT.get(), "access {n}");
    }
    println!("told of {told} departures");
    assert!(told > 100);
}

#[test]
fn never_acknowledges() {
    let bench = Bench::new(CHIP);
    bench.unit.inject(RegisterFaults {
        control: Drain::Never,
        ..RegisterFaults::default()
    });
    let awaited = Awaited::Control;
    let error = bench.enable().err();
    let typed = matches!(error, Some(IommuError::TimedOut { awaited: of, .. }) if of == awaited);
    assert!(typed, "{error:?}");
    assert!(bench.unit.now_ns() < 3 * LIMIT.get());
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
            assert_eq!(smmu.pass_through(stream), refused);
        }
        assert!(unknown > 200 && bench.unit.accesses() == before);
        // Those of another unit fit neither.
        let elsewhere = Bench::new(chip);
        let other = elsewhere.enable().expect("a unit");
        let moved = other.attach(streams(chip)[0], &domain);
        assert_eq!(moved, Err(AttachError::Mismatch));
    }
}

#[test]
fn nonsense_in_registers() {
    let (mut enabled, mut refused) = (0, 0);
    for seed in 0..SEEDS {
        let named = std::panic::catch_unwind(|| (noise(seed), twisted(seed)));
        let Ok((noise, twisted)) = named else {
            panic!("seed {seed}");
        };
        for result in [noise, twisted] {
            match result {
                Ok(()) => enabled += 1,
                Err(_) => refused += 1,
            }
        }
    }
    println!("{enabled} enabled, {refused} refused");
    assert!(enabled > 50 && refused > 500);
}

/// Registers without a unit behind them.
fn noise(seed: u64) -> Result<(), IommuError> {
    let changing = seed % 2 == 1;
    let regs = Noise {
        seed,
        changing: changing.then(|| Mutex::new(Rng::with_seed(seed))),
    };
    let memory = Bench::new(CHIP).memory;
    let time = Arc::new(AtomicU64::new(0));
    let result = enable(CHIP, regs, memory.clone(), Looks(time.clone()));
    let waited = time.load(Ordering::Relaxed);
    assert!(waited < 10 * LIMIT.get(), "{waited} ns");
    let smmu = match result {
        Ok(smmu) => smmu,
        Err(error) => {
            let early = matches!(error, IommuError::Nonsense { .. } | IommuError::Gone);
            // Refused by the probe: nothing was set up for it. Later nonsense keeps it.
            assert!(!early || changing || live(&memory) == 0, "{error}");
            return Err(error);
        }
    };
    let _ = everything(CHIP, &smmu, &mut Errors::default());
    Ok(())
}

fn live(memory: &ModelMemory<AtomicU32>) -> usize {
    memory.live()
}

/// A unit that works, seen through registers that lie.
fn twisted(seed: u64) -> Result<(), IommuError> {
    let mut random = Rng::with_seed(!seed);
    let bench = Bench::new(CHIP);
    let lies = random.u32(1..6);
    // Up to the end of what is read of the SMMU: faults, configuration, address spaces.
    let flips = (0..lies).map(|_| (random.usize(..0x2a0), random.u32(..8)));
    let regs = Twisted {
        unit: bench.unit.clone(),
        below: 0x2a0,
        flips: flips.collect(),
        one_in: match seed % 4 {
            0 => 50,
            _ => 0,
        },
        random: Mutex::new(Rng::with_seed(seed)),
    };
    let result = enable(CHIP, regs, bench.memory.clone(), bench.clock());
    assert!(bench.unit.now_ns() < 10 * LIMIT.get());
    let smmu = result?;
    let mut errors = Errors::default();
    let _ = everything(CHIP, &smmu, &mut errors);
    for stream in streams(CHIP) {
        // Blocked in the end, or kept where it was if the unit said that it did not follow.
        let reaches = bench.unit.dma(stream, BASE, AccessKind::Write, 4).is_ok();
        assert!(!reaches || !errors.0.is_empty());
    }
    drop(smmu);
    bench.is_sound();
    Ok(())
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
            domain.map(BASE, pa, bytes, rw, &mut owed).expect("mapped");
            domain
                .sync(&mut owed)
                .map_err(IommuError::from)
                .expect("paid");
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
        domain
            .sync(&mut owed)
            .map_err(IommuError::from)
            .expect("paid");
        assert_eq!(reach(77), None);
        // The next table is in the same page, whose other entries must not be what they were.
        map(new, 4096);
        assert_eq!((reach(0), reach(1), reach(77)), (Some(new), None, None));
        bench.is_sound();
    }
}
