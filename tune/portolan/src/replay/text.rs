//! A replay's report for people: the answer, then the table, then further findings.

use portolan_cli::display::{Column, bytes, counted, duration, fitting_table, grouped, wrapped};

use super::answer::{answer, more, understood};
use super::findings::{bounce_findings, fault_finding, linux_finding, sent_finding};
use super::fit::sentences;
use super::report::{PolicyReport, ReplayReport};
use super::settings::about;
use super::situation::Now;
use crate::counts::Exposed;
use crate::linux::LinuxReport;

/// Columns of the table, and the order in which they are left out if they do not all fit.
const COLUMNS: [(&str, u8); 17] = [
    ("policy", 0),
    ("CPU time", 0),
    ("commands", 1),
    ("syncs", 2),
    ("exposed", 0),
    ("for", 0),
    ("stall", 3),
    ("misses", 4),
    ("sync", 6),
    ("invalidate", 7),
    ("map", 8),
    ("unmap", 9),
    ("page", 10),
    ("range", 11),
    ("context", 12),
    ("operations", 13),
    ("tables", 14),
];

/// Meaning of the columns, for `--help`.
pub const COLUMNS_IN_WORDS: &str = "\
Columns of the table, those that do not fit the terminal left out (`--wide` prints all, and every sentence):
  policy         when unmapped memory is invalidated, and by which commands; Linux's own stand first
  CPU time       all that mapping costs CPUs: work on page tables, commands, waits
  commands       invalidation commands; of them by page, by range, by context
  syncs          waits for the unit to have carried commands out
  exposed        most memory at once that was unmapped and that a device could still reach
  for            how long at most
  stall          what devices wait for walks of page tables, beside the CPUs' time
  misses         accesses that the unit's TLB had no translation for, which such walks follow
  sync           what CPUs wait for syncs (and exits to a hypervisor)
  invalidate     what commands cost
  map            CPU work of maps
  unmap          CPU work of unmaps
  operations     maps and unmaps, coherent memory included
  tables         most pages of page tables at once";

/// Line above a table with rows of Linux.
const BESIDE_LINUX: &str = "\
    Linux, now and with that change; then this library's policies for the same maps and unmaps, which are no settings \
    of Linux:";
const WITHOUT_LINUX: &str =
    "This library's policies for the same maps and unmaps, which are no settings of Linux:";

