//! The answer of a replay: the costs of mapping, the worth of a change, the settings to change, the protection given
//! up for it, and the reasons; or the reason for which there is no answer.

use portolan_cli::display::{bytes, counted, duration, grouped, micros, percent};

use super::cost::{MappingCost, WORTH_PCT_OF_LOAD};
use super::fit::priced_as;
use super::report::{ENOUGH_PCT, PolicyReport, ReplayReport, TraceReport};
use super::setting::{Saving, Setting};
use super::settings::{FEWEST, WORTH_PCT};
use super::situation::{KnownBy, Now};
use crate::trace::Clock;

/// The answer, a paragraph a line.
pub(crate) fn answer(report: &ReplayReport) -> String {
    if !report.trace.understood.is_enough() {
        return not_understood(&report.trace);
    }
    let mut out = String::new();
    if let Some(cost) = report.cost.as_ref().filter(|cost| cost.now.cpu_us > 0.0) {
        out.push_str(&costs(cost));
    }
    let translated = report.situation.is_translated();
    if translated && report.trace.clock == Clock::Ticks {
        out.push_str(WITHOUT_TIMES);
    }
    out.push_str(&match report.advice.as_slice() {
        [] if translated && report.trace.clock == Clock::Ticks => String::new(),
        [] => nothing(report) + "\n",
        [first, others @ ..] => change(report, first, others),
    });
    if report.situation.now != Now::Nothing {
        out.push_str(&priced_as(report.chosen.as_ref(), &report.machine));
        out.push('\n');
    }
    out
}

/// Cost of mapping now.
fn costs(cost: &MappingCost) -> String {
    let now = &cost.now;
    let ends = if now.low < now.high {
        format!("; as prices vary {} to {} µs", micros(now.low), micros(now.high))
    } else {
        String::new()
    };
    let mut said = match cost.assumes.as_slice() {
        [] => "What it costs:".to_owned(),
        some => format!("What it costs, if {}:", some.join(", and ")),
    };
    said.push_str(&format!(
        " {} µs of each CPU-second ({}{ends}), {} ns a request; at most {} of the load's time.",
        micros(now.cpu_us_per_s),
        percent(now.cpu_us_per_s / 1e4),
        micros(now.ns_per_request),
        percent(now.pct_of_load),
    ));
    if cost.device_wait_us > 0.0 {
        said.push_str(&format!(
            " Devices wait {} beside it, for walks of page tables.",
            duration(cost.device_wait_us)
        ));
    }
    said + "\n"
}

/// Sentence on a trace whose clock has no unit.
const WITHOUT_TIMES: &str = "\
    No answer on strict or lazy, nor on what mapping costs of a CPU's time: the times of this trace are numbers \
    without a unit (clock x86-tsc, counter or uptime), and a lazy kernel flushes by the clock. Record with another: \
    `echo mono > /sys/kernel/tracing/trace_clock`, or `portolan record`.\n";

/// Settings to change, in the order of `first` and `others`.
fn change(report: &ReplayReport, first: &Setting, others: &[Setting]) -> String {
    let mut out = String::new();
    let cost = report.cost.as_ref();
    let little = cost.filter(|cost| !cost.worth_a_change);
    if let Some(most) = little.and_then(|cost| cost.most_saved_pct(&report.advice)) {
        out.push_str(&format!(
            "Not worth a change: the best setting saves at most {} of the load's time. Below {WORTH_PCT_OF_LOAD:.0} % \
             two runs of one load differ by more.\n",
            percent(most)
        ));
    }
    let label = match little {
        Some(_) => "Helps a little:",
        None => "What to change:",
    };
    out.push_str(&format!("{label} {}\n", first.command()));
    out.push_str(&format!("What it gains: {}.\n", gains(first, cost)));
    if let Some(danger) = &first.danger {
        out.push_str(&format!("What you give up: {danger}\n"));
    }
    // Settings that are hardly worth it have their reasons in the long form.
    if little.is_none() {
        out.push_str(&format!("Why: {}\n", why(first)));
    }
    let told = |setting: &&Setting| little.is_none() || setting.effect.saving.is_none();
    for setting in others.iter().filter(told) {
        let gain = match &setting.effect.saving {
            Some(saving) => from_to(saving),
            None => setting.effect.says.clone(),
        };
        let line = grouped(setting.evidence.line);
        let command = setting.command();
        out.push_str(&format!("Also: {command} ({gain}; line {line})\n"));
    }
    out
}

