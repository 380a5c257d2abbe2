//! A straight line through the times of calls: its intercept is the time of a call, its slope the time of a unit.
//!
//! Calls of equal size are a group. The line is fitted to the groups' medians first; then calls that lie further
//! from it than [`FAR`] times the usual distance (the median, relative to the line) are left out, interrupts and waits
//! among them, and the line is fitted to the means of what remains, three times. Neither part is negative. The range
//! that the evidence leaves comes from resampling the calls (Efron's bootstrap, percentiles).

use std::collections::BTreeMap;

use portolan_sim::profile::Price;
use serde::Serialize;

use super::samples::{CallSample, Care, Overhead, Part, Resolution};
use crate::least_squares::weighted;

/// Calls that a price needs.
pub(super) const FEWEST: usize = 20;
/// Calls of a size that it takes to tell that size from another.
const FEWEST_OF_A_SIZE: usize = 8;
/// Times the usual distance from the line, scaled to a standard deviation, at which a call is left out.
const FAR: f64 = 4.0;
/// The median's distance in standard deviations, for normal deviates, as a divisor.
const MAD: f64 = 1.4826;
/// Relative distance that is never far.
const NEAR: f64 = 0.05;
const ROUNDS: usize = 3;
/// Least ratio of the longest to the shortest calls if times are powers of two: several buckets.
const SPAN: f64 = 8.0;
const RESAMPLES: usize = 200;
/// Calls of a resample; more would say no more.
const RESAMPLED: usize = 2048;
/// Resamples on either side of the interval, which so holds 95 of 100.
const TAIL: usize = 5;

/// A time, and the range that the evidence allows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Estimate {
    /// Nanoseconds.
    pub ns: f64,
    /// Lower limit.
    pub low_ns: f64,
    /// Upper limit.
    pub high_ns: f64,
}

impl Estimate {
    /// Estimate from an existing price.
    pub(super) fn of(price: &Price) -> Self {
        Self { ns: price.ns, low_ns: price.low(), high_ns: price.high() }
    }

    /// Applies `change` to all three numbers.
    pub(super) fn map(self, change: impl Fn(f64) -> f64) -> Self {
        Self { ns: change(self.ns), low_ns: change(self.low_ns), high_ns: change(self.high_ns) }
    }
}

/// Time of one unit, if it could be told from the time of a call.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Slope {
    /// The slope was measured.
    Told(Estimate),
    /// The calls' units are in no trace.
    Unsaid,
    /// All calls have about the same size.
    OneSize,
    /// Calls of more units do not take longer by more than they vary.
    Noise,
    /// The longest calls are not so much longer than the shortest that buckets of powers of two tell.
    Buckets,
}

/// A fitted line.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FittedLine {
    /// Time of a call without its units; the whole time if the two cannot be separated.
    pub call: Estimate,
    /// Time of a unit.
    pub each: Slope,
    /// Mean units of a call.
    pub units: f64,
    /// Fewest and most units of a call.
    pub range: [f64; 2],
    /// Calls that were fitted on.
    pub calls: u64,
    /// Calls that lie too far from the line.
    pub outliers: u64,
    /// Median distance from the line, in nanoseconds.
    pub residual_ns: f64,
    /// Part of the variation that the line explains.
    pub r_squared: f64,
}

/// Points that a line is fitted on: units and nanoseconds of calls.
type Points = [(f64, f64)];

/// A line through points: the time of a call, and that of each unit beyond it, in nanoseconds.
#[derive(Clone, Copy)]
struct CallLine {
    call: f64,
    each: f64,
}

impl CallLine {
    fn at(self, units: f64) -> f64 {
        self.call + self.each * units
    }
}

/// Calls of equal size: that size, their number and mean or median time.
type Groups = Vec<(f64, f64, f64)>;

impl FittedLine {
    /// Fits the line through `samples`, each without the `overhead` of tracing. `None` if there are too few.
    pub(super) fn fit(
        samples: &[CallSample],
        overhead: Overhead,
        care: Care,
        seed: u64,
    ) -> Option<Self> {
        // Calls with unknown units are left out if enough others have known ones.
        let told = samples.iter().filter(|sample| sample.units.is_some()).count();
        let is_told = told >= FEWEST || told * 2 > samples.len();
        let points = samples.iter().filter(|sample| !is_told || sample.units.is_some());
        let points: Vec<_> =
            points.map(|sample| (sample.units.unwrap_or(1.0), own_ns(sample, overhead))).collect();
        if points.len() < FEWEST {
            return None;
        }
        let apart = can_be_told(&points);
        let mut line = through(&groups(&points, median), apart);
        let mut near = points.clone();
        for _ in 0..ROUNDS {
            if care.takes(Part::Outliers) {
                near = near_to(line, &points);
            }
            line = through(&groups(&near, mean), apart);
        }
        let mut found = Self::of(&near, line);
        found.outliers = (points.len() - near.len()) as u64;
        let [call, each] = resampled(&near, apart, seed);
        let coarse = samples.iter().any(|sample| sample.resolution == Resolution::Bucket);
        let estimate = |ns: f64, [low, high]: [f64; 2]| {
            // A bucket's calls are anywhere in it.
            let wide = if coarse { 2f64.sqrt() } else { 1.0 };
            Estimate {
                ns: rounded(ns),
                low_ns: rounded((low / wide).min(ns)),
                high_ns: rounded((high * wide).max(ns)),
            }
        };
        let [shortest, longest] = found.range.map(|units| line.at(units));
        found.each = match apart {
            _ if !is_told => Slope::Unsaid,
            Apart::No => Slope::OneSize,
            Apart::Yes if each[0] <= 0.0 => Slope::Noise,
            Apart::Yes if coarse && longest < SPAN * shortest => Slope::Buckets,
            Apart::Yes => Slope::Told(estimate(line.each, each)),
        };
        found.call = match found.each {
            Slope::Told(_) => estimate(line.call, call),
            _ => estimate(found.call.ns, resampled(&near, Apart::No, seed)[0]),
        };
        Some(found)
    }

