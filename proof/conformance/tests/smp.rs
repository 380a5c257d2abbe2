//! Eight CPUs in virtual time: buffers under every policy, devices that fault, and both on one unit.
#![allow(missing_docs)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use portolan::inval::Step;
use portolan::iommu::IommuError;
use portolan_sim::cpus::Hardware;
use portolan_verify::record::Record;
use portolan_verify::smp::{Health, Model, SmpLoad, SmpPlan, UnmapMode, sabotaged, smp};

const CPUS: u64 = 8;

fn seed() -> u64 {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    seed
}

fn plan(load: SmpLoad, health: Health, seed: u64, operations: u64) -> SmpPlan {
    SmpPlan { load, health, seed, cpus: CPUS, operations }
}

/// Does it, without a violation.
fn holds(plan: SmpPlan) -> Record {
    let record = smp(plan, &mut |_| {});
    assert!(record.violations.is_empty(), "{:#?}", record.violations);
    record
}

fn happened(record: &Record, least: u64, names: &[&str]) {
    for name in names {
        assert!(record.count(name) > least, "{name}: {record:#?}");
    }
}

/// All loads, on hardware of both kinds.
fn all() -> Vec<(SmpLoad, Health)> {
    let loads = SmpLoad::BUFFERS.into_iter().chain([SmpLoad::Faults]).chain(SmpLoad::BOTH);
    loads.flat_map(|load| Health::ALL.map(|health| (load, health))).collect()
}

#[test]
fn no_device_reaches_what_a_driver_has_back() {
    let seed = seed();
    for load in SmpLoad::BUFFERS {
        let record = holds(plan(load, Health::Sound, seed, 40_000));
        happened(&record, 10_000, &["retries", "accesses"]);
        match load {
            SmpLoad::Buffers(UnmapMode::Lazy) => happened(&record, 0, &["reached_exposed"]),
            SmpLoad::Buffers(UnmapMode::Deferred) => happened(&record, 0, &["reached_waiting"]),
            _ => {}
        }
    }
}

#[test]
fn everything_comes_back_from_hardware_that_fails_beside_other_cpus() {
    let seed = seed();
    for load in SmpLoad::BUFFERS {
        let record = holds(plan(load, Health::Failing, seed, 40_000));
        happened(&record, 10, &["failures", "refused", "recovered"]);
    }
}

#[test]
fn no_device_reaches_what_its_owner_has_back() {
    let seed = seed();
    for health in Health::ALL {
        let record = holds(plan(SmpLoad::Faults, health, seed, 60_000));
        let responses = ["responses_success", "responses_invalid", "responses_failure"];
        happened(&record, 0, &responses);
        happened(&record, 0, &["raced", "reached_leaving", "detached", "misbehaved"]);
        happened(&record, 0, &["regions_removed", "failed", "spurious", "harvests"]);
        if health == Health::Failing {
            happened(&record, 0, &["failures", "deaths", "ranges_not_quiet", "recovered"]);
        }
        let answered: u64 = responses.map(|name| record.count(name)).iter().sum();
        assert_eq!(answered, record.count("groups"));
    }
}

#[test]
fn buffers_and_faults_share_a_unit() {
    let seed = seed();
    for load in SmpLoad::BOTH {
        for health in Health::ALL {
            let record = holds(plan(load, health, seed, 20_000));
            happened(&record, 0, &["retries", "reached_leaving", "raced", "responses_success"]);
        }
    }
}

#[test]
fn equal_seeds_give_equal_runs() {
    for (load, health) in all() {
        let run = || smp(plan(load, health, 11, 4000), &mut |_| {});
        assert_eq!(run(), run());
    }
}

/// Leaves out one invalidation in so many.
struct Forgetful {
    model: Arc<Model>,
    seen: AtomicU64,
    every: u64,
}

impl Forgetful {
    /// Runs it on such hardware, after `sound` rounds on hardware that leaves nothing out.
    fn run(plan: SmpPlan, every: u64, sound: u64) -> Record {
        let made = AtomicU64::new(0);
        sabotaged(plan, &mut |_| {}, &|model| {
            let every = if made.fetch_add(1, Ordering::Relaxed) < sound { u64::MAX } else { every };
            Box::new(Self { model, seen: AtomicU64::new(1), every })
        })
    }
}

impl Hardware for Forgetful {
    fn complete(&self, steps: &mut dyn Iterator<Item = Step>) -> Result<(), IommuError> {
        let mut steps = steps.filter(|step| {
            let invalidates = matches!(step, Step::Invalidate(_));
            !invalidates || !self.seen.fetch_add(1, Ordering::Relaxed).is_multiple_of(self.every)
        });
        self.model.complete(&mut steps)
    }
}

#[test]
fn a_lost_invalidation_is_noticed() {
    for (load, health) in all() {
        let (every, operations) = match load {
            SmpLoad::Faults => (20, 40_000),
            SmpLoad::Buffers(_) | SmpLoad::Both(_) => (3, 20_000),
        };
        let record = Forgetful::run(plan(load, health, 5, operations), every, 0);
        assert!(!record.violations.is_empty(), "{load:?}, {health:?}");
    }
}

#[test]
fn the_seed_of_a_violation_gives_it_at_once() {
    let plan = |seed| plan(SmpLoad::Faults, Health::Failing, seed, 40_000);
    let late = Forgetful::run(plan(1), 20, 2);
    assert_eq!(late.count("rounds"), 3, "{late:#?}");
    let at_once = Forgetful::run(plan(3), 20, 0);
    assert_eq!(at_once.count("rounds"), 1, "{at_once:#?}");
    assert_eq!(at_once.violations, late.violations);
    assert!(late.violations[0].contains("seed 3,"), "{late:#?}");
}
