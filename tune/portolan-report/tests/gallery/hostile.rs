//! Names as hostile traces have them.

use portolan_report::{Arrangement, Axis, Figure, MarkRow, Marks, Plot, Shape, Unit};

use super::{HOSTILE, bars, figure, lines, mark, texts};

/// Figures of such names.
pub fn figures() -> Vec<Figure> {
    let long =
        "a device whose name goes on and on, longer than any screen is wide, with no end in sight "
            .repeat(6);
    let unbroken = "0123456789abcdef".repeat(40);
    let axis = Axis::linear(HOSTILE, Unit::Count);
    let names = [HOSTILE, &long, &unbroken, "", "名前 устройство شبكة"];
    let marks = Marks {
        values: Axis::linear(&long, Unit::Bytes),
        series: texts(&[HOSTILE]),
        rows: names
            .iter()
            .map(|name| MarkRow {
                name: (*name).to_owned(),
                marks: vec![
                    mark(0, 3.0, Some([9.0, 1.0]), name),
                    mark(usize::MAX, -3.0, Some([f64::NEG_INFINITY, f64::NAN]), name),
                    mark(7, f64::NAN, None, name),
                ],
            })
            .collect(),
    };
    let named: Vec<(&str, Vec<(f64, f64)>)> =
        names.iter().map(|name| (*name, vec![(1.0, 1.0), (2.0, 1.0)])).collect();
    let values: &[f64] = &[1.0, 2.0, 3.0, 4.0, 5.0];
    vec![
        figure(
            HOSTILE,
            bars(
                axis.clone(),
                Arrangement::StackedRows,
                &names,
                &[(HOSTILE, values), (&long, values), (&unbroken, values)],
            ),
        ),
        figure(
            &long,
            bars(
                axis.clone(),
                Arrangement::StackedColumns,
                &names,
                &[(HOSTILE, values), (&unbroken, values)],
            ),
        ),
        figure(&unbroken, lines(axis.clone(), axis, Shape::Straight, &named)),
        figure("", Plot::Marks(marks)),
        figure("Why not", Plot::Nothing(HOSTILE.to_owned())),
    ]
}
