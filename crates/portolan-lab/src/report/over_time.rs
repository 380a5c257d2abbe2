//! What policies did over virtual time.
//!
//! All lines of a plot have intervals of one length. Tables have fewer of them, so that people can read them.

use portolan_report::{Axis, Figure, Line, Lines, Plot, Section, Shape, Table, Unit};

use super::figure;
use crate::replay::{Interval, PolicyReport, Timeline};

/// Rows of a table at most.
const ROWS: usize = 32;

/// A number of an interval.
type Of = fn(&Interval) -> f64;

/// A line: its name, a policy's timeline, and what of it.
type Wanted<'a> = (String, &'a Timeline, Of);

/// What the numbers of a plot are.
#[derive(Clone, Copy)]
enum Numbers {
    /// How many of these in an interval.
    Count(&'static str),
    /// The most of this in an interval, by its logarithm.
    Most(&'static str, Unit),
    /// The most bytes of this in an interval, in proportion.
    Bytes(&'static str),
}

const KINDS: [(&str, Of); 4] = [
    ("by page", |interval| interval.invalidations.page as f64),
    ("by range", |interval| interval.invalidations.range as f64),
    ("by context", |interval| {
        (interval.invalidations.context + interval.invalidations.global) as f64
    }),
    ("syncs", |interval| interval.syncs as f64),
];

pub(super) fn sections(policies: &[PolicyReport]) -> Vec<Section> {
    let section = |heading: &str, figures| Section {
        heading: heading.to_owned(),
        says: Vec::new(),
        figures,
    };
    vec![
        section("Invalidations over time", invalidations(policies)),
        section(
            "What stays reachable over time",
            vec![reachable_bytes(policies), reachable_us(policies)],
        ),
        section(
            "Device addresses over time",
            vec![occupancy(policies), span(policies)],
        ),
        section("IOTLB misses over time", vec![misses(policies)]),
    ]
}

/// A figure for each policy, one for those that do the same.
pub(super) fn invalidations(policies: &[PolicyReport]) -> Vec<Figure> {
    let same = |a: &Timeline, b: &Timeline| {
        let all = a.intervals.iter().zip(&b.intervals);
        let equal = |(a, b): (&Interval, &Interval)| KINDS.iter().all(|(_, of)| of(a) == of(b));
        (a.interval_ns, a.intervals.len()) == (b.interval_ns, b.intervals.len())
            && all.into_iter().all(equal)
    };
    let mut groups: Vec<(&Timeline, Vec<&str>)> = Vec::new();
    for policy in policies {
        let known = groups
            .iter_mut()
            .find(|(timeline, _)| same(timeline, &policy.timeline));
        match known {
            Some((_, names)) => names.push(&policy.policy),
            None => groups.push((&policy.timeline, vec![&policy.policy])),
        }
    }
    let figure = |(timeline, names): &(&Timeline, Vec<&str>)| {
        let names = names.join(" and ");
        let lines = KINDS.map(|(name, of)| (name.to_owned(), *timeline, of));
        over_time(
            &format!("Invalidations under {names}"),
            "Commands by kind, and the waits for them (syncs), in each interval.",
            &format!("no command was submitted under {names}"),
            Numbers::Count("commands"),
            &lines,
        )
    };
    groups.iter().map(figure).collect()
}

/// `of` each policy.
fn each(policies: &[PolicyReport], of: Of) -> Vec<Wanted<'_>> {
    let lines = policies.iter();
    lines
        .map(|policy| (policy.policy.clone(), &policy.timeline, of))
        .collect()
}

pub(super) fn reachable_bytes(policies: &[PolicyReport]) -> Figure {
    over_time(
        "Bytes reachable after unmap",
        "The most memory at once, in each interval, that was unmapped and that a device could still reach.",
        "nothing stayed reachable",
        Numbers::Most("reachable", Unit::Bytes),
        &each(policies, |interval| interval.reachable_bytes as f64),
    )
}

pub(super) fn reachable_us(policies: &[PolicyReport]) -> Figure {
    over_time(
        "Time from unmap until no device reaches it",
        "The longest, of what was invalidated in each interval.",
        "nothing stayed reachable",
        Numbers::Most("longest time", Unit::Micros),
        &each(policies, |interval| interval.reachable_us),
    )
}

fn occupancy(policies: &[PolicyReport]) -> Figure {
    let mut lines: Vec<Wanted<'_>> = Vec::new();
    if let Some(first) = policies.first() {
        lines.push(("mapped".to_owned(), &first.timeline, |interval| {
            interval.mapped_bytes as f64
        }));
    }
    lines.extend(each(policies, |interval| interval.reachable_bytes as f64));
    lines.retain(|(name, ..)| ["mapped", "lazy", "deferred"].contains(&&**name));
    over_time(
        "Bytes of device addresses taken",
        "What is mapped, in whole pages, and what waits for its invalidation in the flush queues of those \
         policies that have some: addresses that nothing else can have meanwhile. The most in each interval.",
        "nothing was mapped",
        Numbers::Bytes("device addresses"),
        &lines,
    )
}

pub(super) fn span(policies: &[PolicyReport]) -> Figure {
    over_time(
        "Span of device addresses",
        "From the lowest to the highest address in use, mapped or waiting for its invalidation, to 64 KiB: with much \
         more span than bytes, page tables are spread. The most in each interval.",
        "nothing was mapped",
        Numbers::Bytes("span"),
        &each(policies, |interval| interval.span_bytes as f64),
    )
}

pub(super) fn misses(policies: &[PolicyReport]) -> Figure {
    over_time(
        "IOTLB misses",
        "Accesses whose translation the IOMMU's cache did not hold, in each interval; each is a walk of the page \
         tables that the device waits for.",
        "no access missed: nothing was translated",
        Numbers::Count("misses"),
        &each(policies, |interval| interval.iotlb_misses as f64),
    )
}

/// Lines that have something to show, over time; `none` says why there may be nothing.
fn over_time(
    title: &str,
    says: &str,
    none: &str,
    numbers: Numbers,
    wanted: &[Wanted<'_>],
) -> Figure {
    let shown =
        |(_, timeline, of): &&Wanted<'_>| timeline.intervals.iter().any(|one| of(one) > 0.0);
    let wanted: Vec<_> = wanted.iter().filter(shown).cloned().collect();
    let longest = wanted
        .iter()
        .map(|(_, timeline, _)| timeline.interval_ns)
        .max();
    let interval_ns = longest.unwrap_or(1);
    let interval = Unit::Micros.say(interval_ns as f64 / 1000.0);
    let y = match numbers {
        Numbers::Count(what) => Axis::linear(&format!("{what} in {interval}"), Unit::Count),
        Numbers::Most(what, unit) => Axis::log(what, unit),
        Numbers::Bytes(what) => Axis::linear(what, Unit::Bytes),
    };
    let lines = lines(&wanted, interval_ns);
    let mut says = format!("{says} An interval is {interval} long.");
    if let [only] = lines.as_slice() {
        // A plot of one line has no legend.
        says.push_str(&format!(" The line: {}.", only.name));
    }
    let plot = Plot::Lines(Lines {
        x: Axis::linear("time since the first operation", Unit::Micros),
        y,
        lines,
    });
    let (says, none) = match wanted.is_empty() {
        true => ("", Some(none)),
        false => (&*says, None),
    };
    figure(title, says, none, plot, rows(numbers, &wanted, interval_ns))
}

/// The lines of a plot: one for those that lie on each other.
fn lines(wanted: &[Wanted<'_>], interval_ns: u64) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    let points = wanted.iter().map(|(name, timeline, of)| {
        let points = points(&timeline.in_intervals_of(interval_ns), *of);
        (name, points)
    });
    let points: Vec<_> = points.collect();
    let ends = points.iter().filter_map(|(_, points)| points.last());
    let longest = ends.map(|end| end.0).fold(0.0, f64::max);
    for (name, mut points) in points {
        // After its end one that is shorter than others, of another trace, does nothing.
        if let Some((end, _)) = points.last().copied().filter(|last| last.0 < longest) {
            points.push((end, 0.0));
        }
        match lines.iter_mut().find(|line| covers(&line.points, &points)) {
            Some(line) => line.name.push_str(&format!(", {name}")),
            None => lines.push(Line {
                name: name.clone(),
                points,
                shape: Shape::Steps,
            }),
        }
    }
    if let ([only], [_, _, _, ..]) = (lines.as_mut_slice(), wanted) {
        "every policy".clone_into(&mut only.name);
    }
    lines
}

/// Whether nobody could tell two lines apart.
fn covers(line: &[(f64, f64)], other: &[(f64, f64)]) -> bool {
    let near = |(a, b): (&(f64, f64), &(f64, f64))| {
        a.0 == b.0 && (a.1 - b.1).abs() <= a.1.abs().max(b.1.abs()) / 1000.0
    };
    line.len() == other.len() && line.iter().zip(other).all(near)
}

/// The beginning of each interval with its number, and the end of the last one.
fn points(timeline: &Timeline, of: Of) -> Vec<(f64, f64)> {
    let us = |index: usize| index as f64 * timeline.interval_ns as f64 / 1000.0;
    let intervals = &timeline.intervals;
    let numbers = intervals.iter().map(of);
    let mut points: Vec<_> = numbers.enumerate().map(|(i, y)| (us(i), y)).collect();
    points.extend(intervals.last().map(|last| (us(intervals.len()), of(last))));
    points
}

/// The same as a table, in intervals that are so long that there are few.
fn rows(numbers: Numbers, wanted: &[Wanted<'_>], mut interval_ns: u64) -> Table {
    let all = loop {
        let all = wanted
            .iter()
            .map(|(_, timeline, _)| timeline.in_intervals_of(interval_ns));
        let all: Vec<_> = all.collect();
        if all.iter().all(|timeline| timeline.intervals.len() <= ROWS) {
            break all;
        }
        interval_ns = interval_ns.saturating_mul(2);
    };
    let unit = match numbers {
        Numbers::Count(_) => Unit::Count,
        Numbers::Most(_, unit) => unit,
        Numbers::Bytes(_) => Unit::Bytes,
    };
    let count = all.iter().map(|timeline| timeline.intervals.len()).max();
    let row = |index: usize| {
        let from = Unit::Micros.say(index as f64 * interval_ns as f64 / 1000.0);
        let cells = all.iter().zip(wanted).map(|(timeline, (_, _, of))| {
            let interval = timeline.intervals.get(index);
            interval.map_or("-".to_owned(), |interval| unit.say(of(interval)))
        });
        [from].into_iter().chain(cells).collect()
    };
    let interval = Unit::Micros.say(interval_ns as f64 / 1000.0);
    let first = format!("from, for {interval}");
    let names = wanted.iter().map(|(name, ..)| (*name).to_owned());
    Table {
        head: [first].into_iter().chain(names).collect(),
        rows: (0..count.unwrap_or(0)).map(row).collect(),
    }
}