/// Writes the report as text of `columns` columns: the answer, then the columns of the table that fit. With unlimited
/// columns it is complete.
pub fn text(report: &ReplayReport, columns: usize) -> String {
    let mut out = format!("{}\n{}\n", answer(report), head(report));
    out = wrapped(&out, columns);
    let is_some = report.trace.maps + report.trace.coherent_allocs > 0;
    if is_some && report.trace.understood.is_enough() {
        out.push_str(&table(report, columns));
    }
    let chosen = report.chosen.as_ref().map(|choice| sentences(choice, &report.machine));
    let said = match columns {
        usize::MAX => {
            let found = report.findings.iter().cloned();
            let found: Vec<_> = found.chain(sent_finding(report)).collect();
            format!("{}{}\n{}", more(report), found.join("\n"), report.defaults.text())
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

/// Table of the policies and of Linux, with the lines above and below.
fn table(report: &ReplayReport, columns: usize) -> String {
    let recorded = recorded_rows(report);
    let above = if recorded.is_empty() { WITHOUT_LINUX } else { BESIDE_LINUX };
    let rows = recorded
        .into_iter()
        .chain(report.policies.iter().map(row))
        .chain(report.linux.iter().map(linux_row))
        .collect();
    let header = COLUMNS.map(|(header, spare)| Column { header, spare });
    let (table, left_out) = fitting_table(&header, rows, columns);
    let below = match left_out.as_slice() {
        [] => String::new(),
        some => format!("Left out for want of room: {}. `--wide` prints them.\n", some.join(", ")),
    };
    format!("{}\n{table}\n{}", wrapped(&format!("{above}\n"), columns), wrapped(&below, columns))
}

/// Line above the table: the trace, its extent, and the part of it that was understood.
fn head(report: &ReplayReport) -> String {
    let trace = &report.trace;
    let over = report.cost.as_ref().map_or(String::new(), |cost| {
        format!(" in {} on {}", duration(cost.span_us), counted(cost.cpus.into(), "CPU"))
    });
    let told = trace.understood;
    let share = if told.events_pct >= 100.0 && told.bytes_pct >= 100.0 {
        "all of it understood".to_owned()
    } else {
        format!(
            "{} of its events and {} of its bytes understood",
            understood(told.events_pct),
            understood(told.bytes_pct)
        )
    };
    format!(
        "{}: {} of {}{over}; {share}",
        trace.source,
        counted(trace.maps, "map"),
        bytes(trace.bytes_mapped),
    )
}

/// Sentences about requested additions to the policies, and about defects.
fn asked_for(report: &ReplayReport) -> String {
    let mut said: Vec<String> = Vec::new();
    said.extend(bounce_findings(&report.trace, &report.policies));
    said.extend(fault_finding(&report.policies));
    let linux = report.linux.as_ref();
    said.extend(linux.map(|linux| linux_finding(&report.trace, linux)));
    said.join("\n")
}

/// Linux's own rows: its cost now, and that with the change that is advised, if that is another policy.
fn recorded_rows(report: &ReplayReport) -> Vec<Vec<String>> {
    let Some(cost) = report.cost.as_ref().filter(|cost| cost.now.cpu_us > 0.0) else {
        return Vec::new();
    };
    let now = linux_cells(
        format!("Linux now: {}", cost.policy.name()),
        cost.now.cpu_us,
        grouped(cost.invalidations),
        cost.exposed.as_ref(),
        cost.device_wait_us,
    );
    let then = report.advice.first().and_then(|setting| {
        let (saving, then) = (setting.effect.saving?, setting.effect.then?);
        let invalidations = match then.policy {
            Now::Lazy => about(then.invalidations),
            _ => grouped(then.invalidations),
        };
        let exposed = Some(&then.exposed).filter(|_| then.policy == Now::Lazy);
        let label = format!("Linux then: {}", then.policy.name());
        let (us, wait_us) = (saving.after_us, then.device_wait_us);
        Some(linux_cells(label, us, invalidations, exposed, wait_us))
    });
    [now].into_iter().chain(then).collect()
}

fn linux_cells(
    label: String,
    cpu_us: f64,
    invalidations: String,
    exposed: Option<&Exposed>,
    wait_us: f64,
) -> Vec<String> {
    let [most, longest] = reachable(exposed);
    let mut row = vec!["-".to_owned(); COLUMNS.len()];
    row[0] = label;
    row[1] = duration(cpu_us);
    row[2].clone_from(&invalidations);
    row[3] = invalidations;
    row[4] = most;
    row[5] = longest;
    row[6] = duration(wait_us);
    row
}

/// Memory that a device still reaches after unmap, and the longest time of that; dashes for nothing.
fn reachable(exposed: Option<&Exposed>) -> [String; 2] {
    match exposed {
        Some(exposed) => [bytes(exposed.max_bytes), duration(exposed.max_us)],
        None => ["-".to_owned(), "-".to_owned()],
    }
}

fn row(p: &PolicyReport) -> Vec<String> {
    let invalidations = &p.invalidations;
    let [most, longest] = reachable(Some(&p.exposed));
    vec![
        p.policy.clone(),
        duration(p.time_us.cpu),
        grouped(invalidations.total()),
        grouped(p.syncs),
        most,
        longest,
        duration(p.time_us.device_stall),
        grouped(p.device.iotlb_misses),
        duration(p.time_us.sync_wait + p.time_us.exits),
        duration(p.time_us.invalidation),
        duration(p.time_us.map),
        duration(p.time_us.unmap),
        grouped(invalidations.page),
        grouped(invalidations.range),
        grouped(invalidations.context + invalidations.global),
        grouped(p.operations),
        grouped(p.table_pages_peak),
    ]
}

/// Row of a kernel that was asked for, by Linux's rules, under the columns of the policies.
fn linux_row(linux: &LinuxReport) -> Vec<String> {
    let operations = linux.domains.iter().map(|domain| domain.maps + domain.unmaps);
    let untold = || "-".to_owned();
    let [most, longest] = reachable(Some(&linux.exposed).filter(|_| linux.policy == "lazy"));
    let invalidations = &linux.invalidations;
    vec![
        format!("Linux if {}", linux.policy),
        untold(),
        grouped(invalidations.total()),
        grouped(linux.syncs),
        most,
        longest,
        untold(),
        untold(),
        duration(linux.sync_wait_us),
        duration(linux.invalidation_us),
        untold(),
        untold(),
        grouped(invalidations.page),
        grouped(invalidations.range),
        grouped(invalidations.context + invalidations.global),
        grouped(operations.sum()),
        untold(),
    ]
}
