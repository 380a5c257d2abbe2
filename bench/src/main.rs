//! `portolan-bench [NAME] [--json]`: measures the scenarios whose name holds NAME, or all.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use comfy_table::{Cell, CellAlignment, Table};
use portolan_bench::measure::{BenchRow, Report, run_named};

fn main() -> ExitCode {
    let (flags, names): (Vec<String>, Vec<String>) = std::env::args()
        .skip(1)
        .partition(|arg| arg.starts_with('-'));
    if names.len() > 1 || flags.iter().any(|flag| flag != "--json") {
        eprintln!("usage: portolan-bench [NAME] [--json]");
        return ExitCode::from(2);
    }
    let name = names.first().map_or("", String::as_str);
    let rows = match run_named(name) {
        Ok(rows) => rows,
        Err(error) => {
            eprintln!("portolan-bench: {error}");
            return ExitCode::FAILURE;
        }
    };
    if rows.is_empty() {
        eprintln!("portolan-bench: no benchmark has a name with `{name}` in it");
        return ExitCode::from(2);
    }
    if flags.is_empty() {
        println!("{}", tabulate(&rows));
        return ExitCode::SUCCESS;
    }
    match serde_json::to_string_pretty(&Report { benchmarks: rows }) {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("portolan-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn tabulate(rows: &[BenchRow]) -> Table {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::ASCII_MARKDOWN);
    table.set_header([
        "benchmark",
        "unit",
        "median",
        "p10",
        "p90",
        "p99",
        "plain loop",
        "ratio",
        "peers",
        "recorded elsewhere",
    ]);
    for row in rows {
        let number = |x: f64| Cell::new(format!("{x:.2}")).set_alignment(CellAlignment::Right);
        let recorded = row.recorded_elsewhere.iter().map(|(peer, figures)| {
            let count = figures.instructions.map(|n| format!(", {n} instructions"));
            format!("{} ns{}: {peer}", figures.median, count.unwrap_or_default())
        });
        let peers = row.peers.iter().map(|(peer, spread)| {
            format!("{:.2} ns, p99 {:.2}: {peer}", spread.median, spread.p99)
        });
        table.add_row(vec![
            Cell::new(row.name),
            Cell::new(row.unit),
            number(row.ours.median),
            number(row.ours.p10),
            number(row.ours.p90),
            number(row.ours.p99),
            number(row.limit.median),
            number(row.ratio),
            Cell::new(peers.collect::<Vec<_>>().join("; ")),
            Cell::new(recorded.collect::<Vec<_>>().join("; ")),
        ]);
    }
    table
}
