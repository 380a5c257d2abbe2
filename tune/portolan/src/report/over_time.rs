//! The recorded system and the policies over time, each number in one figure with one scale.
//!
//! All lines of a plot have intervals of one length, which people count in. Tables have fewer of them, so that people
//! can read them.

use portolan_report::{Axis, Figure, Line, Lines, Plot, Section, Shape, Table, Unit};

use crate::replay::{Interval, PolicyReport, RecordedTimeline, ReplayReport, Timeline};

/// Rows of a table at most.
const ROWS: usize = 32;
/// Steps of a line among others at most.
const STEPS: usize = 128;
/// Name of the recorded kernel's line.
const RECORDED: &str = "Linux, recorded";

/// A number of an interval.
type Of = fn(&Interval) -> f64;

/// Origin of a line's numbers.
#[derive(Clone, Copy)]
enum LineSource<'a> {
    /// A policy's timeline, and the number of each interval that is taken.
    Policy(&'a Timeline, Of),
    /// Invalidations of the recorded kernel.
    Sent(&'a RecordedTimeline),
    /// Requests of a device, by its number.
    Requests(&'a RecordedTimeline, usize),
}

impl LineSource<'_> {
    fn interval_ns(self) -> u64 {
        match self {
            Self::Policy(timeline, _) => timeline.interval_ns,
            Self::Sent(timeline) | Self::Requests(timeline, _) => timeline.interval_ns,
        }
    }

    /// The numbers in intervals of at least `least_ns`, and the length of these.
    fn numbers(self, least_ns: u64) -> (u64, Vec<f64>) {
        let counts = |counts: &[u64]| counts.iter().map(|count| *count as f64).collect();
        match self {
            Self::Policy(timeline, of) => {
                let coarse = timeline.in_intervals_of(least_ns);
                (coarse.interval_ns, coarse.intervals.iter().map(of).collect())
            }
            Self::Sent(timeline) => {
                let coarse = timeline.in_intervals_of(least_ns);
                (coarse.interval_ns, counts(&coarse.invalidations))
            }
            Self::Requests(timeline, device) => {
                let coarse = timeline.in_intervals_of(least_ns);
                (coarse.interval_ns, counts(&coarse.devices[device].requests))
            }
        }
    }
}

/// Name of a line, and the source of its numbers.
type NamedSource<'a> = (String, LineSource<'a>);

