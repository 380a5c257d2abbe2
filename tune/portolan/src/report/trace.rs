//! Contents of the trace, the same for all policies: sizes, lifetimes, devices, CPUs.

use portolan_report::{Arrangement, Axis, Bars, Figure, Plot, Section, Series, Table, Unit};

use crate::replay::{ClassShape, Histogram, Share, TraceReport, TraceShape};
use portolan_cli::display::{counted as counted_as, grouped};

/// Devices or CPUs with a bar of their own.
const MOST_BARS: usize = 24;

/// Numbers of the trace's operations and bytes, in a sentence.
pub(super) fn counted(trace: &TraceReport) -> String {
    format!(
        "{}: {} of {}, {}, {}; {} still mapped where the trace ends.",
        counted_as(trace.events, "event"),
        counted_as(trace.maps, "streaming map"),
        Unit::Bytes.say(trace.bytes_mapped as f64),
        counted_as(trace.unmaps, "unmap"),
        counted_as(trace.coherent_allocs, "coherent allocation"),
        grouped(trace.left_mapped),
    )
}

/// Sizes and lifetimes.
pub(super) fn mappings(shape: &TraceShape) -> Section {
    Section {
        heading: "Sizes and lifetimes of mappings".to_owned(),
        says: vec![
            "Streaming maps are made for one transfer (dma_map_*), coherent memory is allocated for as long \
             as a driver runs (dma_alloc*)."
                .to_owned(),
        ],
        figures: vec![
            histogram(
                "Sizes",
                "How many mappings have which size: each column has sizes from its name up to the next.",
                "the trace maps nothing",
                shape,
                |class| &class.sizes,
                |lg2| Unit::Bytes.say(power(lg2)),
            ),
            histogram(
                "Lifetimes",
                "How long mappings lived, from map to unmap: each column has times from its name up to twice that.",
                "no mapping ends in the trace",
                shape,
                |class| &class.lifetimes_ns,
                |lg2| Unit::Micros.say(power(lg2) / 1000.0),
            ),
        ],
        ..Section::default()
    }
}

fn power(lg2: u8) -> f64 {
    f64::from(lg2).exp2()
}

fn histogram(
    title: &str,
    says: &str,
    none: &str,
    shape: &TraceShape,
    of: fn(&ClassShape) -> &Histogram,
    name: impl Fn(u8) -> String,
) -> Figure {
    let classes = [("streaming", &shape.streaming), ("coherent", &shape.coherent)];
    let classes = classes.map(|(class, counts)| (class, of(counts)));
    let first = classes.iter().filter_map(|(_, counts)| counts.keys().next()).min();
    let last = classes.iter().filter_map(|(_, counts)| counts.keys().next_back()).max();
    let keys: Vec<u8> = match (first, last) {
        (Some(first), Some(last)) => (*first..=*last).collect(),
        _ => Vec::new(),
    };
    let count = |counts: &Histogram, key: &u8| counts.get(key).map_or(0, |seen| seen.count);
    let used = classes.iter().filter(|(_, counts)| !counts.is_empty());
    let series = used.clone().map(|(class, counts)| Series {
        name: (*class).to_owned(),
        values: keys.iter().map(|key| count(counts, key) as f64).collect(),
    });
    let plot = Plot::Bars(Bars {
        categories: keys.iter().map(|key| name(*key)).collect(),
        values: Axis::linear("mappings", Unit::Count),
        series: series.collect(),
        arrangement: Arrangement::StackedColumns,
    });
    let rows = keys.iter().map(|key| {
        let mut row = vec![name(*key)];
        row.extend(used.clone().map(|(_, counts)| grouped(count(counts, key))));
        row.extend(used.clone().map(|(_, counts)| {
            let bytes = counts.get(key).map_or(0, |seen| seen.bytes);
            Unit::Bytes.say(bytes as f64)
        }));
        row
    });
    let mut head = vec!["from".to_owned()];
    head.extend(used.clone().map(|(class, _)| format!("{class} mappings")));
    head.extend(used.clone().map(|(class, _)| format!("{class} bytes")));
    let table = Table { head, rows: rows.collect() };
    Figure::new(title, says, keys.is_empty().then_some(none), plot, table)
}

/// Devices and CPUs of the operations.
pub(super) fn devices_and_cpus(shape: &TraceShape) -> Section {
    let cpus: Vec<Share> = shape
        .cpus
        .iter()
        .map(|share| Share { name: format!("CPU {}", share.name), ..share.clone() })
        .collect();
    Section {
        heading: "Devices and CPUs".to_owned(),
        says: Vec::new(),
        figures: vec![
            shares("Devices", "device", &shape.devices, &shape.other_devices),
            shares("CPUs", "CPU", &cpus, &shape.other_cpus),
        ],
        ..Section::default()
    }
}

fn shares(title: &str, what: &str, all: &[Share], others: &Share) -> Figure {
    let operations = |share: &Share| share.maps.count + share.unmaps;
    let mut busiest: Vec<(usize, &Share)> = all.iter().enumerate().collect();
    busiest.retain(|(_, share)| operations(share) > 0);
    busiest.sort_by_key(|(_, share)| std::cmp::Reverse(operations(share)));
    let less = busiest.split_off(busiest.len().min(MOST_BARS));
    busiest.sort_by_key(|(index, _)| *index);
    let mut shown: Vec<Share> = busiest.iter().map(|(_, share)| (*share).clone()).collect();
    let mut rest = others.clone();
    rest.name = "others".to_owned();
    for (_, share) in less {
        rest.maps.count += share.maps.count;
        rest.maps.bytes = rest.maps.bytes.saturating_add(share.maps.bytes);
        rest.unmaps += share.unmaps;
    }
    if operations(&rest) > 0 {
        shown.push(rest);
    }
    let of = |name: &str, of: fn(&Share) -> u64| Series {
        name: name.to_owned(),
        values: shown.iter().map(|share| of(share) as f64).collect(),
    };
    let plot = Plot::Bars(Bars {
        categories: shown.iter().map(|share| share.name.clone()).collect(),
        values: Axis::linear("operations", Unit::Count),
        series: vec![of("maps", |share| share.maps.count), of("unmaps", |share| share.unmaps)],
        arrangement: Arrangement::StackedRows,
    });
    let rows = shown.iter().map(|share| {
        [
            share.name.clone(),
            grouped(share.maps.count),
            grouped(share.unmaps),
            Unit::Bytes.say(share.maps.bytes as f64),
        ]
    });
    let head = [what, "maps", "unmaps", "mapped"];
    Figure::new(
        title,
        "Maps and unmaps by who asked for them, coherent memory included.",
        shown.is_empty().then_some("the trace maps nothing"),
        plot,
        Table::new(head, rows),
    )
}
