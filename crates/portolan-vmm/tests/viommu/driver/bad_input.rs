//! A device that tells nonsense, answers anything, or goes away, at any point.

use crate::promised::{all_memory, promised};
use fastrand::Rng;

use super::*;

const SEEDS: u64 = 5_000;
const BASE: Iova = Iova::new(0x4000_0000);
const PAGE: u64 = 4096;

fn try_start(link: &Link) -> Result<Driver<'_>, IommuError> {
    Viommu::start(link, Ticks::default(), limits())
}

fn unit_error(error: AttachError) -> IommuError {
    match error {
        AttachError::Iommu(error) => error,
        _ => IommuError::Unsupported,
    }
}

/// Calls everything, also after a failure; returns the failures.
fn everything(driver: &Driver<'_>) -> Vec<IommuError> {
    let mut errors = Vec::new();
    let mut note = |result: Result<(), IommuError>| errors.extend(result.err());
    let domains = [(); 2].map(|()| driver.domain());
    let [Ok(first), Ok(second)] = domains else {
        return [IommuError::OutOfContexts].into();
    };
    let range = range(BASE.get(), BASE.get() + 4 * PAGE - 1);
    for domain in [&first, &second, &first] {
        note(driver.attach(A, domain).map_err(unit_error));
        let mut owed = Gather::new();
        let (pa, access) = (PhysAddr::new(0x10_0000), RW);
        let mapped = domain.map(BASE, promised(pa, 4 * PAGE), access, &mut owed);
        note(domain.sync(&mut owed).map(drop).map_err(IommuError::from));
        if mapped.is_ok() {
            let mut owed = Gather::new();
            let _ = domain.unmap(range, &mut owed);
            note(domain.sync(&mut owed).map(drop).map_err(IommuError::from));
        }
    }
    note(driver.attach(B, &second).map_err(unit_error));
    note(driver.pass_through(B, all_memory()).map_err(unit_error));
    let _ = driver.reserved(A);
    note(driver.block(A).map_err(unit_error));
    note(driver.block(B).map_err(unit_error));
    note(driver.next_fault().map(|_| ()));
    errors
}

#[test]
fn random_configurations_and_answers() {
    let (mut started, mut refused) = (0, 0);
    for seed in 0..SEEDS {
        println!("seed {seed}");
        let mut random = Rng::with_seed(seed);
        let link = Link::new();
        {
            let mut state = link.state();
            // Some bytes of the configuration, or all of them.
            let changes = random.usize(..=state.config.len());
            for _ in 0..changes {
                let at = random.usize(..state.config.len());
                state.config[at] = random.u8(..);
            }
            state.features = random.u64(..) | 1 << 2;
            let properties = random.usize(..600);
            state.properties = Some((0..properties).map(|_| random.u8(..)).collect());
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
        match try_start(&link) {
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
        let link = Link::new();
        let driver = start(&link);
        let mut failures = Vec::new();
        failures.resize(n, None);
        failures.resize(n + 100, Some(Failure::Gone));
        link.state().failures = failures.into();
        let errors = everything(&driver);
        for error in &errors {
            assert_eq!(*error, IommuError::Gone, "request {n}");
        }
        let sent = link.state().seen.len();
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
            let link = Link::new();
            let driver = start(&link);
            let mut failures = Vec::new();
            failures.resize(n, None);
            failures.push(Some(failure));
            link.state().failures = failures.into();
            everything(&driver);
            // Blocked at the end, once more if that call was the one that failed.
            let _ = driver.block(A);
            let _ = driver.block(B);
            for stream in [A, B] {
                let reached = link.reach(stream.get(), BASE.get(), READ);
                assert_eq!(reached, None, "{failure:?} at request {n}");
            }
            if link.state().seen.len() <= n {
                break;
            }
        }
    }
}
