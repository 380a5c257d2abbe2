//! The bounce-pool reproduction for people.

use super::super::bounds::{Bound, EVIDENCE_IN_WORDS};
use super::super::rows::{Check, verdict};
use super::super::text::prices_text;
use super::Swiotlb;
use portolan_cli::display::{table, wrapped};

/// The reproduction as text, in lines of `columns`.
pub fn swiotlb_text(result: &Swiotlb, columns: usize) -> String {
    let mut out = format!("{} on machine {}. ", result.name, result.machine);
    out += &answer(result);
    out += &verdict(&result.bounds, &result.checks);
    out.push('\n');
    // Two rows a run: throughput, then guest CPU.
    let rows = result.rows.chunks(2).filter_map(|pair| {
        let [throughput, cpu] = pair else {
            return None;
        };
        let kind = |row: &super::ThroughputRow| row.evidence.word();
        let published =
            |row: &super::ThroughputRow| row.published.map_or("-".to_owned(), |v| v.to_string());
        let error = |row: &super::ThroughputRow| {
            row.error_pct.map_or(String::new(), |error| format!("{error:+.1}"))
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
        ("case", 0),
        ("jobs", 0),
        ("direction", 0),
        ("variant", 0),
        ("published MB/s", 0),
        ("computed MB/s", 0),
        ("error %", 3),
        ("evidence", 5),
        ("published guest CPU %", 0),
        ("computed guest CPU %", 0),
        ("error of CPU %", 4),
        ("evidence of CPU", 6),
        ("lock waits", 1),
        ("pool pages used", 2),
    ];
    let numbers = [1, 4, 5, 6, 8, 9, 10, 12, 13];
    out += &table(&header, &numbers, rows.collect(), columns);
    out += EVIDENCE_IN_WORDS;
    out += NOTE;
    out += &prices_text(&result.prices, columns);
    out += &not_modelled(result, columns);
    out += &Bound::table(&result.bounds, columns);
    out += &Check::lines(&result.checks);
    wrapped(&out, columns)
}

/// Published and computed figures of the load that the change was for.
fn answer(result: &Swiotlb) -> String {
    let of = |variant: &str, quantity: fn(&super::ThroughputRow) -> bool| {
        let mut rows = result.rows.iter();
        let row = rows.find(|row| {
            let load = (row.case, row.jobs, row.direction) == ("fio", 4, "read");
            load && row.variant == variant && quantity(row)
        });
        row.map_or(("-".to_owned(), "-".to_owned()), |row| {
            let published = row.published.map_or("-".to_owned(), |value| format!("{value:.0}"));
            (published, format!("{:.0}", row.computed))
        })
    };
    let [before, after] = ["vanilla", "optimized"].map(|variant| of(variant, is_throughput));
    let ours = of("portolan", is_throughput);
    format!(
        "Published: four jobs that read 4 KiB blocks through one bounce pool get {} MB/s where the pool has one \
         lock, and {} MB/s where it is split into areas with a lock each. Computed: {} and {} MB/s, and {} MB/s \
         with the library's own pool, which has no lock. ",
        before.0, after.0, before.1, after.1, ours.1
    )
}

fn is_throughput(row: &super::ThroughputRow) -> bool {
    row.quantity.starts_with("throughput")
}

/// Meaning of the columns.
const NOTE: &str = "Computed figures are the pools' own code on 8 virtual CPUs in virtual time. \
    The library's pool is given the work that the optimized kernel does for a request, so the two \
    differ by what CPUs do to each other in the pool, and by nothing else. Lock waits are by \
    request; pool pages are those that were in use at one time or another.\n\
    Of the three patches the areas decide the throughput. Bitmaps shorten what is done under a lock, which \
    here is in the fitted work, and the run that was freed last, first, keeps the pool's pages few, for caches \
    that this model does not have.\n\
    No one work for each direction explains both kernels: nothing in the patches tells a read from a write, \
    yet the optimized kernel's reads are faster by more than its writes are.\n";

/// Published rows that are not computed.
fn not_modelled(result: &Swiotlb, columns: usize) -> String {
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
        ("jobs", 0),
        ("direction", 0),
        ("variant", 0),
        ("thousand requests/s", 0),
        ("host CPU %", 0),
    ];
    let table = table(&header, &[0, 3, 4], rows.collect(), columns);
    format!(
        "Published and not modelled: a host's CPUs are no part of this, and requests a second are the \
         throughput in other words\n\n{table}\n"
    )
}
