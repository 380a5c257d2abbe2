//! Reports for people.

use std::fmt::Write as _;

use portolan_cli::display;

use crate::bounce;
use crate::measure::{BenchRow, Report};

/// The report on bounce slots for people.
pub fn of_bounce(report: &bounce::Report) -> String {
    let header = [
        "benchmark",
        "bytes",
        "in use %",
        "threads",
        "median ns",
        "p10",
        "p90",
        "limit",
        "ratio",
        "scaling",
        "peers, median ns",
    ];
    let ns = |ns: f64| format!("{ns:.1}");
    let rows = report.benchmarks.iter().map(|row| {
        let peers = row.peers.iter();
        let peers = peers.map(|(peer, spread)| format!("{peer} {}", ns(spread.median)));
        vec![
            row.name.to_owned(),
            row.size_bytes.to_string(),
            row.occupancy_pct.to_string(),
            row.threads.to_string(),
            ns(row.ours.median),
            ns(row.ours.p10),
            ns(row.ours.p90),
            ns(row.limit.median),
            format!("{:.2}", row.ratio),
            format!("{:.2}", row.scaling),
            peers.collect::<Vec<_>>().join(", "),
        ]
    });
    let numbers = [1, 2, 3, 4, 5, 6, 7, 8, 9];
    let mut out = display::table(&header, &numbers, rows.collect());
    let _ = writeln!(
        out,
        "\n\nMeasured on this machine: nanoseconds of a thread's processor time for one buffer, taken and \
         given back, and copied\nto where a device reads it in rows of bounce_copy. The limit is pop and push \
         of a stack, or a hot memcpy of the same\nlength. Scaling is what all threads do by what one does. \
         Contention shows only where each thread has a core."
    );
    out
}

/// The report for people.
pub fn of_scenarios(report: &Report) -> String {
    let header = [
        "benchmark",
        "per",
        "median ns",
        "p10",
        "p90",
        "p99",
        "plain loop",
        "ratio",
        "peers",
        "recorded elsewhere",
    ];
    let rows = report.benchmarks.iter().map(row).collect();
    let mut out = display::table(&header, &[2, 3, 4, 5, 6, 7], rows);
    let _ = writeln!(
        out,
        "\n\nMeasured on this machine, each in turn with its plain loop; judge by the ratio."
    );
    out
}

fn row(row: &BenchRow) -> Vec<String> {
    let ns = |ns: f64| format!("{ns:.2}");
    let peers = row
        .peers
        .iter()
        .map(|(peer, spread)| format!("{}, p99 {}: {peer}", ns(spread.median), ns(spread.p99)));
    let recorded = row.recorded_elsewhere.iter().map(|(peer, figures)| {
        let count = figures.instructions.map(|n| format!(", {n} instructions"));
        format!("{} ns{}: {peer}", figures.median, count.unwrap_or_default())
    });
    vec![
        row.name.to_owned(),
        row.unit.to_owned(),
        ns(row.ours.median),
        ns(row.ours.p10),
        ns(row.ours.p90),
        ns(row.ours.p99),
        ns(row.limit.median),
        format!("{:.1}", row.ratio),
        peers.collect::<Vec<_>>().join("; "),
        recorded.collect::<Vec<_>>().join("; "),
    ]
}
