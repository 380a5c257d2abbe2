//! Sums of many traces: all of them, and by machine, by device and by load.
//!
//! The order of the traces changes nothing: they are added up in the order of their names. Costs belong to a whole
//! trace, whose devices share caches and commands, so those of a device are added up over the traces that hold no
//! other one; its maps and bytes are its own in every trace.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::by::GroupKey;
use super::entry::{AdvisedSetting, DeviceWork, Entry, Failed};
use crate::counts::{Exposed, Invalidations};
use crate::replay::{PolicyReport, TimeByCause};

const MIB: f64 = 1_048_576.0;
/// Traces that are named one by one.
pub(super) const WORST: usize = 10;
/// Name of the group of traces that do not tell.
const UNKNOWN: &str = "unknown";

/// Sums of many traces.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Aggregate {
    /// Findings from the numbers, in sentences.
    pub findings: Vec<String>,
    /// Traces that could not be replayed.
    pub failed: Vec<Failed>,
    /// Settings that are advised, those for most traces first.
    pub settings: Vec<SettingCount>,
    /// All traces that could be replayed.
    pub all: Group,
    /// Sums for each machine profile.
    pub by_machine: Vec<Group>,
    /// Sums for each device.
    pub by_device: Vec<Group>,
    /// Sums for each kind of load.
    pub by_load: Vec<Group>,
    /// Sums for each policy of the recorded kernel.
    pub by_recorded_policy: Vec<Group>,
    /// Costs of mapping for their kernels; nothing where no trace tells.
    pub costs: Option<Spread>,
    /// Traces in which a change saves most of the load's time, the first ten.
    pub worst: Vec<WorstTrace>,
    /// Sums by the fact that was asked for; those groups first in which a change saves most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grouped: Option<GroupedBy>,
}

/// Groups of traces by a fact of theirs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GroupedBy {
    /// The fact.
    pub by: GroupKey,
    /// The groups.
    pub groups: Vec<Group>,
}

/// A trace in which a change saves much.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WorstTrace {
    /// Its name.
    pub source: String,
    /// Saving of the change that is advised, in per cent of the load's time.
    pub saves_pct_of_load: Option<f64>,
    /// Cost of mapping, in per cent of the load's time.
    pub pct_of_load: Option<f64>,
}

/// Parts of the load's time in many traces.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Percentiles {
    /// Traces that tell.
    pub traces: u64,
    /// Half of them have so many per cent of the load's time and less.
    pub median_pct: f64,
    /// Nine in ten do.
    pub p90_pct: f64,
    /// The most.
    pub most_pct: f64,
    /// The trace that it is of.
    pub most_in: String,
}

impl Percentiles {
    /// Percentiles of what `of` tells of `entries`; `None` if it tells nothing.
    fn of(entries: &[&Entry], of: impl Fn(&Entry) -> Option<f64>) -> Option<Self> {
        let told = entries.iter().filter_map(|entry| Some((of(entry)?, &entry.trace.source)));
        let mut told: Vec<_> = told.filter(|(pct, _)| pct.is_finite()).collect();
        told.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(b.1)));
        // The smallest that so large a part of them does not exceed.
        let part = |tenths: usize| {
            let rank = (told.len() * tenths).div_ceil(10);
            told.get(rank.max(1) - 1).map(|(pct, _)| *pct)
        };
        let (most_pct, most_in) = *told.last()?;
        Some(Self {
            traces: told.len() as u64,
            median_pct: part(5)?,
            p90_pct: part(9)?,
            most_pct,
            most_in: most_in.clone(),
        })
    }
}

/// Costs of mapping in many traces, each as a part of its load's time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The costs.
    #[serde(flatten)]
    pub parts: Percentiles,
    /// Traces in which a change is worth it.
    pub worth_a_change: u64,
    /// Saving of the change that is advised; nothing where none is advised that has a price.
    pub saves: Option<Percentiles>,
}

impl Spread {
    fn of(entries: &[&Entry]) -> Option<Self> {
        let worth = |entry: &&&Entry| entry.cost.as_ref().is_some_and(|cost| cost.worth_a_change);
        Some(Self {
            parts: Percentiles::of(entries, Entry::pct_of_load)?,
            worth_a_change: entries.iter().filter(worth).count() as u64,
            saves: Percentiles::of(entries, Entry::saves_pct_of_load),
        })
    }
}

