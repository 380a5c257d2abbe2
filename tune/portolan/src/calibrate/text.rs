//! A calibration for people.

use portolan_cli::display::{grouped, table, wrapped};

use super::robust::{FittedLine, Slope, rounded};
use super::samples::LeftOut;
use super::{Calibration, Judged};

/// Functions that are listed; those after take less.
const LISTED: usize = 12;
/// Error of a prediction, in per cent of a held-out call, that causes a warning.
const FAR_OFF_PCT: f64 = 50.0;

/// The report as text.
pub fn text(report: &Calibration, columns: usize) -> String {
    let mut out = format!("{} Seed {}.\n\n", answer(report), report.seed);
    out.push_str(&sources(report));
    out.push_str(&prices(report, columns));
    out.push_str(&fits(report, columns));
    out.push_str(&untold(report));
    out.push_str(&functions(report, columns));
    for warning in &report.warnings {
        out.push_str(&format!("Careful: {warning}\n"));
    }
    match &report.written {
        Some(path) => out.push_str(&format!(
            "\n{path} is the profile: `portolan replay --machine {path}`, `portolan machines {path}`.\n"
        )),
        None => out.push_str("\nNothing is written: -o FILE.toml writes the profile.\n"),
    }
    wrapped(&out, columns)
}

/// Number of prices that the traces told.
pub(crate) fn answer(report: &Calibration) -> String {
    let told = report.prices.len();
    let all = told + report.untold.len();
    format!(
        "{told} of {all} prices are this machine's now; the others are those of {}.",
        report.from
    )
}

/// Traces that were read, and calls that were not fitted on.
pub(crate) fn sources(report: &Calibration) -> String {
    let mut out = String::new();
    for source in &report.sources {
        out.push_str(&format!(
            "{}: {} lines, {} latencies, {} lines lost, {} that cannot be read\n",
            source.name,
            grouped(source.lines),
            grouped(source.latencies),
            grouped(source.lost),
            grouped(source.bad),
        ));
        for bad in &source.bad_lines {
            out.push_str(&format!("  {bad}\n"));
        }
    }
    let tracing = match &report.tracing {
        Some(tracing) => {
            let around = match tracing.around_ns {
                Some(ns) => {
                    format!("and {ns} ns in its caller (a system call with and without one)")
                }
                None => "and as much in its caller (assumed)".to_owned(),
            };
            format!(
                "Tracing takes {} ns in each call ({}, {} calls), {around}: taken off.",
                tracing.ns,
                tracing.function,
                grouped(tracing.calls)
            )
        }
        None => "What tracing takes is not known, and is in the prices.".to_owned(),
    };
    let left = match left_out(&report.left_out).as_str() {
        "" => String::new(),
        left => format!(" Not fitted on: {left}."),
    };
    out.push_str(&format!("{tracing}{left}\n\n"));
    out
}

/// Calls that are left out, by reason.
pub(super) fn left_out(left: &LeftOut) -> String {
    let reasons = [
        (left.interrupted, "with an interrupt in them"),
        (left.incomplete, "of which lines are missing"),
        (left.absurd, "of no time, of more than a second, or for more than 2^32 units"),
        (left.lists, "of lists of several pieces"),
        (
            left.other,
            "of whole tables, of addresses that no cache has, or other commands than invalidations of one kind",
        ),
        (left.mixed, "with other calls in them that nothing tells"),
    ];
    let said = reasons.iter().filter(|(count, _)| *count > 0);
    let said: Vec<String> = said.map(|(count, why)| format!("{} {why}", grouped(*count))).collect();
    said.join(", ")
}

fn prices(report: &Calibration, columns: usize) -> String {
    let rows = report.prices.iter().map(|new| {
        let before = new.before_ns.map_or("-".to_owned(), |ns| format!("{ns:.1}"));
        let word = new.price.source.split(':').next().unwrap_or("");
        vec![
            new.event.to_string(),
            before,
            format!("{:.1}", new.price.ns),
            format!("{:.1} to {:.1}", new.price.low(), new.price.high()),
            word.to_owned(),
        ]
    });
    let header =
        [("price", 0), ("before, ns", 0), ("now, ns", 0), ("95 % of resamples", 1), ("by", 2)];
    format!("{}\n", table(&header, &[1, 2, 3], rows.collect(), columns))
}

