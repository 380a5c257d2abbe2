//! Warnings to the reader of a replay on its trace.

use portolan_cli::display::{counted, grouped};

use super::report::TraceReport;
use crate::trace::{Clock, RecorderStatus, Summary};

/// Number of lasting mappings that no ring of buffers at the start of a load reaches.
const MANY: u64 = 1000;

/// Nanoseconds as milliseconds.
fn ms(ns: u64) -> String {
    format!("{:.3} ms", ns as f64 / 1e6)
}

/// The first lines of `total`.
fn lines(first: &[u64], total: u64) -> String {
    let numbers: Vec<_> = first.iter().map(u64::to_string).collect();
    let more = if total > first.len() as u64 { ", ..." } else { "" };
    format!("lines {}{more}", numbers.join(", "))
}

/// Warnings to the reader of the report on the trace.
pub(super) fn warnings(summary: &Summary, trace: &TraceReport) -> Vec<String> {
    let mut said = Vec::new();
    for bad in &summary.first_bad {
        said.push(format!("line {}: {}: `{}`", bad.line, bad.reason, bad.excerpt));
    }
    let kept = summary.first_bad.len() as u64;
    if summary.bad_lines > kept {
        said.push(format!("{} more lines could not be used", summary.bad_lines - kept));
    }
    if summary.orphan_unmaps > 0 {
        said.push(format!(
            "unmaps without a map in the trace, not replayed: {} ({})",
            summary.orphan_unmaps,
            lines(&summary.orphan_lines, summary.orphan_unmaps),
        ));
    }
    said.extend(unsure(summary));
    said.extend(odd_times(summary));
    if summary.out_of_order > 0 {
        said.push(format!(
            "events that are earlier than one before them, taken in the order of the lines: {} ({}){}",
            summary.out_of_order,
            lines(&summary.out_of_order_lines, summary.out_of_order),
            match summary.skew_ns {
                0 => String::new(),
                skew => format!(
                    "; CPUs whose own times go forward are behind others by up to {}",
                    ms(skew)
                ),
            },
        ));
    }
    if summary.lost_events > 0 {
        let kept = summary.lost_lines.len() as u64;
        said.push(format!(
            "the recorder lost {}{} ({}); record again with a larger buffer_size_kb",
            match summary.lost_unknown {
                0 => "",
                _ => "at least ",
            },
            counted(summary.lost_events, "event"),
            lines(&summary.lost_lines, kept),
        ));
    }
    if let Some(line) = summary.cut_after_line {
        said.push(format!("the trace breaks off after line {line}; what came before was replayed"));
    }
    if summary.recorder == RecorderStatus::Begun {
        said.push(
            "its recorder was killed before it was done; what came before was replayed".to_owned(),
        );
    }
    if trace.rejected_maps > 0 {
        said.push(format!(
            "not replayed, since they are empty, larger than 4 GiB or beyond the machine's addresses: {} ({})",
            counted(trace.rejected_maps, "map"),
            lines(&trace.rejected_lines, trace.rejected_maps),
        ));
    }
    said
}

/// Warnings on points that the trace leaves open.
fn unsure(summary: &Summary) -> impl Iterator<Item = String> {
    let says = [
        (
            summary.inferred_devices,
            "operations that name no device, taken for those of the only one whose mappings are seen",
        ),
        (
            summary.partial_unmaps,
            "unmaps of a part of a mapping, which is replayed as one that ends with the last of them",
        ),
        (
            summary.ambiguous_unmaps,
            "unmaps of an address that several domains had mapped, taken for those of the oldest mapping",
        ),
        (
            summary.truncated_lists,
            "scatter lists that are longer than the kernel prints (128 pieces)",
        ),
        (summary.maps_beyond, "maps beyond a million at once, not replayed"),
    ];
    let says = says.into_iter().filter(|(count, _)| *count > 0);
    says.map(|(count, what)| format!("{what}: {}", grouped(count)))
}

/// Warnings on odd times, and on several machines in one trace.
fn odd_times(summary: &Summary) -> Vec<String> {
    let mut said = Vec::new();
    if summary.clock == Clock::Ticks {
        said.push(
            "its times are numbers without a unit (clock x86-tsc, counter or uptime): counts hold, but what depends on \
             time does not: lazy's and deferred's flushes, windows and rates; record with another trace_clock"
                .to_owned(),
        );
    }
    if summary.clock_jumps > 0 {
        said.push(format!(
            "times jump by a day ahead or by a second back: {} ({}); what depends on time does not hold",
            summary.clock_jumps,
            lines(&summary.clock_jump_lines, summary.clock_jumps),
        ));
    }
    // Lost events may be maps.
    if summary.early_unmaps > 0 && summary.lost_events == 0 {
        said.push(format!(
            "unmaps that come before their map, which another CPU made, by up to {}, not replayed: {} ({}); the clocks \
             of CPUs differ, and what depends on the order of events does not hold; record with a clock that all \
             CPUs share (trace-cmd -C mono, perf record -k mono)",
            ms(summary.early_ns),
            summary.early_unmaps,
            lines(&summary.early_unmap_lines, summary.early_unmaps),
        ));
    }
    let several = summary.recordings.max(summary.machines.len() as u64);
    if several > 1 {
        said.push(format!(
            "it holds {several} recordings or machines, whose devices and addresses are not told apart; \
             replay each alone"
        ));
    }
    let kept = summary.left_mapped > summary.maps.div_ceil(2) && summary.maps >= MANY;
    if kept {
        said.push(format!(
            "{} of {} maps are not unmapped in it: what an unmap costs is not in the numbers for these",
            summary.left_mapped, summary.maps
        ));
    }
    said
}
