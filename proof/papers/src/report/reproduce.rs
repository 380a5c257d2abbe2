//! The page of reproductions: each published figure next to the computed one.

mod entries;

use portolan_report::{Axis, Figure, Mark, MarkRow, Marks, Origin, Page, Section, Table, Unit};

use super::bounds;
use crate::reproduce::{
    Check, Evidence, FittedPrice, FlushQueue, HeldOut, IopfReproduction, Reproduction, Swiotlb,
};
use entries::Entry;
use portolan_report::Plot;

/// Sections of the results that were asked for.
#[derive(Debug, Default)]
pub struct Results {
    sections: Vec<Section>,
    answer: Vec<String>,
}

/// Meaning of the words next to marks.
const WORDS: &str = "The word beside a computed figure says what speaks for it. Fitted: a price was fitted \
    on it. Implied: it follows from what was fitted, as it would without the model. Counted: commands or \
    faults that the library caused and a model counted. Predicted: nothing was fitted on it, and it could \
    have come out wrong. Computed: nothing was published to hold it against. Bars around a mark are the \
    published samples' range, or what a figure may be where a price is not known.";

/// The page of `results`, made as `origin` says.
pub fn reproductions(results: Results, origin: Origin) -> Page {
    let mut answer = results.answer;
    answer.push(WORDS.to_owned());
    Page {
        title: "Published results, recomputed".to_owned(),
        answer,
        sections: results.sections,
        origin,
        ..Page::default()
    }
}

impl Results {
    fn add(&mut self, heading: &str, holds: bool, says: Vec<String>, figures: Vec<Figure>) {
        let verdict =
            if holds { "every bound and check holds" } else { "a bound or a check FAILS" };
        self.push(heading, verdict, says, figures);
    }

    fn push(&mut self, heading: &str, verdict: &str, says: Vec<String>, figures: Vec<Figure>) {
        self.answer.push(format!("{heading}: {verdict}."));
        self.sections.push(Section {
            heading: heading.to_owned(),
            says,
            figures,
            ..Section::default()
        });
    }

    /// Adds walk flush by context, or range flush.
    pub fn latencies(&mut self, result: &Reproduction) {
        let heading = match &*result.name {
            "walk-flush" => "Walk flush by context (Qualcomm SMMU, 2021)",
            "range-flush" => "Range flush (Tegra SMMU, 2015)",
            other => other,
        };
        let mut says = vec![format!(
            "Latency of map and unmap, on machine {}, before the published change, after it, and as this \
             library does it.",
            result.machine
        )];
        says.extend(entries::ranged_over(&result.rows));
        says.extend(result.notes.iter().cloned());
        says.extend(checks(&result.checks));
        let mut figures = plots(&entries::latencies(result));
        figures.push(bounds::of(&result.bounds));
        figures.push(prices(&result.prices));
        self.add(heading, result.holds(), says, figures);
    }

    /// Adds lazy invalidation under a virtual IOMMU.
    pub fn flush_queue(&mut self, result: &FlushQueue) {
        let mut says = vec![format!(
            "Throughput of a guest on machine {} that receives, with strict invalidation and with a flush queue, by \
             whose tables translate (stage) and how the hypervisor follows them.",
            result.machine
        )];
        let ([low, own, high], cpus) = (result.receivers.waits_ns, result.receivers.cpus);
        says.push(format!(
            "The CPU that waits takes {low:.0} ns for an invalidation if {:.0} CPUs receive at the same \
             time, {own:.0} ns if {:.0} do, which the profile takes, {high:.0} ns if {:.0} did; on bare \
              metal it is {:.0} ns.",
            cpus[0], cpus[1], cpus[2], result.literature_ns
        ));
        says.extend(checks(&result.checks));
        let mut figures = plots(&entries::flush_queue(result));
        figures.push(bounds::of(&result.bounds));
        figures.push(prices(&result.prices));
        let heading = "Lazy invalidation under a virtual IOMMU (VT-d, 2023)";
        self.add(heading, result.holds(), says, figures);
    }

    /// Adds bounce-buffer pools.
    pub fn swiotlb(&mut self, result: &Swiotlb) {
        let mut says = vec![format!(
            "fio on machine {}, whose transfers are copied through a pool of bounce buffers: with one lock \
             (vanilla), with a lock for each area (optimized), and with this library's pool.",
            result.machine
        )];
        says.extend(checks(&result.checks));
        let mut figures = plots(&entries::swiotlb(result));
        figures.push(bounds::of(&result.bounds));
        figures.push(prices(&result.prices));
        let heading = "Bounce-buffer pools that scale (swiotlb, 2022)";
        self.add(heading, result.holds(), says, figures);
    }

    /// Adds I/O page faults.
    pub fn iopf(&mut self, result: &IopfReproduction) {
        let mut says = vec![format!(
            "An accelerator of machine {} encrypts memory that is pinned (without faults), and memory that is mapped \
             when it faults (with faults).",
            result.machine
        )];
        says.extend(checks(&result.checks));
        let mut figures = plots(&entries::iopf(result));
        figures.push(entries::windows(&result.windows));
        figures.push(bounds::of(&result.bounds));
        figures.push(prices(&result.prices));
        let heading = "I/O page faults instead of pinning (VFIO passthrough, 2021)";
        self.add(heading, result.holds(), says, figures);
    }

