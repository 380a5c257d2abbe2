//! The page of a comparison: the figures of a replay, with those of A and B next to each other.

use portolan_report::{Origin, Page, Section};

use super::policies::{in_words, reachable, time_by_cause};
use super::{over_time, trace};
use crate::compare::{Comparison, Measure, least, unit_of};
use crate::replay::{PolicyReport, ReplayReport};
use portolan_report::{Axis, Figure, Mark, MarkRow, Marks, Plot, Table, Unit};

/// The page of `two`, made as `origin` says.
pub fn compare(two: &Comparison, origin: Origin) -> Page {
    let name =
        |report: &ReplayReport| format!("{}, priced as {}", report.trace.source, report.machine);
    let mut answer = vec![format!("A: {}. B: {}.", name(&two.a), name(&two.b))];
    answer.extend(two.findings.iter().cloned());
    let both: Vec<PolicyReport> = pairs(two, |_| true);
    let policies = Section {
        heading: "Policies side by side".to_owned(),
        says: vec!["These are policies of this library, for those who build on it.".to_owned()],
        notes: in_words(&two.a.policies),
        figures: vec![costs(two), causes(two, both.clone()), reachable(&both)],
        ..Section::default()
    };
    let mut sections = vec![policies, over(two)];
    for (side, report) in [("A", &two.a), ("B", &two.b)] {
        let mut holds = trace::mappings(&report.shape);
        holds.heading = format!("{side}: {}", holds.heading);
        holds.says.insert(0, trace::counted(&report.trace));
        let mut who = trace::devices_and_cpus(&report.shape);
        who.heading = format!("{side}: {}", who.heading);
        for figure in holds.figures.iter_mut().chain(&mut who.figures) {
            figure.title = format!("{} of {side}", figure.title);
        }
        sections.extend([holds, who]);
    }
    Page {
        title: "Two replays side by side".to_owned(),
        answer,
        sections,
        origin,
        ..Page::default()
    }
}

/// The policies of both that `wanted` takes, each of A and then of B, named so.
fn pairs(two: &Comparison, wanted: impl Fn(&str) -> bool) -> Vec<PolicyReport> {
    let names = two.policies.iter().map(|pair| pair.policy.as_str()).filter(|name| wanted(name));
    let of = |report: &ReplayReport, name: &str, side: &str| {
        let found = report.policies.iter().find(|policy| policy.policy == name)?;
        Some(PolicyReport { policy: format!("{name}, {side}"), ..found.clone() })
    };
    let both = names.flat_map(|name| [of(&two.a, name, "A"), of(&two.b, name, "B")]);
    both.flatten().collect()
}

/// Costs of each policy by the measure that both can be compared by.
fn costs(two: &Comparison) -> Figure {
    let measure = two.measure.unwrap_or(Measure::Total);
    let unit = unit_of(measure);
    let pairs =
        two.policies.iter().filter_map(|pair| Some((pair, pair.figure("time_us.cpu", measure)?)));
    let rows = pairs.clone().map(|(pair, cost)| {
        let mark = |series, value: Option<f64>| {
            value.map(|value| Mark { series, value, range: None, word: String::new() })
        };
        let marks = [mark(0, cost.a), mark(1, cost.b)];
        MarkRow { name: pair.policy.clone(), marks: marks.into_iter().flatten().collect() }
    });
    let plot = Plot::Marks(Marks {
        values: Axis::log(&format!("cost ({unit})"), Unit::Count),
        series: vec!["A".to_owned(), "B".to_owned()],
        rows: rows.collect(),
    });
    let number = |value: Option<f64>| value.map_or("-".to_owned(), |value| Unit::Count.say(value));
    let cells = pairs.map(|(pair, cost)| {
        let ratio = cost.ratio.map(|ratio| format!("{ratio:.2}"));
        [
            pair.policy.clone(),
            number(cost.a),
            number(cost.b),
            number(cost.difference),
            ratio.unwrap_or_else(|| "-".to_owned()),
        ]
    });
    let a = format!("A ({unit})");
    let b = format!("B ({unit})");
    let head = ["policy", &a, &b, "B - A", "B / A"];
    let table = Table::new(head, cells);
    let reason = match (two.measure, table.rows.is_empty()) {
        (None, _) => Some("the two cannot be compared"),
        (_, true) => Some("no policy was replayed in both"),
        _ => None,
    };
    Figure::new(
        "What each policy costs",
        "CPU time of maps and unmaps, by what the two can be compared by.",
        reason,
        plot,
        table,
    )
}

/// Parts of the time, by the same measure.
fn causes(two: &Comparison, mut both: Vec<PolicyReport>) -> Figure {
    let measure = two.measure.unwrap_or(Measure::Total);
    for (index, policy) in both.iter_mut().enumerate() {
        // Rows of A and B alternate.
        let report = [&two.a, &two.b][index % 2];
        let Some(parts) = measure.part(report, policy) else {
            continue;
        };
        policy.time_us = policy.time_us.over(parts);
        let range = policy.total_range_us;
        policy.total_range_us = range.map(|ends| ends.map(|end| end / parts));
    }
    let mut figure = time_by_cause(&both);
    let of = match measure {
        Measure::Total => return figure,
        Measure::Operation => "for a map or unmap",
        Measure::Mib => "for a MiB mapped",
    };
    figure.title = format!("{}, {of}", figure.title);
    figure.says = format!("{} All of it {of}, on average.", figure.says);
    figure
}

/// The strict policies that cost least, and lazy, over time.
fn over(two: &Comparison) -> Section {
    let strict =
        [&two.a, &two.b].map(|report| least(report).map_or("", |best| best.policy.as_str()));
    let shown = pairs(two, |name| name == "lazy" || strict.contains(&name));
    Section {
        heading: "Over time".to_owned(),
        says: vec![
            "The strict policies that cost least, and lazy. Each replay's time begins with its first operation."
                .to_owned(),
        ],
        figures: vec![
            over_time::invalidations(None, &shown),
            over_time::reachable_bytes(&shown),
            over_time::reachable_us(&shown),
            over_time::span(&shown),
            over_time::misses(&shown),
        ],
        ..Section::default()
    }
}