fn fits(report: &Calibration, columns: usize) -> String {
    let off = |pct: Option<f64>| pct.map_or("-".to_owned(), |pct| format!("{pct:.1} %"));
    let row = |judged: &Judged, line: &FittedLine| {
        let each = match line.each {
            Slope::Told(each) => format!("{} + {} a unit", line.call.ns, each.ns),
            _ => line.call.ns.to_string(),
        };
        vec![
            judged.what.clone(),
            grouped(line.calls),
            grouped(line.outliers),
            judged.range(line),
            each,
            rounded(line.residual_ns).to_string(),
            match line.each {
                Slope::Told(_) => format!("{:.2}", line.r_squared),
                _ => "-".to_owned(),
            },
            grouped(judged.held_out),
            off(judged.predicted_off_pct),
            off(judged.before_off_pct),
        ]
    };
    let fits = report.fits.iter();
    let rows = fits.filter_map(|judged| Some(row(judged, judged.line.as_ref()?)));
    let header = [
        ("calls that", 0),
        ("fitted on", 3),
        ("outliers", 4),
        ("of", 5),
        ("ns", 0),
        ("residual", 7),
        ("R2", 6),
        ("held out", 2),
        ("predicted", 0),
        ("before", 1),
    ];
    format!(
        "{}residual: median, ns. predicted: how far calls held out are from the fit; before: from the old \
         prices (medians).\n\n",
        table(&header, &[1, 2, 5, 6, 7, 8, 9], rows.collect(), columns)
    )
}

fn untold(report: &Calibration) -> String {
    if report.untold.is_empty() {
        return String::new();
    }
    let mut out = String::from("Not told:\n");
    for price in &report.untold {
        out.push_str(&format!("  {}: {}\n", price.event, price.why));
    }
    out.push('\n');
    out
}

fn functions(report: &Calibration, columns: usize) -> String {
    let listed = report.functions.iter().take(LISTED);
    let rows = listed.map(|function| {
        vec![
            function.name.clone(),
            grouped(function.calls),
            format!("{:.0}", function.median_ns),
            format!("{:.1}", function.total_ns as f64 / 1e6),
            function.priced_as.unwrap_or("-").to_owned(),
        ]
    });
    let header =
        [("function", 0), ("calls", 0), ("median, ns", 0), ("all, ms", 1), ("fitted as", 0)];
    format!("{}\n", table(&header, &[1, 2, 3], rows.collect(), columns))
}

/// Warnings to the reader.
pub(super) fn warnings(report: &Calibration) -> Vec<String> {
    let mut said = Vec::new();
    for source in &report.sources {
        if let Some(cut) = &source.cut {
            said.push(format!("{}: {cut}", source.name));
        }
        if source.lost > 0 {
            said.push(format!(
                "{}: {} lines are missing; a larger buffer_size_kb keeps them",
                source.name,
                grouped(source.lost)
            ));
        }
    }
    if report.tracing.is_none() {
        said.push(
            "no function that does nothing was traced, so tracing's own time is in each price: \
             add iommu_get_dma_domain to the filter"
                .to_owned(),
        );
    }
    for judged in &report.fits {
        let Some(line) = &judged.line else { continue };
        let tracing = report.tracing.as_ref().map_or(0.0, |tracing| tracing.ns);
        if tracing > line.call.ns.max(line.predicts(line.units)) {
            said.push(format!(
                "calls that {}: tracing takes longer than what is traced",
                judged.what
            ));
        }
        if judged.predicted_off_pct.is_some_and(|off| off > FAR_OFF_PCT) {
            said.push(format!(
                "calls that {} vary so much that the fit says little of one of them",
                judged.what
            ));
        }
    }
    said
}
