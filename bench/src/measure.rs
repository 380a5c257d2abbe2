//! Timing: many samples of an operation, taken in turn with samples of its plain loop, so that
//! both meet the same disturbances.

use std::collections::BTreeMap;
use std::time::Instant;

use serde::Serialize;

use crate::scenarios::{Sample, Scenario};
use crate::{Cache, Failure, Workload};

/// Samples of each operation with warm caches.
const HOT_SAMPLES: usize = 301;
/// Samples where every one starts by filling the caches with other data.
const COLD_SAMPLES: usize = 41;
/// Samples of single calls.
const CALL_SAMPLES: usize = 100_000;
/// Samples of single calls that are taken before it is another's turn.
const CALLS_IN_TURN: usize = 1000;
/// Samples that are thrown away at the start.
const WARM_UP: usize = 5;

/// Where the samples lie, in nanoseconds per unit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// Half of them are below.
    pub median: f64,
    /// A tenth of them are below.
    pub p10: f64,
    /// A tenth of them are above.
    pub p90: f64,
    /// A hundredth of them are above.
    pub p99: f64,
}

impl Spread {
    /// Of `samples`, at least one.
    pub fn of(samples: &mut [f64]) -> Option<Self> {
        samples.sort_by(f64::total_cmp);
        let last = samples.len().checked_sub(1)?;
        let at = |tenths: usize| samples[last * tenths / 10];
        Some(Self {
            median: at(5),
            p10: at(1),
            p90: at(9),
            p99: samples[last * 99 / 100],
        })
    }
}

/// A plain loop, measured in the same run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Limit {
    /// What it does.
    pub what: &'static str,
    /// Nanoseconds per unit.
    pub median: f64,
    /// A tenth of its samples are below.
    pub p10: f64,
}

/// A figure from another machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RecordedElsewhere {
    /// Nanoseconds per unit.
    pub median: f64,
    /// Instructions per unit.
    pub instructions: Option<f64>,
}

/// One benchmark as it was measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BenchRow {
    /// Name of the scenario.
    pub name: &'static str,
    /// What was measured.
    pub what: &'static str,
    /// Bytes of one call.
    pub size_bytes: u64,
    /// Threads at work.
    pub threads: u32,
    /// What the figures are per.
    pub unit: &'static str,
    /// Number of samples.
    pub samples: usize,
    /// This library.
    pub ours: Spread,
    /// Others, measured in the same run.
    pub peers: BTreeMap<&'static str, Spread>,
    /// The plain loop.
    pub limit: Limit,
    /// `ours` by `limit`, medians.
    pub ratio: f64,
    /// Others, measured on other machines at other times.
    pub recorded_elsewhere: BTreeMap<&'static str, RecordedElsewhere>,
}

/// The document that `--json` prints.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// A row per scenario.
    pub benchmarks: Vec<BenchRow>,
}

fn sample(work: &mut dyn Workload) -> Result<f64, Failure> {
    work.prepare()?;
    let start = Instant::now();
    work.run()?;
    let nanos = start.elapsed().as_nanos();
    Ok(nanos as f64 / work.units().max(1) as f64)
}

/// Measures one scenario.
///
/// # Errors
/// If the library refuses what the scenario asks for.
pub fn run(scenario: &Scenario) -> Result<BenchRow, Failure> {
    let (turns, in_turn) = match (scenario.sample, scenario.cache) {
        (Sample::Call, _) => (CALL_SAMPLES / CALLS_IN_TURN, CALLS_IN_TURN),
        (Sample::Pass, Cache::Hot) => (HOT_SAMPLES, 1),
        (Sample::Pass, Cache::Cold) => (COLD_SAMPLES, 1),
    };
    // Ours, the plain loop, and the peers.
    let peers = scenario.peers.iter().map(|&(_, make)| make);
    let makes = [scenario.make, scenario.make_limit]
        .into_iter()
        .chain(peers);
    let mut all: Vec<(Box<dyn Workload>, Vec<f64>)> = Vec::new();
    for make in makes {
        all.push((make()?, Vec::new()));
    }
    for turn in 0..turns + WARM_UP {
        for (work, samples) in &mut all {
            for _ in 0..in_turn {
                let nanos = sample(&mut **work)?;
                if turn >= WARM_UP {
                    samples.push(nanos);
                }
            }
        }
    }
    let mut spreads = Vec::new();
    for (_, samples) in &mut all {
        spreads.push(Spread::of(samples).ok_or(Failure::NotPrepared)?);
    }
    let (ours, limit) = (spreads[0], spreads[1]);
    let peers = scenario.peers.iter().zip(&spreads[2..]);
    let peers = peers.map(|(&(name, _), &spread)| (name, spread)).collect();
    let recorded = scenario.recorded.iter().map(|recorded| {
        let figures = RecordedElsewhere {
            median: recorded.ns,
            instructions: recorded.instructions,
        };
        (recorded.peer, figures)
    });
    Ok(BenchRow {
        name: scenario.name,
        what: scenario.what,
        size_bytes: scenario.size_bytes,
        threads: scenario.threads,
        unit: scenario.unit,
        samples: turns * in_turn,
        ours,
        peers,
        limit: Limit {
            what: scenario.limit,
            median: limit.median,
            p10: limit.p10,
        },
        ratio: ours.median / limit.median,
        recorded_elsewhere: recorded.collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::all;

    #[test]
    fn spread_picks_ranks() {
        let mut samples: Vec<f64> = (0..=100).rev().map(f64::from).collect();
        let spread = Spread::of(&mut samples).unwrap();
        assert_eq!((spread.p10, spread.median, spread.p90), (10.0, 50.0, 90.0));
        assert_eq!(Spread::of(&mut []), None);
    }

    #[test]
    fn every_scenario_repeats() {
        for scenario in all() {
            if scenario.cache == Cache::Cold {
                continue;
            }
            for make in [scenario.make, scenario.make_limit] {
                let mut work = make().unwrap();
                for _ in 0..3 {
                    sample(&mut *work).unwrap();
                }
                assert!(work.units() > 0, "{}", scenario.name);
            }
        }
    }
}
