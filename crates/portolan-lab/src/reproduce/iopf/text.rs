//! The reproduction for people.

use super::pattern::{CONTROL_PAGES, DEPTH};
use super::rows::{IopfReproduction, IopfRow};
use crate::reproduce::bounds::Bound;
use crate::reproduce::rows::Check;
use portolan_cli::display::{bytes, grouped, table};

/// The reproduction as text.
pub fn iopf_text(result: &IopfReproduction) -> String {
    let mut out = format!("{} on {}\n\n", result.name, result.machine);
    out.push_str(&figures(result));
    out.push_str(&remarks());
    out.push_str(&prices(result));
    out.push_str("\n\nWindows side by side\n\n");
    out.push_str(&windows(result));
    out.push_str("\n\n");
    out.push_str(&Bound::table(&result.bounds));
    out + &Check::lines(&result.checks)
}

fn figures(result: &IopfReproduction) -> String {
    let rows = result.rows.chunks(4).map(|figures| {
        let first = figures.first();
        let mut cells = vec![
            first.map_or("", |row| row.kind).to_owned(),
            first.map_or(String::new(), |row| bytes(row.msg_len_bytes)),
            (first.and_then(|row| row.premap_pages)).map_or("-".to_owned(), |p| p.to_string()),
            first.map_or(String::new(), |row| grouped(row.times)),
        ];
        cells.extend(figures.iter().flat_map(cells_of));
        cells
    });
    let mut header = vec!["kind", "message", "window", "times"];
    for (published, error) in [
        ("without: published", "error %"),
        ("with: published", "error %"),
        ("faults: published", "error %"),
        ("loss %: published", "points"),
    ] {
        header.extend([published, "computed", error, ""]);
    }
    let numbers = [2, 3, 4, 5, 6, 8, 9, 10, 12, 13, 14, 16, 17, 18];
    table(&header, &numbers, rows.collect())
}

fn remarks() -> String {
    format!(
        "\n\nSpeeds in KB/s. f: fitted on, i: implied by what was, c: counted, p: predicted.\n\
         Two pairs of buffers, used in turn, were inferred from the 1024 faults of a process, so those rows are \
         implied.\nA guest's faults beyond 1024 are those of its queues. Of those,\n\
         {CONTROL_PAGES} pages of control memory were chosen by the row of one message, and queues \
         of {DEPTH} entries\nby the row of 5000.\n\
         Single messages of a guest are far slower than computed, with all memory pinned too: a \
         cold start,\nit seems. What else is in them was not published; they bound nothing.\n\n\
         Fitted prices\n\n"
    )
}

fn prices(result: &IopfReproduction) -> String {
    let prices = result.prices.iter().map(|price| {
        vec![
            price.case.to_owned(),
            price.event.to_owned(),
            format!("{:.0}", price.ns),
            price.fitted_on.to_owned(),
        ]
    });
    let header = ["kind", "price", "ns", "fitted on"];
    table(&header, &[2], prices.collect())
}

fn windows(result: &IopfReproduction) -> String {
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
        "workload",
        "window",
        "faults",
        "pages mapped",
        "pages used",
        "wasted %",
    ];
    table(&header, &[2, 3, 4, 5], windows.collect())
}

fn cells_of(row: &IopfRow) -> [String; 4] {
    let number = |value: f64| match row.quantity {
        "loss_pct" => format!("{value:.1}"),
        _ => grouped(value.round().max(0.0) as u64),
    };
    [
        row.published.map_or("-".to_owned(), number),
        number(row.computed),
        row.error_pct
            .map_or(String::new(), |error| format!("{error:+.1}")),
        row.evidence.word().chars().take(1).collect(),
    ]
}
