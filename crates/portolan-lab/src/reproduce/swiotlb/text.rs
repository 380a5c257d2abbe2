//! The bounce-pool reproduction for people.

use super::super::rows::Check;
use super::Swiotlb;
use portolan_cli::display::table;

/// The reproduction as text.
pub fn swiotlb_text(result: &Swiotlb) -> String {
    let mut out = format!("{} on {}\n\n", result.name, result.machine);
    // Two rows a run: throughput, then guest CPU.
    let rows = result.rows.chunks(2).filter_map(|pair| {
        let [throughput, cpu] = pair else {
            return None;
        };
        let kind = |row: &super::Row| match (row.published, row.fitted) {
            (None, _) => "",
            (_, true) => "fitted",
            (_, false) => "predicted",
        };
        let published = |row: &super::Row| row.published.map_or("-".to_owned(), |v| v.to_string());
        let error = |row: &super::Row| {
            row.error_pct
                .map_or(String::new(), |error| format!("{error:+.1}"))
        };
        Some(vec![
            throughput.case.to_owned(),
            throughput.jobs.to_string(),
            throughput.direction.to_owned(),
            throughput.variant.to_owned(),
            published(throughput),
            format!("{:.0}", throughput.computed),
            error(throughput),
            kind(throughput).to_owned(),
            published(cpu),
            format!("{:.1}", cpu.computed),
            error(cpu),
            kind(cpu).to_owned(),
            format!("{:.3}", throughput.lock_waits),
        ])
    });
    let header = [
        "case",
        "jobs",
        "direction",
        "variant",
        "published MB/s",
        "computed MB/s",
        "error %",
        "",
        "published guest CPU %",
        "computed guest CPU %",
        "error %",
        "",
        "lock waits",
    ];
    let numbers = [1, 4, 5, 6, 8, 9, 10, 12];
    out.push_str(&table(&header, &numbers, rows.collect()));
    out.push_str(NOTE);
    out.push_str(&prices(result));
    out + &Check::lines(&result.checks)
}

/// What the columns are.
const NOTE: &str = "\n\nComputed figures are the pools' own code on 8 virtual CPUs in virtual time. \
    The library's pool is given the work\nthat the optimized kernel does for a request, so the two \
    differ by what CPUs do to each other in the pool, and by\nnothing else. Lock waits are by \
    request.\n\nFitted prices\n\n";

/// The fitted prices as a table.
fn prices(result: &Swiotlb) -> String {
    let rows = result.prices.iter().map(|price| {
        vec![
            price.event.to_owned(),
            price.case.to_owned(),
            format!("{:.1}", price.ns),
            price.fitted_on.to_owned(),
        ]
    });
    let header = ["price", "direction", "ns", "fitted on"];
    table(&header, &[2], rows.collect()) + "\n\n"
}
