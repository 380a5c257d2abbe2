//! The page of `calibrate`: prices before and now, the quality of their fits, times of calls of each size, and the
//! prices that are not told.

use portolan_report::{
    Arrangement, Axis, Bars, Figure, Mark, MarkRow, Marks, Origin, Page, Plot, Section, Series,
    Table, Unit,
};

use crate::calibrate::{
    Calibration, Judged, NewPrice, Size, Slope, TracedFunctionReport, Untold, answer, sources,
};
use portolan_cli::display::grouped;

/// Functions that have a bar; those after take less.
const LISTED: usize = 16;

/// The page of `report`, made as `origin` says.
pub fn calibrate(report: &Calibration, origin: Origin) -> Page {
    let prices = Section {
        heading: "Prices".to_owned(),
        says: Vec::new(),
        figures: vec![told(report), untold(report), fits(report)],
        ..Section::default()
    };
    let latencies = Section {
        heading: "What calls took, and what the fit says".to_owned(),
        says: vec![
            "Times are a call's own: without what tracing takes, where that is known, and without the calls in it that \
             have a price of their own."
                .to_owned(),
        ],
        figures: report.fits.iter().map(|fit| latencies(report, fit)).collect(),
        ..Section::default()
    };
    let traces = Section {
        heading: "The traces".to_owned(),
        says: read(report),
        figures: vec![functions(&report.functions)],
        ..Section::default()
    };
    Page {
        title: format!("Prices of the machine {}", report.machine),
        answer: comes_to(report),
        sections: vec![prices, latencies, traces],
        origin,
        ..Page::default()
    }
}

fn nanos(ns: f64) -> String {
    Unit::Micros.say(ns / 1000.0)
}

fn maybe(ns: Option<f64>) -> String {
    ns.map_or("-".to_owned(), nanos)
}

fn percent(pct: Option<f64>) -> String {
    pct.map_or("-".to_owned(), |pct| Unit::Percent.say(pct))
}

/// A mark at so many nanoseconds.
fn mark(series: usize, ns: f64) -> Mark {
    Mark { series, value: ns / 1000.0, range: None, word: String::new() }
}

fn before(report: &Calibration) -> String {
    format!("before, as in {}", report.from)
}

/// Summary: the prices that are told, the quality of the fits, and the use of the result.
fn comes_to(report: &Calibration) -> Vec<String> {
    let mut said = vec![answer(report)];
    let off = |fit: &Judged| {
        let (now, before) = (fit.predicted_off_pct?, fit.before_off_pct?);
        Some(format!(
            "{}: {} off, {} by the prices from before",
            fit.what,
            Unit::Percent.say(now),
            Unit::Percent.say(before)
        ))
    };
    let off: Vec<String> = report.fits.iter().filter_map(off).collect();
    if !off.is_empty() {
        said.push(format!(
            "How far calls that were not fitted on are from what the new prices say (medians): {}.",
            off.join("; ")
        ));
    }
    said.push(match &report.written {
        Some(path) => {
            format!("The profile is in {path}: `portolan replay --machine {path}` uses it.")
        }
        None => "No profile is written: `-o FILE.toml` writes it, for `--machine`.".to_owned(),
    });
    said.extend(report.warnings.iter().map(|warning| format!("Careful: {warning}.")));
    said
}