/// Traces in the order of what a change saves of the load's time, then of what mapping costs, the most first.
pub(super) fn by_saving<'e>(entries: impl IntoIterator<Item = &'e Entry>) -> Vec<&'e Entry> {
    let pct = |entry: &Entry| {
        let known = |pct: Option<f64>| pct.unwrap_or(f64::NEG_INFINITY);
        (known(entry.saves_pct_of_load()), known(entry.pct_of_load()))
    };
    let mut sorted: Vec<_> = entries.into_iter().collect();
    sorted.sort_by(|a, b| {
        let ((saves_a, costs_a), (saves_b, costs_b)) = (pct(a), pct(b));
        let by_costs = saves_b.total_cmp(&saves_a).then(costs_b.total_cmp(&costs_a));
        by_costs.then_with(|| a.trace.source.cmp(&b.trace.source))
    });
    sorted
}

/// A setting, and the number of traces for which it is advised.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SettingCount {
    /// The setting.
    pub setting: AdvisedSetting,
    /// Number of traces.
    pub traces: u64,
}

fn settings(entries: &[&Entry]) -> Vec<SettingCount> {
    let mut counts: BTreeMap<&AdvisedSetting, u64> = BTreeMap::new();
    for entry in entries {
        let once: BTreeSet<&AdvisedSetting> = entry.advice.iter().collect();
        once.into_iter().for_each(|one| *counts.entry(one).or_default() += 1);
    }
    let counts = counts
        .into_iter()
        .map(|(setting, traces)| SettingCount { setting: setting.clone(), traces });
    let mut counts: Vec<_> = counts.collect();
    counts.sort_by_key(|one| std::cmp::Reverse(one.traces));
    counts
}

/// Traces that have something in common.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Group {
    /// Name of the machine, device or load.
    pub name: String,
    /// Number of traces.
    pub traces: u64,
    /// Maps; of a device its own, coherent ones included.
    pub maps: u64,
    /// Bytes of these.
    pub bytes_mapped: u64,
    /// Number of traces whose costs are in `policies`.
    pub costed_traces: u64,
    /// Cheapest strict policy that all of these traces were replayed with.
    pub least_strict: Option<String>,
    /// Costs of each policy.
    pub policies: Vec<PolicySum>,
    /// Costs of mapping for their kernels, of the traces whose costs are in `policies`.
    pub costs: Option<Spread>,
}

/// Sums of a policy over the traces of a group.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PolicySum {
    /// Its name.
    pub policy: String,
    /// Traces that were replayed under it.
    pub traces: u64,
    /// Traces in which no other strict policy costs less.
    pub least_strict_in: u64,
    /// Maps and unmaps, coherent ones included.
    pub operations: u64,
    /// Bytes mapped.
    pub bytes_mapped: u64,
    /// Commands by kind.
    pub invalidations: Invalidations,
    /// Waits.
    pub syncs: u64,
    /// Exits to hypervisors.
    pub exits: u64,
    /// Virtual time.
    pub time_us: TimeByCause,
    /// Cost of an operation, if there are operations.
    pub us_per_operation: Option<f64>,
    /// Cost of a mapped MiB, if anything is mapped.
    pub us_per_mib: Option<f64>,
    /// Per cent of the least strict policy's costs here that this one saves.
    pub saves_pct: Option<f64>,
    /// Smallest and largest saving of a trace against its cheapest strict policy.
    pub saves_pct_by_trace: Option<[f64; 2]>,
    /// The most of any trace.
    pub exposed: Exposed,
    /// Accesses to mapped memory that were refused, a defect.
    pub faults: u64,
}

