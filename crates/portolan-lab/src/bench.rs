//! Wall times of the library's own operations on this machine.

use std::fmt::Write as _;

use anyhow::{Result, bail};
use indicatif::ProgressBar;
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
