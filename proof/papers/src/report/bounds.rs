//! Bounds and their worth without their mechanism, as marks.

use portolan_report::{Axis, Figure, Mark, MarkRow, Marks, Plot, Table, Unit};

use crate::reproduce::Bound;

const SERIES: [&str; 4] =
    ["the bound", "worst figure", "worst without the mechanism", "worst of the trivial predictor"];

fn marks(bound: &Bound) -> Vec<Mark> {
    let values = [bound.limit_pct, bound.worst_pct, bound.mechanism_off_pct, bound.trivial_pct];
    let marks = values.into_iter().enumerate().map(|(series, value)| Mark {
        series,
        value,
        range: None,
        word: match series {
            1 => bound.evidence.word().to_owned(),
            _ => String::new(),
        },
    });
    marks.collect()
}

/// `bounds` of one reproduction.
pub(super) fn of(bounds: &[Bound]) -> Figure {
    let row = |bound: &Bound| MarkRow { name: bound.what.clone(), marks: marks(bound) };
    let plot = Plot::Marks(Marks {
        values: Axis::log("off what was published", Unit::Percent),
        series: SERIES.map(str::to_owned).to_vec(),
        rows: bounds.iter().map(row).collect(),
    });
    let percent = |value: f64| Unit::Percent.say(value);
    let rows = bounds.iter().map(|bound| {
        [
            bound.what.clone(),
            if bound.holds { "holds".to_owned() } else { "FAILS".to_owned() },
            percent(bound.limit_pct),
            percent(bound.worst_pct),
            format!("{}: {}", bound.mechanism, percent(bound.mechanism_off_pct)),
            format!("{}: {}", bound.trivial, percent(bound.trivial_pct)),
            bound.evidence.word().to_owned(),
        ]
    });
    let head = [
        "bound on",
        "verdict",
        "within",
        "worst",
        "without the mechanism",
        "trivial predictor",
        "so it is",
    ];
    Figure::new(
        "Bounds, and what they are worth",
        "How far the worst of the figures that nothing was fitted on may be off, and how far it is; the same with the \
         mechanism switched off that the bound speaks for; and what needs no model. A bound says something only if \
         the last two miss it or come less near.",
        bounds
            .is_empty()
            .then_some("nothing was published beyond what was fitted, so there is no bound"),
        plot,
        Table::new(head, rows),
    )
}
