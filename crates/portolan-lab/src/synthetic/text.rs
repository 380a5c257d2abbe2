//! A synthetic load as text.

use super::camera::Report;
use crate::counts::RegisterWrites;
use portolan_cli::display;

/// The report for people.
pub fn text(report: &Report) -> String {
    let mut rows = Vec::new();
    let mut registers = Vec::new();
    for way in &report.ways {
        for (case, side) in [("map", &way.map), ("unmap", &way.unmap)] {
            rows.push(vec![
                way.variant.to_owned(),
                case.to_owned(),
                display::micros(side.buffer_us),
                format!("{:.2}", side.share_pct),
                format!("{:.2}", side.worst_frame_pct),
            ]);
            let mut row = vec![way.variant.to_owned(), case.to_owned()];
            row.extend(side.registers.columns());
            registers.push(row);
        }
    }
    let header = ["way", "", "µs a buffer", "% of all time", "% of its frame"];
    let mut out = format!(
        "camera on {}: {} buffers of {} at {} MB/s, frames of {:.0} ms\n\n",
        report.machine,
        report.buffers,
        display::bytes(report.buffer_bytes),
        report.bytes_per_s / 1_000_000,
        report.frame_us / 1000.0,
    );
    out.push_str(&display::table(&header, &[2, 3, 4], rows));
    out.push_str("\n\nRegisters written for a buffer, as the model counted them\n\n");
    let header = [&["way", ""][..], &RegisterWrites::HEADS].concat();
    let numbers: Vec<usize> = (2..header.len()).collect();
    out.push_str(&display::table(&header, &numbers, registers));
    out.push_str("\n\n");
    let of = |variant| report.ways.iter().find(|way| way.variant == variant);
    if let (Some(before), Some(after), Some(ours)) = (of("before"), of("after"), of("portolan")) {
        out.push_str(&format!(
            "Unmapping takes {:.1} % of the frame that a buffer falls into when each page is flushed, \
             {:.2} % with one flush an operation, {:.3} % in the library's own way.\n\
             Times are computed. The prices of calls, single pages and flushes were fitted on published latencies; \
             the library's own way also pays for entries at another CPU's price and for lines at an assumed one.\n",
            before.unmap.worst_frame_pct, after.unmap.worst_frame_pct, ours.unmap.worst_frame_pct,
        ));
    }
    out
}
