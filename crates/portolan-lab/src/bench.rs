//! Wall times of the library's own operations on this machine.

use std::fmt::Write as _;

use anyhow::{Result, bail};
use indicatif::ProgressBar;
use portolan_bench::bounce;
use portolan_bench::measure::{BenchRow, Report, run};

use crate::display;

/// Measures the benchmarks whose name holds `name`.
///
/// # Errors
/// If there is none, or the library refuses what one asks for.
pub fn measure(name: &str) -> Result<Report> {
    let all = portolan_bench::all();
    let names: Vec<_> = all.iter().map(|scenario| scenario.name).collect();
    let wanted: Vec<_> = all.iter().filter(|s| s.name.contains(name)).collect();
    if wanted.is_empty() {
        bail!(
            "no benchmark's name holds {name:?}; there are {}",
            names.join(", ")
        );
    }
    let bar = ProgressBar::new(wanted.len() as u64);
    let mut benchmarks = Vec::new();
    for scenario in wanted {
        benchmarks.push(run(scenario)?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(Report { benchmarks })
}

/// Measures bounce slots on real threads, up to `threads` of them; as many as there are CPUs if
/// nothing is asked for.
///
/// # Errors
/// If the library refuses what one asks for, or the system has no memory.
pub fn measure_bounce(threads: Option<usize>) -> Result<bounce::Report> {
    let here = || std::thread::available_parallelism().map_or(1, usize::from);
    let cases = bounce::cases(threads.unwrap_or_else(here));
    let bar = ProgressBar::new(cases.len() as u64);
    let mut benchmarks = Vec::new();
    for case in &cases {
        benchmarks.push(bounce::run(case)?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(bounce::Report { benchmarks })
}

/// The report on bounce slots for people.
pub fn bounce_text(report: &bounce::Report) -> String {
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
        "\nMeasured on this machine: nanoseconds of a thread's processor time for one buffer, taken and \
         given back, and copied\nto where a device reads it in rows of bounce_copy. The limit is pop and push \
         of a stack, or a hot memcpy of the same\nlength. Scaling is what all threads do by what one does. \
         Contention shows only where each thread has a core."
    );
    out
}

/// The report for people.
pub fn text(report: &Report) -> String {
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
    ];
    let rows = report.benchmarks.iter().map(row).collect();
    let mut out = display::table(&header, &[2, 3, 4, 5, 6, 7], rows);
    let _ = writeln!(
        out,
        "\nMeasured on this machine, each in turn with its plain loop; judge by the ratio."
    );
    out
}

fn row(row: &BenchRow) -> Vec<String> {
    let ns = |ns: f64| format!("{ns:.2}");
    let peers = row
        .peers
        .iter()
        .map(|(peer, spread)| format!("{}, p99 {}: {peer}", ns(spread.median), ns(spread.p99)));
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
    ]
}
