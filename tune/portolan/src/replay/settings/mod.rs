//! Settings of the Linux that was traced, by the evidence of the trace.
//!
//! Each has the line of the trace that speaks for it; its effect comes from the replayed policies, the rules of Linux
//! and the profile's prices. `docs/advice.md` has the rules with their sources.
//!
//! Not covered: settings of firmware, of hypervisors, and of drivers' own module parameters.

mod buffers;
mod copies;
mod cost;
mod device;
mod linux;
mod policy;
mod situation;

pub(super) use cost::spread_us;
pub(super) use linux::{LinuxCounters, LinuxCounts};
pub(super) use policy::about;

use portolan_sim::profile::Profile;

use cost::Cost;

use super::cost::{CostDivisors, CpuCost, MappingCost};
use super::report::{PolicyReport, TraceReport};
use super::setting::{Rule, Setting};
use super::shape::TraceShape;
use super::situation::{KnownBy, Now, Situation};
use crate::advice::Advice;
use crate::facts::Facts;
use crate::trace::{Clock, Summary};

/// Least share of the cost of mapping that a setting has to save to be advised. Prices are not known better: the
/// library's plan is tested to within 5 % of the best (`tests/threshold.rs`).
pub(super) const WORTH_PCT: f64 = 5.0;
/// Threshold like [`WORTH_PCT`] for settings that open a window or remove protection: they must save more.
pub(super) const WINDOW_WORTH_PCT: f64 = 10.0;
/// Fewer operations say nothing of a load: they do not fill one flush queue of Linux (256 places).
pub(super) const FEWEST: u64 = 256;

/// Data that advice is based on.
pub(super) struct Input<'a> {
    pub(super) profile: &'a Profile,
    /// Facts of the recording on its machine, if it has them.
    pub(super) facts: Option<&'a Facts>,
    pub(super) summary: &'a Summary,
    pub(super) trace: &'a TraceReport,
    pub(super) shape: &'a TraceShape,
    pub(super) policies: &'a [PolicyReport],
    /// Counts by Linux's rules, if these are known.
    pub(super) linux: Option<&'a LinuxCounts>,
    pub(super) defaults: &'a Advice,
}

/// Result of the rules for a traced system.
pub(super) struct SystemAdvice {
    /// Policy of the kernel.
    pub(super) situation: Situation,
    /// Cost of that, where prices tell.
    pub(super) cost: Option<MappingCost>,
    /// Settings that would improve it, the surest gain first; no two of them change the same thing.
    pub(super) settings: Vec<Setting>,
}

/// Policy of the traced system, its cost, and settings to change; nothing of the latter two for a trace that was
/// not understood.
pub(super) fn advise(input: &Input<'_>) -> SystemAdvice {
    let situation = Situation::of(input);
    if !input.trace.understood.is_enough() {
        return SystemAdvice { situation, cost: None, settings: Vec::new() };
    }
    let mut settings: Vec<Setting> = Vec::new();
    let rules = [policy::RULES, buffers::RULES, device::RULES];
    for rule in rules.into_iter().flatten() {
        let Some(setting) = rule(input, &situation) else {
            continue;
        };
        if setting.rule.needs_times() && input.summary.clock == Clock::Ticks {
            continue;
        }
        let target = setting.rule.target();
        if settings.iter().all(|other| other.rule.target() != target) {
            settings.push(setting);
        }
    }
    if settings.iter().any(|setting| setting.rule.is_lazy()) {
        // If few flushes are left, few of them are of device TLBs.
        settings.retain(|setting| setting.rule != Rule::NoAts);
    }
    settings.sort_by(|a, b| b.effect.sure_pct().total_cmp(&a.effect.sure_pct()));
    SystemAdvice { cost: cost(input, &situation, &settings), situation, settings }
}

/// Cost of mapping now, and with the first of `settings` that prices tell of.
fn cost(input: &Input<'_>, now: &Situation, settings: &[Setting]) -> Option<MappingCost> {
    let few = now.is_translated() && input.shape.streaming.unmaps.count < FEWEST;
    // Times without a unit have no share of one.
    if few || input.summary.clock == Clock::Ticks {
        return None;
    }
    let cost = Cost::now(input, now)?;
    let summary = input.summary;
    let events_ns = summary.last_ns.saturating_sub(summary.first_ns?);
    let told = input.facts.map_or(0, |facts| facts.cpus);
    let load = CostDivisors {
        span_us: events_ns.max(input.shape.span_ns) as f64 / 1000.0,
        cpus: match told {
            0 => summary.cpus.into(),
            told => told,
        },
        requests: input.shape.streaming.maps.count,
    };
    if !load.is_some() {
        return None;
    }
    let savings = settings.iter().filter_map(|setting| setting.effect.saving);
    let then =
        savings.map(|saving| CpuCost::over(saving.after_us, saving.after_range_us, &load)).next();
    let mut whole = MappingCost {
        policy: now.now,
        now: CpuCost::over(cost.us, cost.range_us, &load),
        causes: cost.causes,
        device_wait_us: cost.stall_us,
        invalidations: cost.commands.count,
        exposed: (now.now == Now::Lazy).then_some(cost.exposed),
        span_us: load.span_us,
        cpus: load.cpus,
        assumes: assumed(now, &cost),
        then,
        worth_a_change: false,
    };
    whole.worth_a_change = whole.is_worth(settings);
    Some(whole)
}

/// Assumptions that decide the numbers.
fn assumed(now: &Situation, cost: &Cost) -> Vec<String> {
    let policy = match (now.now, &now.known_by) {
        (Now::Strict, KnownBy::Assumption) => {
            Some("Linux is strict, which nothing in the trace says".to_owned())
        }
        _ => None,
    };
    let price = cost.assumed.map(|event| {
        format!("the price of `{}`, most of it, is what the profile assumes", event.name())
    });
    policy.into_iter().chain(price).collect()
}
