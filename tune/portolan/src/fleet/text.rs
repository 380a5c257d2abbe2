//! Many traces for people: findings in sentences, then a table with a row a trace, then the sums.

use std::collections::HashMap;

use portolan_cli::display::{
    Column, bytes, counted, duration, fitting_table, grouped, micros, percent as share, wrapped,
};

use super::aggregate::{Aggregate, Group, GroupedBy, Percentiles, PolicySum, WORST, by_saving};
use super::entry::Entry;
use crate::replay::WORTH_PCT_OF_LOAD;

/// Columns of the tables, and the order in which they are left out if they do not all fit.
const COLUMNS: [(&str, u8); 10] = [
    ("traces", 1),
    ("maps", 4),
    ("mapped", 6),
    ("strict", 0),
    ("CPU time", 0),
    ("an op", 3),
    ("a MiB", 5),
    ("deferred", 0),
    ("lazy", 0),
    ("exposed", 2),
];
/// The columns of the table whose rows are traces.
const OF_TRACES: [(&str, u8); 10] = [
    ("trace", 0),
    ("of the load", 0),
    ("saves", 0),
    ("µs/CPU-s", 2),
    ("ns/request", 1),
    ("Linux", 3),
    ("maps", 4),
    ("mapped", 6),
    ("machine", 7),
    ("load", 8),
];
/// Columns of the table whose rows are groups by a fact, behind the fact.
const OF_GROUPS: [(&str, u8); 8] = [
    ("traces", 1),
    ("median", 0),
    ("9 in 10", 2),
    ("worst", 0),
    ("saves", 0),
    ("most", 0),
    ("maps", 3),
    ("mapped", 4),
];
/// Fraction of the line to which the first column is cut.
const FIRST_PART: usize = 3;

/// Meaning of the columns, for `--help`.
pub const COLUMNS_IN_WORDS: &str = "\
Columns for many traces, each of which is a row, those first in which a change saves most:
  of the load    what mapping costs its kernel, of the load's time, if no two CPUs did it at once
  saves          of the load's time, what the change that is advised saves
  µs/CPU-s       the same of each second of each CPU; ns/request for a map with its unmap
  Linux          the policy that the kernel had
Columns with --group-by, groups first in which a change saves most:
  median         of the load's time, what mapping costs the kernels of half of its traces at most;
                 9 in 10 and worst the same of nine in ten, and of all
  saves, most    of the load's time, what the change that is advised saves: median and most
Columns of sums, which are of this library's policies:
  strict         of the strict policies the one that costs CPUs least there, CPU time its cost
  an op          that cost for a map or unmap; a MiB for a MiB mapped
  deferred, lazy of a hundred parts of that cost, what these policies save
  exposed        under lazy, most memory at once that was unmapped and that a device could still reach
By device, maps and bytes are the device's own, costs those of the traces that hold no other device.";

/// The tables and sentences, in lines of `columns`.
pub fn text(entries: &[Entry], sum: &Aggregate, columns: usize) -> String {
    let mut out = String::new();
    for finding in &sum.findings {
        out.push_str(&wrapped(finding, columns));
        out.push('\n');
    }
    let mut left_out = Vec::new();
    if !entries.is_empty() {
        let (table, left) = traces_table(entries, columns);
        out.push_str(&format!("\n{table}"));
        left_out.extend(left);
    }
    let mut table = |head: &'static str, groups: &[Group]| {
        if groups.is_empty() {
            return;
        }
        out.push('\n');
        let (table, left) = table(head, groups, columns);
        out.push_str(&table);
        out.push('\n');
        left_out.extend(left);
    };
    match &sum.grouped {
        Some(grouped) => {
            let (table, left) = cost_table(grouped, columns);
            out.push_str(&format!("\n{table}\n"));
            left_out.extend(left);
        }
        None => {
            table("Linux was", &sum.by_recorded_policy);
            table("machine", &sum.by_machine);
            table("device", &sum.by_device);
            table("load", &sum.by_load);
        }
    }
    if !left_out.is_empty() {
        let order = OF_TRACES.iter().chain(&OF_GROUPS).chain(&COLUMNS).map(|(name, _)| *name);
        let mut names: Vec<_> = order.filter(|name| left_out.contains(name)).collect();
        let mut seen = Vec::new();
        names.retain(|name| {
            !seen.contains(name) && {
                seen.push(*name);
                true
            }
        });
        let more =
            format!("\nLeft out for want of room: {}. `--wide` prints them.\n", names.join(", "));
        out.push_str(&wrapped(&more, columns));
    }
    out
}

