//! The page of many traces: their sums by machine, by device and by load, and each of them.

use portolan_cli::display::grouped;
use portolan_report::{
    Axis, Figure, Mark, MarkRow, Marks, Origin, Page, Plot, Section, Table, Unit,
};

use super::policies::{in_words, reachable, time_by_cause};
use crate::fleet::{Aggregate, Entry, Failed, Group, short_names};
use crate::replay::PolicyReport;

/// Rows of a plot at most, and of the table of all traces.
const MOST_PLOTTED: usize = 40;
const MOST_LISTED: usize = 2000;
/// Policies that are marked in each row of a plot.
const SERIES: [&str; 3] = ["least strict", "deferred", "lazy"];

/// The page of `entries` and their sums, made as `origin` says.
pub fn fleet(entries: &[Entry], sum: &Aggregate, origin: Origin) -> Page {
    let all = reports(&sum.all);
    let section = |heading: &str, says: Vec<String>, figures| Section {
        heading: heading.to_owned(),
        says,
        figures,
        ..Section::default()
    };
    let mut sections = vec![
        section(
            "All traces together",
            vec!["These are policies of this library, for those who build on it.".to_owned()],
            vec![time_by_cause(&all), reachable(&all)],
        ),
        section(
            "By machine, device and load",
            vec![
                "Costs belong to a whole trace, whose devices share caches and commands: those of a device are of the \
                 traces that hold no other one, its maps and bytes are its own in every trace."
                    .to_owned(),
            ],
            vec![
                costs("By machine", "machine", &sum.by_machine),
                costs("By device", "device", &sum.by_device),
                costs("By load", "load", &sum.by_load),
            ],
        ),
        each(entries),
    ];
    sections[0].notes = in_words(&all);
    if !sum.failed.is_empty() {
        let failed = |failed: &Failed| format!("{}: {}", failed.trace.source, failed.error);
        let says = sum.failed.iter().take(MOST_LISTED).map(failed);
        sections.push(section("Not replayed", says.collect(), Vec::new()));
    }
    Page {
        title: format!("Replay of {} traces", grouped(sum.all.traces)),
        answer: sum.findings.clone(),
        sections,
        origin,
        ..Page::default()
    }
}

/// The sums of a group as figures of a replay take them.
fn reports(group: &Group) -> Vec<PolicyReport> {
    let report = group.policies.iter().map(|sum| PolicyReport {
        policy: sum.policy.clone(),
        operations: sum.operations,
        invalidations: sum.invalidations,
        syncs: sum.syncs,
        exits: sum.exits,
        time_us: sum.time_us,
        exposed: sum.exposed,
        ..PolicyReport::default()
    });
    report.collect()
}

/// Costs of an operation in each group: under the strict policy that costs least, deferred and lazy.
fn costs(title: &str, what: &str, groups: &[Group]) -> Figure {
    let of = |group: &Group| {
        let sums = [group.least(), group.policy("deferred"), group.policy("lazy")];
        sums.map(|sum| sum.and_then(|sum| sum.us_per_operation))
    };
    let row = |group: &Group| {
        let marks = of(group).into_iter().enumerate().filter_map(|(series, value)| {
            Some(Mark {
                series,
                value: value?,
                range: None,
                word: match series {
                    0 => group.least_strict.clone().unwrap_or_default(),
                    _ => String::new(),
                },
            })
        });
        MarkRow { name: group.name.clone(), marks: marks.collect() }
    };
    let plotted = groups.iter().map(row).filter(|row| !row.marks.is_empty());
    let rows: Vec<_> = plotted.take(MOST_PLOTTED).collect();
    let reason = rows.is_empty().then_some("no trace has an operation with a cost");
    let mut says = "What a map or unmap costs in all: CPU work, commands, waits and stalls of the device, under the \
         strict policy that costs least there (its name stands beside the mark), under deferred, and under lazy."
        .to_owned();
    if groups.len() > rows.len() {
        says += &format!(
            " {} of {} are plotted; the table has the others too.",
            grouped(rows.len() as u64),
            grouped(groups.len() as u64)
        );
    }
    let plot = Plot::Marks(Marks {
        values: Axis::log("cost of an operation", Unit::Micros),
        series: SERIES.map(str::to_owned).to_vec(),
        rows,
    });
    Figure::new(title, &says, reason, plot, numbers(what, groups))
}

fn numbers(what: &str, groups: &[Group]) -> Table {
    let say =
        |unit: Unit, value: Option<f64>| value.map_or("-".to_owned(), |value| unit.say(value));
    let rows = groups.iter().take(MOST_LISTED).map(|group| {
        let least = group.least();
        let saves = |name| group.policy(name).and_then(|sum| sum.saves_pct);
        let lazy = group.policy("lazy");
        [
            group.name.clone(),
            grouped(group.traces),
            grouped(group.maps),
            Unit::Bytes.say(group.bytes_mapped as f64),
            group.least_strict.clone().unwrap_or_else(|| "-".to_owned()),
            say(Unit::Micros, least.map(|sum| sum.time_us.cpu)),
            say(Unit::Micros, least.and_then(|sum| sum.us_per_operation)),
            say(Unit::Micros, least.and_then(|sum| sum.us_per_mib)),
            say(Unit::Percent, saves("deferred")),
            say(Unit::Percent, saves("lazy")),
            say(Unit::Bytes, lazy.map(|sum| sum.exposed.max_bytes as f64)),
        ]
    });
    let head = [
        what,
        "traces",
        "maps",
        "bytes mapped",
        "least strict",
        "its cost",
        "for an operation",
        "for a MiB",
        "deferred saves",
        "lazy saves",
        "reachable under lazy",
    ];
    Table::new(head, rows)
}

/// Each trace for itself.
fn each(entries: &[Entry]) -> Section {
    let names = short_names(entries);
    let groups = entries.iter().zip(&names).take(MOST_LISTED);
    let groups: Vec<_> = groups.map(|(entry, name)| Group::of(name, &[entry])).collect();
    let mut figure = costs("Each trace", "trace", &groups);
    figure.table.head.extend(["machine", "load"].map(str::to_owned));
    for (row, entry) in figure.table.rows.iter_mut().zip(entries) {
        row.extend([entry.machine.clone(), entry.load.clone()]);
    }
    let mut says = Vec::new();
    if entries.len() > groups.len() {
        says.push(format!(
            "The first {} of {} are here; `--ndjson` prints all.",
            grouped(groups.len() as u64),
            grouped(entries.len() as u64)
        ));
    }
    Section { heading: "Each trace".to_owned(), says, figures: vec![figure], ..Section::default() }
}
