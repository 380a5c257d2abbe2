//! The bounce-pool reproduction for people.

use super::super::bounds::Bound;
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
        let kind = |row: &super::Row| row.evidence.word();
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
            throughput.pool_pages.to_string(),
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
        "pool pages used",
    ];
    let numbers = [1, 4, 5, 6, 8, 9, 10, 12, 13];
    out.push_str(&table(&header, &numbers, rows.collect()));
    out.push_str(NOTE);
    out.push_str(&prices(result));
    out.push_str(&not_modelled(result));
    out.push_str(&Bound::table(&result.bounds));
    out + &Check::lines(&result.checks)
}

/// What the columns are.
const NOTE: &str = "\n\nComputed figures are the pools' own code on 8 virtual CPUs in virtual time. \
    The library's pool is given the work\nthat the optimized kernel does for a request, so the two \
    differ by what CPUs do to each other in the pool, and by\nnothing else. Lock waits are by \
    request; pool pages are those that were in use at one time or another.\nOf the three patches the \
    areas decide the throughput. Bitmaps shorten what is done under a lock, which here is in\n\
    the fitted work, and the run that was freed last, first, keeps the pool's pages few, for caches \
    that this model does not have.\nNo one work for each direction explains both kernels: nothing in \
    the patches tells a read from a write, yet the optimized\nkernel's reads are faster by more than \
    its writes are.\n\nFitted prices\n\n";

/// What was published and is not computed.
fn not_modelled(result: &Swiotlb) -> String {
    let rows = result.not_modelled.iter().map(|row| {
        vec![
            row.jobs.to_string(),
            row.direction.to_owned(),
            row.variant.to_owned(),
            row.iops_k.to_string(),
            row.host_cpu_pct.to_string(),
        ]
    });
    let header = [
        "jobs",
        "direction",
        "variant",
        "thousand requests/s",
        "host CPU %",
    ];
    let table = table(&header, &[0, 3, 4], rows.collect());
    format!(
        "Published and not modelled: a host's CPUs are no part of this, and requests a second are the \
         throughput in other words\n\n{table}\n\n"
    )
}

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
