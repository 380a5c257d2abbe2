//! The page of a replay: its answer, then the numbers behind it.

use std::path::Path;

use portolan_cli::display::{micros, percent};
use portolan_report::{Origin, Page, Section, Tile};

use super::{over_time, policies, settings, trace};
use crate::replay::{
    MappingCost, ReplayReport, answer, priced_as, sent_finding, sentences, understood,
};

/// The page of `report`, made as `origin` says.
pub fn replay(report: &ReplayReport, origin: Origin) -> Page {
    let answer = answer(report).replace(" -> ", " → ");
    let answer = settings::in_code(&answer, &report.advice);
    let mut sections = Vec::new();
    let is_some = report.trace.maps + report.trace.coherent_allocs > 0;
    // Of a trace that was not understood, or maps nothing, a figure would be one of zeros.
    if is_some && report.trace.understood.is_enough() {
        sections.extend(settings::section(report));
        sections.push(policies::section(report));
        sections.extend(over_time::sections(report));
        sections.push(trace::mappings(&report.shape));
        sections.push(trace::devices_and_cpus(&report.shape));
    }
    sections.push(warnings(report));
    Page {
        title: format!("DMA of {}", name(&report.trace.source)),
        subject: report.trace.source.clone(),
        tiles: tiles(report),
        answer,
        sections,
        origin,
    }
}

/// The name of a trace without its folders and the ends that files of traces have.
fn name(source: &str) -> &str {
    let file = Path::new(source).file_name().and_then(|file| file.to_str());
    let mut name = file.unwrap_or(source);
    for end in [".xz", ".gz", ".zst", ".trace", ".txt", ".dat"] {
        name = name.strip_suffix(end).filter(|rest| !rest.is_empty()).unwrap_or(name);
    }
    name.strip_prefix("bundled trace ").unwrap_or(name)
}

/// Tiles of the cost, now and then, and of its certainty.
fn tiles(report: &ReplayReport) -> Vec<Tile> {
    let tile =
        |name: &str, value: String, says: String| Tile { name: name.to_owned(), value, says };
    let told = report.trace.understood;
    let share = format!(
        "{} of the trace's events and {} of its bytes were understood",
        understood(told.events_pct),
        understood(told.bytes_pct)
    );
    let sure = match report.chosen.as_ref() {
        Some(choice) if choice.measured.is_some() => "measured".to_owned(),
        Some(choice) => format!("{:?}", choice.sureness).to_lowercase(),
        None => "as asked for".to_owned(),
    };
    let Some(cost) = report.cost.as_ref().filter(|cost| cost.now.cpu_us > 0.0) else {
        return if told.is_enough() {
            Vec::new()
        } else {
            vec![tile("The answer", "none".to_owned(), share + ".")]
        };
    };
    let now = &cost.now;
    vec![
        tile(
            "Mapping costs",
            format!("{} µs", micros(now.cpu_us_per_s)),
            format!(
                "of each CPU-second ({}{}); at most {} of the load's time.",
                percent(now.cpu_us_per_s / 1e4),
                range(cost),
                percent(now.pct_of_load)
            ),
        ),
        then(cost),
        tile(
            "How sure",
            sure,
            format!("{} {share}.", priced_as(report.chosen.as_ref(), &report.machine)),
        ),
    ]
}

/// The least and the most, as prices vary.
fn range(cost: &MappingCost) -> String {
    let now = &cost.now;
    if now.low < now.high {
        format!("; {} to {} µs as prices vary", micros(now.low), micros(now.high))
    } else {
        String::new()
    }
}

/// Tile of the cost of a request now, and with the change.
fn then(cost: &MappingCost) -> Tile {
    let now = micros(cost.now.ns_per_request);
    let (value, says) = match cost.then {
        Some(then) => (
            if then.high < cost.now.cpu_us_per_s {
                format!("{now} → {} ns", micros(then.ns_per_request))
            } else {
                format!("{now} → {} ns at best", micros(then.ns_per_request))
            },
            if cost.worth_a_change {
                "a request, now and with the change below.".to_owned()
            } else {
                "a request, now and with the setting below: not worth a change.".to_owned()
            },
        ),
        None => (format!("{now} ns"), "a request; nothing to change.".to_owned()),
    };
    Tile { name: "Now and then".to_owned(), value, says }
}

/// Warnings to the reader on the trace.
fn warnings(report: &ReplayReport) -> Section {
    let mut says = vec![trace::counted(&report.trace)];
    says.extend(sent_finding(report));
    let chosen = report.chosen.iter();
    says.extend(chosen.map(|choice| sentences(choice, &report.machine).trim().to_owned()));
    match report.warnings.as_slice() {
        [] => {
            says.push("Every line could be used; the recorder reports no lost events.".to_owned())
        }
        some => says.extend(some.iter().map(|warning| format!("Warning: {warning}."))),
    }
    says.retain(|one| !one.is_empty());
    Section { heading: "The trace".to_owned(), says, ..Section::default() }
}
