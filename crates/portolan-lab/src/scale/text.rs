//! The rows for people.

use std::fmt::Write as _;

use super::{Report, Row};
use portolan_cli::display;

/// The report as a table, and what was fitted.
pub fn text(report: &Report) -> String {
    let mut out = format!(
        "{}, seed {}\none operation: {}\n\n",
        report.machine, report.seed, report.operation
    );
    let header = [
        "policy",
        "CPUs",
        "computed operations/s",
        "computed Gbit/s",
        "measured",
        "",
        "syncs/operation",
        "exits/operation",
        "commands/operation",
    ];
    let rows = report.rows.iter().map(line).collect();
    out.push_str(&display::table(&header, &[1, 2, 3, 4, 6, 7, 8], rows));
    out.push('\n');
    if let Some(fit) = &report.fit {
        let _ = writeln!(
            out,
            "\nfitted on the measured rows of {:?} cores: {:.2} us of work and {:.0} bytes an operation; error {:.1} %",
            fit.cores,
            fit.work_ns / 1000.0,
            fit.bytes,
            100.0 * fit.error
        );
    }
    out.push_str("\nmeasured: by others, published; all else is computed in virtual time\n");
    out + &report.defaults.text()
}

fn line(row: &Row) -> Vec<String> {
    let policy = match &row.with {
        Some(with) => format!("{}, with {with}", row.policy.name()),
        None => row.policy.name().to_owned(),
    };
    let measured = match (row.published, row.published_unit) {
        (Some(value), Some("Gbit/s")) => format!("{value:.1} Gbit/s"),
        (Some(value), Some(unit)) => format!("{} {unit}", display::grouped(value.round() as u64)),
        _ => String::new(),
    };
    vec![
        policy,
        row.cpus.to_string(),
        display::grouped(row.operations_per_s.round() as u64),
        format!("{:.1}", row.gbit_s),
        measured,
        if row.fitted { "fitted" } else { "" }.to_owned(),
        format!("{:.3}", row.syncs_per_operation),
        format!("{:.3}", row.exits_per_operation),
        format!("{:.3}", row.commands_per_operation),
    ]
}
