//! Devices that fault while memory is taken back, by eight CPUs in virtual time.
#![allow(missing_docs)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use portolan::inval::Step;
use portolan::iommu::IommuError;
use portolan_sim::cpus::Hardware;
use portolan_verify::mappings::Health;
use portolan_verify::paging::{paging, sabotaged};

const CPUS: u64 = 8;

#[test]
fn no_device_reaches_what_its_owner_has_back() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let report = paging(Health::Failing, seed, CPUS, 80_000, &mut |_| {});
    assert!(report.violations.is_empty(), "{:#?}", report.violations);
    let happened = |name: &str| report.events.get(name).copied().unwrap_or(0);
    for name in [
        "raced",
        "reached_leaving",
        "responses_success",
        "responses_invalid",
        "responses_failure",
        "detached",
        "misbehaved",
        "regions_removed",
        "failed",
        "spurious",
        "harvests",
        "failures",
        "ranges_not_quiet",
        "recovered",
    ] {
        assert!(happened(name) > 0, "{name}: {:#?}", report.events);
    }
    let responses = ["responses_success", "responses_invalid", "responses_failure"];
    let answered: u64 = responses.into_iter().map(happened).sum();
    assert_eq!(answered, happened("groups"));
}

#[test]
fn equal_seeds_give_equal_runs() {
    let run = || paging(Health::Failing, 11, CPUS, 4000, &mut |_| {});
    assert_eq!(run(), run());
}

/// Leaves out one invalidation in so many.
struct Forgetful<H> {
    hardware: H,
    seen: Arc<AtomicU64>,
}

impl<H: Hardware> Hardware for Forgetful<H> {
    fn complete(&self, steps: &mut dyn Iterator<Item = Step>) -> Result<(), IommuError> {
        let mut steps = steps.filter(|step| {
            let invalidates = matches!(step, Step::Invalidate(_));
            !invalidates || !self.seen.fetch_add(1, Ordering::Relaxed).is_multiple_of(20)
        });
        self.hardware.complete(&mut steps)
    }
}

#[test]
fn a_lost_invalidation_is_noticed() {
    let report = sabotaged(Health::Failing, 5, CPUS, 40_000, &mut |_| {}, |hardware| Forgetful {
        hardware,
        seen: Arc::default(),
    });
    assert!(!report.violations.is_empty());
}
