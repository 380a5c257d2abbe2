//! Random operations on every format against the oracle and the adversarial IOMMU: some here, and as many as
//! one likes by `portolan-verify torture`.
#![allow(missing_docs)]

#[macro_use]
mod formats;

use portolan_verify::format::FormatName;
use portolan_verify::torture::{DebtSabotage, concurrent, sabotaged, torture};

const OPERATIONS: u64 = 3_000;

fn seeds(n: u64) -> impl Iterator<Item = u64> {
    1..=n
}

fn run(format: FormatName) {
    for seed in seeds(1) {
        println!("{format}: seed {seed}");
        let report = torture(format, seed, OPERATIONS, &mut |_| {});
        println!("{:?}", report.events);
        assert_eq!(report.violations, Vec::<String>::new());
        assert_eq!(report.operations, OPERATIONS);
    }
}

macro_rules! each {
    ($($test:ident: $name:literal),* $(,)?) => {
        $(#[test]
        fn $test() {
            run($name.parse().unwrap());
        })*
    };
}

with_formats!(each);

#[test]
fn equal_seeds_give_equal_runs() {
    let run = || torture(FormatName::VtdSs4, 77, 3_000, &mut |_| {});
    assert_eq!(run(), run());
}

/// The adversarial model notices each part that is left out of the payment of a debt.
#[test]
fn every_sabotage_is_noticed() {
    for sabotage in DebtSabotage::ALL {
        for format in FormatName::ALL {
            let report = sabotaged(format, 5, 40_000, sabotage, &mut |_| {});
            println!("{sabotage:?} on {format}: {:?}", report.violations);
            assert!(!report.violations.is_empty(), "{sabotage:?} on {format}");
        }
    }
}

#[test]
fn cpus_share_leaf_tables() {
    for format in FormatName::ALL {
        for (seed, threads) in [(1, 2), (2, 3), (3, 4)] {
            println!("{format}: seed {seed}, {threads} threads");
            let report = concurrent(format, seed, threads, 2_000);
            assert_eq!(report.violations, Vec::<String>::new(), "{format} {seed}");
        }
    }
}
