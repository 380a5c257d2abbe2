//! Plots of numbers as broken traces have them.

use portolan_report::{Arrangement, Axis, Figure, Plot, Shape, Unit};

use super::{bars, figure, lines};

const ROWS: Arrangement = Arrangement::StackedRows;
const COLUMNS: Arrangement = Arrangement::StackedColumns;

fn count() -> Axis {
    Axis::linear("count", Unit::Count)
}

fn log() -> Axis {
    Axis::log("bytes", Unit::Bytes)
}

fn time() -> Axis {
    Axis::linear("time", Unit::Micros)
}

/// Figures of such numbers.
pub fn figures() -> Vec<Figure> {
    let plots = odd_bars().into_iter().chain(many()).chain(odd_lines());
    plots.map(|(title, plot)| figure(title, plot)).collect()
}

fn odd_bars() -> [(&'static str, Plot); 7] {
    let (a, ab) = (["a"], ["a", "b"]);
    let infinite: &[(&str, &[f64])] = &[("x", &[f64::NAN, f64::INFINITY])];
    let some: &[(&str, &[f64])] =
        &[("x", &[f64::NAN, 4.0, 1e300]), ("y", &[1.0, f64::NEG_INFINITY, 1e300])];
    let changes: &[(&str, &[f64])] = &[("x", &[-40.0, 25.0, -10.0]), ("y", &[-5.0, 3.0, 12.0])];
    let change = Axis::linear("change", Unit::Percent);
    let names = ["worse", "better", "both"];
    [
        ("Nothing", Plot::Nothing("the trace has no unmaps".to_owned())),
        ("No categories", bars(count(), ROWS, &[], &[])),
        ("Nothing that is finite", bars(count(), ROWS, &ab, infinite)),
        ("Some that are not finite", bars(count(), ROWS, &["a", "b", "c"], some)),
        ("Below zero", bars(change, ROWS, &names, changes)),
        ("Zeros by logarithm", bars(log(), COLUMNS, &ab, &[("x", &[0.0, 0.0])])),
        ("One bar by logarithm", bars(log(), ROWS, &a, &[("x", &[65536.0])])),
    ]
}

fn many() -> [(&'static str, Plot); 5] {
    let names: Vec<String> = (0..10_000).map(|n| format!("interval {n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let heights = (0..10_000u32).map(|n| f64::from(n.wrapping_mul(2_654_435_761) >> 16));
    let heights: Vec<f64> = heights.collect();
    let parts: Vec<String> = (0..20).map(|n| format!("part {n}")).collect();
    let twenty = parts.iter().map(|name| (&**name, [3.0, 5.0].as_slice()));
    let twenty: Vec<(&str, &[f64])> = twenty.collect();
    let stairs = |by: f64| (0..12).map(|n| (f64::from(n), f64::from(n * n) * by)).collect();
    let fan = parts[..16].iter().zip(1..).map(|(name, by)| (&**name, stairs(f64::from(by))));
    let fan: Vec<(&str, Vec<(f64, f64)>)> = fan.collect();
    [
        ("Ten thousand columns", bars(count(), COLUMNS, &names, &[("x", &heights)])),
        ("A thousand rows", bars(count(), ROWS, &names[..1000], &[("x", &heights[..1000])])),
        ("Twenty parts", bars(count(), ROWS, &["a", "b"], &twenty)),
        ("Sixteen lines", lines(count(), count(), Shape::Straight, &fan)),
        ("Sixteen stairs", lines(count(), count(), Shape::Steps, &fan)),
    ]
}

fn odd_lines() -> [(&'static str, Plot); 7] {
    let line = |x: Axis, y: Axis, points: &[(f64, f64)]| {
        lines(x, y, Shape::Straight, &[("only", points.to_vec())])
    };
    let bytes = Axis::linear("bytes", Unit::Bytes);
    let same = [(1e9, 5.0), (2e9, 5.0), (3e9, 5.0)];
    let huge = [(-1.7e308, -1.7e308), (1.7e308, 1.7e308)];
    let wide = [(1e-300, 5e-324), (1e300, 1.7e308), (0.0, 0.0), (-1.0, -1.0)];
    let close = [(1e16, 1.000_000_1), (1e16 + 2.0, 1.000_000_2), (1e16 + 4.0, 1.000_000_15)];
    let back = [(5.0, 1.0), (1.8e13, 2.0), (3.0, 3.0), (4.0, f64::NAN)];
    [
        ("One point", line(time(), log(), &[(7.0, 7.0)])),
        ("No point", line(count(), count(), &[])),
        ("All the same", line(time(), count(), &same)),
        ("Huge", line(time(), bytes, &huge)),
        ("Huge by logarithm", line(Axis::log("time", Unit::Micros), log(), &wide)),
        ("Close together", line(time(), count(), &close)),
        ("Back in time", line(time(), count(), &back)),
    ]
}
