//! Settings of the Linux that was traced, for what the trace shows.
//!
//! Each has the line of the trace that speaks for it; what it brings comes from the replayed policies, the rules of
//! Linux and the profile's prices. `docs/advice.md` has the rules with their sources.
//!
//! Not covered: settings of firmware, of hypervisors, and of drivers' own module parameters.

mod buffers;
mod cost;
mod device;
mod policy;
mod situation;

pub(super) use cost::{LinuxCounters, LinuxCounts, spread_us};

use portolan_model::profile::Profile;

use super::report::{PolicyReport, TraceReport};
use super::setting::{Rule, Setting};
use super::shape::Shape;
use super::situation::Situation;
use crate::advice::Advice;
use crate::facts::Facts;
use crate::trace::Summary;

/// What is not worth a change: less than this of all that mapping costs. Prices are known to about that: the library's
/// plan is held to within 5 % of the best (`tests/threshold.rs`).
pub(super) const WORTH_PCT: f64 = 5.0;
/// As [`WORTH_PCT`], for what opens a window or takes protection away: it has to bring more.
pub(super) const WINDOW_WORTH_PCT: f64 = 10.0;
/// Fewer operations say nothing of a load: they do not fill one flush queue of Linux (256 places).
pub(super) const FEWEST: u64 = 256;

/// All that advice is taken from.
pub(super) struct Input<'a> {
    pub(super) profile: &'a Profile,
    /// What the recording says of its machine, if it says so.
    pub(super) facts: Option<&'a Facts>,
    pub(super) summary: &'a Summary,
    pub(super) trace: &'a TraceReport,
    pub(super) shape: &'a Shape,
    pub(super) policies: &'a [PolicyReport],
    /// What Linux's rules come to, where they are known.
    pub(super) linux: Option<&'a LinuxCounts>,
    pub(super) defaults: &'a Advice,
}

/// The situation of the traced system, and settings that would improve it, the surest gain first; no two of them
/// change the same thing.
pub(super) fn advise(input: &Input<'_>) -> (Situation, Vec<Setting>) {
    let now = Situation::of(input);
    let mut settings: Vec<Setting> = Vec::new();
    let rules = [policy::RULES, buffers::RULES, device::RULES];
    for rule in rules.into_iter().flatten() {
        let Some(setting) = rule(input, &now) else {
            continue;
        };
        let target = setting.rule.target();
        if settings.iter().all(|other| other.rule.target() != target) {
            settings.push(setting);
        }
    }
    if settings.iter().any(|setting| setting.rule.is_lazy()) {
        // Where few flushes are left, so are those of device TLBs.
        settings.retain(|setting| setting.rule != Rule::NoAts);
    }
    settings.sort_by(|a, b| b.effect.sure_pct().total_cmp(&a.effect.sure_pct()));
    (now, settings)
}