/// Additions to the answer: reasons and dangers of the other settings, facts and prices that speak for them.
pub(crate) fn more(report: &ReplayReport) -> String {
    let mut out = String::new();
    let cost = report.cost.as_ref();
    let said_why = cost.is_none_or(|cost| cost.worth_a_change);
    for (index, setting) in report.advice.iter().enumerate() {
        out.push_str(&format!("{}. {}\n", index + 1, setting.command()));
        if index > 0 {
            out.push_str(&format!("It gains {}.\n", gains(setting, cost)));
        }
        if index > 0 || !said_why {
            out.push_str(&format!("Why: {}\n", why(setting)));
        }
        if index > 0 {
            let danger = setting.danger.iter();
            out.extend(danger.map(|danger| format!("You give up: {danger}\n")));
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

/// Gain of a setting: CPU time of the whole trace and of a request, and the setting's own words.
fn gains(setting: &Setting, cost: Option<&MappingCost>) -> String {
    let effect = &setting.effect;
    let Some(saving) = &effect.saving else {
        return effect.says.clone();
    };
    let request = cost.filter(|cost| cost.now.cpu_us > 0.0).map(|cost| {
        let ns = |us: f64| {
            if us > 0.0 {
                micros(cost.now.ns_per_request * us / cost.now.cpu_us)
            } else {
                "0".to_owned()
            }
        };
        format!(", {} -> {} ns a request", ns(saving.before_us), ns(saving.after_us))
    });
    format!("{}{}; {}", from_to(saving), request.unwrap_or_default(), effect.says)
}

/// CPU time before and after, and the share that is saved.
fn from_to(saving: &Saving) -> String {
    format!("{} -> {} ({})", duration(saving.before_us), duration(saving.after_us), share(saving))
}

/// The part that is saved, or that it costs more.
fn share(saving: &Saving) -> String {
    let [low, high] = saving.range_pct.map(|pct| pct.abs().round());
    let (least, most) = (low.min(high), low.max(high));
    let range = if least < most {
        format!("{least:.0} to {most:.0} %")
    } else {
        format!("{:.0} %", saving.pct.abs())
    };
    if saving.pct < 0.0 { format!("{range} more") } else { format!("{range} less") }
}

fn why(setting: &Setting) -> String {
    let evidence = &setting.evidence;
    let mut said =
        format!("line {} is {}. {}", grouped(evidence.line), evidence.shows, setting.reason);
    for assumed in &setting.assumes {
        said.push_str(&format!(" Assumed: {assumed}."));
    }
    said
}

/// Sentences on a trace that gets no answer: the parts that are missing, and a better way to record it.
fn not_understood(trace: &TraceReport) -> String {
    let told = trace.understood;
    let missing = missing(trace);
    let listed: Vec<_> = missing.iter().map(|one| one.says.clone()).collect();
    let most = missing.iter().max_by_key(|one| one.count);
    let instead = most.map_or(RECORD, |one| one.instead);
    let mut out = format!(
        "No answer: of what the trace tells of DMA {} of the events and {} of the bytes were understood; an answer \
         needs {ENOUGH_PCT:.0} % of both.\n",
        understood(told.events_pct),
        understood(told.bytes_pct),
    );
    if !listed.is_empty() {
        out.push_str(&format!("What is missing: {}.\n", listed.join("; ")));
    }
    out + &format!("Record instead: {instead}\n")
}

/// A share that was understood, never rounded up.
pub(crate) fn understood(pct: f64) -> String {
    match pct {
        100.0.. => "100 %".to_owned(),
        _ => format!("{:.1} %", (pct * 10.0).floor() / 10.0),
    }
}

/// Something that a trace lacks.
struct Missing {
    count: u64,
    says: String,
    instead: &'static str,
}

const RECORD: &str = "`portolan record -- COMMAND`, as root, while the load runs.";

fn missing(trace: &TraceReport) -> Vec<Missing> {
    let of = |count: u64, says: &dyn Fn() -> String, instead| {
        (count > 0).then(|| Missing { count, says: says(), instead })
    };
    let all = [
        of(
            trace.bad_lines,
            &|| format!("{} that could not be used", counted(trace.bad_lines, "line")),
            "`portolan record -- COMMAND`, as root, or a copy of /sys/kernel/tracing/trace: some tools do not print \
             all of an event.",
        ),
        of(
            trace.truncated_lists,
            &|| format!("{} printed in part", counted(trace.truncated_lists, "list")),
            "`portolan record -- COMMAND`, which has the events of page tables beside those of DMA.",
        ),
        of(
            trace.orphan_unmaps,
            &|| format!("{} without a map", counted(trace.orphan_unmaps, "unmap")),
            "from before the load begins, as `portolan record -- COMMAND` does, so that the maps are in the trace.",
        ),
        of(
            trace.lost_events,
            &|| {
                let events = counted(trace.lost_events, "event");
                format!("{events} that the recorder lost")
            },
            "with a larger buffer, `portolan record --buffer-kb 65536`, or one device alone, `--device`.",
        ),
    ];
    all.into_iter().flatten().collect()
}

/// Reason why nothing should be changed.
fn nothing(report: &ReplayReport) -> String {
    let by = match &report.situation.known_by {
        KnownBy::Line(line) => format!("line {} of the trace", grouped(line.line)),
        KnownBy::Fact(fact) => format!("the recording says {fact}"),
        KnownBy::Assumption => "assumed, as nothing says it".to_owned(),
    };
    let unmaps = report.shape.streaming.unmaps.count;
    match report.situation.now {
        Now::Nothing => maps_nothing(&report.trace),
        Now::Untranslated => format!(
            "Nothing to change: no IOMMU translates this DMA ({by}: the DMA address is where the memory lies). \
             That costs nothing, and devices reach all of memory.{}{}",
            would_cost(&report.policies),
            stays_mapped(&report.trace),
        ),
        Now::Bounced => format!(
            "Nothing to change that is known here: DMA is copied through the bounce pool ({by}), which has room \
             enough."
        ),
        Now::Strict | Now::Shadowed | Now::Lazy if unmaps < FEWEST => format!(
            "Nothing to change: {}, too few to tell of a load; {FEWEST} are enough.",
            counted(unmaps, "unmap")
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

/// Contents of a trace without maps.
fn maps_nothing(trace: &TraceReport) -> String {
    let again = "Record it while the device is at work.";
    if trace.bounced_by_device.is_empty() {
        return format!("The trace maps nothing, so there is no advice. {again}");
    }
    let each =
        trace.bounced_by_device.iter().map(|(device, sum)| format!("{device} {}", bytes(*sum)));
    let each: Vec<_> = each.collect();
    format!(
        "The trace maps nothing, so there is no advice. It has what was copied through the bounce pool: {}. {again}",
        each.join(", ")
    )
}

/// Costs of an IOMMU.
fn would_cost(policies: &[PolicyReport]) -> String {
    let of = |name: &str| policies.iter().find(|policy| policy.policy == name);
    match (of("strict-range"), of("lazy")) {
        (Some(strict), Some(lazy)) => format!(
            " An IOMMU would cost {} of CPU time strict, or {} lazy.",
            duration(strict.time_us.cpu),
            duration(lazy.time_us.cpu)
        ),
        _ => String::new(),
    }
}

/// Maps that are never unmapped, where these are most.
fn stays_mapped(trace: &TraceReport) -> String {
    if trace.left_mapped > trace.maps / 2 {
        format!(
            " {} of {} have no unmap in the trace, as without an IOMMU a driver may leave it out: with one there would \
             be more to do.",
            grouped(trace.left_mapped),
            counted(trace.maps, "map")
        )
    } else {
        String::new()
    }
}
