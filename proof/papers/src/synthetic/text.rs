//! A synthetic load as text.

use super::Waits;
use super::camera::{CameraReport, WayReport};
use portolan_cli::display::{bytes, grouped, micros, table, wrapped};
use portolan_tune::counts::RegisterWrites;

/// Meaning of the columns, for `--help`.
pub const COLUMNS_IN_WORDS: &str = "\
Columns of the tables of --synthetic camera:
  way, side      before and after a published change, or the library's own way
                 (portolan); mapping or unmapping
  wait-for-safe  what each invalidation waits for real-time devices
  a buffer       what one buffer takes; of that a part of all time, and of the
                 frame that it falls into
  commands       invalidation commands by page, by range, by context, and syncs,
                 for one buffer
  writes, reads  of registers, for one buffer; PTC and TLB are the two caches of
                 Tegra's SMMU: all of the PTC, a line of it, the upper bits of
                 that line's address; a space (address space), 4 MiB or 16 KiB
                 of the TLB
  misses         of the camera in the TLB, entries read for them, and the stall
  meanwhile      look-ups that went on during an invalidation; else kept out:
                 what a unit that lets none through would keep the camera out";

/// The report for people, in lines of `columns`: its answer, then the tables.
pub fn text(report: &CameraReport, columns: usize) -> String {
    let mut out = answer(report);
    out += "\nWhat a buffer costs. Before and after: page by page, without and with the published change; portolan: \
            the library's own way.\n\n";
    out += &sides(report, columns);
    out.push('\n');
    out += &match report.waits {
        None => registers(report, columns),
        Some(_) => met(report, columns),
    };
    wrapped(&out, columns)
}

/// Costs of the camera, in sentences.
pub(crate) fn answer(report: &CameraReport) -> String {
    let mut out = format!(
        "A camera writes {} MB/s into buffers of {} on machine {}: {} buffers are mapped, filled and \
         unmapped, each in a frame of {:.0} ms.\n\n",
        report.bytes_per_s / 1_000_000,
        bytes(report.buffer_bytes),
        report.machine,
        report.buffers,
        report.frame_us / 1000.0,
    );
    let of = |variant| report.ways.iter().find(|way| way.variant == variant);
    if let (Some(before), Some(after), Some(ours)) = (of("before"), of("after"), of("portolan")) {
        out += &match &report.waits {
            None => flushes(before, after, ours),
            Some(waits) => {
                let at_longest = match report.ways.as_slice() {
                    [.., two, one] => [two, one],
                    _ => [after, ours],
                };
                walk_flushes([before, after, ours], at_longest, waits)
            }
        };
    }
    out
}

/// Part of a frame that each way and side takes.
fn sides(report: &CameraReport, columns: usize) -> String {
    let mut rows = Vec::new();
    for way in &report.ways {
        for (case, side) in [("map", &way.map), ("unmap", &way.unmap)] {
            let each = |count: u64| grouped(count / report.buffers);
            rows.push(vec![
                way.variant.to_owned(),
                case.to_owned(),
                micros(way.wait_for_safe_us),
                micros(side.buffer_us),
                format!("{:.2}", side.share_pct),
                format!("{:.2}", side.worst_frame_pct),
                each(side.commands.page),
                each(side.commands.range),
                each(side.commands.context),
                each(side.commands.sync),
            ]);
        }
    }
    let header = [
        ("way", 0),
        ("side", 0),
        ("wait-for-safe µs", 0),
        ("µs a buffer", 0),
        ("% of all time", 2),
        ("% of its frame", 0),
        ("commands by page", 1),
        ("by range", 4),
        ("by context", 5),
        ("syncs", 3),
    ];
    let numbers: Vec<usize> = (2..header.len()).collect();
    table(&header, &numbers, rows, columns)
}

/// Registers that Tegra's driver wrote.
fn registers(report: &CameraReport, columns: usize) -> String {
    let ways = report.ways.iter();
    let sides = ways.flat_map(|way| [(way, "map", &way.map), (way, "unmap", &way.unmap)]);
    let rows = sides.filter_map(|(way, case, side)| {
        let mut row = vec![way.variant.to_owned(), case.to_owned()];
        row.extend(side.registers?.columns());
        Some(row)
    });
    let header = [&[("way", 0), ("side", 0)][..], &RegisterWrites::HEADS].concat();
    let numbers: Vec<usize> = (2..header.len()).collect();
    let written = table(&header, &numbers, rows.collect(), columns);
    format!("Registers written for a buffer, as the model counted them\n\n{written}")
}

/// Counts of the camera's accesses.
fn met(report: &CameraReport, columns: usize) -> String {
    let rows = report.ways.iter().map(|way| {
        vec![
            way.variant.to_owned(),
            micros(way.wait_for_safe_us),
            grouped(way.tlb_misses),
            grouped(way.walk_reads),
            micros(way.stall_us),
            grouped(way.meanwhile),
            micros(way.kept_out_us),
        ]
    });
    let header = [
        ("way", 0),
        ("wait-for-safe µs", 0),
        ("misses", 1),
        ("entries read", 2),
        ("stall µs a buffer", 0),
        ("look-ups meanwhile", 3),
        ("else kept out µs", 0),
    ];
    let table = table(&header, &[1, 2, 3, 4, 5, 6], rows.collect(), columns);
    format!(
        "What the camera met: 64 of its pages stay mapped. Look-ups go on while an invalidation runs; a unit that \
         lets none through meanwhile would keep it out for the last column's time a buffer.\n\n{table}"
    )
}

fn flushes(before: &WayReport, after: &WayReport, ours: &WayReport) -> String {
    format!(
        "Unmapping takes {:.1} % of the frame that a buffer falls into when each page is flushed, \
         {:.2} % with one flush an operation, {:.3} % in the library's own way.\n\
         Times are computed. The prices of calls, single pages and flushes were fitted on published latencies; \
         the library's own way also pays for entries at another CPU's price and for lines at an assumed one.\n",
        before.unmap.worst_frame_pct, after.unmap.worst_frame_pct, ours.unmap.worst_frame_pct,
    )
}

fn walk_flushes(
    [before, after, ours]: [&WayReport; 3],
    [two, longest]: [&WayReport; 2],
    waits: &Waits,
) -> String {
    let ([few, many], [one, each], [short, long]) = (waits.waits, waits.computed_us, waits.wait_us);
    format!(
        "By context a buffer's unmap saves {:.0} µs of commands and costs the camera {:.1} µs of walks for what \
         was dropped beside it (a read of memory is assumed to take 100 ns); the library's own way saves {:.0} µs \
         and costs {:.1} µs.\n\
         It was said that unmapping 100 MB took over 100 ms. No number of calls takes that by the fitted prices: \
         one call, a table at a time, takes {:.1} ms, and {} calls of a page {:.1} ms. So each of the {} to {} \
         waits was longer than in the published table, by {} to {short:.1} µs.\n\
         If that is wait-for-safe (hardware that waits for real-time devices before it invalidates), the number of \
         waits decides and not that of commands: at its longest the library's one wait takes {:.1} % of the frame, \
         and two take {:.1} %. Times are computed; the wait for real-time devices was not published.\n",
        before.unmap.buffer_us - after.unmap.buffer_us,
        after.stall_us - before.stall_us,
        before.unmap.buffer_us - ours.unmap.buffer_us,
        ours.stall_us - before.stall_us,
        one / 1000.0,
        grouped(many),
        each / 1000.0,
        grouped(few),
        grouped(many),
        grouped(long.round() as u64),
        longest.unmap.worst_frame_pct,
        two.unmap.worst_frame_pct,
    )
}
