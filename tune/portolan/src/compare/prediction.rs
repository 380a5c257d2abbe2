//! Predictions of one recording for the other, where the two are of the same load under different policies.
//!
//! Strict sends an invalidation for each unmap, lazy mostly one for each period of its timer. So the one goes with the
//! unmaps of a recording, the other with the time that it unmaps for, which is the recorded machine's.

use portolan_cli::display::{duration, grouped};
use serde::Serialize;

use super::figure::Side;
use super::{Comparison, load};
use crate::replay::{Now, ReplayReport};

/// A prediction by Linux's rules from one recording for the policy of the other, and the count of that one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Prediction {
    /// The recording that was predicted.
    pub of: Side,
    /// Policy of its kernel.
    pub policy: Now,
    /// Invalidations that the other recording predicts for it.
    pub predicted: u64,
    /// Invalidations that the recorded kernel sent.
    pub counted: u64,
    /// `counted` as a multiple of `predicted`; nothing where none was predicted.
    pub ratio: Option<f64>,
    /// The prediction for the unmap time of this recording (lazy) or for its number of unmaps (strict).
    pub at_its_pace: Option<f64>,
}

impl Prediction {
    /// Prediction of `by` for `of`; `None` if they are not of one load, or if the commands sent are not known.
    pub(super) fn new(side: Side, of: &ReplayReport, by: &ReplayReport) -> Option<Self> {
        let policy = of.situation.now;
        if policy == by.situation.now || !are_alike(of, by) {
            return None;
        }
        let predicted = by.predicted.as_ref()?.under(policy)?;
        let counted = of.sent?.invalidations.total();
        Some(Self {
            of: side,
            policy,
            predicted,
            counted,
            ratio: (predicted > 0).then(|| counted as f64 / predicted as f64),
            at_its_pace: at_its_pace(of, by),
        })
    }
}

/// Tells if the two are of one load: of one kind, and within 5 % as many maps and bytes.
fn are_alike(a: &ReplayReport, b: &ReplayReport) -> bool {
    let near = |a: u64, b: u64| a.abs_diff(b) <= a.max(b) / 20;
    load(a) == load(b)
        && near(a.trace.maps, b.trace.maps)
        && near(a.trace.bytes_mapped, b.trace.bytes_mapped)
}

/// Prediction of `by`, for the time or the unmaps of `of`.
fn at_its_pace(of: &ReplayReport, by: &ReplayReport) -> Option<f64> {
    let rules = by.predicted.as_ref()?;
    let times = |whole: f64, own: f64, other: f64| (own > 0.0).then(|| whole * other / own);
    if of.situation.now == Now::Lazy {
        let by_timer =
            times(rules.lazy_timer() as f64, rules.busy_us, of.predicted.as_ref()?.busy_us)?;
        return Some(by_timer + (rules.lazy - rules.lazy_timer()) as f64);
    }
    let predicted = rules.under(of.situation.now)? as f64;
    times(predicted, known_unmaps(by) as f64, all_unmaps(of) as f64)
}

/// Unmaps of any kind whose map is in the trace: the rules count no others.
fn known_unmaps(of: &ReplayReport) -> u64 {
    of.trace.unmaps.saturating_add(of.trace.coherent_frees)
}

/// All unmaps: a strict kernel invalidates for each of them.
fn all_unmaps(of: &ReplayReport) -> u64 {
    known_unmaps(of).saturating_add(of.trace.orphan_unmaps)
}

/// Finding on `one`, and the reasons why the two numbers may differ.
pub(super) fn finding(one: &Prediction, two: &Comparison) -> String {
    let ((of, this), (by, other)) = match one.of {
        Side::A => ((&two.a, "A"), (&two.b, "B")),
        Side::B => ((&two.b, "B"), (&two.a, "A")),
    };
    let advised = by.advice.iter().any(|setting| setting.rule.is_lazy());
    let who = match (one.policy, advised) {
        (Now::Lazy, true) => "advice",
        _ => "replay",
    };
    let kernel = match one.policy {
        Now::Lazy => "lazy kernel",
        Now::Shadowed => "strict kernel under caching mode",
        _ => "strict kernel",
    };
    let (predicted, counted) = (grouped(one.predicted), grouped(one.counted));
    let said = format!(
        "{other}'s {who} predicted {predicted} invalidations of a {kernel}; {this}'s recording counts {counted}"
    );
    let differ = one.ratio.filter(|_| one.predicted != one.counted);
    let (Some(ratio), Some(paced)) = (differ, one.at_its_pace) else {
        return said + ".";
    };
    let why = match one.policy {
        Now::Lazy => {
            let (by, of) =
                (NamedReport { report: by, name: other }, NamedReport { report: of, name: this });
            because_of_time(by, of)
        }
        _ => format!(
            "They go with unmaps: {} in {other}, {} in {this}. For {this}'s number",
            grouped(known_unmaps(by)),
            grouped(all_unmaps(of)),
        ),
    };
    format!(
        "{said}, {ratio:.2} times as many. {why} {} are predicted.",
        grouped(paced.round() as u64)
    )
}

/// A recording's report, and its name in messages.
#[derive(Clone, Copy)]
struct NamedReport<'a> {
    report: &'a ReplayReport,
    name: &'a str,
}

/// Explains how many flushes of a lazy kernel depend on time, and how long each recording is.
fn because_of_time(by: NamedReport<'_>, of: NamedReport<'_>) -> String {
    let rules = by.report.predicted.clone().unwrap_or_default();
    let busy = |report: &ReplayReport| {
        let busy = report.predicted.as_ref().map(|rules| rules.busy_us);
        duration(busy.unwrap_or_default())
    };
    format!(
        "{} of the {} are the timer's, which go with the time in which memory is unmapped: {} in {}, {} in {}. \
         For {}'s time",
        grouped(rules.lazy_timer()),
        grouped(rules.lazy),
        busy(by.report),
        by.name,
        busy(of.report),
        of.name,
        of.name,
    )
}
