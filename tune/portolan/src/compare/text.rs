//! A comparison for people: sentences, the contents of the traces, then the table of a replay with four rows a
//! policy.

use portolan_cli::display::{
    Column, bytes, duration, fitting_table, grouped, micros, table, wrapped,
};

use super::figure::{Difference, FigureKind, FigureUnit, KINDS, Measure, Side, TOTAL};
use super::{Comparison, PolicyPair};

/// Meaning of the rows of the tables.
const LEGEND: &str =
    "B - A: what B has more. B / A: how many times A's it is; * marks the CPU time that is less.";

/// The comparison, in lines of `columns`.
pub fn text(two: &Comparison, columns: usize) -> String {
    let head = |side: &str, of: &crate::replay::ReplayReport| {
        format!("{side}: {}, priced as {}\n", of.trace.source, of.machine)
    };
    let mut out = wrapped(&(head("A", &two.a) + &head("B", &two.b) + "\n"), columns);
    for finding in &two.findings {
        out.push_str(&wrapped(finding, columns));
        out.push('\n');
    }
    out.push('\n');
    out.push_str(&work(two, columns));
    let measure = two.measure.unwrap_or(Measure::Total);
    if two.policies.is_empty() {
        return out;
    }
    out.push('\n');
    out.push_str(&wrapped(of_what(measure), columns));
    out.push('\n');
    let (table, left_out) = policies(two, measure, columns);
    out.push_str(&table);
    out.push('\n');
    out.push_str(&wrapped(LEGEND, columns));
    out.push('\n');
    if !left_out.is_empty() {
        let more =
            format!("Left out for want of room: {}. `--wide` prints them.\n", left_out.join(", "));
        out.push_str(&wrapped(&more, columns));
    }
    out
}

const fn of_what(measure: Measure) -> &'static str {
    match measure {
        Measure::Total => "This library's policies, in total:",
        Measure::Operation => {
            "This library's policies, for a map or unmap; exposed, for, reusable and tables are the most at once:"
        }
        Measure::Mib => {
            "This library's policies, for a MiB mapped; exposed, for, reusable and tables are the most at once:"
        }
    }
}

/// Table of the traces' contents.
fn work(two: &Comparison, columns: usize) -> String {
    let header = [("the trace", 0), ("A", 0), ("B", 0), ("B - A", 2), ("B / A", 1)];
    let rows = two.work.iter().map(|one| {
        let (name, unit) = match one.figure {
            "bytes_mapped" => ("bytes mapped", FigureUnit::Bytes),
            "bytes_a_map" => ("bytes a map", FigureUnit::Bytes),
            "span_ms" => ("time", FigureUnit::Millis),
            "coherent_allocs" => ("coherent allocations", FigureUnit::Count),
            "mapped_peak" => ("mapped at once", FigureUnit::Count),
            other => (other, FigureUnit::Count),
        };
        let cells = cells(one, unit, Measure::Total);
        let name = std::iter::once(name.to_owned());
        name.chain(cells).collect()
    });
    table(&header, &[1, 2, 3, 4], rows.collect(), columns)
}

/// The table of a replay, with four rows a policy; and the columns that have no room.
fn policies(two: &Comparison, measure: Measure, columns: usize) -> (String, Vec<&'static str>) {
    // Columns in which all figures are 0 say nothing.
    let has_any = |kind: &&FigureKind| {
        let mut figures = two.policies.iter().filter_map(|pair| pair.of(kind, measure));
        figures.any(|one| [one.a, one.b].iter().flatten().any(|value| *value != 0.0))
    };
    let kinds: Vec<&FigureKind> = KINDS.iter().filter(has_any).collect();
    let header = kinds.iter().map(|kind| (kind.head, kind.spare));
    let header = std::iter::once(("policy", 0)).chain(header);
    let header: Vec<_> = header.map(|(header, spare)| Column { header, spare }).collect();
    let mut rows = Vec::new();
    for pair in &two.policies {
        let of_total = pair.figure(TOTAL, measure);
        let better = of_total.and_then(Difference::clearly_better);
        let mark = |side| if better == Some(side) { " *" } else { "" };
        let names = [
            format!("{} A{}", pair.policy, mark(Side::A)),
            format!("{} B{}", pair.policy, mark(Side::B)),
            "  B - A".to_owned(),
            "  B / A".to_owned(),
        ];
        let cells = kinds.iter().map(|kind| match pair.of(kind, measure) {
            Some(one) => cells_of(one, kind, measure),
            None => std::array::from_fn(|_| "-".to_owned()),
        });
        let cells: Vec<[String; 4]> = cells.collect();
        rows.extend(names.into_iter().enumerate().map(|(row, name)| {
            let cells = cells.iter().map(|column| column[row].clone());
            std::iter::once(name).chain(cells).collect()
        }));
    }
    fitting_table(&header, rows, columns)
}

impl PolicyPair {
    fn of(&self, kind: &FigureKind, measure: Measure) -> Option<&Difference> {
        let by = if kind.is_summed { measure } else { Measure::Total };
        self.figure(kind.name, by)
    }
}

fn cells_of(one: &Difference, kind: &FigureKind, measure: Measure) -> [String; 4] {
    let by = if kind.is_summed { measure } else { Measure::Total };
    cells(one, kind.unit, by)
}

/// The first's, the second's, their difference and their ratio.
fn cells(one: &Difference, unit: FigureUnit, by: Measure) -> [String; 4] {
    let show = |value: f64| match (unit, by) {
        (FigureUnit::Bytes, _) => bytes(value.round() as u64),
        (FigureUnit::Count, Measure::Total) => grouped(value.round() as u64),
        (FigureUnit::Micros, _) => duration(value),
        (FigureUnit::Millis, _) => duration(value * 1e3),
        (FigureUnit::Count, _) => micros(value),
    };
    let none = || "-".to_owned();
    let signed = |value: f64| match value.partial_cmp(&0.0) {
        // A value that rounds to 0 has no sign.
        _ if show(value.abs()) == show(0.0) => "0".to_owned(),
        Some(std::cmp::Ordering::Less) => format!("-{}", show(-value)),
        Some(std::cmp::Ordering::Greater) => format!("+{}", show(value)),
        _ => "0".to_owned(),
    };
    [
        one.a.map_or_else(none, show),
        one.b.map_or_else(none, show),
        match one.a.zip(one.b) {
            Some((a, b)) if show(a) == show(b) => "0".to_owned(),
            _ => one.difference.map_or_else(none, signed),
        },
        one.ratio.map_or_else(none, |ratio| {
            if ratio < 1000.0 { format!("{ratio:.2}") } else { grouped(ratio.round() as u64) }
        }),
    ]
}
