//! Reports for people.

use std::fmt::Write as _;

use portolan_cli::display;

use crate::bounce;
use crate::measure::{BenchReport, BenchRow, Outcome};
use crate::spread::Spread;

/// The report on bounce slots for people, in lines of `columns`.
pub fn of_bounce(report: &bounce::BounceReport, columns: usize) -> String {
    let header = [
        ("benchmark", 0),
        ("bytes", 0),
        ("in use %", 0),
        ("threads", 0),
        ("median ns", 0),
        ("p10 ns", 3),
        ("p90 ns", 4),
        ("limit ns", 2),
        ("ratio to limit", 1),
        ("scaling", 0),
        ("peers, median ns", 0),
    ];
    let ns = |ns: f64| format!("{ns:.1}");
    let rows = report.benchmarks.iter().map(|row| {
        let peers = row.peers.iter().map(|(peer, spread)| format!("{peer} {}", ns(spread.median)));
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
    let mut out = display::table(&header, &numbers, rows.collect(), columns);
    let _ = writeln!(
        out,
        "\nMeasured on this machine: nanoseconds of a thread's processor time for one buffer, taken and \
         given back, and copied to where a device reads it in rows of bounce_copy. The limit is pop and push \
         of a stack, or a hot memcpy of the same length. Scaling is what all threads do by what one does. \
         Contention shows only where each thread has a core."
    );
    display::wrapped(&out, columns)
}

/// The report for people, in lines of `columns`: of each benchmark a line for ours and one for each other,
/// with its median divided by ours.
pub fn of_scenarios(report: &BenchReport, columns: usize) -> String {
    let header = [
        ("benchmark", 0),
        ("who", 0),
        ("median ns", 0),
        ("p10 ns", 2),
        ("p90 ns", 3),
        ("p99 ns", 4),
        ("by ours", 0),
        ("to be shown", 1),
    ];
    let rows = report.benchmarks.iter().flat_map(lines).collect();
    let mut out = display::table(&header, &[2, 3, 4, 5, 6], rows, columns);
    let _ = writeln!(
        out,
        "\nMeasured on this machine, all of a benchmark in turn, one sample of each; judge by the ratios. Units \
         are those of --json. To be shown: how many times as fast as Linux's code ours is, at least, and how \
         many times the limit it takes, at most."
    );
    for (peer, why) in &report.skipped {
        let _ = writeln!(out, "SKIP {peer}: {why}");
    }
    display::wrapped(&out, columns)
}

fn lines(row: &BenchRow) -> Vec<Vec<String>> {
    let ns = |ns: f64| format!("{ns:.2}");
    let line = |name: &str, who: String, figures: [Option<f64>; 4], shown: String| {
        let [median, ..] = figures;
        let mut line = vec![name.to_owned(), who];
        line.extend(figures.map(|figure| figure.map(ns).unwrap_or_default()));
        line.push(
            median.map(|median| format!("{:.2}", median / row.ours.median)).unwrap_or_default(),
        );
        line.push(shown);
        line
    };
    let of = |spread: &Spread| [spread.median, spread.p10, spread.p90, spread.p99].map(Some);
    let shown: Vec<String> = row.targets.iter().map(target).collect();
    let mut all = vec![line(row.name, "ours".to_owned(), of(&row.ours), shown.join(", "))];
    for (peer, spread) in &row.peers {
        all.push(line("", (*peer).to_owned(), of(spread), String::new()));
    }
    let limit = [Some(row.limit.median), Some(row.limit.p10), None, None];
    all.push(line("", format!("limit: {}", row.limit.what), limit, String::new()));
    all
}

fn target(outcome: &Outcome) -> String {
    let wanted = match (outcome.against, outcome.of) {
        ("limit", _) => format!("limit at most {:.2}x", outcome.wanted),
        (who, "median") => format!("{who} at least {:.1}x", outcome.wanted),
        (who, of) => format!("{who} at least {:.1}x by {of}", outcome.wanted),
    };
    match (outcome.measured, outcome.met) {
        (Some(measured), Some(true)) => format!("{wanted}: {measured:.2}, met"),
        (Some(measured), _) => format!("{wanted}: {measured:.2}, MISSED"),
        (None, _) => format!("{wanted}: SKIP"),
    }
}
