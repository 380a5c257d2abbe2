//! The SMMUv2 driver over units that never finish, storm, contradict themselves or go away.
//!
//! It has no command that could be refused and no control register that is acknowledged.

use crate::promised::all_memory;
use crate::promised::promised;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use portolan::addr::{Iova, PhysAddr, StreamId};
use portolan::inval::Gather;
use portolan::iommu::{
    Attach as _, AttachError, Awaited, Domain as _, FaultEvent, FaultReason, Iommu as _, IommuError,
};
use portolan::platform::{Mmio as _, Nanos, UnitParts};
use portolan::table::Access;
use portolan_chips::chips::LS1088A;
use portolan_chips::inject::{Drain, RegisterFaults, Violation};
use portolan_chips::memory::{ModelMemory, Visibility};
use portolan_chips::smmuv2::{Firmware, SmmuV2Registers, SmmuV2Setup};
use portolan_hw::smmuv2::{
    Config, FirstStage, GroupError, Implementation, Inherited, OnFault, SmmuV2,
    SmmuV2DomainOptions, WaitForSafe, WriteKind,
};
use portolan_sim::clock::VirtualClock;
use portolan_sim::decode::AccessKind;

use crate::rig::{Bench, Driver, Iommu as _, ModelClock, Regs, Time, units};

const LIMIT: Nanos = Nanos::from_millis(1);
const BASE: Iova = Iova::new(0x4000_0000);
const PAGE: u64 = 4096;
const RW: Access = Access::READ.union(Access::WRITE);

units! {
    SmmuV2Registers: |unit| unit.counts().writes.values().sum(), |unit, stream, iova| {
        unit.dma(stream, iova, AccessKind::Read, 4)
    };
}

macro_rules! drivers {
    ($($name:ident: $text:literal, $setup:expr, $implementation:expr;)*) => {$(
        pub struct $name;

        impl Driver for $name {
            const NAME: &'static str = $text;
            const IDENTIFICATION: usize = 0x2c;
            type Word = AtomicU64;
            type Iommu = SmmuV2Registers;
            type Driver<R: Regs, C: Time> = SmmuV2<UnitParts<R, Arc<ModelMemory>, C>>;
            type Domain<R: Regs, C: Time> = FirstStage<12, UnitParts<R, Arc<ModelMemory>, C>>;

            fn unit(memory: Arc<ModelMemory>) -> SmmuV2Registers {
                SmmuV2Registers::new($setup, memory)
            }

            fn enable<R: Regs, C: Time>(
                regs: R,
                memory: Arc<ModelMemory>,
                clock: C,
            ) -> Result<Self::Driver<R, C>, IommuError> {
                let mut config = Config::default();
                config.limit = LIMIT;
                config.implementation = $implementation;
                SmmuV2::enable(regs, memory, UnitParts::new(clock), config)
            }

            fn domain<R: Regs, C: Time>(
                driver: &Self::Driver<R, C>,
            ) -> Result<Self::Domain<R, C>, IommuError> {
                driver.first_stage(&SmmuV2DomainOptions::default())
            }

            fn close<R: Regs, C: Time>(driver: Self::Driver<R, C>) -> Result<(), IommuError> {
                driver.disable()
            }
        }
    )*};
}

drivers! {
    Arm: "SMMUv2", few(able()), Implementation::Arm;
    Qualcomm: "SMMUv2, Qualcomm", few(qualcomm()),
        Implementation::Qualcomm(WaitForSafe::Off);
}

/// Both stages, and 48 bits.
fn able() -> SmmuV2Setup {
    SmmuV2Setup::of(LS1088A.identification.coherent())
}

/// Makes a unit that Qualcomm's firmware watches.
fn qualcomm() -> SmmuV2Setup {
    SmmuV2Setup { identification: able().identification, ..SmmuV2Setup::qualcomm(0) }
}

/// Reduces the registers, so that each access to them can be the last in some run.
fn few(setup: SmmuV2Setup) -> SmmuV2Setup {
    let mut identification = setup.identification.banks(6, 2);
    identification.idr[0] = identification.idr[0] & !0xff | 8;
    SmmuV2Setup { identification, ..setup }
}

crate::of! {
    Arm: arm {
        gone_from_any_access()
        never_drains()
        never_drains_again()
        nonsense_in_registers()
    }
    Qualcomm: qualcomm {
        gone_from_any_access()
        never_drains()
        never_drains_again()
        nonsense_in_registers()
    }
}