/// Traces that were read, and calls that were not fitted on.
fn read(report: &Calibration) -> Vec<String> {
    let text = sources(report);
    text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

/// Prices that are other ones now.
fn told(report: &Calibration) -> Figure {
    let word = |price: &NewPrice| {
        let source = price.price.source.as_str();
        source.split(':').next().unwrap_or("").to_owned()
    };
    let row = |new: &NewPrice| {
        let now = Mark {
            range: Some([new.price.low(), new.price.high()].map(|ns| ns / 1000.0)),
            word: word(new),
            ..mark(0, new.price.ns)
        };
        let before = new.before_ns.map(|ns| mark(1, ns));
        MarkRow { name: new.event.to_string(), marks: std::iter::once(now).chain(before).collect() }
    };
    let plot = Plot::Marks(Marks {
        values: Axis::log("price", Unit::Micros),
        series: vec!["now".to_owned(), before(report)],
        rows: report.prices.iter().map(row).collect(),
    });
    let rows = report.prices.iter().map(|new| {
        [
            new.event.to_string(),
            maybe(new.before_ns),
            nanos(new.price.ns),
            format!("{} to {}", nanos(new.price.low()), nanos(new.price.high())),
            new.event.what().to_owned(),
            new.price.source.clone(),
        ]
    });
    let head = ["price", "before", "now", "95 % of resamples", "is of", "known from"];
    Figure::new(
        "Prices that the traces tell",
        "What each event takes; bars hold 95 of 100 resamples of the calls. Measured prices are fitted on calls, \
         assumed ones follow a measured one. The table says what each is of, and how it was fitted. The scale is \
         logarithmic.",
        report.prices.is_empty().then_some("no price is told by the traces"),
        plot,
        Table::new(head, rows),
    )
}

/// Prices that stay.
fn untold(report: &Calibration) -> Figure {
    let row = |price: &Untold| MarkRow {
        name: price.event.to_string(),
        marks: price.ns.map(|ns| mark(0, ns)).into_iter().collect(),
    };
    let plot = Plot::Marks(Marks {
        values: Axis::log("price", Unit::Micros),
        series: vec![before(report)],
        rows: report.untold.iter().map(row).collect(),
    });
    let rows = report.untold.iter().map(|price| {
        [price.event.to_string(), maybe(price.ns), price.why.clone(), price.event.what().to_owned()]
    });
    Figure::new(
        "Prices that the traces do not tell",
        &format!("They stay those of {}; the table says why each is not told.", report.from),
        report.untold.is_empty().then_some("the traces tell every price that the profile has"),
        plot,
        Table::new(["price", "stays", "why it is not told", "is of"], rows),
    )
}

/// Error of each fit on calls that it has not seen.
fn fits(report: &Calibration) -> Figure {
    let row = |fit: &Judged| {
        let off = [fit.predicted_off_pct, fit.before_off_pct];
        let marks = off.into_iter().enumerate().filter_map(|(series, pct)| {
            Some(Mark { series, value: pct?, range: None, word: String::new() })
        });
        MarkRow { name: fit.what.clone(), marks: marks.collect() }
    };
    let rows: Vec<MarkRow> = report.fits.iter().map(row).collect();
    let none = rows.iter().all(|row| row.marks.is_empty());
    let plot = Plot::Marks(Marks {
        values: Axis::log("off what was measured", Unit::Percent),
        series: vec!["the fit".to_owned(), before(report)],
        rows,
    });
    let cells = report.fits.iter().map(|fit| {
        let line = fit.line.as_ref();
        let said = |of: Option<String>| of.unwrap_or_else(|| "-".to_owned());
        [
            fit.what.clone(),
            grouped(fit.seen),
            said(line.map(|line| grouped(line.calls))),
            said(line.map(|line| grouped(line.outliers))),
            said(line.map(|line| fit.range(line))),
            said(line.map(|line| nanos(line.call.ns))),
            said(line.and_then(|line| match line.each {
                Slope::Told(each) => Some(nanos(each.ns)),
                _ => None,
            })),
            said(line.map(|line| nanos(line.residual_ns))),
            said(line.and_then(|line| match line.each {
                Slope::Told(_) => Some(format!("{:.2}", line.r_squared)),
                _ => None,
            })),
            grouped(fit.held_out),
            percent(fit.predicted_off_pct),
            percent(fit.before_off_pct),
        ]
    });
    let head = [
        "calls that",
        "seen",
        "fitted on",
        "outliers",
        "of",
        "a call",
        "each unit",
        "median residual",
        "R2",
        "held out",
        "off by the fit",
        "off by the prices from before",
    ];
    Figure::new(
        "How well the fits predict",
        "One call in five is not fitted on: how far the median one of these is from what the fit says, and from what \
         the prices from before say. A call's price is all of it where the trace does not tell it from a unit's.",
        none.then_some("there were too few calls to fit on"),
        plot,
        Table::new(head, cells),
    )
}

/// Times of calls of each size.
fn latencies(report: &Calibration, fit: &Judged) -> Figure {
    let count = |units: f64| match (fit.units, units) {
        ("bytes", _) => Unit::Bytes.say(units),
        (of, 1.0) => format!("1 {}", of.trim_end_matches('s')),
        (of, _) => format!("{} {of}", Unit::Count.say(units)),
    };
    let name = |size: &Size| match size.units {
        None => format!("{} not told", fit.units),
        Some([least, most]) if least == most => count(least),
        Some([least, most]) => format!("{} to {}", count(least), count(most)),
    };
    let row = |size: &Size| {
        let measured = Mark {
            range: Some([size.p10_ns, size.p90_ns].map(|ns| ns / 1000.0)),
            ..mark(0, size.median_ns)
        };
        let fitted = size.fitted_ns.map(|ns| mark(1, ns));
        let before = size.before_ns.map(|ns| mark(2, ns));
        MarkRow {
            name: name(size),
            marks: [Some(measured), fitted, before].into_iter().flatten().collect(),
        }
    };
    let plot = Plot::Marks(Marks {
        values: Axis::log("time of a call", Unit::Micros),
        series: vec!["measured".to_owned(), "fitted".to_owned(), before(report)],
        rows: fit.sizes.iter().map(row).collect(),
    });
    let rows = fit.sizes.iter().map(|size| {
        [
            name(size),
            grouped(size.calls),
            nanos(size.p10_ns),
            nanos(size.median_ns),
            nanos(size.p90_ns),
            maybe(size.fitted_ns),
            maybe(size.before_ns),
        ]
    });
    let head = [
        "calls of",
        "calls",
        "one in ten takes less than",
        "median",
        "one in ten takes more than",
        "fitted",
        "by the prices from before",
    ];
    let too_few = match fit.line {
        Some(_) => "",
        None => " There are too few calls to fit a price on.",
    };
    Figure::new(
        &format!("Calls that {}", fit.what),
        &format!(
            "The median of what calls took, by size; bars leave out the fastest and the slowest tenth.{too_few} The \
             scale is logarithmic."
        ),
        fit.sizes.is_empty().then_some("no call was kept"),
        plot,
        Table::new(head, rows),
    )
}

/// Parts of the traced time, by function.
fn functions(all: &[TracedFunctionReport]) -> Figure {
    let listed = &all[..all.len().min(LISTED)];
    let us = |function: &TracedFunctionReport| function.total_ns as f64 / 1000.0;
    let series = |name: &str, of: fn(&TracedFunctionReport) -> bool| Series {
        name: name.to_owned(),
        values: listed
            .iter()
            .map(|function| if of(function) { us(function) } else { 0.0 })
            .collect(),
    };
    let plot = Plot::Bars(Bars {
        categories: listed.iter().map(|function| function.name.clone()).collect(),
        values: Axis::linear("time of all calls", Unit::Micros),
        series: vec![
            series("prices are fitted on it", |function| function.priced_as.is_some()),
            series("no price follows from it", |function| function.priced_as.is_none()),
        ],
        arrangement: Arrangement::StackedRows,
    });
    let rows = listed.iter().map(|function| {
        [
            function.name.clone(),
            grouped(function.calls),
            nanos(function.median_ns),
            Unit::Micros.say(us(function)),
            function.priced_as.unwrap_or("-").to_owned(),
        ]
    });
    let more = match all.len() - listed.len() {
        0 => String::new(),
        more => format!(" {more} more take less and are left out."),
    };
    Figure::new(
        "Traced functions",
        &format!(
            "What all calls of each function took, with all that is in them: where one calls another, the time of the \
             inner one counts in both.{more}"
        ),
        listed.is_empty().then_some("no function was traced"),
        plot,
        Table::new(["function", "calls", "median call", "all calls", "fitted as"], rows),
    )
}
