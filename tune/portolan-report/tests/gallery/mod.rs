//! A page with every kind of plot: ordinary numbers, and those that come of broken and hostile traces.

mod hostile;
mod odd;
mod ordinary;

use portolan_report::{
    Arrangement, Axis, Bars, Figure, Line, Lines, Mark, Origin, Page, Plot, Section, Series, Shape,
    Table, Tile,
};

/// A name as a hostile trace has it.
pub const HOSTILE: &str = "</title></svg><script>alert('x')</script>\
    <img src=http://example.invalid/x onerror=alert(1)>&\"\u{202e}\u{0}";

/// The page.
pub fn page() -> Page {
    let profile = "smmu-v3 (fitted, data/machines/smmu-v3.toml)";
    let facts = [("seed", "7"), ("profile", profile), ("version", "0.1.0"), (HOSTILE, HOSTILE)];
    Page {
        title: "Gallery: every kind of plot".to_owned(),
        subject: format!("data/traces/{HOSTILE}"),
        tiles: vec![
            tile("It costs", "757 µs", "of each CPU-second, 0.30 % of the load's time at most"),
            tile("Now and then", "1,949 → 1,278 ns", "a request, with `iommu.strict=0`"),
            tile(HOSTILE, HOSTILE, HOSTILE),
        ],
        answer: texts(&[
            "Boot with iommu.strict=0: it takes 38 % of the time that DMA mapping costs now.",
            "Memory stays reachable for at most 10 ms after its unmap, which this machine's devices, \
             all on board, may be trusted with. Where they may not, deferred invalidation takes 31 %.",
        ]),
        sections: vec![
            section("Ordinary numbers", ordinary::figures()),
            section("Odd numbers", odd::figures()),
            section(HOSTILE, hostile::figures()),
        ],
        origin: Origin {
            command: "portolan replay 'trace of a host.txt' --report report.html".to_owned(),
            facts: facts.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec(),
        },
    }
}

fn section(heading: &str, figures: Vec<Figure>) -> Section {
    let says = vec!["What these figures have in common, and what to look for first.".to_owned()];
    Section {
        heading: heading.to_owned(),
        says,
        table: Table::new(["what", "why"], [[HOSTILE, "`code`, and words"].map(str::to_owned)]),
        figures,
        notes: vec![format!("What is to be said besides: {HOSTILE}")],
    }
}

fn tile(name: &str, value: &str, says: &str) -> Tile {
    let [name, value, says] = [name, value, says].map(str::to_owned);
    Tile { name, value, says }
}

fn figure(title: &str, plot: Plot) -> Figure {
    let says = "What the plot shows and how to read it, in a sentence or two: shorter is better.";
    let row = |nth: u32| -> Vec<String> {
        let numbers = (1..8).map(|column| (nth * column * 1031).to_string());
        let name = format!("row {nth} of {title}");
        std::iter::once(name).chain(numbers).collect()
    };
    let head = texts(&[
        "name",
        "requests",
        "median (µs)",
        "p99 (µs)",
        "invalidations",
        "bytes (KiB)",
        "walks",
        "misses",
    ]);
    let rows = (1..6).map(row).collect();
    let (title, says, table) = (title.to_owned(), says.to_owned(), Table { head, rows });
    Figure { title, says, plot, table }
}

fn texts(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// Bars of one arrangement.
pub fn bars(
    values: Axis,
    arrangement: Arrangement,
    categories: &[&str],
    series: &[(&str, &[f64])],
) -> Plot {
    let of = |(name, values): &(&str, &[f64])| Series {
        name: (*name).to_owned(),
        values: values.to_vec(),
    };
    let series = series.iter().map(of).collect();
    Plot::Bars(Bars { categories: texts(categories), values, series, arrangement })
}

/// Lines of one shape.
pub fn lines(x: Axis, y: Axis, shape: Shape, lines: &[(&str, Vec<(f64, f64)>)]) -> Plot {
    let of = |(name, points): &(&str, Vec<(f64, f64)>)| Line {
        name: (*name).to_owned(),
        points: points.clone(),
        shape,
    };
    Plot::Lines(Lines { x, y, lines: lines.iter().map(of).collect() })
}

/// A mark of a row.
pub fn mark(series: usize, value: f64, range: Option<[f64; 2]>, word: &str) -> Mark {
    Mark { series, value, range, word: word.to_owned() }
}