impl Aggregate {
    /// Sums `entries` up to numbers.
    pub(super) fn new(entries: &[Entry], mut failed: Vec<Failed>, by: Option<GroupKey>) -> Self {
        let mut sorted: Vec<&Entry> = entries.iter().collect();
        // Reports of one name may differ; their costs tell them apart, and equal ones need not be.
        let costs = |entry: &Entry| -> f64 { entry.policies.iter().map(total).sum() };
        sorted.sort_by(|a, b| {
            let names = (&a.trace.source, &a.machine).cmp(&(&b.trace.source, &b.machine));
            names.then(costs(a).total_cmp(&costs(b)))
        });
        failed.sort_by(|a, b| (&a.trace.source, &a.error).cmp(&(&b.trace.source, &b.error)));
        let all = Group::of("all", &sorted);
        let worst = by_saving(sorted.iter().copied()).into_iter().take(WORST);
        Self {
            findings: Vec::new(),
            failed,
            settings: settings(&sorted),
            by_machine: grouped_by(&sorted, |entry| &entry.machine),
            by_device: by_device(&sorted, |work| &work.device),
            by_load: grouped_by(&sorted, |entry| &entry.load),
            by_recorded_policy: grouped_by(&sorted, |entry| entry.policy().unwrap_or("not told")),
            costs: all.costs.clone(),
            worst: worst.map(WorstTrace::of).collect(),
            grouped: by.map(|by| GroupedBy::new(by, &sorted)),
            all,
        }
    }
}

impl WorstTrace {
    fn of(entry: &Entry) -> Self {
        Self {
            source: entry.trace.source.clone(),
            saves_pct_of_load: entry.saves_pct_of_load(),
            pct_of_load: entry.pct_of_load(),
        }
    }
}

impl GroupedBy {
    fn new(by: GroupKey, entries: &[&Entry]) -> Self {
        let known = |told: Option<&'static str>| told.unwrap_or(UNKNOWN);
        let mut groups = match by {
            GroupKey::Kernel => {
                grouped_by(entries, |entry| entry.kernel.as_deref().unwrap_or(UNKNOWN))
            }
            GroupKey::Driver => {
                by_device(entries, |work| work.driver.as_deref().unwrap_or(UNKNOWN))
            }
            GroupKey::Policy => grouped_by(entries, |entry| known(entry.policy())),
            GroupKey::Machine => grouped_by(entries, |entry| match entry.machine.as_str() {
                "" => UNKNOWN,
                machine => machine,
            }),
        };
        let most = |of: fn(&Spread) -> Option<f64>| {
            move |group: &Group| group.costs.as_ref().and_then(of).unwrap_or(f64::NEG_INFINITY)
        };
        let saves = most(|costs| Some(costs.saves.as_ref()?.most_pct));
        let costs = most(|costs| Some(costs.parts.most_pct));
        groups.sort_by(|a, b| {
            let by_costs = saves(b).total_cmp(&saves(a)).then(costs(b).total_cmp(&costs(a)));
            by_costs.then_with(|| a.name.cmp(&b.name))
        });
        Self { by, groups }
    }
}

fn grouped_by<'e>(entries: &[&'e Entry], key: impl Fn(&'e Entry) -> &'e str) -> Vec<Group> {
    let mut groups: BTreeMap<&str, Vec<&Entry>> = BTreeMap::new();
    for &entry in entries {
        groups.entry(key(entry)).or_default().push(entry);
    }
    let groups = groups.iter();
    groups.map(|(name, of)| Group::of(name, of)).collect()
}

/// Groups by what `key` says of a device's work.
fn by_device(entries: &[&Entry], key: impl Fn(&DeviceWork) -> &str) -> Vec<Group> {
    let works = entries.iter().flat_map(|entry| &entry.by_device);
    let names: BTreeSet<&str> = works.map(&key).collect();
    let group = |name: &str| {
        let is_it = |entry: &&&Entry| entry.by_device.iter().any(|work| key(work) == name);
        let has_others = |entry: &&&Entry| entry.by_device.iter().any(|work| key(work) != name);
        let alone = entries.iter().filter(is_it).filter(|e| !has_others(e));
        let alone: Vec<&Entry> = alone.copied().collect();
        let mut group = Group::of(name, &alone);
        let its = entries.iter().flat_map(|entry| &entry.by_device);
        let its = || its.clone().filter(|work| key(work) == name);
        group.traces = entries.iter().filter(is_it).count() as u64;
        group.maps = sum(its().map(|work| work.maps));
        group.bytes_mapped = sum(its().map(|work| work.bytes_mapped));
        group
    };
    names.into_iter().map(group).collect()
}

/// Adds numbers without overflow, because a trace may contain any number.
fn sum(numbers: impl Iterator<Item = u64>) -> u64 {
    numbers.fold(0, u64::saturating_add)
}

fn total(policy: &PolicyReport) -> f64 {
    policy.time_us.cpu
}

