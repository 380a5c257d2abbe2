//! The rows of each reproduction as figures of one kind.

use portolan_report::{
    Arrangement, Axis, Bars, Figure, Mark, MarkRow, Marks, Plot, Series, Table, Unit,
};

use crate::reproduce::{
    Evidence, FlushQueue, HeldOut, HeldOutRow, IopfReproduction, LatencyRow, Reproduction, Swiotlb,
    WindowRow,
};
use portolan_cli::display::{bytes, grouped};

/// The plot that an entry belongs to.
#[derive(Clone, Debug)]
pub(super) struct Of {
    pub(super) title: String,
    pub(super) says: &'static str,
    pub(super) axis: Axis,
    /// Unit of errors.
    pub(super) error: &'static str,
}

/// A figure.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) plot: Of,
    /// Row of the plot.
    pub(super) row: String,
    /// Before, after, ours.
    pub(super) variant: String,
    pub(super) published: Option<f64>,
    pub(super) published_range: Option<[f64; 2]>,
    pub(super) computed: f64,
    pub(super) computed_range: Option<[f64; 2]>,
    pub(super) error_pct: Option<f64>,
    pub(super) evidence: Evidence,
}

/// `portolan` is this library's.
fn variant(name: &str) -> String {
    match name {
        "portolan" => "this library".to_owned(),
        other => other.to_owned(),
    }
}

/// A count with its noun: `1 row`, `2 rows`.
fn of_each(count: u64, name: &str) -> String {
    match count {
        1 => format!("1 {name}"),
        _ => format!("{} {name}s", grouped(count)),
    }
}

/// Prices over which computed latencies range.
pub(super) fn ranged_over(rows: &[LatencyRow]) -> Option<String> {
    let mut overs: Vec<_> = rows.iter().filter_map(|row| Some(row.computed_range?.over)).collect();
    overs.sort_unstable();
    overs.dedup();
    (!overs.is_empty()).then(|| format!("Bars around computed marks: {}.", overs.join("; ")))
}

pub(super) fn latencies(result: &Reproduction) -> Vec<Entry> {
    let entry = |row: &LatencyRow| Entry {
        plot: Of {
            title: format!("Time of {}", row.case),
            says: "Latency by the size that is mapped or unmapped. Published marks have no word beside them.",
            axis: Axis::log("latency", Unit::Micros),
            error: "error %",
        },
        row: match &row.size {
            Some(name) => format!("{name} ({})", bytes(row.size_bytes)),
            None => bytes(row.size_bytes),
        },
        variant: variant(row.variant),
        published: row.published,
        published_range: row.published_range,
        computed: row.computed,
        computed_range: row.computed_range.map(|range| [range.low, range.high]),
        error_pct: row.error_pct,
        evidence: row.evidence,
    };
    result.rows.iter().map(entry).collect()
}

pub(super) fn flush_queue(result: &FlushQueue) -> Vec<Entry> {
    let rows = result.rows.iter().map(|row| Entry {
        plot: Of {
            title: "Throughput of a guest that receives".to_owned(),
            says: "By stage, and how the hypervisor follows the guest's tables. Two published figures fix \
                   two prices, so they predict nothing; the others are at most what could be reached.",
            axis: Axis::linear("throughput (Gbit/s)", Unit::Count),
            error: "error %",
        },
        row: format!("{} stage, {}", row.stage, row.shadowing),
        variant: match row.allowed {
            "yes" => row.variant.to_owned(),
            _ => format!("{} (not allowed by the rule)", row.variant),
        },
        published: row.published,
        published_range: None,
        computed: row.computed,
        computed_range: None,
        error_pct: row.error_pct,
        evidence: row.evidence,
    });
    rows.collect()
}

pub(super) fn swiotlb(result: &Swiotlb) -> Vec<Entry> {
    let mut entries = Vec::new();
    for quantity in ["throughput_mb_s", "guest_cpu_pct"] {
        for case in ["fio", "no-device-limit"] {
            let rows =
                result.rows.iter().filter(|row| row.quantity == quantity && row.case == case);
            entries.extend(rows.map(|row| Entry {
                plot: pool_plot(quantity, case),
                row: format!("{}, {}", of_each(row.jobs as u64, "job"), row.direction),
                variant: variant(row.variant),
                published: row.published,
                published_range: None,
                computed: row.computed,
                computed_range: None,
                error_pct: row.error_pct,
                evidence: row.evidence,
            }));
        }
    }
    entries
}

fn pool_plot(quantity: &str, case: &str) -> Of {
    let (what, axis) = match quantity {
        "throughput_mb_s" => ("Throughput", Axis::linear("throughput (MB/s)", Unit::Count)),
        _ => ("Guest CPU", Axis::linear("guest CPU, one CPU is 100 %", Unit::Percent)),
    };
    let (title, says) = match case {
        "fio" => (format!("{what} of fio"), "By number of jobs, reading and writing."),
        _ => (
            format!("{what} with a device that takes no time"),
            "The same with a device that takes no time, so that the pool alone limits it. Nothing was \
             published of that.",
        ),
    };
    Of { title, says, axis, error: "error %" }
}

