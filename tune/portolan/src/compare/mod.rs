//! Two replays side by side: two traces, or one trace on two machines.
//!
//! Where both did the same amount of work their totals are compared; where not, the costs of an operation; and where
//! the operations are of different kinds, those of a MiB. Swapping the two swaps all sentences.

mod figure;
mod findings;
mod prediction;
mod text;

use serde::Serialize;

pub(crate) use figure::unit_of;
pub use figure::{Difference, Measure, Side};
pub(crate) use findings::least;
pub use prediction::Prediction;
pub use text::text;

use crate::fleet::LoadKind;
use crate::replay::{PolicyReport, ReplayReport};
use figure::{KINDS, difference};

/// Two replays and their differences.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// Findings from the numbers, in sentences.
    pub findings: Vec<String>,
    /// Measure by which their costs can be compared; `None` if they cannot.
    pub measure: Option<Measure>,
    /// Contents of the two traces.
    pub work: Vec<Difference>,
    /// Policies that both were replayed under.
    pub policies: Vec<PolicyPair>,
    /// Predictions of each recording for the other, if they have one load under different policies.
    pub predictions: Vec<Prediction>,
    /// First replay.
    pub a: ReplayReport,
    /// Second replay.
    pub b: ReplayReport,
}

/// A policy in both replays.
#[derive(Clone, Debug, Serialize)]
pub struct PolicyPair {
    /// Its name.
    pub policy: String,
    /// Its costs by each measure.
    pub figures: Vec<Difference>,
}

impl Comparison {
    /// `a` and `b` side by side.
    pub fn new(a: ReplayReport, b: ReplayReport) -> Self {
        let predicted = [Prediction::new(Side::B, &b, &a), Prediction::new(Side::A, &a, &b)];
        let mut new = Self {
            findings: Vec::new(),
            measure: measure(&a, &b),
            work: work(&a, &b),
            policies: Vec::new(),
            predictions: predicted.into_iter().flatten().collect(),
            a,
            b,
        };
        new.policies = new.pairs().map(|(a, b)| new.pair(a, b)).collect();
        new.findings = findings::of(&new);
        new
    }

    /// The policies that both were replayed under, in the order of the first.
    fn pairs(&self) -> impl Iterator<Item = (&PolicyReport, &PolicyReport)> {
        let other = |a: &PolicyReport| self.b.policies.iter().find(|b| b.policy == a.policy);
        let pairs = self.a.policies.iter();
        pairs.filter_map(move |a| Some((a, other(a)?)))
    }

    fn pair(&self, a: &PolicyReport, b: &PolicyReport) -> PolicyPair {
        let of = |kind: &figure::FigureKind, by: Measure| {
            let (of_a, of_b) = (by.part(&self.a, a), by.part(&self.b, b));
            let value = |of: Option<f64>, policy| of.map(|part| (kind.of)(policy) / part);
            difference(kind.name, by, value(of_a, a), value(of_b, b), kind.less_is)
        };
        let figures = KINDS.iter().flat_map(|kind| {
            let measures =
                Measure::ALL.iter().filter(|by| kind.is_summed || **by == Measure::Total);
            measures.map(move |by| of(kind, *by))
        });
        PolicyPair { policy: a.policy.clone(), figures: figures.collect() }
    }
}

impl PolicyPair {
    /// The figure called `name`, by `measure`.
    pub fn figure(&self, name: &str, measure: Measure) -> Option<&Difference> {
        let mut figures = self.figures.iter();
        figures.find(|one| one.figure == name && one.by == measure)
    }
}

/// The kind of load of a replay.
fn load(report: &ReplayReport) -> LoadKind {
    let ways = &report.shape.directions;
    LoadKind::of(
        report.trace.maps,
        report.trace.bytes_mapped,
        ways.to_device.bytes,
        ways.from_device.bytes,
    )
}

fn measure(a: &ReplayReport, b: &ReplayReport) -> Option<Measure> {
    let amount = |of: &ReplayReport| {
        let trace = &of.trace;
        let coherent = (trace.coherent_allocs, trace.coherent_frees);
        (trace.maps, trace.unmaps, trace.bytes_mapped, coherent)
    };
    let both = [a, b];
    if both.iter().any(|of| load(of) == LoadKind::Nothing) {
        return None;
    }
    if amount(a) == amount(b) {
        return Some(Measure::Total);
    }
    if load(a) == load(b) {
        return Some(Measure::Operation);
    }
    let any_bytes = both.iter().all(|of| of.trace.bytes_mapped > 0);
    any_bytes.then_some(Measure::Mib)
}

/// Contents of the traces: no more and no less of it is better.
fn work(a: &ReplayReport, b: &ReplayReport) -> Vec<Difference> {
    let row = |name, of: &dyn Fn(&ReplayReport) -> Option<f64>| {
        difference(name, Measure::Total, of(a), of(b), figure::Less::Neither)
    };
    let count = |name, of: fn(&ReplayReport) -> u64| row(name, &|report| Some(of(report) as f64));
    vec![
        count("events", |r| r.trace.events),
        count("maps", |r| r.trace.maps),
        count("unmaps", |r| r.trace.unmaps),
        count("coherent_allocs", |r| r.trace.coherent_allocs),
        count("bytes_mapped", |r| r.trace.bytes_mapped),
        row("bytes_a_map", &|r| {
            let maps = Some(r.trace.maps).filter(|maps| *maps > 0)?;
            Some(r.trace.bytes_mapped as f64 / maps as f64)
        }),
        count("mapped_peak", |r| {
            let peaks = r.policies.iter().map(|policy| policy.mapped_peak);
            peaks.max().unwrap_or(0)
        }),
        count("devices", |r| r.trace.devices.len() as u64),
        row("span_ms", &|r| Some(r.shape.span_ns as f64 / 1e6)),
    ]
}

#[cfg(test)]
mod tests;
