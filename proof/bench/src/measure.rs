//! Timing: many samples of an operation, taken in turn with samples of its plain loop and of its
//! peers, so that all meet the same disturbances.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::linux;
use crate::scenarios::{Sample, Scenario, Target};
use crate::spread::{Limit, Spread};
use crate::{Cache, Failure, Workload};

/// Amount of samples to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// As many samples as a figure needs.
    Whole,
    /// A few, which show that everything works and no more.
    Short,
}

/// Samples of each operation with warm caches.
const HOT_SAMPLES: usize = 301;
/// Samples where every one starts by filling the caches with other data, or is a pass of threads.
const FEW_SAMPLES: usize = 41;
/// Samples of single calls.
const CALL_SAMPLES: usize = 100_000;
/// Samples of single calls that are taken before it is another's turn.
const CALLS_IN_TURN: usize = 1000;
/// Samples that are thrown away at the start.
const WARM_UP: usize = 5;

/// Turns, and samples in each.
fn samples(scenario: &Scenario, extent: Extent) -> (usize, usize) {
    let (turns, in_turn) = match (scenario.sample, scenario.cache, scenario.threads) {
        (Sample::Call, ..) => (CALL_SAMPLES / CALLS_IN_TURN, CALLS_IN_TURN),
        (Sample::Pass, Cache::Hot, 1) => (HOT_SAMPLES, 1),
        (Sample::Pass, ..) => (FEW_SAMPLES, 1),
    };
    match extent {
        Extent::Whole => (turns, in_turn),
        Extent::Short => (3, in_turn),
    }
}

/// A target, and the measurement against it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// The peer or loop that ours is compared with.
    pub against: &'static str,
    /// Figures that the report is about.
    pub of: &'static str,
    /// Theirs by ours, at least; or, against the limit, ours by it, at most.
    pub wanted: f64,
    /// Measured ratio; `None` if the peer to compare with is not here.
    pub measured: Option<f64>,
    /// Set if the target is met; `None` if it was not measured.
    pub met: Option<bool>,
}

/// Measurement of one benchmark.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BenchRow {
    /// Name of the scenario.
    pub name: &'static str,
    /// Operation that was measured.
    pub what: &'static str,
    /// Bytes of one call.
    pub size_bytes: u64,
    /// Threads at work.
    pub threads: u32,
    /// Unit of the figures.
    pub unit: &'static str,
    /// Number of samples.
    pub samples: usize,
    /// Result of this library.
    pub ours: Spread,
    /// Results of others, measured in the same run.
    pub peers: BTreeMap<&'static str, Spread>,
    /// The plain loop.
    pub limit: Limit,
    /// `ours` by `limit`, medians.
    pub ratio: f64,
    /// Targets of the scenario, and the measurements against them.
    pub targets: Vec<Outcome>,
}

/// The document that `--json` prints.
#[derive(Clone, Debug, Serialize)]
pub struct BenchReport {
    /// A row per scenario.
    pub benchmarks: Vec<BenchRow>,
    /// Peers that are not here, and benchmarks that this machine cannot do, and the remedy for each.
    pub skipped: BTreeMap<&'static str, &'static str>,
}

impl BenchReport {
    /// Makes a report of the benchmarks that were measured, and of those that were skipped.
    pub fn of(benchmarks: Vec<BenchRow>, skipped: Vec<(&'static str, &'static str)>) -> Self {
        Self { benchmarks, skipped: linux::missing().chain(skipped).collect() }
    }
}

/// Returns the reason why a machine with `cpus` CPUs cannot measure `scenario`, if it has too few: threads that
/// alternate on one CPU do not compete.
pub fn lacks(scenario: &Scenario, cpus: usize) -> Option<&'static str> {
    let enough = scenario.threads as usize <= cpus;
    (!enough).then_some("it takes a CPU for each of its threads; run it on a machine with two CPUs")
}

fn sample(work: &mut dyn Workload) -> Result<f64, Failure> {
    work.prepare()?;
    Ok(work.run_timed()? / work.units().max(1) as f64)
}

