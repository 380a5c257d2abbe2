//! The page of `synthetic camera`: costs of a buffer in each way, and the unit's work for it.

use portolan_report::{
    Arrangement, Axis, Bars, Figure, Mark, MarkRow, Marks, Origin, Page, Plot, Section, Series,
    Table, Unit,
};

use crate::synthetic::camera::{CameraReport, Side, WayReport};
use crate::synthetic::{Waits, answer};
use portolan_cli::display::grouped;
use portolan_tune::counts::RegisterWrites;

/// The page of `report`, made as `origin` says.
pub fn camera(report: &CameraReport, origin: Origin) -> Page {
    let text = answer(report);
    let answer = text.lines().filter(|line| !line.is_empty());
    let mut sections = vec![costs(report)];
    match &report.waits {
        None => sections.push(written(report)),
        Some(waits) => sections.extend([met(report), told(waits)]),
    }
    Page {
        title: format!("A camera on machine {}", report.machine),
        answer: answer.map(str::to_owned).collect(),
        sections,
        origin,
        ..Page::default()
    }
}

/// Name of a way: with the wait of its syncs where one is assumed.
fn name(way: &WayReport) -> String {
    match way.wait_for_safe_us {
        us if us > 0.0 => format!("{}, wait-for-safe {}", way.variant, micros(us)),
        _ => way.variant.to_owned(),
    }
}

fn micros(us: f64) -> String {
    Unit::Micros.say(us)
}

/// Either side of each way, named.
fn sides(report: &CameraReport) -> impl Iterator<Item = (String, &Side)> {
    report.ways.iter().flat_map(|way| {
        let name = name(way);
        [(format!("{name}: map"), &way.map), (format!("{name}: unmap"), &way.unmap)]
    })
}

/// A mark of each series, without more words than its value.
fn each<const N: usize>(values: [f64; N]) -> Vec<Mark> {
    let mark = |(series, value)| Mark { series, value, range: None, word: String::new() };
    values.into_iter().enumerate().map(mark).collect()
}

fn marks(values: Axis, series: &[&str], rows: impl Iterator<Item = (String, Vec<Mark>)>) -> Plot {
    let rows = rows.map(|(name, marks)| MarkRow { name, marks });
    Plot::Marks(Marks {
        values,
        series: series.iter().map(|name| (*name).to_owned()).collect(),
        rows: rows.collect(),
    })
}

fn costs(report: &CameraReport) -> Section {
    Section {
        heading: "What a buffer costs".to_owned(),
        says: vec![
            "Before: page by page, without the published change. After: page by page, with it. Portolan: the \
             library's own way, with one call for the whole buffer."
                .to_owned(),
        ],
        figures: vec![times(report), frames(report), commands(report)],
        ..Section::default()
    }
}

fn times(report: &CameraReport) -> Figure {
    let rows = report.ways.iter().map(|way| {
        let times = [way.map.buffer_us, way.unmap.buffer_us];
        (name(way), each(times))
    });
    let cells = report.ways.iter().map(|way| {
        [
            name(way),
            micros(way.map.buffer_us),
            micros(way.unmap.buffer_us),
            micros(way.map.buffer_us + way.unmap.buffer_us),
        ]
    });
    Figure::new(
        "Time for a buffer",
        "Computed CPU time for mapping a buffer and for unmapping it, on average; the scale is logarithmic.",
        None,
        marks(Axis::log("time for a buffer", Unit::Micros), &["map", "unmap"], rows),
        Table::new(["way", "map", "unmap", "both"], cells),
    )
}

fn frames(report: &CameraReport) -> Figure {
    let series = |name: &str, of: fn(&WayReport) -> f64| Series {
        name: name.to_owned(),
        values: report.ways.iter().map(of).collect(),
    };
    let plot = Plot::Bars(Bars {
        categories: report.ways.iter().map(name).collect(),
        values: Axis::linear("part of the frame", Unit::Percent),
        series: vec![
            series("map", |way| way.map.worst_frame_pct),
            series("unmap", |way| way.unmap.worst_frame_pct),
        ],
        arrangement: Arrangement::StackedRows,
    });
    let percent = |value: f64| Unit::Percent.say(value);
    let cells = report.ways.iter().map(|way| {
        [
            name(way),
            percent(way.map.worst_frame_pct),
            percent(way.unmap.worst_frame_pct),
            percent(way.map.share_pct),
            percent(way.unmap.share_pct),
        ]
    });
    let nothing = |way: &WayReport| way.map.worst_frame_pct + way.unmap.worst_frame_pct <= 0.0;
    let head = [
        "way",
        "map, of the frame",
        "unmap, of the frame",
        "map, of all time",
        "unmap, of all time",
    ];
    Figure::new(
        "Part of a frame that it takes",
        &format!(
            "How much of the {} of a frame the costliest buffer takes that falls into it. Not every frame has one: \
             the table has the part of all time too.",
            micros(report.frame_us)
        ),
        report.ways.iter().all(nothing).then_some("by the machine's prices nothing takes any time"),
        plot,
        Table::new(head, cells),
    )
}

