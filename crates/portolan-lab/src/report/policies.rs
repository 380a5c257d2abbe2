//! Policies side by side: time by cause, and what stays reachable at most.

use portolan_report::{
    Arrangement, Axis, Bars, Figure, Mark, MarkRow, Marks, Plot, Section, Series, Table, Unit,
};

use super::{figure, table};
use crate::replay::{Policy, PolicyReport, ReplayReport, TimeByCause};
use portolan_cli::display::grouped;

/// A name, and what it is the name of.
type Named<T, N> = (&'static str, fn(&T) -> N);

/// Causes of time.
const CAUSES: [Named<TimeByCause, f64>; 6] = [
    ("map", |time| time.map),
    ("unmap", |time| time.unmap),
    ("invalidate", |time| time.invalidation),
    ("wait for syncs", |time| time.sync_wait),
    ("exits", |time| time.exits),
    ("device stalls", |time| time.device_stall),
];

pub(super) fn section(report: &ReplayReport) -> Section {
    let policies = &report.policies;
    let mut says = in_words(policies);
    says.extend(report.findings.iter().cloned());
    says.extend(report.defaults.text().lines().map(str::to_owned));
    if let [only] = policies.as_slice() {
        says.push(format!(
            "Only {} was replayed, so there is nothing to compare it with; without `--policy` all are.",
            only.policy
        ));
    }
    Section {
        heading: "Policies side by side".to_owned(),
        says,
        figures: vec![
            time_by_cause(policies),
            reachable(policies),
            counted(report),
        ],
    }
}

/// What each of `policies` is: a list in sentences, since names alone say little.
pub(super) fn in_words(policies: &[PolicyReport]) -> Vec<String> {
    let known = Policy::every().filter(|known| {
        let mut names = policies.iter().map(|policy| policy.policy.as_str());
        names.any(|name| name == known.name())
    });
    let said = known.map(|policy| format!("`{}`: {}.", policy.name(), policy.what()));
    said.collect()
}

fn micros(us: f64) -> String {
    Unit::Micros.say(us)
}

pub(super) fn time_by_cause(policies: &[PolicyReport]) -> Figure {
    let happens = |(_, of): &&Named<TimeByCause, f64>| {
        policies.iter().any(|policy| of(&policy.time_us) > 0.0)
    };
    let causes: Vec<_> = CAUSES.iter().filter(happens).collect();
    let series = causes.iter().map(|(name, of)| Series {
        name: (*name).to_owned(),
        values: policies.iter().map(|policy| of(&policy.time_us)).collect(),
    });
    let plot = Plot::Bars(Bars {
        categories: policies
            .iter()
            .map(|policy| policy.policy.clone())
            .collect(),
        values: Axis::linear("virtual time", Unit::Micros),
        series: series.collect(),
        arrangement: Arrangement::StackedRows,
    });
    let rows = policies.iter().map(|policy| {
        let time = &policy.time_us;
        let range = policy.total_range_us;
        let range = range.map_or("-".to_owned(), |[low, high]| {
            format!("{} to {}", micros(low), micros(high))
        });
        let mut row = vec![policy.policy.clone(), micros(time.total), range];
        row.extend(CAUSES.iter().map(|(_, of)| micros(of(time))));
        row
    });
    let mut head = vec!["policy", "total", "total, as prices vary"];
    head.extend(CAUSES.iter().map(|(name, _)| *name));
    let table = Table {
        head: head.into_iter().map(str::to_owned).collect(),
        rows: rows.collect(),
    };
    let reason = causes.is_empty().then_some("no policy took any time");
    figure(
        "Where the time goes",
        "What all maps and unmaps of the trace cost under each policy, by cause. Map and unmap are CPU work on page \
         tables, or copies; invalidating is writing commands, and a sync is the wait until the IOMMU has carried \
         them out; device stalls are walks of the page tables that a device waits for.",
        reason,
        plot,
        table,
    )
}

pub(super) fn reachable(policies: &[PolicyReport]) -> Figure {
    let row = |policy: &PolicyReport| MarkRow {
        name: policy.policy.clone(),
        marks: vec![Mark {
            series: 0,
            value: policy.exposed.max_us,
            range: None,
            word: match policy.exposed.max_bytes {
                0 => "nothing reachable".to_owned(),
                bytes => Unit::Bytes.say(bytes as f64),
            },
        }],
    };
    let plot = Plot::Marks(Marks {
        values: Axis::log("longest time", Unit::Micros),
        series: vec!["from unmap until no device reaches it".to_owned()],
        rows: policies.iter().map(row).collect(),
    });
    let rows = policies.iter().map(|policy| {
        let exposed = &policy.exposed;
        [
            policy.policy.clone(),
            micros(exposed.max_us),
            Unit::Bytes.say(exposed.max_bytes as f64),
            Unit::Bytes.say(exposed.reusable_bytes as f64),
        ]
    });
    let head = [
        "policy",
        "longest time reachable",
        "most bytes at once",
        "of these in use again",
    ];
    let nothing = policies.iter().all(|policy| policy.exposed.max_us <= 0.0);
    figure(
        "What stays reachable after unmap",
        "For how long at most a device could still reach memory that was unmapped, and beside the mark how much \
         memory at once. Under lazy the owner may use that memory for something else meanwhile; under the others \
         it comes back only when no device reaches it.",
        nothing.then_some("nothing was unmapped, or nothing stayed reachable"),
        plot,
        table(head, rows),
    )
}

/// Commands, waits and misses, and those of Linux if they were asked for.
fn counted(report: &ReplayReport) -> Figure {
    let row = |policy: &PolicyReport| {
        let done = &policy.invalidations;
        [
            policy.policy.clone(),
            grouped(policy.operations),
            grouped(done.page),
            grouped(done.range),
            grouped(done.context + done.global),
            grouped(policy.syncs),
            grouped(policy.exits),
            grouped(policy.device.iotlb_misses),
            grouped(policy.table_pages_peak),
        ]
    };
    let linux = report.linux.iter().map(|linux| {
        let done = &linux.invalidations;
        [
            format!("Linux, {}", linux.policy),
            "-".to_owned(),
            grouped(done.page),
            grouped(done.range),
            grouped(done.context + done.global),
            grouped(linux.syncs),
            "-".to_owned(),
            "-".to_owned(),
            "-".to_owned(),
        ]
    });
    let head = [
        "policy",
        "maps and unmaps",
        "commands by page",
        "by range",
        "by context",
        "syncs",
        "exits",
        "IOTLB misses",
        "table pages at most",
    ];
    let kinds: [Named<PolicyReport, u64>; 3] = [
        ("by page", |policy| policy.invalidations.page),
        ("by range", |policy| policy.invalidations.range),
        ("by context", |policy| {
            policy.invalidations.context + policy.invalidations.global
        }),
    ];
    let series = kinds.iter().map(|(name, of)| Series {
        name: (*name).to_owned(),
        values: report.policies.iter().map(|p| of(p) as f64).collect(),
    });
    let plot = Plot::Bars(Bars {
        categories: report.policies.iter().map(|p| p.policy.clone()).collect(),
        values: Axis::linear("invalidation commands", Unit::Count),
        series: series.collect(),
        arrangement: Arrangement::StackedRows,
    });
    let none = report.policies.iter().all(|p| p.invalidations.total() == 0);
    figure(
        "Invalidation commands",
        "What tells the IOMMU to forget translations: one page, a range of pages, or all of an address space \
         (a context). The table has the waits, the exits to a hypervisor where one plays the IOMMU, accesses whose \
         translation the IOMMU's cache (IOTLB) did not hold, and the pages of page tables.",
        none.then_some("no command was submitted under any policy"),
        plot,
        table(head, report.policies.iter().map(row).chain(linux)),
    )
}
