//! A page with every kind of plot, with ordinary numbers and with those that come of broken and hostile traces.

use portolan_report::{
    Arrangement, Axis, Bars, Figure, Line, Lines, Mark, MarkRow, Marks, Origin, Page, Plot,
    Section, Series, Shape, Table, Unit,
};

/// A name as a hostile trace has it.
pub const HOSTILE: &str = "</title></svg><script>alert('x')</script><img src=http://example.invalid/x onerror=alert(1)>&\"\u{202e}\u{0}";

const POLICIES: [&str; 4] = ["strict", "lazy", "deferred, combined", "identity"];

/// The page.
pub fn page() -> Page {
    Page {
        title: "Gallery: every kind of plot".to_owned(),
        answer: vec![
            "Boot with iommu.strict=0: it takes 38 % of the time that DMA mapping costs now.".to_owned(),
            "Memory stays reachable for at most 10 ms after its unmap, which this machine's devices, all on board, \
             may be trusted with. Where they may not, deferred invalidation takes 31 %."
                .to_owned(),
        ],
        sections: vec![
            section("Ordinary numbers", ordinary()),
            section("Odd numbers", odd()),
            section(HOSTILE, hostile()),
        ],
        origin: Origin {
            command: "portolan replay 'trace of a host.txt' --machine smmu-v3 --report report.html".to_owned(),
            facts: [("seed", "7"), ("profile", "smmu-v3 (fitted, data/machines/smmu-v3.toml)"), ("version", "0.1.0"), (HOSTILE, HOSTILE)]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .to_vec(),
        },
    }
}

fn section(heading: &str, figures: Vec<Figure>) -> Section {
    let says = vec!["What these figures have in common, and what to look for first.".to_owned()];
    Section {
        heading: heading.to_owned(),
        says,
        figures,
    }
}

fn figure(title: &str, plot: Plot) -> Figure {
    let says = "What the plot shows and how to read it, in a sentence or two: shorter is better."
        .to_owned();
    let row = |nth: u32| -> Vec<String> {
        let numbers = (1..8).map(|column| format!("{}", nth * column * 1031));
        std::iter::once(format!("row {nth} of {title}"))
            .chain(numbers)
            .collect()
    };
    let head = [
        "name",
        "requests",
        "median (µs)",
        "p99 (µs)",
        "invalidations",
        "bytes (KiB)",
        "walks",
        "misses",
    ];
    let head = head.map(str::to_owned).to_vec();
    let table = Table {
        head,
        rows: (1..6).map(row).collect(),
    };
    Figure {
        title: title.to_owned(),
        says,
        plot,
        table,
    }
}

