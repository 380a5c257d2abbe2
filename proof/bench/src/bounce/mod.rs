//! Bounce slots on real threads: by strategy, size, occupancy and number of threads, with the copy
//! and without.
//!
//! A row's samples are taken in turn with those of the other strategies, of the limit and, where
//! there are several threads, of one thread alone, so that all meet the same disturbances.

mod pass;
mod slots;

use std::collections::BTreeMap;

use portolan_sim::swiotlb::Strategy;
use serde::Serialize;

use crate::spread::{Limit, Spread};
use crate::workload::{Failure, Workload};
use pass::{Turn, pass};
use slots::{POOL, Stack, Stage};

pub(crate) use slots::Memcpy;

/// The name of these benchmarks on a command line.
pub const NAME: &str = "bounce";
/// Samples of each figure.
const SAMPLES: usize = 21;
/// Nanoseconds that a sample is to take, about.
const SAMPLE_NS: f64 = 1e6;

/// Part of a buffer's way that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Copying {
    /// Slots taken and given back.
    None,
    /// The buffer is copied to where a device would read it in between.
    ToDevice,
}

/// A combination of settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// Presence of the copy.
    pub copying: Copying,
    /// Bytes of a buffer.
    pub bytes: u64,
    /// Buffers of that size that are in use, in a hundred.
    pub percent: usize,
    /// Threads.
    pub threads: usize,
}

/// Measurement of one combination.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BounceRow {
    /// `bounce_slots` or `bounce_copy`.
    pub name: &'static str,
    /// Bytes of a buffer.
    pub size_bytes: u64,
    /// Tells if the buffer is copied.
    pub copying: Copying,
    /// Buffers in use, in a hundred.
    pub occupancy_pct: usize,
    /// Threads at work.
    pub threads: usize,
    /// Always processor time.
    pub unit: &'static str,
    /// Number of samples.
    pub samples: usize,
    /// The default strategy.
    pub ours: Spread,
    /// Results of other strategies.
    pub peers: BTreeMap<&'static str, Spread>,
    /// The plain loop: the work that every strategy has to do.
    pub limit: Limit,
    /// `ours` by `limit`, medians.
    pub ratio: f64,
    /// Throughput of all threads as a multiple of one thread's, with the default strategy: the median of pairs of
    /// samples. It is by processor time, as if each thread had a core.
    pub scaling: f64,
}

/// The document that `--json` prints.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BounceReport {
    /// A row for each combination.
    pub benchmarks: Vec<BounceRow>,
}

/// The combinations for up to `threads` threads: one, two, and so on by doubling, and `threads`.
pub fn cases(threads: usize) -> Vec<Case> {
    let most = threads.clamp(1, 256);
    let mut counts: Vec<usize> = (0..8).map(|lg2| 1 << lg2).filter(|n| *n < most).collect();
    counts.push(most);
    let kinds = [
        (Copying::None, 2048),
        (Copying::None, 4096),
        (Copying::None, 65536),
        (Copying::ToDevice, 4096),
        (Copying::ToDevice, 65536),
    ];
    let mut cases = Vec::new();
    for (copying, bytes) in kinds {
        for percent in [5, 90] {
            cases.extend(counts.iter().map(|&threads| Case { copying, bytes, percent, threads }));
        }
    }
    cases
}

/// Number of operations that make a sample of about [`SAMPLE_NS`].
fn times<T: Turn + Send>(turns: &mut [T]) -> Result<u64, Failure> {
    let ns = pass(turns, 64)?;
    Ok((SAMPLE_NS / ns.max(1.0)).clamp(16.0, 1e6) as u64)
}

/// The limit of `case`.
fn limit_of(case: &Case) -> Result<f64, Failure> {
    let threads = 0..case.threads;
    match case.copying {
        Copying::None => {
            let mut turns: Vec<_> = threads.map(|_| Stack::new()).collect();
            let times = times(&mut turns)?;
            pass(&mut turns, times)
        }
        Copying::ToDevice => {
            let mut turns: Vec<_> = threads.map(|_| Memcpy::new(case.bytes)).collect();
            let times = times(&mut turns)?;
            pass(&mut turns, times)
        }
    }
}