pub(super) fn iopf(result: &IopfReproduction) -> Vec<Entry> {
    let plots = [
        ("speed_kb_s", "Speed", Axis::log("speed (KB/s)", Unit::Count), "error %"),
        ("faults", "Faults", Axis::log("faults", Unit::Count), "error %"),
        (
            "loss_pct",
            "Speed that faults cost",
            Axis::linear("of the speed without faults", Unit::Percent),
            "error, points",
        ),
    ];
    let mut entries = Vec::new();
    for (quantity, title, axis, error) in plots {
        let rows = result.rows.iter().filter(|row| row.quantity == quantity);
        entries.extend(rows.map(|row| {
            let window = row.premap_pages;
            let window = window.map_or(String::new(), |pages| {
                format!(", window of {}", of_each(u64::from(pages), "page"))
            });
            Entry {
                plot: Of {
                    title: title.to_owned(),
                    says: "By whose memory it is (a guest's, vfio; a process's, sva), the size of a \
                           message, and how many there are.",
                    axis: axis.clone(),
                    error,
                },
                row: format!(
                    "{} {}, {}{window}",
                    row.kind,
                    bytes(row.msg_len_bytes),
                    of_each(row.times, "time")
                ),
                variant: format!("{} faults", row.variant),
                published: row.published,
                published_range: None,
                computed: row.computed,
                computed_range: None,
                error_pct: row.error_pct,
                evidence: row.evidence,
            }
        }));
    }
    entries
}

/// Windows of pages that a fault maps, side by side.
pub(super) fn windows(windows: &[WindowRow]) -> Figure {
    let name = |row: &WindowRow| format!("{}, {}", row.workload, row.window);
    let series = |name: &str, of: fn(&WindowRow) -> u64| Series {
        name: name.to_owned(),
        values: windows.iter().map(|row| of(row) as f64).collect(),
    };
    let plot = Plot::Bars(Bars {
        categories: windows.iter().map(name).collect(),
        values: Axis::linear("pages mapped", Unit::Count),
        series: vec![
            series("accessed", |row| row.pages_used.min(row.pages_mapped)),
            series("not accessed", |row| row.pages_mapped.saturating_sub(row.pages_used)),
        ],
        arrangement: Arrangement::StackedRows,
    });
    let rows = windows.iter().map(|row| {
        [
            name(row),
            grouped(row.faults),
            grouped(row.pages_mapped),
            grouped(row.pages_used),
            format!("{:.1}", row.wasted_pct),
        ]
    });
    let head = ["load, window", "faults", "pages mapped", "accessed", "wasted %"];
    Figure::new(
        "Windows side by side",
        "How many pages a fault should map: more at once are fewer faults, and more pages that nobody \
         accesses. Windows are of as many pages, or adapt to the load.",
        windows.is_empty().then_some("no windows were compared"),
        plot,
        Table::new(head, rows),
    )
}

/// Figures of different units, each as a multiple of the middle of the published ones.
pub(super) fn held_out(result: &HeldOut) -> Figure {
    let name = |row: &HeldOutRow| format!("{}, {}", row.case, row.quantity.replace('_', " "));
    let row = |row: &HeldOutRow| {
        let [low, high] = row.published;
        let middle = (low + high) / 2.0;
        let mark = |series, value, range: Option<[f64; 2]>, word: &str| Mark {
            series,
            value: value / middle,
            range: range.map(|ends| ends.map(|end| end / middle)),
            word: word.to_owned(),
        };
        MarkRow {
            name: name(row),
            marks: vec![
                mark(0, middle, (low < high).then_some([low, high]), ""),
                mark(1, row.computed, None, row.evidence.word()),
                mark(2, row.trivial, None, ""),
            ],
        }
    };
    let plot = Plot::Marks(Marks {
        values: Axis::log("parts of what was published", Unit::Count),
        series: ["published", "computed", "no effect at all"].map(str::to_owned).to_vec(),
        rows: result.rows.iter().map(row).collect(),
    });
    let rows = result.rows.iter().map(|row| [name(row)].into_iter().chain(row.cells()).collect());
    let head =
        ["figure", "prices of", "published", "computed", "error %", "of no effect %", "evidence"];
    Figure {
        title: "Computed beside published".to_owned(),
        says: "The figures have different units, so each is in parts of the middle of what was published: 1 is as \
               published, 2 twice as much. Bars are the ends of what was published."
            .to_owned(),
        plot,
        table: Table {
            head: head.map(str::to_owned).to_vec(),
            rows: rows.collect(),
        },
    }
}