    /// Judges a line by the calls `near` it; without a better line, all calls have their mean time.
    fn of(near: &Points, line: CallLine) -> Self {
        let (mut sizes, mut ys): (Vec<f64>, Vec<f64>) = near.iter().copied().unzip();
        let (units, average) = (mean(&mut sizes), mean(&mut ys));
        let left = near.iter().map(|(x, y)| y - line.at(*x));
        let mut distances: Vec<f64> = left.clone().map(f64::abs).collect();
        let left: f64 = left.map(|left| left.powi(2)).sum();
        let all: f64 = ys.iter().map(|y| (y - average).powi(2)).sum();
        Self {
            call: Estimate { ns: average, low_ns: average, high_ns: average },
            each: Slope::Unsaid,
            units: rounded(units),
            range: [
                sizes.iter().copied().fold(f64::MAX, f64::min).min(units),
                sizes.iter().copied().fold(0.0, f64::max),
            ],
            calls: near.len() as u64,
            outliers: 0,
            residual_ns: rounded(median(&mut distances)),
            r_squared: if all > 0.0 { rounded((1.0 - left / all).clamp(0.0, 1.0)) } else { 0.0 },
        }
    }

    /// Time that the line predicts for a call of so many units, in nanoseconds.
    pub(super) fn predicts(&self, units: f64) -> f64 {
        match self.each {
            Slope::Told(each) => self.call.ns + each.ns * units,
            _ => self.call.ns,
        }
    }
}

/// Time of a call without the time of tracing, in nanoseconds; 0 if tracing takes more.
pub(super) fn own_ns(sample: &CallSample, overhead: Overhead) -> f64 {
    (sample.ns - overhead.of(sample.hooks)).max(0.0)
}

/// Possibility to tell two sizes apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Apart {
    No,
    Yes,
}

fn can_be_told(points: &Points) -> Apart {
    let groups = groups(points, mean).into_iter();
    let enough = groups.filter(|group| group.1 >= FEWEST_OF_A_SIZE as f64);
    let (least, most) = enough
        .fold((f64::MAX, 0.0f64), |(least, most), (size, ..)| (least.min(size), most.max(size)));
    if most >= 2.0 * least { Apart::Yes } else { Apart::No }
}

fn groups(points: &Points, middle: fn(&mut [f64]) -> f64) -> Groups {
    let mut sizes: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
    for (size, ns) in points {
        sizes.entry(*size as u64).or_default().push(*ns);
    }
    let groups =
        sizes.into_iter().map(|(size, mut ns)| (size as f64, ns.len() as f64, middle(&mut ns)));
    groups.collect()
}

/// Fits call and unit by weighted least squares over groups; relative errors count. If sizes are too similar, the
/// result is the mean of all calls.
fn through(groups: &Groups, apart: Apart) -> CallLine {
    if apart == Apart::No {
        let calls: f64 = groups.iter().map(|group| group.1).sum();
        let sum: f64 = groups.iter().map(|(_, calls, ns)| calls * ns).sum();
        return CallLine { call: sum / calls.max(1.0), each: 0.0 };
    }
    let times: Vec<f64> = groups.iter().map(|group| group.2).collect();
    let weight = |(_, calls, ns): &(f64, f64, f64)| calls.sqrt() / ns.max(1.0);
    let weights: Vec<f64> = groups.iter().map(weight).collect();
    let rows: Vec<Vec<f64>> = groups.iter().map(|group| vec![1.0, group.0]).collect();
    let found = weighted(&rows, &times, &weights, 2);
    CallLine { call: found[0], each: found[1] }
}

/// The points that lie no further from the line than is usual.
fn near_to(line: CallLine, points: &Points) -> Vec<(f64, f64)> {
    let distance = |(x, y): &(f64, f64)| {
        let said = line.at(*x);
        (y - said).abs() / said.max(1.0)
    };
    let mut distances: Vec<f64> = points.iter().map(distance).collect();
    let limit = (FAR * MAD * median(&mut distances)).max(NEAR);
    let near = points.iter().filter(|point| distance(point) <= limit);
    near.copied().collect()
}

/// The intervals of call and unit, by resampling.
fn resampled(points: &Points, apart: Apart, seed: u64) -> [[f64; 2]; 2] {
    let mut random = fastrand::Rng::with_seed(seed);
    let count = points.len().min(RESAMPLED);
    // Fewer calls than there are vary more, by the root of their ratio.
    let shrink = (count as f64 / points.len().max(1) as f64).sqrt();
    let whole = through(&groups(points, mean), apart);
    let (mut calls, mut units) = (Vec::new(), Vec::new());
    for _ in 0..RESAMPLES {
        let draw = (0..count).filter_map(|_| random.choice(points).copied());
        let draw: Vec<(f64, f64)> = draw.collect();
        let line = through(&groups(&draw, mean), apart);
        calls.push(whole.call + (line.call - whole.call) * shrink);
        units.push(whole.each + (line.each - whole.each) * shrink);
    }
    [calls, units].map(|mut found| {
        found.sort_by(f64::total_cmp);
        [found[TAIL], found[RESAMPLES - 1 - TAIL]].map(|ns| ns.max(0.0))
    })
}

fn mean(values: &mut [f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// The middle one; zero of none.
pub(super) fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// Rounds to three decimals.
pub(super) fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}
