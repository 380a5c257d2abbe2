//! A reproduction for people: its answer, then the tables.

use super::bounds::{Bound, EVIDENCE_IN_WORDS};
use super::registers;
use super::rows::{Check, FittedPrice, LatencyRow, Reproduction, verdict};
use portolan_cli::display;

/// The cells of one row.
fn cells(row: &LatencyRow) -> Vec<String> {
    let size = display::bytes(row.size_bytes);
    let published = match row.published_range {
        Some([low, high]) => format!("{low:.0} to {high:.0}"),
        None => row.published.map_or("-".to_owned(), |us| format!("{us:.3}")),
    };
    let end = |us: Option<f64>| us.map_or(String::new(), |us| format!("{us:.1}"));
    vec![
        row.case.to_owned(),
        row.size.as_ref().map_or(size.clone(), |name| format!("{name} ({size})")),
        row.variant.to_owned(),
        published,
        format!("{:.3}", row.computed),
        row.error_pct.map_or(String::new(), |error| format!("{error:+.1}")),
        row.evidence.word().to_owned(),
        end(row.computed_range.map(|range| range.low)),
        end(row.computed_range.map(|range| range.high)),
        display::grouped(row.counts.page),
        display::grouped(row.counts.range),
        display::grouped(row.counts.context),
        display::grouped(row.counts.sync),
    ]
}

/// Meaning of the columns, for `--help`.
pub const COLUMNS_IN_WORDS: &str = "\
Columns of the tables, those that do not fit the terminal left out (`--wide`
prints all):
  case, size     what is done (map, unmap, give an address space up), of how much
  variant        before and after the published change, or the library's own way
                 (portolan); others are halves of the change
  published      the figure in the publication; computed: from what the
                 library's code does and the prices of the machine's profile
  error %        of the computed figure against the published one
  evidence       fitted: prices were chosen so that it comes near; implied: it
                 follows from those; counted: by the model; predicted: nothing
                 was fitted on it, and it could have come out wrong; computed:
                 nobody published anything to hold it against
  from, to       the least and the most it may be, over prices that are not known
  by page, range, context; syncs
                 invalidation commands by what they name, and waits for them
  lines cleaned  cache lines of tables written back to memory
  writes, reads  of the driver's registers; PTC and TLB are the two caches of
                 Tegra's SMMU: all of the PTC, a line of it, the upper bits of
                 that line's address; a space (address space), 4 MiB or 16 KiB
                 of the TLB
  jobs, direction, guest CPU %
                 of fio in a guest, and what its CPUs do; MB/s is throughput,
                 lock waits are by request, pool pages used those of the bounce
                 pool; thousand requests/s and host CPU % are published only
  stage, followed by, policy
                 of throughput in Gbit/s: of the guest's tables, how the hypervisor follows them
                 (shadowing), and whether each unmap is invalidated at once;
                 exits are to the hypervisor
  device, asked for
                 whether the device is trusted, and what somebody asked for
  kind, message, messages, window, figure
                 a guest's device (vfio) or a process's (sva), the size and
                 number of its messages, how many pages a fault maps, and what
                 is counted or measured
  workload, faults, pages mapped, pages used, wasted %
                 what maps on faults, how often it faults, and what of it is
                 never used
  publication, quantity, prices of, error % of no effect
                 of figures that nothing was fitted on: which, the machine that
                 comes nearest, and the error of saying that nothing changes
  price, ns, of, fitted on
                 what an operation takes by the fit, and the rows it was fitted on
  bound, on      whether a promise is kept, and on which figures; within %: what
                 is promised; worst %: what was found; with its mechanism off:
                 what would be without what the figure speaks for; trivial
                 predictor: what a guess without the model comes to; so it is:
                 the evidence that follows";

/// The change, its published and its computed figures, in sentences.
fn answer(result: &Reproduction) -> String {
    let change = match result.name.as_str() {
        "walk-flush" => {
            "a whole address space was invalidated instead of each page (Qualcomm, 2021)"
        }
        _ => "caches were flushed once an operation instead of once a page (NVIDIA, 2015)",
    };
    let unmaps = || result.rows.iter().filter(|row| row.case == "unmap");
    let published = unmaps().filter(|row| row.variant == "before" && row.published.is_some());
    let Some(largest) = published.max_by_key(|row| row.size_bytes) else {
        return String::new();
    };
    let of = |variant| {
        let mut rows = unmaps();
        rows.find(|row| row.variant == variant && row.size_bytes == largest.size_bytes)
    };
    let us = |us: Option<f64>| us.map_or("-".to_owned(), display::micros);
    let computed = |variant| us(of(variant).map(|row| row.computed));
    let published = |variant| us(of(variant).and_then(|row| row.published));
    format!(
        "Published: unmapping {} took {} µs before and {} µs after {change}. Computed: {} and {} µs, and {} µs \
         in the library's own way. ",
        display::bytes(largest.size_bytes),
        published("before"),
        published("after"),
        computed("before"),
        computed("after"),
        computed("portolan"),
    )
}

/// A reproduction as text, in lines of `columns`.
pub fn text(result: &Reproduction, columns: usize) -> String {
    let rows = result.rows.iter().map(cells).collect();
    let header = [
        ("case", 0),
        ("size", 0),
        ("variant", 0),
        ("published µs", 0),
        ("computed µs", 0),
        ("error %", 1),
        ("evidence", 2),
        ("from µs", 7),
        ("to µs", 8),
        ("by page", 3),
        ("by range", 6),
        ("by context", 4),
        ("syncs", 5),
    ];
    let mut out = format!("{} on machine {}. ", result.name, result.machine);
    out += &answer(result);
    out += &verdict(&result.bounds, &result.checks);
    out.push('\n');
    let numbers = [3, 4, 5, 7, 8, 9, 10, 11, 12];
    out += &display::table(&header, &numbers, rows, columns);
    out += EVIDENCE_IN_WORDS;
    let overs = result.rows.iter().filter_map(|row| Some(row.computed_range?.over));
    let mut overs: Vec<_> = overs.collect();
    overs.sort_unstable();
    overs.dedup();
    for over in overs {
        out += &format!("From, to: {over}.\n");
    }
    out += &registers::text(&result.rows, columns);
    out += &prices_text(&result.prices, columns);
    out += &Bound::table(&result.bounds, columns);
    out += &Check::lines(&result.checks);
    for note in &result.notes {
        out.push_str(note);
        out.push('\n');
    }
    display::wrapped(&out, columns)
}

/// Prices that a fit found, as a table.
pub(super) fn prices_text(prices: &[FittedPrice], columns: usize) -> String {
    let rows = prices.iter().map(|price| {
        vec![
            price.case.to_owned(),
            price.event.to_owned(),
            format!("{:.1}", price.ns),
            price.fitted_on.to_owned(),
        ]
    });
    let header = [("of", 0), ("price", 0), ("ns", 0), ("fitted on", 0)];
    let table = display::table(&header, &[2], rows.collect(), columns);
    format!("\nFitted prices\n\n{table}\n")
}
