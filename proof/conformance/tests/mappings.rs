//! Buffers through the DMA layer by eight CPUs in virtual time, under every policy.
#![allow(missing_docs)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use portolan::inval::Step;
use portolan::iommu::IommuError;
use portolan_sim::cpus::Hardware;
use portolan_verify::mappings::{Health, UnmapMode, mappings, sabotaged};

const CPUS: u64 = 8;

fn seed() -> u64 {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    seed
}

#[test]
fn no_device_reaches_what_a_driver_has_back() {
    let seed = seed();
    for way in UnmapMode::ALL {
        let report = mappings((way, Health::Sound), seed, CPUS, 40_000, &mut |_| {});
        assert!(report.violations.is_empty(), "{:#?}", report.violations);
        assert!(report.retries > 10_000 && report.accesses > 10_000, "{report:?}");
        match way {
            UnmapMode::Lazy => assert!(report.reached_exposed > 0, "{report:?}"),
            UnmapMode::Deferred => assert!(report.reached_waiting > 0, "{report:?}"),
            UnmapMode::Strict | UnmapMode::Combined => {}
        }
    }
}

#[test]
fn everything_comes_back_from_hardware_that_fails_beside_other_cpus() {
    let seed = seed();
    for way in UnmapMode::ALL {
        let report = mappings((way, Health::Failing), seed, CPUS, 40_000, &mut |_| {});
        assert!(report.violations.is_empty(), "{:#?}", report.violations);
        let met = [report.failures, report.refused, report.recovered];
        assert!(met.iter().all(|&count| count > 20), "{report:?}");
    }
}

#[test]
fn equal_seeds_give_equal_runs() {
    for way in UnmapMode::ALL {
        for health in [Health::Sound, Health::Failing] {
            let run = || mappings((way, health), 11, CPUS, 4000, &mut |_| {});
            assert_eq!(run(), run());
        }
    }
}

/// Leaves out one invalidation in so many.
struct Forgetful<H> {
    hardware: H,
    seen: Arc<AtomicU64>,
    every: u64,
}

impl<H: Hardware> Hardware for Forgetful<H> {
    fn complete(&self, steps: &mut dyn Iterator<Item = Step>) -> Result<(), IommuError> {
        let mut steps = steps.filter(|step| {
            let invalidates = matches!(step, Step::Invalidate(_));
            !invalidates || !self.seen.fetch_add(1, Ordering::Relaxed).is_multiple_of(self.every)
        });
        self.hardware.complete(&mut steps)
    }
}

#[test]
fn a_lost_invalidation_is_noticed() {
    let ways = UnmapMode::ALL.into_iter();
    let runs = ways.flat_map(|way| [Health::Sound, Health::Failing].map(|health| (way, health)));
    for run in runs {
        let report = sabotaged(run, 5, CPUS, 20_000, &mut |_| {}, |hardware| Forgetful {
            hardware,
            seen: Arc::default(),
            every: 3,
        });
        assert!(!report.violations.is_empty(), "{run:?}");
    }
}