/// Table of the traces, those first in which a change saves most of the load's time; only the first few if lines are
/// limited.
fn traces_table(entries: &[Entry], columns: usize) -> (String, Vec<&'static str>) {
    let names = short_names(entries);
    let names: HashMap<*const Entry, &String> =
        entries.iter().map(std::ptr::from_ref).zip(&names).collect();
    let order = by_saving(entries);
    let shown = match columns {
        usize::MAX => order.len(),
        _ => order.len().min(WORST),
    };
    let rows = order.iter().take(shown).map(|entry| {
        let name = names.get(&std::ptr::from_ref(*entry)).map_or("", |name| name.as_str());
        trace_row(entry, cut(name, columns / FIRST_PART))
    });
    let header = OF_TRACES.map(|(header, spare)| Column { header, spare });
    let (table, left_out) = fitting_table(&header, rows.collect(), columns);
    let more = match order.len() - shown {
        0 => String::new(),
        more => format!("{} more: `--wide` prints all traces.\n", grouped(more as u64)),
    };
    (format!("{table}\n{more}"), left_out)
}

fn trace_row(entry: &Entry, name: String) -> Vec<String> {
    let none = || "-".to_owned();
    let cost = entry.cost.as_ref();
    let of = |value: Option<String>| value.unwrap_or_else(none);
    vec![
        name,
        of(cost.map(|cost| share(cost.now.pct_of_load))),
        of(entry.saves_pct_of_load().map(share)),
        of(cost.map(|cost| micros(cost.now.cpu_us_per_s))),
        of(cost.map(|cost| micros(cost.now.ns_per_request))),
        of(cost.map(|cost| cost.policy.name().to_owned())),
        grouped(entry.trace.maps),
        bytes(entry.trace.bytes_mapped),
        entry.machine.clone(),
        entry.load.clone(),
    ]
}

/// A table of the costs of groups by a fact.
fn cost_table(sums: &GroupedBy, columns: usize) -> (String, Vec<&'static str>) {
    let header = [(sums.by.name(), 0)].into_iter().chain(OF_GROUPS);
    let header: Vec<_> = header.map(|(header, spare)| Column { header, spare }).collect();
    let rows = sums.groups.iter().map(|group| {
        let costs = group.costs.as_ref();
        let cost = |of: fn(&Percentiles) -> f64| costs.map(|costs| share(of(&costs.parts)));
        let saves = costs.and_then(|costs| costs.saves.as_ref());
        let saved = |of: fn(&Percentiles) -> f64| saves.map(|saves| share(of(saves)));
        let of = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        vec![
            cut(&group.name, columns / FIRST_PART),
            grouped(group.traces),
            of(cost(|parts| parts.median_pct)),
            of(cost(|parts| parts.p90_pct)),
            of(cost(|parts| parts.most_pct)),
            of(saved(|parts| parts.median_pct)),
            of(saved(|parts| parts.most_pct)),
            grouped(group.maps),
            bytes(group.bytes_mapped),
        ]
    });
    fitting_table(&header, rows.collect(), columns)
}

/// A table of `groups`.
fn table(head: &'static str, groups: &[Group], columns: usize) -> (String, Vec<&'static str>) {
    let header = [(head, 0)].into_iter().chain(COLUMNS);
    let header: Vec<_> = header.map(|(header, spare)| Column { header, spare }).collect();
    let rows = groups.iter().map(|group| row(group, columns / FIRST_PART));
    fitting_table(&header, rows.collect(), columns)
}

fn row(group: &Group, widest: usize) -> Vec<String> {
    let none = || "-".to_owned();
    let of = |text: Option<String>| text.unwrap_or_else(none);
    let least = group.least();
    let saved = |name: &str| group.policy(name).and_then(|p| p.saves_pct).map(percent);
    let name = |p: &PolicySum| p.policy.trim_start_matches("strict-").to_owned();
    vec![
        cut(&group.name, widest),
        grouped(group.traces),
        grouped(group.maps),
        bytes(group.bytes_mapped),
        of(least.map(name)),
        of(least.map(|p| duration(p.time_us.cpu))),
        of(least.and_then(|p| p.us_per_operation).map(duration)),
        of(least.and_then(|p| p.us_per_mib).map(duration)),
        of(saved("deferred")),
        of(saved("lazy")),
        of(group.policy("lazy").map(|p| bytes(p.exposed.max_bytes))),
    ]
}

/// A percentage without a sign if it rounds to zero.
fn percent(pct: f64) -> String {
    match pct.round() {
        0.0 => "0 %".to_owned(),
        whole => format!("{whole} %"),
    }
}

/// The end of `text`, with a sign where its beginning is missing.
fn cut(text: &str, widest: usize) -> String {
    let length = text.chars().count();
    match length.checked_sub(widest) {
        None | Some(0) => text.to_owned(),
        Some(over) => {
            let kept = text.chars().skip(over + 1);
            std::iter::once('…').chain(kept).collect()
        }
    }
}

/// The names of traces without the folders that they all are in, and without the end that they all have.
pub(crate) fn short_names(entries: &[Entry]) -> Vec<String> {
    let names = || entries.iter().map(|entry| entry.trace.source.as_str());
    let first = names().next().unwrap_or_default();
    let (mut folders, file) = first.split_at(after_folder(first));
    for name in names() {
        while !name.starts_with(folders) {
            folders = &folders[..after_folder(folders.trim_end_matches('/'))];
        }
    }
    let ends_so =
        |name: &str, end| name[after_folder(name)..].len() > str::len(end) && name.ends_with(end);
    let mut ends = file.match_indices('.').map(|(at, _)| &file[at..]);
    let end = ends.find(|end| names().all(|name| ends_so(name, end))).unwrap_or("");
    let short = names().map(|name| &name[folders.len()..name.len() - end.len()]);
    short.map(str::to_owned).collect()
}