/// The strict policy of `policies` that costs least; of equals the one by range, which costs less as soon as
/// mappings grow.
pub(crate) fn least_strict<'p, T>(
    policies: &'p [T],
    of: impl Fn(&'p T) -> (&'p str, f64),
) -> Option<&'p T> {
    let strict = policies.iter().filter(|p| of(p).0.starts_with("strict"));
    strict.min_by(|a, b| {
        let (a, b) = (of(a), of(b));
        a.1.total_cmp(&b.1).then((a.0 != "strict-range", a.0).cmp(&(b.0 != "strict-range", b.0)))
    })
}

/// Percentage of `best` that `other` saves.
fn saves(best: f64, other: f64) -> Option<f64> {
    (best > 0.0).then(|| 100.0 * (1.0 - other / best))
}

impl Group {
    /// Sums up `entries`, in their order.
    pub(crate) fn of(name: &str, entries: &[&Entry]) -> Self {
        let mut policies: Vec<PolicySum> = Vec::new();
        for entry in entries {
            let best = least_strict(&entry.policies, |p| (p.policy.as_str(), total(p)));
            for report in &entry.policies {
                let known = policies.iter().position(|p| p.policy == report.policy);
                let at = known.unwrap_or(policies.len());
                if known.is_none() {
                    policies.push(PolicySum::default());
                }
                policies[at].add(report, entry.trace.bytes_mapped, best);
            }
        }
        // Traces of several runs may have been replayed under other policies, in another order.
        policies
            .sort_by_key(|sum| (crate::replay::Policy::place_of(&sum.policy), sum.policy.clone()));
        let traces = entries.len() as u64;
        let by_all = |sum: &&PolicySum| sum.traces == traces;
        let in_all: Vec<PolicySum> = policies.iter().filter(by_all).cloned().collect();
        let least = least_strict(&in_all, |p| (p.policy.as_str(), p.time_us.cpu));
        for sum in &mut policies {
            let same = least.filter(|_| sum.traces == traces);
            sum.saves_pct = same.and_then(|best| saves(best.time_us.cpu, sum.time_us.cpu));
        }
        Self {
            name: name.to_owned(),
            traces,
            maps: sum(entries.iter().map(|entry| entry.trace.maps)),
            bytes_mapped: sum(entries.iter().map(|entry| entry.trace.bytes_mapped)),
            costed_traces: traces,
            least_strict: least.map(|best| best.policy.clone()),
            policies,
            costs: Spread::of(entries),
        }
    }

    /// The policy of that name.
    pub fn policy(&self, name: &str) -> Option<&PolicySum> {
        self.policies.iter().find(|sum| sum.policy == name)
    }

    /// The strict policy that costs least.
    pub fn least(&self) -> Option<&PolicySum> {
        self.policy(self.least_strict.as_deref()?)
    }
}

impl PolicySum {
    /// Adds a trace whose cheapest strict policy is `best`.
    fn add(&mut self, report: &PolicyReport, bytes_mapped: u64, best: Option<&PolicyReport>) {
        self.policy.clone_from(&report.policy);
        self.traces += 1;
        self.operations = self.operations.saturating_add(report.operations);
        self.bytes_mapped = self.bytes_mapped.saturating_add(bytes_mapped);
        self.invalidations = self.invalidations.plus(report.invalidations);
        self.syncs = self.syncs.saturating_add(report.syncs);
        self.exits = self.exits.saturating_add(report.exits);
        self.time_us = self.time_us.plus(&report.time_us);
        self.faults = self.faults.saturating_add(report.device.faults);
        let (most, one) = (&mut self.exposed, &report.exposed);
        most.max_bytes = most.max_bytes.max(one.max_bytes);
        most.reusable_bytes = most.reusable_bytes.max(one.reusable_bytes);
        most.max_us = most.max_us.max(one.max_us);
        let all = self.time_us.cpu;
        self.us_per_operation = (self.operations > 0).then(|| all / self.operations as f64);
        self.us_per_mib = (self.bytes_mapped > 0).then(|| all * MIB / self.bytes_mapped as f64);
        let Some(best) = best else { return };
        if best.policy == report.policy {
            self.least_strict_in += 1;
        }
        if let Some(saved) = saves(total(best), total(report)) {
            let [low, high] = self.saves_pct_by_trace.unwrap_or([saved; 2]);
            self.saves_pct_by_trace = Some([low.min(saved), high.max(saved)]);
        }
    }
}

#[cfg(test)]
mod tests;