type MadeParts = UnitParts<Arc<SmmuV2Registers>, Arc<ModelMemory>, ModelClock<SmmuV2Registers>>;
type Made = SmmuV2<MadeParts>;
type Made12 = FirstStage<12, MadeParts>;

fn enabled(setup: SmmuV2Setup, mut config: Config) -> (Bench<Arm>, Result<Made, IommuError>) {
    let base = PhysAddr::new(0x8000_0000);
    let memory = Arc::new(ModelMemory::new(base, 512, Visibility::AtOnce).checked());
    let unit = Arc::new(SmmuV2Registers::new(setup, memory.clone()));
    let bench = Bench::<Arm> { unit, memory };
    config.limit = LIMIT;
    let made = SmmuV2::enable(
        bench.unit.clone(),
        bench.memory.clone(),
        UnitParts::new(bench.clock()),
        config,
    );
    (bench, made)
}

fn mapped(driver: &Made, options: &SmmuV2DomainOptions) -> Arc<Made12> {
    let domain = Arc::new(driver.first_stage(options).unwrap());
    let mut owed = Gather::new();
    let pa = PhysAddr::new(0x8010_0000);
    domain.map(BASE, promised(pa, PAGE), RW, &mut owed).unwrap();
    domain.sync(&mut owed).unwrap();
    domain
}

#[test]
fn a_sync_that_never_ends_is_told_in_time() {
    let (bench, driver) = enabled(able(), Config::default());
    let driver = driver.unwrap();
    let domain = mapped(&driver, &SmmuV2DomainOptions::default());
    driver.attach(StreamId::new(1), &domain).unwrap();
    let mut owed = Gather::new();
    let range = portolan::addr::IovaRange::from_len(BASE, PAGE).unwrap();
    domain.unmap(range, &mut owed).unwrap();
    bench.unit.inject(RegisterFaults { drain: Drain::Never, ..RegisterFaults::default() });
    let before = bench.unit.now_ns();
    let failed = IommuError::from(domain.sync(&mut owed).unwrap_err());
    let waited = bench.unit.now_ns() - before;
    let awaited = Awaited::Invalidation;
    assert!(
        matches!(failed, IommuError::TimedOut { awaited: of, .. } if of == awaited),
        "{}",
        failed
    );
    assert!((LIMIT.get()..2 * LIMIT.get()).contains(&waited), "{waited} ns");
    bench.unit.inject(RegisterFaults::default());
    domain.sync(&mut owed).unwrap();
    assert!(!bench.unit.reaches(StreamId::new(1), BASE));
}

#[test]
fn waiting_for_real_time_devices_takes_longer_and_is_allowed_to() {
    let safe_ns = 3 * LIMIT.get();
    let setup = SmmuV2Setup { safe_ns, ..qualcomm() };
    let longest = Nanos::new(safe_ns);
    let patient = |wait| {
        let mut config = Config::default();
        config.implementation = Implementation::Qualcomm(wait);
        config
    };
    // A driver that does not know of it gives up on taking the unit over.
    let (_, refused) = enabled(setup.clone(), patient(WaitForSafe::Off));
    assert!(matches!(refused, Err(IommuError::TimedOut { .. })));
    let (bench, driver) = enabled(setup, patient(WaitForSafe::On { longest }));
    let driver = driver.unwrap();
    let domain = mapped(&driver, &SmmuV2DomainOptions::default());
    let time = |domain: &Made12| {
        let mut owed = Gather::new();
        let range = portolan::addr::IovaRange::from_len(BASE, PAGE).unwrap();
        domain.unmap(range, &mut owed).unwrap();
        let before = bench.unit.now_ns();
        domain.sync(&mut owed).unwrap();
        let pa = PhysAddr::new(0x8010_0000);
        domain.map(BASE, promised(pa, PAGE), RW, &mut Gather::new()).unwrap();
        bench.unit.now_ns() - before
    };
    assert!(time(&domain) >= safe_ns);
    bench.unit.turn_off_wait_for_safe();
    assert!(time(&domain) < LIMIT.get());
}

