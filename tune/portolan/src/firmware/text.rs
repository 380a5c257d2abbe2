//! The report for people.

use std::fmt::Write as _;

use portolan::iommu::ReservedKind;
use portolan::table::Access;
use portolan_cli::display::{table, wrapped};

use super::{PciFunctionReport, Report, ReservedReport, UnitReport};

/// Limit of a unit's claims that are printed one by one.
const MOST_SHOWN: usize = 24;

/// Purpose of reserved addresses.
pub(super) fn kind(kind: ReservedKind) -> &'static str {
    match kind {
        ReservedKind::Direct(access) | ReservedKind::DirectUntilDriven(access)
            if access.contains(Access::DEVICE) =>
        {
            "registers that firmware has at work: mapped one to one"
        }
        ReservedKind::Direct(_) => "firmware's memory: mapped one to one",
        ReservedKind::DirectUntilDriven(_) => {
            "firmware's memory: mapped one to one until a driver takes over"
        }
        ReservedKind::Interrupts => "interrupt messages: never mapped",
        ReservedKind::Unusable => "reaches no memory: never mapped",
        ReservedKind::Doorbell => "interrupt messages: mapped by the code that sets them up",
        _ => "taken: never mapped",
    }
}

fn streams(one: &ReservedReport) -> String {
    match (one.first_stream, one.last_stream) {
        (0, last) if last >= 0xffff => "all".to_owned(),
        (first, last) if first == last => format!("{first:#x}"),
        (first, last) => format!("{first:#x} to {last:#x}"),
    }
}

/// The report as text, in lines of `columns`.
pub fn text(report: &Report, columns: usize) -> String {
    let mut out = String::new();
    let from = &report.table;
    let _ = writeln!(
        out,
        "{} of {}: {} bytes, {} units ({})\n",
        from.signature,
        from.maker,
        from.bytes,
        report.units.len(),
        from.source,
    );
    out += &answer(report);
    report.units.iter().for_each(|one| unit(one, columns, &mut out));
    functions(&report.functions, columns, &mut out);
    outside(report, &mut out);
    groups(report, &mut out);
    for remark in &report.remarks {
        let word = if remark.wrong { "wrong" } else { "note" };
        let _ = writeln!(out, "{word}: {}", remark.text);
    }
    wrapped(&out, columns)
}

/// Numbers of devices that the IOMMUs serve, and of others.
fn answer(report: &Report) -> String {
    let free = report.functions.iter().filter(|one| one.unit.is_none()).count();
    let wrong = report.remarks.iter().filter(|remark| remark.wrong).count();
    let mut said = match (report.functions.len(), free) {
        (0, _) => "Which devices there are is not known: --pci names them.".to_owned(),
        (all, 0) => format!("An IOMMU serves each of the {all} PCI functions."),
        (all, free) => {
            format!("No IOMMU serves {free} of the {all} PCI functions: they reach all memory.")
        }
    };
    if wrong > 0 {
        said += &format!(" What is wrong with the tables: {wrong}, below.");
    }
    said + "\n\n"
}

fn unit(unit: &UnitReport, columns: usize, out: &mut String) {
    let _ = writeln!(out, "Unit {}: {}, {}", unit.unit, unit.kind, unit.place);
    if let Some(refused) = &unit.refused {
        let _ = writeln!(out, "  is refused, with its devices: {refused}");
    }
    for claim in unit.serves.iter().take(MOST_SHOWN) {
        let _ = writeln!(out, "  serves {claim}");
    }
    let more = unit.serves.len().saturating_sub(MOST_SHOWN);
    if more > 0 {
        let _ = writeln!(out, "  and {more} more (all are in the output of --json)");
    }
    for limit in unit.limits.iter().take(MOST_SHOWN) {
        let _ = writeln!(out, "  reached by {limit}");
    }
    if !unit.reserved.is_empty() {
        let row = |one: &ReservedReport| {
            vec![
                streams(one),
                format!("{:#x}", one.start),
                format!("{:#x}", one.last),
                one.kind.clone(),
            ]
        };
        let rows = unit.reserved.iter().map(row).collect();
        let header = [("streams", 0), ("from", 0), ("to", 0), ("reserved addresses", 0)];
        out.push('\n');
        *out += &table(&header, &[1, 2], rows, columns);
    }
    out.push('\n');
}

fn functions(functions: &[PciFunctionReport], columns: usize, out: &mut String) {
    if functions.is_empty() {
        return;
    }
    let row = |one: &PciFunctionReport| {
        let streams: Vec<String> =
            one.streams.iter().map(|stream| format!("{stream:#x}")).collect();
        vec![
            one.function.clone(),
            one.id.clone(),
            one.class.clone(),
            one.unit.map_or("none".to_owned(), |unit| unit.to_string()),
            streams.join(" "),
            if one.group == one.function { String::new() } else { one.group.clone() },
            one.kind.clone(),
        ]
    };
    let rows = functions.iter().map(row).collect();
    let header = [
        ("function", 0),
        ("id", 1),
        ("class", 2),
        ("unit", 0),
        ("streams", 3),
        ("in the group of", 0),
        ("what it is", 0),
    ];
    *out += &table(&header, &[3], rows, columns);
    out.push('\n');
    if functions.iter().any(|one| one.unit.is_none()) {
        out.push_str("No unit serves functions with `none`: they reach all memory.\n\n");
    }
    let refused = functions.iter().filter(|one| one.unit.is_some());
    for one in refused {
        if let Some(refused) = &one.refused {
            let _ = writeln!(out, "{} is refused: {refused}", one.function);
        }
    }
    let limited = |one: &&PciFunctionReport| one.last_address.is_some_and(|last| last != u64::MAX);
    for one in functions.iter().filter(limited) {
        let last = one.last_address.unwrap_or_default();
        let _ = writeln!(out, "{} reaches its unit by addresses up to {last:#x}", one.function);
    }
}

/// Functions that are not trusted because of their place.
fn outside(report: &Report, out: &mut String) {
    for port in &report.external_ports {
        let _ = writeln!(out, "{port} leads out of the machine:");
        let below = |one: &&PciFunctionReport| one.below.as_ref() == Some(port);
        for one in report.functions.iter().filter(below) {
            let _ = writeln!(
                out,
                "  {} is not trusted: strict, no pass-through, no translations of its own, and copies of what \
                 shares a page",
                one.function
            );
        }
        out.push('\n');
    }
}

fn groups(report: &Report, out: &mut String) {
    if report.functions.is_empty() {
        return;
    }
    for group in &report.groups {
        let _ = writeln!(
            out,
            "These share an address space, since the IOMMU cannot keep them apart:\n  {}",
            group.functions.join(" ")
        );
        for reason in &group.reasons {
            let _ = writeln!(out, "  since {reason}");
        }
        out.push('\n');
    }
    let grouped: usize = report.groups.iter().map(|group| group.functions.len()).sum();
    let alone = report.functions.len() - grouped;
    let _ = writeln!(out, "Functions that are in no group with others: {alone}.\n");
}
