//! Reports to look at: pages of `portolan-report` from the results of replays, reproductions and curves.
//!
//! `docs/report.md` explains each figure and the origin of its numbers. Nothing is computed here that the data has
//! not: figures arrange it.

mod bounds;
mod calibrate;
mod camera;
mod compare;
mod fleet;
mod over_time;
mod policies;
mod replay;
mod reproduce;
mod scale;
mod settings;
mod trace;

pub use calibrate::calibrate;
pub use camera::camera;
pub use compare::compare;
pub use fleet::fleet;
pub use replay::replay;
pub use reproduce::{Results, reproductions};
pub use scale::scale;

use portolan_report::{Figure, Plot, Table};

/// A table with `head`.
fn table<const N: usize>(head: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> Table {
    Table {
        head: head.map(str::to_owned).to_vec(),
        rows: rows.into_iter().map(Vec::from).collect(),
    }
}

/// A figure; if `reason` says why there is nothing to plot, that stands in its place.
fn figure(title: &str, says: &str, reason: Option<&str>, plot: Plot, table: Table) -> Figure {
    Figure {
        title: title.to_owned(),
        says: says.to_owned(),
        plot: match reason {
            Some(reason) => Plot::Nothing(reason.to_owned()),
            None => plot,
        },
        table,
    }
}

/// A ratio in words: `2.5 times`; none where there is nothing to divide by.
fn times(value: f64, by: f64) -> Option<String> {
    let ratio = value / by;
    ratio.is_finite().then(|| format!("{ratio:.2} times"))
}