fn texts(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// Bars of one arrangement.
pub fn bars(
    values: Axis,
    arrangement: Arrangement,
    categories: &[&str],
    series: &[(&str, &[f64])],
) -> Plot {
    let of = |(name, values): &(&str, &[f64])| Series {
        name: (*name).to_owned(),
        values: values.to_vec(),
    };
    let series = series.iter().map(of).collect();
    Plot::Bars(Bars {
        categories: texts(categories),
        values,
        series,
        arrangement,
    })
}

/// Lines of one shape.
pub fn lines(x: Axis, y: Axis, shape: Shape, lines: &[(&str, Vec<(f64, f64)>)]) -> Plot {
    let of = |(name, points): &(&str, Vec<(f64, f64)>)| Line {
        name: (*name).to_owned(),
        points: points.clone(),
        shape,
    };
    Plot::Lines(Lines {
        x,
        y,
        lines: lines.iter().map(of).collect(),
    })
}

fn mark(series: usize, value: f64, range: Option<[f64; 2]>, word: &str) -> Mark {
    Mark {
        series,
        value,
        range,
        word: word.to_owned(),
    }
}

fn wave(nth: usize, count: usize) -> Vec<(f64, f64)> {
    let mut random = fastrand::Rng::with_seed(nth as u64 + 1);
    let mut held = 0.0f64;
    let step = |at: usize| {
        held = (held + (random.f64() - 0.48) * 4096.0 * (nth + 1) as f64).max(0.0);
        (at as f64 * 130.0, held)
    };
    (0..count).map(step).collect()
}

fn ordinary() -> Vec<Figure> {
    let costs: &[(&str, &[f64])] = &[
        ("table", &[1200.0, 1150.0, 1180.0, 0.0]),
        ("IOVA", &[420.0, 610.0, 400.0, 0.0]),
        ("invalidation", &[5200.0, 310.0, 260.0, 0.0]),
        ("waiting", &[9100.0, 120.0, 60.0, 0.0]),
        ("translation", &[800.0, 950.0, 830.0, 12.0]),
    ];
    let sizes: Vec<String> = (9..24)
        .map(|lg2| Unit::Bytes.say(f64::from(1u32 << lg2)))
        .collect();
    let sizes: Vec<&str> = sizes.iter().map(String::as_str).collect();
    let counts: Vec<f64> = (0..15)
        .map(|n: i32| (9000.0 / f64::from(1 + (n - 3).pow(2))).floor())
        .collect();
    let cpus = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0];
    let scaling = |per: f64, knee: f64| cpus.map(|n| (n, per * n / (1.0 + n / knee))).to_vec();
    let exposed: Vec<_> = (0..3)
        .map(|nth| (POLICIES[nth], wave(nth, 10_000)))
        .collect();
    let row = |name: &str, marks: Vec<Mark>| MarkRow {
        name: name.to_owned(),
        marks,
    };
    let marks = Marks {
        values: Axis::log("time of an unmap", Unit::Micros),
        series: texts(&["published", "before", "after", "Portolan"]),
        rows: vec![
            row(
                "Walk flush by context, 32 MiB",
                vec![
                    mark(0, 1033.0, None, "published"),
                    mark(1, 1017.0, Some([990.0, 1044.0]), "fitted"),
                    mark(2, 52.0, Some([47.0, 60.0]), "predicted"),
                    mark(3, 21.5, Some([19.0, 25.0]), "counted"),
                ],
            ),
            row(
                "Range flush, 4 MiB",
                vec![
                    mark(0, 350.0, None, "published"),
                    mark(1, 340.0, Some([300.0, 380.0]), "implied"),
                    mark(3, 12.0, Some([11.0, 13.0]), "counted"),
                ],
            ),
        ],
    };
    vec![
        figure(
            "Time by cause and policy",
            bars(
                Axis::linear("CPU time", Unit::Micros),
                Arrangement::StackedRows,
                &POLICIES,
                costs,
            ),
        ),
        figure(
            "Sizes of mappings",
            bars(
                Axis::linear("mappings", Unit::Count),
                Arrangement::StackedColumns,
                &sizes,
                &[("", &counts)],
            ),
        ),
        figure(
            "Memory reachable after unmap",
            lines(
                Axis::linear("time", Unit::Micros),
                Axis::linear("reachable after unmap", Unit::Bytes),
                Shape::Steps,
                &exposed,
            ),
        ),
        figure(
            "Throughput by CPUs",
            lines(
                Axis::log("CPUs", Unit::Count),
                Axis::linear("throughput (MB/s)", Unit::Count),
                Shape::Straight,
                &[
                    ("one lock", scaling(880.0, 1.2)),
                    ("a lock for each area", scaling(900.0, 12.0)),
                    ("Portolan", scaling(930.0, 60.0)),
                ],
            ),
        ),
        figure("Published results", Plot::Marks(marks)),
        figure(
            "Latencies of unmaps",
            lines(
                Axis::log("bytes unmapped", Unit::Bytes),
                Axis::log("latency", Unit::Micros),
                Shape::Dots,
                &[(
                    "strict",
                    (0..10_000)
                        .map(|n| {
                            (
                                4096.0 * f64::from(1 + n % 977),
                                3.0 + f64::from(n * 7919 % 1009) / 10.0 + f64::from(n % 977),
                            )
                        })
                        .collect(),
                )],
            ),
        ),
    ]
}

