//! Policies side by side: time by cause, and the most memory that stays reachable.

use portolan_report::{
    Arrangement, Axis, Bars, Figure, Mark, MarkRow, Marks, Plot, Section, Series, Table, Unit,
};

use crate::counts::Invalidations;
use crate::replay::{Causes, Now, Policy, PolicyReport, ReplayReport, TimeByCause};
use portolan_cli::display::grouped;

/// A name, and the number that it names.
type Named<T, N> = (&'static str, fn(&T) -> N);

/// Causes of CPU time.
const CAUSES: [Named<TimeByCause, f64>; 5] = [
    ("map", |time| time.map),
    ("unmap", |time| time.unmap),
    ("invalidate", |time| time.invalidation),
    ("wait", |time| time.sync_wait),
    ("exits", |time| time.exits),
];
/// The policy that is not plotted, because its command for each page would hide everything else.
const BY_PAGE: &str = "strict-page";

pub(super) fn section(report: &ReplayReport) -> Section {
    let policies = &report.policies;
    let rows: Vec<PolicyReport> = linux(report).into_iter().chain(policies.clone()).collect();
    let mut notes = in_words(policies);
    notes.extend(report.findings.iter().cloned());
    notes.extend(report.defaults.text().lines().map(str::to_owned));
    let mut says = vec![if rows.len() > policies.len() {
        "Linux's own rows stand first; the others are policies of this library, for those who build on it, and \
                 no settings of Linux."
            .to_owned()
    } else {
        "These are policies of this library, for those who build on it, and no settings of Linux."
            .to_owned()
    }];
    if let [only] = policies.as_slice() {
        says.push(format!(
            "Only {} was replayed, so there is nothing to compare it with; without `--policy` all are.",
            only.policy
        ));
    }
    Section {
        heading: "Side by side".to_owned(),
        says,
        figures: vec![time_by_cause(&rows), reachable(&rows), counted(report, &rows)],
        notes,
        ..Section::default()
    }
}

/// Rows of figures for Linux today, and with the advised change if that means another policy.
fn linux(report: &ReplayReport) -> Vec<PolicyReport> {
    let Some(cost) = report.cost.as_ref().filter(|cost| cost.now.cpu_us > 0.0) else {
        return Vec::new();
    };
    let row = |when: &str, policy: Now, causes: &Causes, wait_us: f64| PolicyReport {
        policy: format!("Linux {when}: {}", policy.name()),
        time_us: TimeByCause {
            map: causes.map + causes.addresses + causes.copies,
            unmap: causes.unmap,
            invalidation: causes.invalidation,
            sync_wait: causes.wait,
            device_stall: wait_us,
            ..TimeByCause::default()
        }
        .summed(),
        ..PolicyReport::default()
    };
    let sent = |policy: Now, count: u64| match policy {
        Now::Lazy => Invalidations { context: count, ..Invalidations::default() },
        _ => Invalidations { range: count, ..Invalidations::default() },
    };
    let now = PolicyReport {
        invalidations: report
            .sent
            .map_or_else(|| sent(cost.policy, cost.invalidations), |sent| sent.invalidations),
        syncs: cost.invalidations,
        exposed: cost.exposed.unwrap_or_default(),
        ..row("now", cost.policy, &cost.causes, cost.device_wait_us)
    };
    let then = report.advice.first().and_then(|setting| {
        let then = setting.effect.then?;
        Some(PolicyReport {
            invalidations: sent(then.policy, then.invalidations),
            syncs: then.invalidations,
            exposed: then.exposed,
            ..row("then", then.policy, &then.causes, then.device_wait_us)
        })
    });
    [now].into_iter().chain(then).collect()
}

/// Policies that are plotted.
fn plotted(policies: &[PolicyReport]) -> Vec<&PolicyReport> {
    let others = policies.iter().filter(|one| !one.policy.starts_with(BY_PAGE));
    let others: Vec<_> = others.collect();
    if others.is_empty() { policies.iter().collect() } else { others }
}

/// Description of each of `policies`, a list in sentences, because names say little.
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
    let shown = plotted(policies);
    let series = causes.iter().map(|(name, of)| Series {
        name: (*name).to_owned(),
        values: shown.iter().map(|policy| of(&policy.time_us)).collect(),
    });
    let plot = Plot::Bars(Bars {
        categories: shown.iter().map(|policy| policy.policy.clone()).collect(),
        values: Axis::linear("CPU time", Unit::Micros),
        series: series.collect(),
        arrangement: Arrangement::StackedRows,
    });
    let rows = policies.iter().map(|policy| {
        let time = &policy.time_us;
        let range = policy.cpu_range_us();
        let range = range
            .map_or("-".to_owned(), |[low, high]| format!("{} to {}", micros(low), micros(high)));
        let mut row = vec![policy.policy.clone(), micros(time.cpu), range];
        row.extend(CAUSES.iter().map(|(_, of)| micros(of(time))));
        row.push(micros(time.device_stall));
        row
    });
    let mut head = vec!["policy", "CPU time", "as prices vary"];
    head.extend(CAUSES.iter().map(|(name, _)| *name));
    head.push("devices wait");
    let table = Table { head: head.into_iter().map(str::to_owned).collect(), rows: rows.collect() };
    let reason = causes.is_empty().then_some("no policy took any time");
    Figure::new(
        "Where the time goes",
        "CPU time of all maps and unmaps, by what it is for: work on page tables (with Linux its addresses and queues, \
         or copies), writing invalidations, and waiting for them. The table has what devices wait for walks of page \
         tables beside it, and `strict-page`, a command for each page, which is out of scale.",
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
    let head = ["policy", "longest time reachable", "most bytes at once", "of these in use again"];
    let nothing = policies.iter().all(|policy| policy.exposed.max_us <= 0.0);
    Figure::new(
        "What stays reachable after unmap",
        "For how long at most a device could still reach memory that was unmapped, and how much at once. Under lazy \
         that memory may serve something else meanwhile; under the others it comes back only when no device reaches \
         it.",
        nothing.then_some("nothing was unmapped, or nothing stayed reachable"),
        plot,
        Table::new(head, rows),
    )
}

/// Plots commands, waits and misses of the policies, and of Linux if asked for.
fn counted(report: &ReplayReport, rows: &[PolicyReport]) -> Figure {
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
            format!("Linux if {}", linux.policy),
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
        ("by context", |policy| policy.invalidations.context + policy.invalidations.global),
    ];
    let shown = plotted(rows);
    let series = kinds.iter().map(|(name, of)| Series {
        name: (*name).to_owned(),
        values: shown.iter().map(|p| of(p) as f64).collect(),
    });
    let plot = Plot::Bars(Bars {
        categories: shown.iter().map(|p| p.policy.clone()).collect(),
        values: Axis::linear("invalidation commands", Unit::Count),
        series: series.collect(),
        arrangement: Arrangement::StackedRows,
    });
    let none = rows.iter().all(|p| p.invalidations.total() == 0);
    Figure::new(
        "Invalidation commands",
        "What tells the IOMMU to forget translations: of one page, of a range of pages, or of a whole address space (a \
         context).",
        none.then_some("no command was submitted under any policy"),
        plot,
        Table::new(head, rows.iter().map(row).chain(linux)),
    )
}
