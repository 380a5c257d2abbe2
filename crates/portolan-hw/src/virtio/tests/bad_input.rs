//! A device that tells nonsense, answers anything, or goes away, at any point.

extern crate std;

use alloc::vec::Vec;
use std::println;

use fastrand::Rng;
use portolan::addr::{Iova, IovaRange, PhysAddr, StreamId};
use portolan::inval::Gather;
use portolan::iommu::{Attach, AttachError, Domain, Iommu, IommuError};
use portolan::platform::Nanos;
use portolan::table::Access;

use super::fake::{Failure, Fake, Ticks};
use crate::virtio::{Config, Viommu};

const SEEDS: u64 = 5_000;
const STREAM: StreamId = StreamId::new(8);
const OTHER: StreamId = StreamId::new(16);
const BASE: Iova = Iova::new(0x4000_0000);
const PAGE: u64 = 4096;

type Driver<'a> = Viommu<&'a Fake, Ticks>;

fn start(fake: &Fake) -> Result<Driver<'_>, IommuError> {
    let turn_timeout = Nanos::from_millis(1);
    Viommu::start(fake, Ticks::default(), Config { turn_timeout })
}

fn unit_error(error: AttachError) -> IommuError {
    match error {
        AttachError::Iommu(error) => error,
        _ => IommuError::Unsupported,
    }
}

/// Everything that can be asked for, whatever fails; what failed.
fn everything(driver: &Driver<'_>) -> Vec<IommuError> {
    let mut errors = Vec::new();
    let mut note = |result: Result<(), IommuError>| errors.extend(result.err());
    let domains = [(); 2].map(|()| driver.domain());
    let [Ok(first), Ok(second)] = domains else {
        return [IommuError::OutOfContexts].into();
    };
    let range = IovaRange::from_len(BASE, 4 * PAGE).unwrap();
    for domain in [&first, &second, &first] {
        note(driver.attach(STREAM, domain).map_err(unit_error));
        let mut owed = Gather::new();
        let (pa, access) = (PhysAddr::new(0x10_0000), Access::READ | Access::WRITE);
        let mapped = domain.map(BASE, pa, 4 * PAGE, access, &mut owed);
        note(domain.sync(&mut owed).map_err(IommuError::from));
        if mapped.is_ok() {
            let mut owed = Gather::new();
            let _ = domain.unmap(range, &mut owed);
            note(domain.sync(&mut owed).map_err(IommuError::from));
        }
    }
    note(driver.attach(OTHER, &second).map_err(unit_error));
    note(driver.pass_through(OTHER).map_err(unit_error));
    let _ = driver.reserved(STREAM);
    note(driver.block(STREAM).map_err(unit_error));
    note(driver.block(OTHER).map_err(unit_error));
    note(driver.next_fault().map(|_| ()));
    errors
}

#[test]
fn random_configurations_and_answers() {
    let (mut started, mut refused) = (0, 0);
    for seed in 0..SEEDS {
        println!("seed {seed}");
        let mut random = Rng::with_seed(seed);
        let fake = Fake::new();
        {
            let mut state = fake.state();
            // Some bytes of the configuration, or all of them.
            let changes = random.usize(..=state.config.len());
            for _ in 0..changes {
                let at = random.usize(..state.config.len());
                state.config[at] = random.u8(..);
            }
            state.features = random.u64(..) | 1 << 2;
            state.properties = (0..random.usize(..80)).map(|_| random.u8(..)).collect();
            let failures = (0..random.usize(..12)).map(|_| match random.u8(..6) {
                0 => Some(Failure::Lost),
                1 => Some(Failure::Silent),
                2 => Some(Failure::Status(random.u8(..))),
                3 => Some(Failure::Unwritten),
                _ => None,
            });
            state.failures = failures.collect();
            let mut record = [0; 24];
            random.fill(&mut record);
            let written = random.usize(..=64);
            state.faults.push_back((record, written));
        }
        match start(&fake) {
            Ok(driver) => {
                started += 1;
                everything(&driver);
            }
            Err(error) => {
                refused += 1;
                let typed = matches!(
                    error,
                    IommuError::Nonsense { .. } | IommuError::Unsupported | IommuError::Gone
                );
                assert!(typed, "{error}");
            }
        }
    }
    println!("{started} started, {refused} refused");
    assert!(started > 100 && refused > 100);
}

#[test]
fn gone_from_any_request() {
    for n in 0.. {
        let fake = Fake::new();
        let driver = start(&fake).unwrap();
        let mut failures = Vec::new();
        failures.resize(n, None);
        failures.resize(n + 100, Some(Failure::Gone));
        fake.state().failures = failures.into();
        let errors = everything(&driver);
        for error in &errors {
            assert_eq!(*error, IommuError::Gone, "request {n}");
        }
        let sent = fake.state().seen.len();
        drop(driver);
        if sent <= n {
            assert!(errors.is_empty() && n > 8);
            break;
        }
    }
}

#[test]
fn any_one_request_may_be_lost_or_refused() {
    let kinds = [
        Failure::Lost,
        Failure::Silent,
        Failure::Unwritten,
        Failure::Status(1),
        Failure::Status(3),
        Failure::Status(0x55),
    ];
    for failure in kinds {
        for n in 0.. {
            let fake = Fake::new();
            let driver = start(&fake).unwrap();
            let mut failures = Vec::new();
            failures.resize(n, None);
            failures.push(Some(failure));
            fake.state().failures = failures.into();
            everything(&driver);
            // Blocked at the end, once more if that was what failed.
            let _ = driver.block(STREAM);
            let _ = driver.block(OTHER);
            let state = fake.state();
            for stream in [STREAM, OTHER] {
                let reached = state.reach(stream.get(), BASE.get(), 1);
                assert_eq!(reached, None, "{failure:?} at request {n}");
            }
            if state.seen.len() <= n {
                break;
            }
        }
    }
}