/// Takes a sample of `stage` with `threads` of its threads.
fn sample(stage: &Stage, case: &Case, threads: usize) -> Result<f64, Failure> {
    match case.copying {
        Copying::None => {
            let mut turns = stage.bare(threads);
            let times = times(&mut turns)?;
            pass(&mut turns, times)
        }
        Copying::ToDevice => {
            let mut turns = stage.copying(threads)?;
            let times = times(&mut turns)?;
            pass(&mut turns, times)
        }
    }
}

/// Measures one combination.
///
/// # Errors
/// If the library refuses the combination, or the system has no memory.
pub fn run(case: &Case) -> Result<BounceRow, Failure> {
    let mut stages = Vec::new();
    for strategy in Strategy::ALL {
        let stage = Stage::new(strategy, POOL, case.threads, case.bytes, case.percent)?;
        stages.push((strategy, stage, Vec::new()));
    }
    let (mut limit, mut scaling) = (Vec::new(), Vec::new());
    // The first is thrown away.
    for turn in 0..=SAMPLES {
        for (strategy, stage, samples) in &mut stages {
            let all = sample(stage, case, case.threads)?;
            if turn > 0 {
                samples.push(all);
            }
            if turn > 0 && *strategy == Strategy::LockFree {
                let alone = match case.threads {
                    1 => all,
                    _ => sample(stage, case, 1)?,
                };
                scaling.push(alone / all * case.threads as f64);
            }
        }
        let one = limit_of(case)?;
        if turn > 0 {
            limit.push(one);
        }
    }
    let spread = |samples: &mut Vec<f64>| Spread::of(samples).ok_or(Failure::NotPrepared);
    let mut spreads = BTreeMap::new();
    for (strategy, _, samples) in &mut stages {
        spreads.insert(strategy.name(), spread(samples)?);
    }
    let ours = spreads.remove(Strategy::LockFree.name()).ok_or(Failure::NotPrepared)?;
    let limit = spread(&mut limit)?;
    Ok(BounceRow {
        name: match case.copying {
            Copying::None => "bounce_slots",
            Copying::ToDevice => "bounce_copy",
        },
        size_bytes: case.bytes,
        copying: case.copying,
        occupancy_pct: case.percent,
        threads: case.threads,
        unit: "ns of processor time per buffer",
        samples: SAMPLES,
        ours,
        peers: spreads,
        limit: Limit {
            what: match case.copying {
                Copying::None => "pop and push of a stack",
                Copying::ToDevice => "hot memcpy",
            },
            median: limit.median,
            p10: limit.p10,
        },
        ratio: ours.median / limit.median,
        scaling: spread(&mut scaling)?.median,
    })
}

/// Buffers in one pass.
const PASS: u64 = 256;

/// Buffers copied for a device that reads them, by one thread with the default strategy.
pub(crate) struct Copies(Stage);

impl Copies {
    /// Makes a stage for buffers of `bytes`, with `percent` per cent of all slots in use.
    pub(crate) fn new(bytes: u64, percent: usize) -> Result<Self, Failure> {
        Ok(Self(Stage::new(Strategy::LockFree, POOL, 1, bytes, percent)?))
    }
}

impl Workload for Copies {
    fn units(&self) -> u64 {
        PASS
    }

    fn run(&mut self) -> Result<(), Failure> {
        let mut turns = self.0.copying(1)?;
        turns.iter_mut().try_for_each(|turn| turn.turn(PASS))
    }
}

impl Workload for Memcpy {
    fn units(&self) -> u64 {
        PASS
    }

    fn run(&mut self) -> Result<(), Failure> {
        self.turn(PASS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_double_up_to_what_is_asked() {
        let counts = |threads| {
            let mut counts: Vec<_> = cases(threads).iter().map(|case| case.threads).collect();
            counts.sort_unstable();
            counts.dedup();
            counts
        };
        assert_eq!(counts(0), [1]);
        assert_eq!(counts(1), [1]);
        assert_eq!(counts(6), [1, 2, 4, 6]);
        assert_eq!(counts(8), [1, 2, 4, 8]);
        assert_eq!(cases(2).len(), 20);
    }
}
