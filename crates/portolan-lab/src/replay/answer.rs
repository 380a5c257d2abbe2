//! The answer of a replay: what to change, what that gains, what it takes and why; or why there is nothing to change.

use portolan_cli::display::{grouped, micros};

use super::report::{PolicyReport, ReplayReport};
use super::setting::{Saving, Setting};
use super::settings::{FEWEST, WORTH_PCT};
use super::situation::{KnownBy, Now};

/// The answer, a paragraph a line.
pub(crate) fn answer(report: &ReplayReport) -> String {
    let Some((first, others)) = report.advice.split_first() else {
        return nothing(report) + "\n";
    };
    let mut out = format!("What to change: {}\n", first.command());
    out.push_str(&format!("What it gains: {}.\n", gains(first)));
    if let Some(danger) = &first.danger {
        out.push_str(&format!("What it takes: {danger}\n"));
    }
    out.push_str(&format!("Why: {}\n", why(first)));
    for setting in others {
        let line = grouped(setting.evidence.line);
        let gain = match &setting.effect.saving {
            Some(saving) => share(saving),
            None => setting.effect.says.clone(),
        };
        out.push_str(&format!(
            "Also: {} ({gain}; line {line})\n",
            setting.command()
        ));
    }
    out
}

/// What is beside the answer: reasons and dangers of the other settings, facts and prices that speak for them.
pub(crate) fn more(report: &ReplayReport) -> String {
    let mut out = String::new();
    for (index, setting) in report.advice.iter().enumerate() {
        out.push_str(&format!("{}. {}\n", index + 1, setting.command()));
        if index > 0 {
            out.push_str(&format!(
                "It gains {}.\nWhy: {}\n",
                gains(setting),
                why(setting)
            ));
            let danger = setting.danger.iter();
            out.extend(danger.map(|danger| format!("It takes: {danger}\n")));
        }
        out.extend(setting.note.map(|note| format!("{note}\n")));
        out.push_str(&format!("The line says: {}\n", setting.evidence.text));
        let besides = setting.besides.iter();
        out.extend(besides.map(|one| format!("By the {} {}: {}\n", one.kind, one.name, one.says)));
        out.push('\n');
    }
    if report.advice.len() > 1 {
        out.push_str(
            "Each gain is what the setting brings alone; together they bring less than the sum.\n\n",
        );
    }
    out
}

fn gains(setting: &Setting) -> String {
    let effect = &setting.effect;
    match &effect.saving {
        Some(saving) => format!("{}: {}", in_time(saving), effect.says),
        None => effect.says.clone(),
    }
}

/// A saving, or what it costs.
fn in_time(saving: &Saving) -> String {
    format!(
        "{} of the time that mapping memory for devices takes ({} µs, {} then)",
        share(saving),
        micros(saving.before_us),
        micros(saving.after_us)
    )
}

/// The part that is saved, or that it costs more.
fn share(saving: &Saving) -> String {
    let [low, high] = saving.range_pct.map(|pct| pct.abs().round());
    let (least, most) = (low.min(high), low.max(high));
    let range = match least < most {
        true => format!("{least:.0} to {most:.0} %"),
        false => format!("{:.0} %", saving.pct.abs()),
    };
    match saving.pct < 0.0 {
        true => format!("{range} more"),
        false => range,
    }
}

fn why(setting: &Setting) -> String {
    let evidence = &setting.evidence;
    let mut said = format!(
        "line {} is {}. {}",
        grouped(evidence.line),
        evidence.shows,
        setting.reason
    );
    for assumed in &setting.assumes {
        said.push_str(&format!(" Assumed: {assumed}."));
    }
    said
}

/// Why there is nothing to change.
fn nothing(report: &ReplayReport) -> String {
    let by = match &report.situation.known_by {
        KnownBy::Line(line) => format!("line {} of the trace", grouped(line.line)),
        KnownBy::Fact(fact) => format!("the recording says {fact}"),
        KnownBy::Nobody => "assumed, as nothing says it".to_owned(),
    };
    let unmaps = report.shape.streaming.unmaps.count;
    match report.situation.now {
        Now::Nothing => {
            "The trace maps nothing, so there is no advice; record it while the device is at work."
                .to_owned()
        }
        Now::Untranslated => format!(
            "Nothing to change: no IOMMU translates this DMA ({by}: the DMA address is where the memory lies). \
             That costs nothing, and devices reach all of memory.{}",
            would_cost(&report.policies)
        ),
        Now::Bounced => format!(
            "Nothing to change that is known here: DMA is copied through the bounce pool ({by}), whose room does."
        ),
        Now::Strict | Now::Shadowed | Now::Lazy if unmaps < FEWEST => format!(
            "Nothing to change: {} unmaps say nothing of a load, which takes {FEWEST} and more.",
            grouped(unmaps)
        ),
        Now::Lazy => format!(
            "Nothing to change: Linux is lazy already ({by}), and no other setting that is known here saves \
             {WORTH_PCT:.0} %."
        ),
        Now::Strict | Now::Shadowed => format!(
            "Nothing to change: Linux is strict ({by}), and no setting saves enough{}.",
            match report.defaults.lazy_if_asked {
                "no" => format!(
                    "; lazy is refused here. {}",
                    report.defaults.kept.reason.trim_end_matches('.')
                ),
                _ => String::new(),
            }
        ),
    }
}

/// What an IOMMU would cost.
fn would_cost(policies: &[PolicyReport]) -> String {
    let of = |name: &str| policies.iter().find(|policy| policy.policy == name);
    match (of("strict-range"), of("lazy")) {
        (Some(strict), Some(lazy)) => format!(
            " An IOMMU would take {} µs strict, or {} µs lazy.",
            micros(strict.time_us.total),
            micros(lazy.time_us.total)
        ),
        _ => String::new(),
    }
}
