//! The page of a replay: what it comes to, then what it comes from.

use portolan_report::{Origin, Page, Section};

use super::{over_time, policies, settings, trace};
use crate::replay::{ReplayReport, answer, sent_finding, sentences};

/// The page of `report`, which came about as `origin` says.
pub fn replay(report: &ReplayReport, origin: Origin) -> Page {
    let answer = settings::in_code(&answer(report), &report.advice);
    let mut sections: Vec<_> = settings::section(report).into_iter().collect();
    sections.push(policies::section(report));
    sections.extend(over_time::sections(&report.policies));
    sections.push(trace::mappings(&report.shape));
    sections.push(trace::devices_and_cpus(&report.shape));
    sections.push(warnings(report));
    Page {
        title: format!(
            "Replay of {} on machine {}",
            report.trace.source, report.machine
        ),
        answer,
        sections,
        origin,
    }
}

/// What a reader should know about the trace.
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
    Section {
        heading: "The trace".to_owned(),
        says,
        figures: Vec::new(),
    }
}