fn odd() -> Vec<Figure> {
    let count = || Axis::linear("count", Unit::Count);
    let log = || Axis::log("bytes", Unit::Bytes);
    let straight = |name: &str, x: Axis, y: Axis, points: Vec<(f64, f64)>| {
        figure(name, lines(x, y, Shape::Straight, &[("only", points)]))
    };
    let stairs: Vec<(f64, f64)> = (0..12).map(|n| (f64::from(n), f64::from(n * n))).collect();
    let many: Vec<String> = (0..10_000).map(|n| format!("interval {n}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let heights: Vec<f64> = (0..10_000u32)
        .map(|n| f64::from(n.wrapping_mul(2_654_435_761) >> 16))
        .collect();
    let series: Vec<String> = (0..20).map(|n| format!("part {n}")).collect();
    let twenty: Vec<(&str, &[f64])> = series
        .iter()
        .map(|name| (&**name, [3.0, 5.0].as_slice()))
        .collect();
    let fan: Vec<(&str, Vec<(f64, f64)>)> = series
        .iter()
        .zip(1..)
        .take(16)
        .map(|(name, by)| {
            (
                &**name,
                stairs.iter().map(|p| (p.0, p.1 * f64::from(by))).collect(),
            )
        })
        .collect();
    vec![
        figure(
            "Nothing",
            Plot::Nothing("the trace has no unmaps".to_owned()),
        ),
        figure(
            "No categories",
            bars(count(), Arrangement::StackedRows, &[], &[]),
        ),
        figure(
            "Nothing that is finite",
            bars(
                count(),
                Arrangement::StackedRows,
                &["a", "b"],
                &[("x", &[f64::NAN, f64::INFINITY])],
            ),
        ),
        figure(
            "Some that are not finite",
            bars(
                count(),
                Arrangement::StackedRows,
                &["a", "b", "c"],
                &[
                    ("x", &[f64::NAN, 4.0, 1e300]),
                    ("y", &[1.0, f64::NEG_INFINITY, 1e300]),
                ],
            ),
        ),
        figure(
            "Below zero",
            bars(
                Axis::linear("change", Unit::Percent),
                Arrangement::StackedRows,
                &["worse", "better", "both"],
                &[("x", &[-40.0, 25.0, -10.0]), ("y", &[-5.0, 3.0, 12.0])],
            ),
        ),
        figure(
            "Zeros by logarithm",
            bars(
                log(),
                Arrangement::StackedColumns,
                &["a", "b"],
                &[("x", &[0.0, 0.0])],
            ),
        ),
        figure(
            "One bar by logarithm",
            bars(
                log(),
                Arrangement::StackedRows,
                &["a"],
                &[("x", &[65536.0])],
            ),
        ),
        figure(
            "Ten thousand columns",
            bars(
                count(),
                Arrangement::StackedColumns,
                &many,
                &[("x", &heights)],
            ),
        ),
        figure(
            "A thousand rows",
            bars(
                count(),
                Arrangement::StackedRows,
                &many[..1000],
                &[("x", &heights[..1000])],
            ),
        ),
        figure(
            "Twenty parts",
            bars(count(), Arrangement::StackedRows, &["a", "b"], &twenty),
        ),
        figure(
            "Sixteen lines",
            lines(count(), count(), Shape::Straight, &fan),
        ),
        figure(
            "Sixteen stairs",
            lines(count(), count(), Shape::Steps, &fan),
        ),
        straight(
            "One point",
            Axis::linear("time", Unit::Micros),
            log(),
            vec![(7.0, 7.0)],
        ),
        straight("No point", count(), count(), vec![]),
        straight(
            "All the same",
            Axis::linear("time", Unit::Micros),
            count(),
            vec![(1e9, 5.0), (2e9, 5.0), (3e9, 5.0)],
        ),
        straight(
            "Huge",
            Axis::linear("time", Unit::Micros),
            Axis::linear("bytes", Unit::Bytes),
            vec![(-1.7e308, -1.7e308), (1.7e308, 1.7e308)],
        ),
        straight(
            "Huge by logarithm",
            Axis::log("time", Unit::Micros),
            log(),
            vec![(1e-300, 5e-324), (1e300, 1.7e308), (0.0, 0.0), (-1.0, -1.0)],
        ),
        straight(
            "Close together",
            Axis::linear("time", Unit::Micros),
            count(),
            vec![
                (1e16, 1.000_000_1),
                (1e16 + 2.0, 1.000_000_2),
                (1e16 + 4.0, 1.000_000_15),
            ],
        ),
        straight(
            "Back in time",
            Axis::linear("time", Unit::Micros),
            count(),
            vec![(5.0, 1.0), (1.8e13, 2.0), (3.0, 3.0), (4.0, f64::NAN)],
        ),
    ]
}

fn hostile() -> Vec<Figure> {
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
    let named: Vec<(&str, Vec<(f64, f64)>)> = names
        .iter()
        .map(|name| (*name, vec![(1.0, 1.0), (2.0, 1.0)]))
        .collect();
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
        figure(
            &unbroken,
            lines(axis.clone(), axis, Shape::Straight, &named),
        ),
        figure("", Plot::Marks(marks)),
        figure("Why not", Plot::Nothing(HOSTILE.to_owned())),
    ]
}