#[test]
fn a_storm_of_faults_keeps_nobody_back() {
    let (bench, driver) = enabled(able(), Config::default());
    let driver = driver.unwrap();
    let [loud, quiet, good] = [1, 2, 3].map(StreamId::new);
    let domains = [(); 3].map(|()| mapped(&driver, &SmmuV2DomainOptions::default()));
    for (stream, domain) in [loud, quiet, good].into_iter().zip(&domains) {
        driver.attach(stream, domain).unwrap();
    }
    let nowhere = Iova::new(BASE.get() + 64 * PAGE);
    assert!(!bench.unit.reaches(quiet, nowhere));
    let (mut lost, mut heard) = (0, Vec::new());
    for round in 0..10_000u64 {
        for stream in [loud, loud, StreamId::new(0x77), StreamId::new(0x78)] {
            let iova = Iova::new(nowhere.get() + round % 7 * PAGE);
            assert!(!bench.unit.reaches(stream, iova));
        }
        match driver.next_fault().unwrap() {
            Some(FaultEvent::Lost) => lost += 1,
            Some(FaultEvent::Fault(record)) if round < 32 => heard.push(record.stream),
            _ => {}
        }
    }
    assert!(lost > 1_000 && heard.contains(&quiet) && heard.contains(&loud));
    // Under the storm the others went on.
    assert!(bench.unit.reaches(good, BASE));
    // It ends: so do the records.
    let left = std::iter::from_fn(|| driver.next_fault().unwrap()).count();
    assert!(left < 8, "{left}");
    bench.is_sound();
}

#[test]
fn streams_that_would_match_twice_are_refused() {
    let (bench, driver) = enabled(able(), Config::default());
    let driver = driver.unwrap();
    driver.group(StreamId::new(0x20), 0x1f).unwrap();
    for (id, mask) in [(0x20, 0x1f), (0x3f, 0), (0x30, 0x40), (0, 0x7fff)] {
        let conflict = driver.group(StreamId::new(id), mask);
        let (id, mask) = (0x20, 0x1f);
        assert_eq!(conflict, Err(GroupError::Conflict { id, mask }));
    }
    let wide = driver.group(StreamId::new(0x8000), 0);
    assert_eq!(wide, Err(GroupError::Width));
    // They move together.
    let domain = mapped(&driver, &SmmuV2DomainOptions::default());
    driver.attach(StreamId::new(0x21), &domain).unwrap();
    for id in [0x20, 0x21, 0x3f] {
        assert!(bench.unit.reaches(StreamId::new(id), BASE));
    }
    assert!(!bench.unit.reaches(StreamId::new(0x40), BASE));
    driver.block(StreamId::new(0x3f)).unwrap();
    assert!(!bench.unit.reaches(StreamId::new(0x20), BASE));
    let mut found = std::iter::from_fn(|| driver.next_fault().unwrap());
    let blocked = |event| match event {
        FaultEvent::Fault(record) => record.reason == FaultReason::Blocked,
        FaultEvent::Lost => true,
    };
    assert!(found.all(blocked));
    bench.is_sound();
}

#[test]
fn match_registers_and_banks_run_out() {
    let (bench, driver) = enabled(few(able()), Config::default());
    let driver = driver.unwrap();
    let domain = mapped(&driver, &SmmuV2DomainOptions::default());
    for id in 0..8 {
        driver.attach(StreamId::new(id), &domain).unwrap();
    }
    let full = driver.attach(StreamId::new(8), &domain);
    assert_eq!(full, Err(AttachError::Iommu(IommuError::OutOfContexts)));
    driver.block(StreamId::new(3)).unwrap();
    driver.attach(StreamId::new(8), &domain).unwrap();
    // Four banks do stage 1, of which one is taken.
    let others: Vec<_> = (0..3).map(|_| mapped(&driver, &SmmuV2DomainOptions::default())).collect();
    let none = driver.first_stage::<12>(&SmmuV2DomainOptions::default()).err();
    assert_eq!(none, Some(IommuError::OutOfContexts));
    let second = driver.second_stage::<12>(&SmmuV2DomainOptions::default());
    assert!(second.is_ok());
    drop(others);
    assert!(driver.first_stage::<12>(&SmmuV2DomainOptions::default()).is_ok());
    bench.is_sound();
}