/// Kind of a plot's numbers.
#[derive(Clone, Copy)]
enum PlotQuantity {
    /// Number of these in a second, in proportion or by their logarithm.
    Rate(&'static str, portolan_report::Scale),
    /// The most of this in an interval, by its logarithm.
    Most(&'static str, Unit),
    /// The most bytes of this in an interval, in proportion.
    Bytes(&'static str),
}

impl PlotQuantity {
    fn unit(self) -> Unit {
        match self {
            Self::Rate(..) => Unit::Count,
            Self::Most(_, unit) => unit,
            Self::Bytes(_) => Unit::Bytes,
        }
    }

    fn axis(self) -> Axis {
        match self {
            Self::Rate(what, scale) => {
                Axis { name: format!("{what} in a second"), scale, unit: Unit::Count }
            }
            Self::Most(what, unit) => Axis::log(what, unit),
            Self::Bytes(what) => Axis::linear(what, Unit::Bytes),
        }
    }

    /// Value on the axis of a number of an interval of `interval_ns`.
    fn shown(self, number: f64, interval_ns: u64) -> f64 {
        match self {
            Self::Rate(..) => number * 1e9 / interval_ns as f64,
            Self::Most(..) | Self::Bytes(_) => number,
        }
    }
}

pub(super) fn sections(report: &ReplayReport) -> Vec<Section> {
    let policies = &report.policies;
    let section = |heading: &str, figures| Section {
        heading: heading.to_owned(),
        figures,
        ..Section::default()
    };
    vec![
        section(
            "Over time",
            vec![
                requests(&report.recorded),
                invalidations(Some(&report.recorded), policies),
                reachable_bytes(policies),
                reachable_us(policies),
            ],
        ),
        section(
            "Device addresses and walks over time",
            vec![occupancy(policies), span(policies), misses(policies)],
        ),
    ]
}

/// Requests of the recorded devices.
fn requests(recorded: &RecordedTimeline) -> Figure {
    let devices = recorded.devices.iter().enumerate();
    let lines = devices.map(|(at, one)| (one.device.clone(), LineSource::Requests(recorded, at)));
    over_time(
        "Requests",
        "Maps of the recorded system, by device.",
        "the trace maps nothing",
        PlotQuantity::Rate("requests", portolan_report::Scale::Linear),
        &lines.collect::<Vec<_>>(),
    )
}

/// Compares invalidations of the recorded kernel with those of each policy.
pub(super) fn invalidations(
    recorded: Option<&RecordedTimeline>,
    policies: &[PolicyReport],
) -> Figure {
    let sent = recorded.map(|recorded| (RECORDED.to_owned(), LineSource::Sent(recorded)));
    let policies = each(policies, |interval| interval.invalidations.total() as f64);
    over_time(
        "Invalidations",
        "What the recorded kernel sent itself, where the trace has that, and what each policy of this library sends \
         for the same operations. Lines that lie on each other are one.",
        "no command was submitted",
        PlotQuantity::Rate("invalidations", portolan_report::Scale::Log),
        &sent.into_iter().chain(policies).collect::<Vec<_>>(),
    )
}

/// `of` each policy.
fn each(policies: &[PolicyReport], of: Of) -> Vec<NamedSource<'_>> {
    let lines = policies.iter();
    lines.map(|policy| (policy.policy.clone(), LineSource::Policy(&policy.timeline, of))).collect()
}

pub(super) fn reachable_bytes(policies: &[PolicyReport]) -> Figure {
    over_time(
        "Bytes reachable after unmap",
        "The most memory at once, in each interval, that was unmapped and that a device could still reach.",
        "nothing stayed reachable",
        PlotQuantity::Most("reachable", Unit::Bytes),
        &each(policies, |interval| interval.reachable_bytes as f64),
    )
}

pub(super) fn reachable_us(policies: &[PolicyReport]) -> Figure {
    over_time(
        "Time from unmap until no device reaches it",
        "The longest, of what was invalidated in each interval.",
        "nothing stayed reachable",
        PlotQuantity::Most("longest time", Unit::Micros),
        &each(policies, |interval| interval.reachable_us),
    )
}

fn occupancy(policies: &[PolicyReport]) -> Figure {
    let mut lines: Vec<NamedSource<'_>> = Vec::new();
    if let Some(first) = policies.first() {
        let mapped: Of = |interval| interval.mapped_bytes as f64;
        lines.push(("mapped".to_owned(), LineSource::Policy(&first.timeline, mapped)));
    }
    lines.extend(each(policies, |interval| interval.reachable_bytes as f64));
    lines.retain(|(name, ..)| ["mapped", "lazy", "deferred"].contains(&&**name));
    over_time(
        "Bytes of device addresses taken",
        "What is mapped, in whole pages, and what waits for its invalidation in the flush queues of those \
         policies that have some: addresses that nothing else can have meanwhile. The most in each interval.",
        "nothing was mapped",
        PlotQuantity::Bytes("device addresses"),
        &lines,
    )
}

pub(super) fn span(policies: &[PolicyReport]) -> Figure {
    over_time(
        "Span of device addresses",
        "From the lowest to the highest address in use, mapped or waiting for its invalidation, to 64 KiB: with much \
         more span than bytes, page tables are spread. The most in each interval.",
        "nothing was mapped",
        PlotQuantity::Bytes("span"),
        &each(policies, |interval| interval.span_bytes as f64),
    )
}

pub(super) fn misses(policies: &[PolicyReport]) -> Figure {
    over_time(
        "IOTLB misses",
        "Accesses whose translation the IOMMU's cache did not hold; each is a walk of the page \
         tables that the device waits for.",
        "no access missed: nothing was translated",
        PlotQuantity::Rate("misses", portolan_report::Scale::Linear),
        &each(policies, |interval| interval.iotlb_misses as f64),
    )
}

/// Plots the lines that have values over time; `none` is the reason if no line has.
fn over_time(
    title: &str,
    says: &str,
    none: &str,
    numbers: PlotQuantity,
    wanted: &[NamedSource<'_>],
) -> Figure {
    let shown = |(_, source): &&NamedSource<'_>| source.numbers(0).1.iter().any(|one| *one > 0.0);
    let wanted: Vec<_> = wanted.iter().filter(shown).cloned().collect();
    let longest = wanted.iter().map(|(_, source)| source.interval_ns()).max();
    let mut interval_ns = longest.unwrap_or(1);
    // With more steps than this, several lines cannot be told from each other.
    while wanted.len() > 1 && wanted.iter().any(|(_, one)| one.numbers(interval_ns).1.len() > STEPS)
    {
        interval_ns = interval_ns.saturating_mul(2);
    }
    let widths = wanted.iter().map(|(_, source)| source.numbers(interval_ns).0);
    let interval_ns = widths.max().unwrap_or(interval_ns);
    let interval = Unit::Micros.say(interval_ns as f64 / 1000.0);
    let lines = lines(&wanted, numbers, interval_ns);
    let mut says = format!("{says} An interval is {interval} long.");
    if let [only] = lines.as_slice() {
        // A plot of one line has no legend.
        says.push_str(&format!(" The line: {}.", only.name));
    }
    let plot = Plot::Lines(Lines {
        x: Axis::linear("time since the first operation", Unit::Micros),
        y: numbers.axis(),
        lines,
    });
    let (says, none) = if wanted.is_empty() { ("", Some(none)) } else { (&*says, None) };
    Figure::new(title, says, none, plot, rows(numbers, &wanted, interval_ns))
}

/// The lines of a plot; lines that coincide are drawn once.
fn lines(wanted: &[NamedSource<'_>], numbers: PlotQuantity, interval_ns: u64) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    let points = wanted.iter().map(|(name, source)| {
        let (width, values) = source.numbers(interval_ns);
        let values = values.iter().map(|value| numbers.shown(*value, width));
        (name, points(width, &values.collect::<Vec<_>>()))
    });
    let points: Vec<_> = points.collect();
    let ends = points.iter().filter_map(|(_, points)| points.last());
    let longest = ends.map(|end| end.0).fold(0.0, f64::max);
    for (name, mut points) in points {
        // After its end one that is shorter than others does nothing.
        if let Some((end, _)) = points.last().copied().filter(|last| last.0 < longest) {
            points.push((end, 0.0));
        }
        match lines.iter_mut().find(|line| covers(&line.points, &points)) {
            Some(line) => line.name.push_str(&format!(", {name}")),
            None => lines.push(Line { name: name.clone(), points, shape: Shape::Steps }),
        }
    }
    if let ([only], [_, _, _, ..]) = (lines.as_mut_slice(), wanted) {
        "every policy".clone_into(&mut only.name);
    }
    lines
}

/// Tells if two lines look the same.
fn covers(line: &[(f64, f64)], other: &[(f64, f64)]) -> bool {
    let near = |(a, b): (&(f64, f64), &(f64, f64))| {
        a.0 == b.0 && (a.1 - b.1).abs() <= a.1.abs().max(b.1.abs()) / 1000.0
    };
    line.len() == other.len() && line.iter().zip(other).all(near)
}

/// The beginning of each interval with its number, and the end of the last one.
fn points(interval_ns: u64, values: &[f64]) -> Vec<(f64, f64)> {
    let us = |index: usize| index as f64 * interval_ns as f64 / 1000.0;
    let points = values.iter().enumerate().map(|(at, y)| (us(at), *y));
    let end = values.last().map(|last| (us(values.len()), *last));
    points.chain(end).collect()
}

/// Table of the same numbers, in longer and therefore fewer intervals.
fn rows(numbers: PlotQuantity, wanted: &[NamedSource<'_>], mut interval_ns: u64) -> Table {
    let all = loop {
        let all = wanted.iter().map(|(_, source)| source.numbers(interval_ns));
        let all: Vec<_> = all.collect();
        if all.iter().all(|(_, values)| values.len() <= ROWS) {
            break all;
        }
        interval_ns = interval_ns.saturating_mul(2);
    };
    let interval_ns = all.first().map_or(interval_ns, |(width, _)| *width);
    let count = all.iter().map(|(_, values)| values.len()).max();
    let row = |index: usize| {
        let from = Unit::Micros.say(index as f64 * interval_ns as f64 / 1000.0);
        let cells = all.iter().map(|(width, values)| {
            let value = values.get(index);
            value.map_or("-".to_owned(), |value| numbers.unit().say(numbers.shown(*value, *width)))
        });
        [from].into_iter().chain(cells).collect()
    };
    let interval = Unit::Micros.say(interval_ns as f64 / 1000.0);
    let first = format!("from, for {interval}");
    let names = wanted.iter().map(|(name, _)| (*name).to_owned());
    Table {
        head: [first].into_iter().chain(names).collect(),
        rows: (0..count.unwrap_or(0)).map(row).collect(),
    }
}