/// An operation, and its samples.
type Timed = (&'static str, Box<dyn Workload>, Vec<f64>);

/// Measures one scenario. A peer that is not here is left out.
///
/// # Errors
/// If the library, or a peer that is here, refuses the scenario.
pub fn run(scenario: &Scenario, extent: Extent) -> Result<BenchRow, Failure> {
    let (turns, in_turn) = samples(scenario, extent);
    let own = [("ours", scenario.make), ("limit", scenario.make_limit)];
    let mut all: Vec<Timed> = Vec::new();
    for (name, make) in own.into_iter().chain(scenario.peers.iter().copied()) {
        match make() {
            Ok(work) => all.push((name, work, Vec::new())),
            Err(Failure::NoLinux(_)) => {}
            Err(failure) => return Err(failure),
        }
    }
    for turn in 0..turns + WARM_UP {
        for (_, work, samples) in &mut all {
            for _ in 0..in_turn {
                let nanos = sample(&mut **work)?;
                if turn >= WARM_UP {
                    samples.push(nanos);
                }
            }
        }
    }
    let mut spreads = Vec::new();
    for (name, _, samples) in &mut all {
        spreads.push((*name, Spread::of(samples).ok_or(Failure::NotPrepared)?));
    }
    let peers: BTreeMap<_, _> = spreads.split_off(2).into_iter().collect();
    let (ours, limit) = (spreads[0].1, spreads[1].1);
    let ratio = ours.median / limit.median;
    let theirs = linuxs(scenario).map(|name| (name, peers.get(name)));
    let outcome = |target: &Target| outcome(*target, &ours, ratio, theirs);
    Ok(BenchRow {
        name: scenario.name,
        what: scenario.what,
        size_bytes: scenario.size_bytes,
        threads: scenario.threads,
        unit: scenario.unit,
        samples: turns * in_turn,
        ours,
        limit: Limit { what: scenario.limit, median: limit.median, p10: limit.p10 },
        ratio,
        targets: scenario.targets.iter().map(outcome).collect(),
        peers,
    })
}

/// Name of Linux's version that the scenario is compared with.
fn linuxs(scenario: &Scenario) -> Option<&'static str> {
    let mut names = scenario.peers.iter().map(|(name, _)| *name);
    names.find(|name| [linux::NAME, linux::GENERIC_PT_NAME].contains(name))
}

fn outcome(
    target: Target,
    ours: &Spread,
    ratio: f64,
    theirs: Option<(&'static str, Option<&Spread>)>,
) -> Outcome {
    let (against, linux) = theirs.unwrap_or((linux::NAME, None));
    let at_least = |wanted, of, measured: Option<f64>| Outcome {
        against,
        of,
        wanted,
        measured,
        met: measured.map(|measured| measured >= wanted),
    };
    match target {
        Target::Linux(wanted) => {
            at_least(wanted, "median", linux.map(|theirs| theirs.median / ours.median))
        }
        Target::LinuxMean(wanted) => {
            at_least(wanted, "mean", linux.map(|theirs| theirs.mean / ours.mean))
        }
        Target::LinuxP99(wanted) => {
            at_least(wanted, "p99", linux.map(|theirs| theirs.p99 / ours.p99))
        }
        Target::LinuxP999(wanted) => {
            at_least(wanted, "p99.9", linux.map(|theirs| theirs.p99_9 / ours.p99_9))
        }
        Target::Limit(wanted) => Outcome {
            against: "limit",
            of: "median",
            wanted,
            measured: Some(ratio),
            met: Some(ratio <= wanted),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::all;

    #[test]
    fn every_scenario_repeats() {
        for scenario in all() {
            if scenario.cache == Cache::Cold {
                continue;
            }
            let own = [scenario.make, scenario.make_limit];
            for make in own.into_iter().chain(scenario.peers.iter().map(|peer| peer.1)) {
                let mut work = match make() {
                    Err(Failure::NoLinux(why)) => {
                        println!("SKIP {}: {why}", scenario.name);
                        continue;
                    }
                    work => work.unwrap(),
                };
                for _ in 0..3 {
                    sample(&mut *work).unwrap();
                }
                assert!(work.units() > 0, "{}", scenario.name);
            }
        }
    }

    #[test]
    fn threads_without_a_cpu_each_are_not_measured() {
        for scenario in all() {
            assert_eq!(lacks(&scenario, 1).is_some(), scenario.threads > 1);
            assert_eq!(lacks(&scenario, 2), None);
        }
    }

    #[test]
    fn targets_are_judged_by_their_own_figures() {
        let spread = |median, p99| Spread {
            median,
            p10: median,
            p90: median,
            p99,
            p99_9: p99,
            max: p99,
            mean: median * 2.0,
        };
        let (ours, linux) = (spread(10.0, 100.0), spread(20.0, 150.0));
        let met = |target, linux| outcome(target, &ours, 3.0, Some((linux::NAME, linux))).met;
        assert_eq!(met(Target::Linux(2.0), Some(&linux)), Some(true));
        assert_eq!(met(Target::Linux(2.1), Some(&linux)), Some(false));
        assert_eq!(met(Target::LinuxMean(2.0), Some(&linux)), Some(true));
        assert_eq!(met(Target::LinuxP99(1.6), Some(&linux)), Some(false));
        assert_eq!(met(Target::Linux(2.0), None), None, "never a made-up figure");
        assert_eq!(met(Target::Limit(3.0), None), Some(true));
        assert_eq!(met(Target::Limit(2.9), None), Some(false));
    }
}