    /// Adds figures of other machines.
    pub fn held_out(&mut self, result: &HeldOut) {
        let says = vec![
            "Published figures of machines on which no price was fitted, computed with the prices of the \
             profile that comes nearest. No bound is put on them: the errors say how far a profile's prices carry."
                .to_owned(),
        ];
        let worst = result.rows.iter().map(|row| row.error_pct.abs());
        let verdict = format!(
            "nothing was fitted on them and no bound is put on them; the worst is {} off",
            Unit::Percent.say(worst.fold(0.0, f64::max))
        );
        let figures = vec![entries::held_out(result)];
        self.push("Figures of other machines", &verdict, says, figures);
    }
}

fn checks(checks: &[Check]) -> Vec<String> {
    let says = |check: &Check| {
        let verdict = if check.holds { "Holds" } else { "FAILS" };
        format!("{verdict}: {}; {}.", check.what, check.found)
    };
    checks.iter().map(says).collect()
}

/// Fitted prices: marks, since they lie far apart.
fn prices(prices: &[FittedPrice]) -> Figure {
    let row = |price: &FittedPrice| MarkRow {
        name: format!("{}, {}", price.case, price.event),
        marks: vec![Mark {
            series: 0,
            value: price.ns / 1000.0,
            range: None,
            word: Evidence::Fitted.word().to_owned(),
        }],
    };
    let plot = Plot::Marks(Marks {
        values: Axis::log("price of one", Unit::Micros),
        series: vec!["price".to_owned()],
        rows: prices.iter().map(row).collect(),
    });
    let rows = prices.iter().map(|price| {
        [
            price.case.to_owned(),
            price.event.to_owned(),
            format!("{:.3}", price.ns),
            price.fitted_on.to_owned(),
        ]
    });
    Figure::new(
        "Fitted prices",
        "What the fit found one event to cost, on the rows named in the table.",
        prices.is_empty().then_some("no price was fitted"),
        plot,
        Table::new(["case", "event", "ns", "fitted on"], rows),
    )
}

/// A plot for each title, in the order of the entries.
fn plots(entries: &[Entry]) -> Vec<Figure> {
    let mut groups: Vec<Vec<&Entry>> = Vec::new();
    for entry in entries {
        let same = |group: &&mut Vec<&Entry>| {
            group.first().is_some_and(|first| first.plot.title == entry.plot.title)
        };
        match groups.iter_mut().find(same) {
            Some(group) => group.push(entry),
            None => groups.push(vec![entry]),
        }
    }
    groups.iter().filter_map(|group| plot(group)).collect()
}

/// The index of `name` in `series`, to which it is added if missing.
fn index_of(series: &mut Vec<String>, name: String) -> usize {
    let found = series.iter().position(|known| *known == name);
    found.unwrap_or_else(|| {
        series.push(name);
        series.len() - 1
    })
}

fn plot(group: &[&Entry]) -> Option<Figure> {
    let first = group.first()?;
    let mut series = Vec::new();
    let mut rows: Vec<MarkRow> = Vec::new();
    for entry in group {
        let known = rows.iter().position(|row| row.name == entry.row);
        let at = known.unwrap_or_else(|| {
            rows.push(MarkRow { name: entry.row.clone(), marks: Vec::new() });
            rows.len() - 1
        });
        let row = &mut rows[at];
        if let Some(value) = entry.published {
            row.marks.push(Mark {
                series: index_of(&mut series, format!("{}, published", entry.variant)),
                value,
                range: entry.published_range,
                word: String::new(),
            });
        }
        row.marks.push(Mark {
            series: index_of(&mut series, format!("{}, computed", entry.variant)),
            value: entry.computed,
            range: entry.computed_range,
            word: entry.evidence.word().to_owned(),
        });
    }
    let unit = first.plot.axis.unit;
    let plot = Plot::Marks(Marks { values: first.plot.axis.clone(), series, rows });
    Some(Figure {
        title: first.plot.title.clone(),
        says: first.plot.says.to_owned(),
        plot,
        table: entry_table(group, unit, first.plot.error),
    })
}

fn entry_table(group: &[&Entry], unit: Unit, error: &str) -> Table {
    let ranged = |range: Option<[f64; 2]>| {
        range.map_or(String::new(), |[low, high]| {
            format!(" ({} to {})", unit.say(low), unit.say(high))
        })
    };
    let rows = group.iter().map(|entry| {
        let published = entry.published.map(|value| unit.say(value));
        [
            entry.row.clone(),
            entry.variant.clone(),
            match published {
                Some(said) => said + &ranged(entry.published_range),
                None => "-".to_owned(),
            },
            unit.say(entry.computed) + &ranged(entry.computed_range),
            entry.error_pct.map_or("-".to_owned(), |error| format!("{error:+.1}")),
            entry.evidence.word().to_owned(),
        ]
    });
    let head = ["row", "variant", "published", "computed", error, "evidence"];
    Table::new(head, rows)
}
