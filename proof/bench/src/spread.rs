//! Distributions of samples, and the loop that a figure is compared with.

use serde::Serialize;

/// Distribution of the samples, in nanoseconds per unit.
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
    /// A thousandth of them are above.
    pub p99_9: f64,
    /// The largest of them.
    pub max: f64,
    /// The mean of all.
    pub mean: f64,
}

impl Spread {
    /// Summary of `samples`; `None` without samples.
    pub fn of(samples: &mut [f64]) -> Option<Self> {
        samples.sort_by(f64::total_cmp);
        let last = samples.len().checked_sub(1)?;
        let at = |tenths: usize| samples[last * tenths / 10];
        Some(Self {
            median: at(5),
            p10: at(1),
            p90: at(9),
            p99: samples[last * 99 / 100],
            p99_9: samples[last * 999 / 1000],
            max: samples[last],
            mean: samples.iter().sum::<f64>() / samples.len() as f64,
        })
    }
}

/// A plain loop, measured in the same run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Limit {
    /// Work of the plain loop.
    pub what: &'static str,
    /// Nanoseconds per unit.
    pub median: f64,
    /// A tenth of its samples are below.
    pub p10: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_picks_ranks() {
        let mut samples: Vec<f64> = (0..=100).rev().map(f64::from).collect();
        let spread = Spread::of(&mut samples).unwrap();
        assert_eq!((spread.p10, spread.median, spread.p90), (10.0, 50.0, 90.0));
        assert_eq!((spread.p99, spread.p99_9, spread.max, spread.mean), (99.0, 99.0, 100.0, 50.0));
        assert_eq!(Spread::of(&mut []), None);
    }
}