#[test]
fn inherited_streams_pass_until_they_are_moved() {
    // Two of these overlap: the driver may not believe a boot loader.
    let inherited = vec![(0x880, 0x2), (0x882, 0), (0x900, 0)];
    for firmware in [Firmware::Qualcomm, Firmware::Absent] {
        let setup = SmmuV2Setup { firmware, inherited: inherited.clone(), ..qualcomm() };
        let implementation = Implementation::Qualcomm(WaitForSafe::Off);
        let mut config = Config::default();
        config.implementation = implementation;
        config.inherited = Inherited::PassThrough(all_memory());
        let (bench, driver) = enabled(setup.clone(), config.clone());
        let driver = driver.unwrap();
        let direct = Iova::new(0x8000_0000);
        for (id, passes) in [(0x880, true), (0x882, true), (0x900, true), (0x901, false)] {
            assert_eq!(bench.unit.reaches(StreamId::new(id), direct), passes, "{id:#x}");
        }
        let domain = mapped(&driver, &SmmuV2DomainOptions::default());
        driver.attach(StreamId::new(0x880), &domain).unwrap();
        for id in [0x880, 0x882] {
            assert!(!bench.unit.reaches(StreamId::new(id), direct));
            assert!(bench.unit.reaches(StreamId::new(id), BASE));
        }
        drop(driver);
        bench.is_sound();
        if firmware == Firmware::Absent {
            let mut blocked = config;
            blocked.inherited = Inherited::Blocked;
            let (bench, driver) = enabled(setup, blocked);
            assert!(driver.is_ok() && !bench.unit.reaches(StreamId::new(0x880), direct));
        }
    }
}

#[test]
fn each_stalled_access_gets_one_answer() {
    let (bench, driver) = enabled(able(), Config::default());
    let driver = driver.unwrap();
    let stream = StreamId::new(1);
    let mut options = SmmuV2DomainOptions::default();
    options.on_fault = OnFault::Stall;
    let domain = mapped(&driver, &options);
    driver.attach(stream, &domain).unwrap();
    let next = Iova::new(BASE.get() + PAGE);
    let stalls = || {
        let fault = bench.unit.dma(stream, next, AccessKind::Write, 4).unwrap_err();
        assert_eq!(fault.code, SmmuV2Registers::STALLED);
    };
    stalls();
    assert_eq!(driver.next_fault().unwrap(), None);
    let stalled = driver.next_stall().unwrap().unwrap();
    assert_eq!((stalled.record.stream, stalled.record.iova), (stream, Some(next)));
    assert!(driver.next_stall().unwrap().is_none(), "somebody holds it");
    let pa = PhysAddr::new(0x8011_0000);
    domain.map(next, promised(pa, PAGE), RW, &mut Gather::new()).unwrap();
    stalled.retry();
    let resumed = bench.unit.take_resumed();
    assert!(matches!(&resumed[..], [Ok(piece)] if piece.pa == pa));
    // If it is retried without a mapping, it stalls again; if it is dropped, it ends.
    let mut owed = Gather::new();
    let range = portolan::addr::IovaRange::from_len(next, PAGE).unwrap();
    domain.unmap(range, &mut owed).unwrap();
    domain.sync(&mut owed).unwrap();
    stalls();
    driver.next_stall().unwrap().unwrap().retry();
    assert_eq!(bench.unit.take_resumed(), []);
    drop(driver.next_stall().unwrap().unwrap());
    assert!(matches!(&bench.unit.take_resumed()[..], [Err(_)]));
    // A domain that goes ends the stalls that wait in it.
    stalls();
    let late = driver.next_stall().unwrap().unwrap();
    driver.block(stream).unwrap();
    drop(domain);
    assert!(matches!(&bench.unit.take_resumed()[..], [Err(_)]));
    let before = driver.counts().of(WriteKind::Fault);
    late.retry();
    assert_eq!(driver.counts().of(WriteKind::Fault), before);
    bench.is_sound();
}

#[test]
fn streams_by_index() {
    let setup = SmmuV2Setup { identification: able().identification.indexed(5), ..able() };
    let (bench, driver) = enabled(setup, Config::default());
    let driver = driver.unwrap();
    let domain = mapped(&driver, &SmmuV2DomainOptions::default());
    driver.attach(StreamId::new(31), &domain).unwrap();
    assert!(bench.unit.reaches(StreamId::new(31), BASE));
    assert!(!bench.unit.reaches(StreamId::new(30), BASE));
    let stream = StreamId::new(32);
    let none = driver.attach(stream, &domain);
    assert_eq!(none, Err(AttachError::NoSuchStream { stream }));
    assert_eq!(driver.group(stream, 0), Err(GroupError::Width));
    assert_eq!(driver.counts().of(WriteKind::StreamMatch), 0);
    assert_eq!(bench.unit.read32(0x48), 1);
    bench.is_sound();
}
