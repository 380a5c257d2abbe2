//! The reproduction for people.

use super::pattern::{CONTROL_PAGES, DEPTH};
use super::rows::{IopfReproduction, IopfRow};
use crate::reproduce::bounds::{Bound, EVIDENCE_IN_WORDS};
use crate::reproduce::rows::{Check, verdict};
use crate::reproduce::text::prices_text;
use portolan_cli::display::{bytes, grouped, table, wrapped};

/// The reproduction as text, in lines of `columns`.
pub fn iopf_text(result: &IopfReproduction, columns: usize) -> String {
    let mut out = format!("{} on machine {}. ", result.name, result.machine);
    out += &answer(result);
    out += &verdict(&result.bounds, &result.checks);
    out.push('\n');
    out += &figures(result, columns);
    out += EVIDENCE_IN_WORDS;
    out += &remarks();
    out += &prices_text(&result.prices, columns);
    out += "Windows side by side: how many pages a fault maps at once, and how many of them are used\n\n";
    out += &windows(result, columns);
    out.push('\n');
    out += &Bound::table(&result.bounds, columns);
    out += &Check::lines(&result.checks);
    wrapped(&out, columns)
}

/// Published and computed figures of the longest run of a guest.
fn answer(result: &IopfReproduction) -> String {
    let of = |quantity: &str| {
        let rows = result.rows.iter().filter(|row| {
            let guest = row.kind == "vfio" && row.quantity == quantity;
            guest && row.variant == "with" && row.published.is_some()
        });
        rows.max_by_key(|row| (row.times, row.msg_len_bytes))
    };
    let (Some(loss), Some(faults)) = (of("loss_pct"), of("faults")) else {
        return String::new();
    };
    format!(
        "A device that encrypts {} messages of {} in memory that nobody pinned, so that its first accesses fault. \
         Published: {} faults, {:.1} % of the speed lost; computed: {} and {:.1} %. ",
        grouped(loss.times),
        bytes(loss.msg_len_bytes),
        grouped(faults.published.unwrap_or_default().round() as u64),
        loss.published.unwrap_or_default(),
        grouped(faults.computed.round() as u64),
        loss.computed,
    )
}

/// A line for each figure; cells that four lines have in common are in the first.
fn figures(result: &IopfReproduction, columns: usize) -> String {
    let rows = result.rows.iter().enumerate().map(|(number, row)| {
        let mut cells = match number % 4 {
            0 => vec![
                row.kind.to_owned(),
                bytes(row.msg_len_bytes),
                row.premap_pages.map_or("-".to_owned(), |pages| pages.to_string()),
                grouped(row.times),
            ],
            _ => vec![String::new(); 4],
        };
        let what = match (row.quantity, row.variant) {
            ("speed_kb_s", "without") => "pinned KB/s",
            ("speed_kb_s", _) => "faults KB/s",
            ("faults", _) => "faults",
            _ => "lost %",
        };
        cells.push(what.to_owned());
        cells.extend(cells_of(row));
        cells
    });
    let header = [
        ("kind", 0),
        ("message", 0),
        ("window, pages", 2),
        ("messages", 0),
        ("figure", 0),
        ("published", 0),
        ("computed", 0),
        ("error %", 1),
        ("evidence", 3),
    ];
    table(&header, &[2, 3, 5, 6, 7], rows.collect(), columns)
}

fn remarks() -> String {
    format!(
        "Pinned: the speed with all memory pinned; faults: with faults; lost: what of it they cost, its error in \
         points. vfio: a guest's device; sva: a process's.\n\
         Two pairs of buffers, used in turn, were inferred from the 1024 faults of a process, so those rows are \
         implied. A guest's faults beyond 1024 are those of its queues. Of those, {CONTROL_PAGES} pages of control \
         memory were chosen by the row of one message, and queues of {DEPTH} entries by the row of 5000.\n\
         Single messages of a guest are far slower than computed, with all memory pinned too: a cold start, it \
         seems. What else is in them was not published; they bound nothing.\n"
    )
}

fn windows(result: &IopfReproduction, columns: usize) -> String {
    let windows = result.windows.iter().map(|row| {
        vec![
            row.workload.to_owned(),
            row.window.clone(),
            grouped(row.faults),
            grouped(row.pages_mapped),
            grouped(row.pages_used),
            format!("{:.1}", row.wasted_pct),
        ]
    });
    let header = [
        ("workload", 0),
        ("window, pages", 0),
        ("faults", 0),
        ("pages mapped", 0),
        ("pages used", 0),
        ("wasted %", 0),
    ];
    table(&header, &[2, 3, 4, 5], windows.collect(), columns)
}

fn cells_of(row: &IopfRow) -> [String; 4] {
    let number = |value: f64| match row.quantity {
        "loss_pct" => format!("{value:.1}"),
        _ => grouped(value.round().max(0.0) as u64),
    };
    [
        row.published.map_or("-".to_owned(), number),
        number(row.computed),
        row.error_pct.map_or(String::new(), |error| format!("{error:+.1}")),
        row.evidence.word().to_owned(),
    ]
}
