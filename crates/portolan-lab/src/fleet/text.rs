//! Many traces for people: what they come to in sentences, then a table a trace, then what they add up to.

use portolan_cli::display::{Column, bytes, fitting_table, grouped, micros, wrapped};

use super::aggregate::{Aggregate, Group, PolicySum};
use super::entry::Entry;

/// The columns of the tables, and which are left out first where they do not all fit.
const COLUMNS: [(&str, u8); 10] = [
    ("traces", 1),
    ("maps", 4),
    ("mapped", 6),
    ("strict", 0),
    ("total µs", 0),
    ("µs an op", 3),
    ("µs a MiB", 5),
    ("deferred", 0),
    ("lazy", 0),
    ("exposed", 2),
];
/// The columns of a table whose rows are traces, beside these.
const OF_TRACES: [(&str, u8); 2] = [("machine", 7), ("load", 8)];
/// The first column is cut to such a part of the line.
const FIRST_PART: usize = 3;

/// What the columns mean, for `--help`.
pub const COLUMNS_IN_WORDS: &str = "\
Columns for many traces:
  strict         of the strict policies the one that costs least there, total µs its cost
  µs an op       that cost for a map or unmap; µs a MiB for a MiB mapped
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
    let mut table = |head: &'static str, groups: &[Group], beside: &[[String; 2]]| {
        if groups.is_empty() {
            return;
        }
        out.push('\n');
        let (table, left) = table(head, groups, beside, columns);
        out.push_str(&table);
        out.push('\n');
        left_out.extend(left);
    };
    let names = short_names(entries);
    let alone = entries.iter().zip(&names);
    let alone: Vec<_> = alone.map(|(e, name)| Group::of(name, &[e])).collect();
    let beside = entries.iter().map(|e| [e.machine.clone(), e.load.clone()]);
    let beside: Vec<_> = beside.collect();
    table("trace", &alone, &beside);
    table("machine", &sum.by_machine, &[]);
    table("device", &sum.by_device, &[]);
    table("load", &sum.by_load, &[]);
    if !left_out.is_empty() {
        let order = COLUMNS.iter().chain(&OF_TRACES).map(|(name, _)| *name);
        let names: Vec<_> = order.filter(|name| left_out.contains(name)).collect();
        let more = format!(
            "\nLeft out for want of room: {}. `--wide` prints them.\n",
            names.join(", ")
        );
        out.push_str(&wrapped(&more, columns));
    }
    out
}

/// A table of `groups`; if they are traces, with what stands `beside` each.
fn table(
    head: &'static str,
    groups: &[Group],
    beside: &[[String; 2]],
    columns: usize,
) -> (String, Vec<&'static str>) {
    let traces = !beside.is_empty();
    let extra = OF_TRACES.iter().filter(|_| traces);
    let common = COLUMNS
        .iter()
        .filter(|(name, _)| !(traces && *name == "traces"));
    let header = [(head, 0)].into_iter().chain(common.chain(extra).copied());
    let header: Vec<_> = header
        .map(|(header, spare)| Column { header, spare })
        .collect();
    let rows = groups.iter().enumerate().map(|(index, group)| {
        let mut row = row(group, columns / FIRST_PART);
        if let Some(beside) = beside.get(index) {
            row.remove(1);
            row.extend(beside.iter().cloned());
        }
        row
    });
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
        of(least.map(|p| micros(p.time_us.total))),
        of(least.and_then(|p| p.us_per_operation).map(micros)),
        of(least.and_then(|p| p.us_per_mib).map(micros)),
        of(saved("deferred")),
        of(saved("lazy")),
        of(group.policy("lazy").map(|p| bytes(p.exposed.max_bytes))),
    ]
}

/// A share without a sign where it rounds to nothing.
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
    let end = ends
        .find(|end| names().all(|name| ends_so(name, end)))
        .unwrap_or("");
    let short = names().map(|name| &name[folders.len()..name.len() - end.len()]);
    short.map(str::to_owned).collect()
}

/// Where the name of a file begins in a path.
fn after_folder(path: &str) -> usize {
    path.rfind('/').map_or(0, |at| at + 1)
}

/// What the numbers say.
pub(super) fn findings(sum: &Aggregate) -> Vec<String> {
    let all = &sum.all;
    let mut said = vec![head(sum)];
    if all.maps == 0 {
        return said;
    }
    said.extend(advised(sum));
    let Some(least) = all.least() else {
        return said;
    };
    said.push(format!(
        "Of the strict policies {} costs least over all, {} µs, and in {} of {}.",
        least.policy,
        micros(least.time_us.total),
        grouped(least.least_strict_in),
        traces(all.traces),
    ));
    if let Some(lazy) = all.policy("lazy") {
        said.extend(saving(lazy, "Lazy").map(|saving| {
            format!(
                "{saving}, but leaves up to {} reachable for up to {} µs after unmap.",
                bytes(lazy.exposed.max_bytes),
                micros(lazy.exposed.max_us),
            )
        }));
    }
    if let Some(deferred) = all.policy("deferred") {
        let saving = saving(deferred, "A driver that hands its buffers over (deferred)");
        said.extend(saving.map(|saving| format!("{saving}, and leaves no window.")));
    }
    if let [_, _, ..] = sum.by_machine.as_slice() {
        let each = sum.by_machine.iter().filter_map(|group| {
            let least = group.least()?;
            let cost = least.us_per_operation?;
            Some(format!(
                "{} {} µs ({})",
                group.name,
                micros(cost),
                least.policy
            ))
        });
        let each: Vec<_> = each.collect();
        said.push(format!(
            "A map or unmap under the strict policy that costs least: {}.",
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

/// What to change.
fn advised(sum: &Aggregate) -> Option<String> {
    let each = sum.settings.iter().map(|one| {
        let setting = &one.setting;
        format!(
            "{} in {} ({})",
            setting.value,
            setting.where_to_set,
            traces(one.traces)
        )
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
    let machines: Vec<_> = sum
        .by_machine
        .iter()
        .map(|group| group.name.as_str())
        .collect();
    let on = match machines.as_slice() {
        [] => String::new(),
        [one] => format!(" on machine {one}"),
        some => format!(" on {} machines", some.len()),
    };
    let mut said = format!(
        "{} replayed{on}: {} maps of {}.",
        traces(all.traces),
        grouped(all.maps),
        bytes(all.bytes_mapped),
    );
    if !sum.failed.is_empty() {
        let names: Vec<_> = sum.failed.iter().map(|f| f.trace.source.as_str()).collect();
        said.push_str(&format!(
            " {} could not be: {}.",
            grouped(names.len() as u64),
            names.join(", ")
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

/// What `policy` saves, over all and by trace.
fn saving(policy: &PolicySum, name: &str) -> Option<String> {
    let all = percent(policy.saves_pct?);
    let [low, high] = policy.saves_pct_by_trace?.map(percent);
    let by_trace = match low == high {
        true => String::new(),
        false => format!(" ({low} to {high} by trace)"),
    };
    Some(format!("{name} would save {all} of that{by_trace}"))
}
