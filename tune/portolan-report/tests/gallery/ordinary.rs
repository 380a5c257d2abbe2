//! Plots of numbers as sound traces have them.

use portolan_report::{Arrangement, Axis, Figure, Mark, MarkRow, Marks, Plot, Shape, Unit};

use super::{bars, figure, lines, mark, texts};

const POLICIES: [&str; 4] = ["strict", "lazy", "deferred, combined", "identity"];

/// A figure of each kind.
pub fn figures() -> Vec<Figure> {
    vec![
        figure("Time by cause and policy", costs()),
        figure("Sizes of mappings", sizes()),
        figure("Memory reachable after unmap", exposure()),
        figure("Throughput by CPUs", throughput()),
        figure("Published results", published()),
        figure("Latencies of unmaps", latencies()),
    ]
}

fn costs() -> Plot {
    let costs: &[(&str, &[f64])] = &[
        ("table", &[1200.0, 1150.0, 1180.0, 0.0]),
        ("IOVA", &[420.0, 610.0, 400.0, 0.0]),
        ("invalidation", &[5200.0, 310.0, 260.0, 0.0]),
        ("waiting", &[9100.0, 120.0, 60.0, 0.0]),
        ("translation", &[800.0, 950.0, 830.0, 12.0]),
    ];
    let axis = Axis::linear("CPU time", Unit::Micros);
    bars(axis, Arrangement::StackedRows, &POLICIES, costs)
}

fn sizes() -> Plot {
    let sizes = (9..24).map(|lg2| Unit::Bytes.say(f64::from(1u32 << lg2)));
    let sizes: Vec<String> = sizes.collect();
    let sizes: Vec<&str> = sizes.iter().map(String::as_str).collect();
    let counts = (0..15).map(|n: i32| (9000.0 / f64::from(1 + (n - 3).pow(2))).floor());
    let counts: Vec<f64> = counts.collect();
    let axis = Axis::linear("mappings", Unit::Count);
    bars(axis, Arrangement::StackedColumns, &sizes, &[("", &counts)])
}

fn exposure() -> Plot {
    let wave = |nth: usize| {
        let mut random = fastrand::Rng::with_seed(nth as u64 + 1);
        let mut held = 0.0f64;
        let step = |at: u32| {
            held = (held + (random.f64() - 0.48) * 4096.0 * (nth + 1) as f64).max(0.0);
            (f64::from(at) * 130.0, held)
        };
        (POLICIES[nth], (0..10_000).map(step).collect())
    };
    let (x, y) = (Axis::linear("time", Unit::Micros), Axis::linear("reachable", Unit::Bytes));
    lines(x, y, Shape::Steps, &[0, 1, 2].map(wave))
}

fn throughput() -> Plot {
    let cpus = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0];
    let curve = |per: f64, knee: f64| cpus.map(|n| (n, per * n / (1.0 + n / knee))).to_vec();
    let curves = [
        ("one lock", curve(880.0, 1.2)),
        ("a lock for each area", curve(900.0, 12.0)),
        ("Portolan", curve(930.0, 60.0)),
    ];
    let (x, y) = (Axis::log("CPUs", Unit::Count), Axis::linear("throughput (MB/s)", Unit::Count));
    lines(x, y, Shape::Straight, &curves)
}

fn published() -> Plot {
    let row = |name: &str, marks: &[Mark]| {
        let (name, marks) = (name.to_owned(), marks.to_vec());
        MarkRow { name, marks }
    };
    let walk = [
        mark(0, 1033.0, None, "published"),
        mark(1, 1017.0, Some([990.0, 1044.0]), "fitted"),
        mark(2, 52.0, Some([47.0, 60.0]), "predicted"),
        mark(3, 21.5, Some([19.0, 25.0]), "counted"),
    ];
    let range = [
        mark(0, 350.0, None, "published"),
        mark(1, 340.0, Some([300.0, 380.0]), "implied"),
        mark(3, 12.0, Some([11.0, 13.0]), "counted"),
    ];
    Plot::Marks(Marks {
        values: Axis::log("time of an unmap", Unit::Micros),
        series: texts(&["published", "before", "after", "Portolan"]),
        rows: vec![row("Walk flush by context, 32 MiB", &walk), row("Range flush, 4 MiB", &range)],
    })
}

fn latencies() -> Plot {
    let dot = |n: u32| {
        let (size, jitter) = (f64::from(1 + n % 977), f64::from(n * 7919 % 1009));
        (4096.0 * size, 3.0 + jitter / 10.0 + size)
    };
    let (x, y) = (Axis::log("bytes unmapped", Unit::Bytes), Axis::log("latency", Unit::Micros));
    lines(x, y, Shape::Dots, &[("strict", (0..10_000).map(dot).collect())])
}
