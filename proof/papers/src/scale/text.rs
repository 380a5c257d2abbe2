//! The rows for people.

use super::{ScalePolicy, ScaleReport, ScaleRow};
use portolan_cli::display::{grouped, table, wrapped};

/// Meaning of the columns, for `--help`.
pub const COLUMNS_IN_WORDS: &str = "\
Columns of the table, those that do not fit the terminal left out (`--wide`
prints all):
  policy        when unmapped memory is invalidated: strict (each unmap waits),
                combined (CPUs that unmap at once wait together: `combining`
                among the options of the library's drivers), deferred
                (buffers wait for a common invalidation and are not used
                meanwhile), lazy (they may be used meanwhile, and devices
                still reach them), passthrough (no translation at all)
  CPUs          that map and unmap all the time
  operations/s  of all CPUs together, computed in virtual time
  Gbit/s        the bytes of those
  measured      by others, on a machine of this kind, and published
  evidence      fitted: the work of an operation was chosen so that the
                computed figure comes near to the measured one
  syncs         waits for the IOMMU to have invalidated, for one operation
  exits         to a hypervisor that plays the IOMMU, for one operation
  commands      invalidation commands, for one operation
* marks, for each number of CPUs, the policy that does most of those that let
no device reach memory that is in use again.";

/// The report as text, in lines of `columns`: its answer, the table, and the fit.
pub fn text(report: &ScaleReport, columns: usize) -> String {
    let mut out = format!(
        "How many I/O operations a second the CPUs of machine {} do, when each of them maps a buffer and unmaps \
         it again. One operation: {}. Seed {}.\n\n",
        report.machine, report.operation, report.seed
    );
    out += &answer(report);
    let header = [
        ("policy", 0),
        ("CPUs", 0),
        ("operations/s", 0),
        ("Gbit/s", 0),
        ("measured", 0),
        ("evidence", 1),
        ("syncs an operation", 2),
        ("exits an operation", 4),
        ("commands an operation", 3),
    ];
    let rows = report.rows.iter().map(|row| line(row, &report.rows));
    out.push('\n');
    out += &table(&header, &[1, 2, 3, 6, 7, 8], rows.collect(), columns);
    if report.rows.iter().any(|row| is_best(row, &report.rows)) {
        out += "* does most, on so many CPUs, of those that let no device reach memory in use again.\n";
    }
    out += "Measured: by others, published. All else is computed in virtual time.\n";
    if let Some(fit) = &report.fit {
        let cores: Vec<String> = fit.cores.iter().map(ToString::to_string).collect();
        out += &format!(
            "Fitted on the measured rows of {} CPUs: {:.2} µs of work and {} bytes an operation; error {:.1} %.\n",
            cores.join(", "),
            fit.work_ns / 1000.0,
            grouped(fit.bytes.round() as u64),
            100.0 * fit.error
        );
    }
    out.push('\n');
    out += &report.defaults.text();
    wrapped(&out, columns)
}

/// Tells if no device reaches memory that was unmapped and is in use again.
fn is_closed(row: &ScaleRow) -> bool {
    matches!(row.policy, ScalePolicy::Strict | ScalePolicy::Combined | ScalePolicy::Deferred)
        && row.with.is_none()
}

/// Tells if `row` is the fastest of the closed ones with its number of CPUs, if there are others.
fn is_best(row: &ScaleRow, rows: &[ScaleRow]) -> bool {
    let beside = || rows.iter().filter(|other| is_closed(other) && other.cpus == row.cpus);
    let most = beside().max_by(|a, b| a.operations_per_s.total_cmp(&b.operations_per_s));
    is_closed(row) && beside().count() > 1 && most.is_some_and(|most| most.policy == row.policy)
}

/// Throughput of the policies on the most CPUs, strict first, in sentences.
fn answer(report: &ScaleReport) -> String {
    let most = report.rows.iter().map(|row| row.cpus).max().unwrap_or(0);
    let of = report.rows.iter().filter(|row| row.cpus == most && row.with.is_none());
    let (strict, others): (Vec<&ScaleRow>, Vec<&ScaleRow>) =
        of.partition(|row| row.policy == ScalePolicy::Strict);
    let base = strict.first().map(|row| row.operations_per_s);
    let base = base.filter(|base| *base > 0.0);
    let each = strict.iter().chain(&others).map(|row| {
        let but = match row.policy {
            ScalePolicy::Identity => " (no translation: devices reach all memory)",
            ScalePolicy::Lazy => " (devices reach unmapped memory for a while)",
            _ => "",
        };
        let number = grouped(row.operations_per_s.round() as u64);
        let times = base.map_or(String::new(), |base| match row.policy {
            ScalePolicy::Strict => String::new(),
            _ => format!(", {:.1} times as many", row.operations_per_s / base),
        });
        format!("{} {number}{times}{but}", row.policy.name())
    });
    let each: Vec<String> = each.collect();
    let cpus = match most {
        1 => "one CPU".to_owned(),
        most => format!("{most} CPUs"),
    };
    format!("With {cpus}, operations a second: {}.\n", each.join("; "))
}

fn line(row: &ScaleRow, rows: &[ScaleRow]) -> Vec<String> {
    let policy = match &row.with {
        Some(with) => format!("{}, with {with}", row.policy.name()),
        None if is_best(row, rows) => format!("{} *", row.policy.name()),
        None => row.policy.name().to_owned(),
    };
    let measured = match (row.published, row.published_unit) {
        (Some(value), Some("Gbit/s")) => format!("{value:.1} Gbit/s"),
        (Some(value), Some(unit)) => format!("{} {unit}", grouped(value.round() as u64)),
        _ => String::new(),
    };
    vec![
        policy,
        row.cpus.to_string(),
        grouped(row.operations_per_s.round() as u64),
        format!("{:.1}", row.gbit_s),
        measured,
        if row.fitted { "fitted" } else { "" }.to_owned(),
        format!("{:.3}", row.syncs_per_operation),
        format!("{:.3}", row.exits_per_operation),
        format!("{:.3}", row.commands_per_operation),
    ]
}