/// Index of a file's name in its path, in bytes.
fn after_folder(path: &str) -> usize {
    path.rfind('/').map_or(0, |at| at + 1)
}

/// Findings from the numbers, in sentences.
pub(super) fn findings(sum: &Aggregate) -> Vec<String> {
    let all = &sum.all;
    let mut said = vec![head(sum)];
    if all.maps == 0 {
        return said;
    }
    said.extend(worth(sum));
    said.extend(advised(sum));
    let Some(least) = all.least() else {
        return said;
    };
    said.push(format!(
        "Of this library's strict policies {} costs CPUs least over all, {}, and in {} of {}.",
        least.policy,
        duration(least.time_us.cpu),
        grouped(least.least_strict_in),
        traces(all.traces),
    ));
    if let Some(lazy) = all.policy("lazy") {
        said.extend(saving(lazy, "Its lazy").map(|saving| {
            format!(
                "{saving}, but leaves up to {} reachable for up to {} after unmap.",
                bytes(lazy.exposed.max_bytes),
                duration(lazy.exposed.max_us),
            )
        }));
    }
    if let Some(deferred) = all.policy("deferred") {
        let saving = saving(
            deferred,
            "A driver written for it that gives its buffers away until they are invalidated (deferred)",
        );
        said.extend(saving.map(|saving| format!("{saving}.")));
    }
    if let [_, _, ..] = sum.by_machine.as_slice() {
        let each = sum.by_machine.iter().filter_map(|group| {
            let least = group.least()?;
            let cost = least.us_per_operation?;
            Some(format!("{} {} ({})", group.name, duration(cost), least.policy))
        });
        let each: Vec<_> = each.collect();
        said.push(format!(
            "CPU time of a map or unmap under the strict policy that costs least: {}.",
            each.join(", ")
        ));
    }
    let faults: u64 = all.policies.iter().map(|p| p.faults).sum();
    if faults > 0 {
        said.push(format!(
            "{} accesses to mapped memory were refused: this is a defect.",
            grouped(faults)
        ));
    }
    said
}

/// Tells what mapping costs the kernels, and for how many a change is worth it.
fn worth(sum: &Aggregate) -> Option<String> {
    let costs = sum.costs.as_ref()?;
    let worth = match costs.worth_a_change {
        0 => "A change is worth it in none of them".to_owned(),
        some => format!("A change is worth it in {}", grouped(some)),
    };
    Some(format!(
        "Mapping costs their kernels at most {} of the load's time in half of {}, {} in nine of ten, {} in the worst. \
         {worth}: less than {WORTH_PCT_OF_LOAD:.0} % of the load's time is not.",
        share(costs.parts.median_pct),
        traces(costs.parts.traces),
        share(costs.parts.p90_pct),
        share(costs.parts.most_pct),
    ))
}

/// Settings to change.
fn advised(sum: &Aggregate) -> Option<String> {
    let each = sum.settings.iter().map(|one| {
        let setting = &one.setting;
        format!("{} in {} ({})", setting.value, setting.where_to_set, traces(one.traces))
    });
    let each: Vec<_> = each.collect();
    (!each.is_empty()).then(|| {
        format!(
            "Settings that are advised, with the reasons in each trace's own replay: {}.",
            each.join("; ")
        )
    })
}

fn head(sum: &Aggregate) -> String {
    let all = &sum.all;
    let machines: Vec<_> = sum.by_machine.iter().map(|group| group.name.as_str()).collect();
    let on = match machines.as_slice() {
        [] => String::new(),
        [one] => format!(" on machine {one}"),
        some => format!(" on {} machines", some.len()),
    };
    let mut said = format!(
        "{} replayed{on}: {} of {}.",
        traces(all.traces),
        counted(all.maps, "map"),
        bytes(all.bytes_mapped),
    );
    if !sum.failed.is_empty() {
        let names: Vec<_> = sum.failed.iter().map(|f| f.trace.source.as_str()).collect();
        let more = if names.len() > WORST { ", ..." } else { "" };
        said.push_str(&format!(
            " {} could not be: {}{more}.",
            grouped(names.len() as u64),
            names[..names.len().min(WORST)].join(", ")
        ));
    }
    if all.traces > 0 && all.maps == 0 {
        said.push_str(" They map nothing; record them while devices are at work.");
    }
    said
}

fn traces(count: u64) -> String {
    match count {
        1 => "1 trace".to_owned(),
        count => format!("{} traces", grouped(count)),
    }
}

/// Part that `policy` saves, over all and by trace.
fn saving(policy: &PolicySum, name: &str) -> Option<String> {
    let all = percent(policy.saves_pct?);
    let [low, high] = policy.saves_pct_by_trace?.map(percent);
    let by_trace = if low == high { String::new() } else { format!(" ({low} to {high} by trace)") };
    Some(format!("{name} saves {all} of that{by_trace}"))
}
