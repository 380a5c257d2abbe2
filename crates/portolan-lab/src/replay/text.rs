//! A replay's report for people: the answer, then the table, then what else there is to say.

use portolan_cli::display::{Column, bytes, fitting_table, grouped, micros, wrapped};

use super::answer::{answer, more};
use super::findings::{bounce_findings, fault_finding, linux_finding, sent_finding};
use super::fit::sentences;
use super::report::{PolicyReport, ReplayReport};
use crate::linux::LinuxReport;

/// The columns of the table, and which are left out first where they do not all fit.
const COLUMNS: [(&str, u8); 17] = [
    ("policy", 0),
    ("total µs", 0),
    ("commands", 1),
    ("syncs", 2),
    ("exposed", 0),
    ("for µs", 0),
    ("misses", 4),
    ("stall µs", 3),
    ("sync µs", 6),
    ("invalidate µs", 7),
    ("map µs", 8),
    ("unmap µs", 9),
    ("page", 10),
    ("range", 11),
    ("context", 12),
    ("operations", 13),
    ("tables", 14),
];

/// What the columns mean, for `--help`.
pub const COLUMNS_IN_WORDS: &str = "\
Columns of the table, those that do not fit the terminal left out (`--wide` prints all, and every sentence):
  policy         when unmapped memory is invalidated, and by which commands
  total µs       all that mapping costs: CPU work, commands, waits, and stalls of the device
  commands       invalidation commands; of them by page, by range, by context
  syncs          waits for the unit to have carried commands out
  exposed        most memory at once that was unmapped and that a device could still reach
  for µs         for how long at most
  misses         accesses that the unit's TLB had no translation for
  stall µs       what the device waits for the walks after them
  sync µs        what CPUs wait for syncs (and exits to a hypervisor)
  invalidate µs  what commands take
  map µs         CPU work of maps
  unmap µs       CPU work of unmaps
  operations     maps and unmaps, coherent memory included
  tables         most pages of page tables at once
* marks the policy that costs least of those that let nobody reach what was unmapped and is in use again.";

/// The report as text, in lines of `columns`: the answer, then the table as far as it has room. Without end of columns
/// everything is printed.
pub fn text(report: &ReplayReport, columns: usize) -> String {
    let mut out = format!("{}\n{}\n\n", answer(report), head(report));
    out = wrapped(&out, columns);
    let least = least_closed(&report.policies);
    let rows = report.policies.iter().map(|policy| row(policy, least));
    let rows = rows.chain(report.linux.iter().map(linux_row)).collect();
    let header = COLUMNS.map(|(header, spare)| Column { header, spare });
    let (table, left_out) = fitting_table(&header, rows, columns);
    out.push_str(&table);
    out.push('\n');
    out.push_str(&wrapped(&below(least, &left_out), columns));
    let chosen = report.chosen.as_ref();
    let chosen = chosen.map(|choice| sentences(choice, &report.machine));
    let said = match columns {
        usize::MAX => {
            let found = report.findings.iter().cloned();
            let found: Vec<_> = found.chain(sent_finding(report)).collect();
            format!(
                "{}{}\n{}",
                more(report),
                found.join("\n"),
                report.defaults.text()
            )
        }
        _ => asked_for(report),
    };
    for said in [chosen.as_deref(), Some(&said)].into_iter().flatten() {
        if !said.trim().is_empty() {
            out.push_str(&format!("\n{}\n", wrapped(said.trim_end(), columns)));
        }
    }
    out
}

/// What stands above the table: which trace, on which machine.
fn head(report: &ReplayReport) -> String {
    let trace = &report.trace;
    format!(
        "{} on {}: {} maps of {}",
        trace.source,
        report.machine,
        grouped(trace.maps),
        bytes(trace.bytes_mapped),
    )
}

/// What stands below the table.
fn below(least: Option<&str>, left_out: &[&str]) -> String {
    let mut said = Vec::new();
    if least.is_some() {
        said.push("* costs least of those that leave no window.".to_owned());
    }
    if !left_out.is_empty() {
        said.push(format!(
            "Left out for want of room: {}. `--wide` prints them.",
            left_out.join(", ")
        ));
    }
    match said.is_empty() {
        true => String::new(),
        false => said.join(" ") + "\n",
    }
}

/// Sentences on what was asked for beside the policies, and on defects.
fn asked_for(report: &ReplayReport) -> String {
    let mut said: Vec<String> = Vec::new();
    said.extend(bounce_findings(&report.trace, &report.policies));
    said.extend(fault_finding(&report.policies));
    let linux = report.linux.as_ref();
    said.extend(linux.map(|linux| linux_finding(&report.trace, linux)));
    said.join("\n")
}

/// The name of the policy that costs least of those that let nobody reach what is in use again, if there
/// is another to compare it with.
fn least_closed(policies: &[PolicyReport]) -> Option<&str> {
    let closed = || policies.iter().filter(|p| p.exposed.reusable_bytes == 0);
    let least = closed().min_by(|a, b| a.time_us.total.total_cmp(&b.time_us.total))?;
    (closed().count() > 1 && least.time_us.total > 0.0).then_some(least.policy.as_str())
}

fn row(p: &PolicyReport, least: Option<&str>) -> Vec<String> {
    let invalidations = &p.invalidations;
    let mark = match least == Some(p.policy.as_str()) {
        true => " *",
        false => "",
    };
    vec![
        format!("{}{mark}", p.policy),
        micros(p.time_us.total),
        grouped(invalidations.total()),
        grouped(p.syncs),
        bytes(p.exposed.max_bytes),
        micros(p.exposed.max_us),
        grouped(p.device.iotlb_misses),
        micros(p.time_us.device_stall),
        micros(p.time_us.sync_wait + p.time_us.exits),
        micros(p.time_us.invalidation),
        micros(p.time_us.map),
        micros(p.time_us.unmap),
        grouped(invalidations.page),
        grouped(invalidations.range),
        grouped(invalidations.context + invalidations.global),
        grouped(p.operations),
        grouped(p.table_pages_peak),
    ]
}

/// Linux's row: what its rules tell, under the columns of the policies.
fn linux_row(linux: &LinuxReport) -> Vec<String> {
    let operations = linux
        .domains
        .iter()
        .map(|domain| domain.maps + domain.unmaps);
    let untold = || "-".to_owned();
    let exposed = match linux.policy.as_str() {
        "lazy" => [bytes(linux.exposed.max_bytes), micros(linux.exposed.max_us)],
        _ => [untold(), untold()],
    };
    let [most, longest] = exposed;
    let invalidations = &linux.invalidations;
    vec![
        format!("Linux, {}", linux.policy),
        untold(),
        grouped(invalidations.total()),
        grouped(linux.syncs),
        most,
        longest,
        untold(),
        untold(),
        micros(linux.sync_wait_us),
        micros(linux.invalidation_us),
        untold(),
        untold(),
        grouped(invalidations.page),
        grouped(invalidations.range),
        grouped(invalidations.context + invalidations.global),
        grouped(operations.sum()),
        untold(),
    ]
}
