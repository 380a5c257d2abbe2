//! Many traces as comma-separated values (RFC 4180): a row a trace, or a row a group.
//!
//! Names are others' words: control characters are written out, and a text that a spreadsheet would calculate (`=`,
//! `+`, `-`, `@` at its beginning) has an apostrophe before it.

use anyhow::Result;
use portolan_cli::display::plain;

use super::aggregate::{Aggregate, Group, by_saving};
use super::entry::{Entry, Failed};

/// Columns of the rows of traces.
const OF_TRACES: [&str; 15] = [
    "trace",
    "kernel",
    "machine",
    "policy",
    "drivers",
    "load",
    "maps",
    "bytes_mapped",
    "pct_of_load",
    "saves_pct_of_load",
    "cpu_us_per_s",
    "ns_per_request",
    "invalidations",
    "advice",
    "error",
];
/// Columns of the rows of groups, behind the group's name.
const OF_GROUPS: [&str; 11] = [
    "traces",
    "costed_traces",
    "maps",
    "bytes_mapped",
    "median_pct_of_load",
    "p90_pct_of_load",
    "most_pct_of_load",
    "median_saves_pct",
    "p90_saves_pct",
    "most_saves_pct",
    "most_in",
];

/// The groups of `sum` if it has any, or else the traces, those first in which a change saves most, and those behind
/// that could not be replayed.
///
/// # Errors
/// None that contents bring about.
pub fn csv(entries: &[Entry], sum: &Aggregate) -> Result<String> {
    let mut table = csv::Writer::from_writer(Vec::new());
    match &sum.grouped {
        Some(grouped) => {
            table.write_record([grouped.by.name()].iter().chain(&OF_GROUPS))?;
            for group in &grouped.groups {
                table.write_record(of_group(group))?;
            }
        }
        None => {
            table.write_record(OF_TRACES)?;
            for entry in by_saving(entries) {
                table.write_record(of_trace(entry))?;
            }
            for failed in &sum.failed {
                table.write_record(of_failed(failed))?;
            }
        }
    }
    Ok(String::from_utf8(table.into_inner()?)?)
}

fn number(value: Option<impl ToString>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}

/// Words of others.
fn words(text: &str) -> String {
    let text = plain(text);
    match text.starts_with(['=', '+', '-', '@']) {
        true => format!("'{text}"),
        false => text.into_owned(),
    }
}

fn of_trace(entry: &Entry) -> [String; OF_TRACES.len()] {
    let cost = entry.cost.as_ref();
    let mut drivers: Vec<_> =
        entry.by_device.iter().filter_map(|work| work.driver.as_deref()).collect();
    drivers.sort_unstable();
    drivers.dedup();
    let advice = entry.advice.iter().map(|one| format!("{}={}", one.where_to_set, one.value));
    let advice: Vec<_> = advice.collect();
    [
        words(&entry.trace.source),
        words(entry.kernel.as_deref().unwrap_or("unknown")),
        words(&entry.machine),
        entry.policy().unwrap_or("unknown").to_owned(),
        words(&drivers.join(" ")),
        words(&entry.load),
        entry.trace.maps.to_string(),
        entry.trace.bytes_mapped.to_string(),
        number(entry.pct_of_load()),
        number(entry.saves_pct_of_load()),
        number(cost.map(|cost| cost.now.cpu_us_per_s)),
        number(cost.map(|cost| cost.now.ns_per_request)),
        number(cost.map(|cost| cost.invalidations)),
        words(&advice.join("; ")),
        String::new(),
    ]
}

fn of_failed(failed: &Failed) -> [String; OF_TRACES.len()] {
    let mut row = [const { String::new() }; OF_TRACES.len()];
    row[0] = words(&failed.trace.source);
    row[OF_TRACES.len() - 1] = words(&failed.error);
    row
}

fn of_group(group: &Group) -> [String; OF_GROUPS.len() + 1] {
    let costs = group.costs.as_ref();
    let parts = costs.map(|costs| &costs.parts);
    let saves = costs.and_then(|costs| costs.saves.as_ref());
    [
        words(&group.name),
        group.traces.to_string(),
        group.costed_traces.to_string(),
        group.maps.to_string(),
        group.bytes_mapped.to_string(),
        number(parts.map(|parts| parts.median_pct)),
        number(parts.map(|parts| parts.p90_pct)),
        number(parts.map(|parts| parts.most_pct)),
        number(saves.map(|saves| saves.median_pct)),
        number(saves.map(|saves| saves.p90_pct)),
        number(saves.map(|saves| saves.most_pct)),
        words(parts.map_or("", |parts| &parts.most_in)),
    ]
}
