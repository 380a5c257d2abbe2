//! Times of calls of each size, with those of the fit, for people to look at.
//!
//! All calls of a kind are in it, those that were held out and outliers too; so it is medians and tenths that are told.

use std::collections::BTreeMap;

use serde::Serialize;

use super::robust::{FittedLine, Slope, own_ns, rounded};
use super::samples::{CallSample, Overhead, Store};

/// Limit of sizes that are listed one by one. Beyond it, sizes up to twice the smallest are combined.
const MOST: usize = 12;

/// Calls of one size, or of sizes that lie near each other.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Size {
    /// Fewest and most units of a call; nothing where calls do not say.
    pub units: Option<[f64; 2]>,
    /// Calls.
    pub calls: u64,
    /// Nanoseconds that one call in ten does not reach, without tracing and without the calls in it that have prices of
    /// their own.
    pub p10_ns: f64,
    /// Time of the median call.
    pub median_ns: f64,
    /// Time that nine calls in ten do not exceed.
    pub p90_ns: f64,
    /// Time that the fit predicts for a call of the mean size, in nanoseconds.
    pub fitted_ns: Option<f64>,
    /// Time that the prices from before predict for it, in nanoseconds.
    pub before_ns: Option<f64>,
}

/// Groups the calls in `store` by size, each without the `overhead` of tracing, and adds the times that `line` and
/// the previous prices of a call and a unit predict.
pub(super) fn sizes(
    store: &Store,
    overhead: Overhead,
    line: Option<&FittedLine>,
    before: Option<(f64, f64)>,
) -> Vec<Size> {
    let samples = || store.fitted.kept().iter().chain(store.held_out.kept());
    let whole = |sample: &CallSample| sample.units.map(|units| units as u64);
    let power = |sample: &CallSample| whole(sample).map(u64::checked_ilog2);
    let mut groups: BTreeMap<_, Vec<&CallSample>> = BTreeMap::new();
    for sample in samples() {
        groups.entry(whole(sample)).or_default().push(sample);
    }
    let groups: Vec<Vec<&CallSample>> = if groups.len() > MOST {
        let mut wide: BTreeMap<_, Vec<&CallSample>> = BTreeMap::new();
        for sample in samples() {
            wide.entry(power(sample)).or_default().push(sample);
        }
        wide.into_values().collect()
    } else {
        groups.into_values().collect()
    };
    let size = |group: &Vec<&CallSample>| {
        let mut ns: Vec<f64> = group.iter().map(|sample| own_ns(sample, overhead)).collect();
        ns.sort_by(f64::total_cmp);
        let tenths = |tenths: usize| {
            let at = ns.len().saturating_sub(1) * tenths / 10;
            rounded(ns.get(at).copied().unwrap_or(0.0))
        };
        let units = || group.iter().filter_map(|sample| sample.units);
        let mean = units().sum::<f64>() / group.len().max(1) as f64;
        let [least, most] = [f64::min, f64::max].map(|one| units().reduce(one));
        let units = least.zip(most).map(|(least, most)| [least, most]);
        // Calls that do not say how large they are are fitted on only where none does.
        let line = line.filter(|line| units.is_some() || line.each == Slope::Unsaid);
        let before = before.filter(|_| units.is_some());
        Size {
            units,
            calls: group.len() as u64,
            p10_ns: tenths(1),
            median_ns: tenths(5),
            p90_ns: tenths(9),
            fitted_ns: line.map(|line| rounded(line.predicts(mean))),
            before_ns: before.map(|(call, each)| rounded(call + each * mean)),
        }
    };
    groups.iter().map(size).collect()
}