fn commands(report: &CameraReport) -> Figure {
    let counts = |side: &Side| {
        let all = side.commands;
        [all.page, all.range, all.context, all.sync].map(|count| count / report.buffers.max(1))
    };
    let rows = sides(report).map(|(name, side)| {
        let mut marks = each(counts(side).map(|count| count as f64));
        marks.retain(|mark| mark.value > 0.0);
        (name, marks)
    });
    let rows: Vec<_> = rows.filter(|(_, marks)| !marks.is_empty()).collect();
    let cells = sides(report).map(|(name, side)| {
        let [page, range, context, sync] = counts(side).map(grouped);
        [name, page, range, context, sync]
    });
    Figure::new(
        "Invalidation commands for a buffer",
        "What tells the unit to forget translations: a page, a range, or all of an address space (a context); and \
         the waits until it has (syncs). On average, rounded down; the scale is logarithmic. Kinds and sides without a \
         mark have none.",
        rows.is_empty().then_some("no command was submitted"),
        marks(
            Axis::log("commands for a buffer", Unit::Count),
            &["by page", "by range", "by context", "syncs"],
            rows.into_iter(),
        ),
        Table::new(["way", "by page", "by range", "by context", "syncs"], cells),
    )
}

/// Registers that Tegra's driver wrote.
fn written(report: &CameraReport) -> Section {
    let known = || sides(report).filter_map(|(name, side)| Some((name, side.registers?)));
    let rows = known().map(|(name, of)| (name, each([of.writes as f64, of.read_backs as f64])));
    let plot = marks(Axis::log("accesses for a buffer", Unit::Count), &["writes", "reads"], rows);
    let mut written = Table::new(["way"], known().map(|(name, _)| [name]));
    let heads = RegisterWrites::HEADS.map(|(head, _)| head.to_owned());
    written.head.extend(heads);
    for (row, (_, of)) in written.rows.iter_mut().zip(known()) {
        row.extend(of.columns());
    }
    Section {
        heading: "What the driver writes".to_owned(),
        says: vec![
            "Tegra's SMMU has no command queue: the driver writes registers, and reads one back to wait. PTC is the \
             unit's cache of table entries, TLB that of translations."
                .to_owned(),
        ],
        figures: vec![Figure::new(
            "Registers written for a buffer",
            "As the model counted them, on average, rounded down. The table has what was flushed: all of a cache, a \
             line, an address space, 4 MiB or 16 KiB.",
            known().next().is_none().then_some("no register was written"),
            plot,
            written,
        )],
        ..Section::default()
    }
}

/// Counts of the camera's accesses on Qualcomm's.
fn met(report: &CameraReport) -> Section {
    let rows = report.ways.iter().map(|way| (name(way), each([way.stall_us, way.kept_out_us])));
    let plot = marks(
        Axis::log("wait of the camera for a buffer", Unit::Micros),
        &["walks", "if kept out meanwhile"],
        rows,
    );
    let cells = report.ways.iter().map(|way| {
        [
            name(way),
            grouped(way.tlb_misses),
            grouped(way.walk_reads),
            micros(way.stall_us),
            grouped(way.meanwhile),
            micros(way.kept_out_us),
        ]
    });
    let head = [
        "way",
        "TLB misses",
        "table entries read",
        "walks, for a buffer",
        "look-ups during invalidations",
        "if kept out, for a buffer",
    ];
    Section {
        heading: "What the camera meets".to_owned(),
        says: vec![
            "64 of the camera's pages stay mapped beside its buffers. What an invalidation drops of their \
             translations, the unit walks the page tables for again."
                .to_owned(),
        ],
        figures: vec![Figure::new(
            "What keeps the camera waiting",
            "Walks of the page tables for translations that were dropped; and how much longer it would wait on a unit \
             that lets no access through while it invalidates. The scale is logarithmic.",
            None,
            plot,
            Table::new(head, cells),
        )],
        ..Section::default()
    }
}

/// Meaning of the 100 ms that were told.
fn told(waits: &Waits) -> Section {
    let ([few, many], [once, often], [short, long]) =
        (waits.waits, waits.computed_us, waits.wait_us);
    let calls = [
        ("one call, a table at a time", few, once, long),
        ("a call for each page", many, often, short),
    ];
    let rows = calls.map(|(name, _, us, _)| (name.to_owned(), each([us, waits.told_us])));
    let cells = calls.map(|(name, count, us, longer)| {
        [name.to_owned(), grouped(count), micros(us), micros(waits.told_us), micros(longer)]
    });
    let plot = marks(
        Axis::log("time for unmapping", Unit::Micros),
        &["by the fitted prices", "told, at least"],
        rows.into_iter(),
    );
    let head = [
        "unmapped by",
        "waits",
        "by the fitted prices",
        "told, at least",
        "so each wait was longer by",
    ];
    Section {
        heading: "What 100 ms for 100 MB say".to_owned(),
        says: Vec::new(),
        figures: vec![Figure::new(
            "Unmapping 100 MB, computed and told",
            "How many calls unmapped it was not said: one call and a call for each page are the two ends. What the \
             prices leave to the told time has to be in the waits.",
            None,
            plot,
            Table::new(head, cells),
        )],
        ..Section::default()
    }
}
