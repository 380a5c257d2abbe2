//! Findings from the numbers of a replay, in sentences.

use portolan_cli::display::{bytes, counted, duration, grouped};

use super::report::{PolicyReport, ReplayReport, TraceReport};
use crate::advice::Advice;
use crate::linux::LinuxReport;

/// Policy of Linux, and the reason for it.
pub(super) fn linux_finding(trace: &TraceReport, linux: &LinuxReport) -> String {
    let mut said = format!(
        "Linux told to be {} would be {} {}: {} invalidations, {} of them for maps",
        linux.asked,
        linux.policy,
        match linux.unit.as_str() {
            "AMD-Vi" => format!("on AMD-Vi with NpCache {}", linux.caching_mode),
            _ =>
                format!("with {}-stage tables and caching mode {}", linux.stage, linux.caching_mode),
        },
        grouped(linux.invalidations.total()),
        grouped(linux.after_map),
    );
    if linux.policy == "lazy" {
        said.push_str(&format!(
            "; {} flushes by the timer and {} of full queues",
            grouped(linux.flushes_timer),
            grouped(linux.flushes_full),
        ));
    }
    said.push_str(&format!(". {}", linux.reason));
    if trace.orphan_unmaps > 0 {
        said.push_str(&format!(
            " Linux invalidated {} without a map too; they are not counted.",
            counted(trace.orphan_unmaps, "unmap")
        ));
    }
    said
}

/// Compares the commands of the recorded kernel with those of the rules, if the trace records commands.
pub(crate) fn sent_finding(report: &ReplayReport) -> Option<String> {
    let sent = report.sent?;
    let done = sent.invalidations;
    let kinds = [
        (done.range, "by page"),
        (done.context, "by domain"),
        (done.global, "of everything"),
        (sent.device, "of device TLBs"),
    ];
    let kinds =
        kinds.iter().filter(|(count, _)| *count > 0).map(|(count, kind)| (grouped(*count), *kind));
    let said = match kinds.collect::<Vec<_>>().as_slice() {
        [] => "no invalidations".to_owned(),
        [(count, kind), others @ ..] => {
            let others = others.iter().map(|(count, kind)| format!(", {count} {kind}"));
            format!("{count} invalidations {kind}{}", others.collect::<String>())
        }
    };
    let said = format!("The recorded kernel sent {said}");
    let rules = report.predicted.as_ref();
    let Some(predicted) = rules.and_then(|rules| rules.under(report.situation.now)) else {
        return Some(said + ".");
    };
    let without = match report.trace.orphan_unmaps {
        0 => String::new(),
        some => format!(", without {} unmaps that have no map", grouped(some)),
    };
    Some(format!("{said}; predicted: {}{without}.", grouped(predicted)))
}

/// Findings from the numbers: the trace, the costs of invalidation, and the change to make.
pub(super) fn findings(
    trace: &TraceReport,
    policies: &[PolicyReport],
    defaults: &Advice,
) -> Vec<String> {
    let mut said = Vec::new();
    let Some(first) = policies.first() else {
        return said;
    };
    if trace.maps == 0 {
        said.push("The trace maps nothing; record it while the device is at work.".to_owned());
        return said;
    }
    let mut strict: Vec<_> = policies.iter().filter(|p| p.policy.starts_with("strict")).collect();
    // Of equals the one by range is named: it costs less as soon as mappings grow.
    strict.sort_by_key(|p| p.policy != "strict-range");
    strict.sort_by(|a, b| a.time_us.cpu.total_cmp(&b.time_us.cpu));
    if let [best, rest @ ..] = strict.as_slice() {
        said.push(strict_finding(trace, best, rest.last().copied()));
        if let Some(lazy) = policies.iter().find(|p| p.policy == "lazy") {
            said.push(lazy_finding(best, lazy, defaults));
        }
    }
    let of = |name: &str| policies.iter().find(|p| p.policy == name);
    said.extend(exits_finding(trace, policies));
    if let (Some(best), Some(deferred)) = (strict.first(), of("deferred")) {
        said.push(deferred_finding(best, deferred));
    }
    said.extend(bounce_findings(trace, policies));
    let held = match first.mapped_peak {
        1 => "one mapping".to_owned(),
        peak => format!("{} mappings", grouped(peak)),
    };
    said.push(format!(
        "The trace maps {} at a time on average and holds at most {held} at once.",
        bytes(trace.bytes_mapped / trace.maps),
    ));
    said.extend(fault_finding(policies));
    said
}

fn strict_finding(
    trace: &TraceReport,
    best: &PolicyReport,
    worst: Option<&PolicyReport>,
) -> String {
    let wait = best.time_us.waits();
    let share = 100.0 * wait / best.time_us.cpu.max(f64::MIN_POSITIVE);
    let unmaps = (trace.unmaps + trace.coherent_frees).max(1);
    let mut said = format!(
        "Of this library's strict policies {} costs least, {} of CPU time; invalidating and waiting are {} an unmap, \
         {share:.0} % of it",
        best.policy,
        duration(best.time_us.cpu),
        duration(wait / unmaps as f64),
    );
    match worst {
        Some(worst) => {
            let times = worst.time_us.cpu / best.time_us.cpu.max(f64::MIN_POSITIVE);
            said.push_str(&format!("; {} costs {times:.2} times as much.", worst.policy));
        }
        None => said.push('.'),
    }
    said
}

/// Costs of bouncing, or a hint that it can be replayed.
pub(super) fn bounce_findings(trace: &TraceReport, policies: &[PolicyReport]) -> Option<String> {
    let of = |start: &'static str| policies.iter().filter(move |p| p.policy.starts_with(start));
    let least = of("strict").min_by(|a, b| a.time_us.cpu.total_cmp(&b.time_us.cpu));
    match of("bounce").next() {
        Some(bounce) => bounce_finding(bounce, least),
        None => (trace.bounced_bytes > 0).then(|| {
            format!(
                "The traced system bounced {}; `--policy bounce` replays that beside the others.",
                bytes(trace.bounced_bytes)
            )
        }),
    }
}

/// A defect, if there is one.
pub(super) fn fault_finding(policies: &[PolicyReport]) -> Option<String> {
    let faults: u64 = policies.iter().map(|p| p.device.faults).sum();
    (faults > 0)
        .then(|| format!("{faults} accesses to mapped memory were refused: this is a defect."))
}

/// Number of exits of each policy to the hypervisor, if it has any.
fn exits_finding(trace: &TraceReport, policies: &[PolicyReport]) -> Option<String> {
    let unmaps = (trace.unmaps + trace.coherent_frees).max(1) as f64;
    let of = |policy: &PolicyReport| {
        let exits = grouped(policy.exits);
        format!("{} {exits} ({:.2} an unmap)", policy.policy, policy.exits as f64 / unmaps)
    };
    let each: Vec<_> = policies.iter().filter(|p| p.exits > 0).map(of).collect();
    (!each.is_empty()).then(|| format!("Exits to the hypervisor, counted: {}.", each.join(", ")))
}

/// Percentage of CPU time, and its range.
#[derive(Clone, Copy)]
struct SavedTime {
    pct: f64,
    ends: Option<[f64; 2]>,
}

/// Percentage of `best`'s CPU time that `other` saves, and its range, if prices have ranges, with the lowest price of
/// an invalidation first.
fn saved(best: &PolicyReport, other: &PolicyReport) -> SavedTime {
    let pct = |best: f64, other: f64| 100.0 * (1.0 - other / best.max(f64::MIN_POSITIVE));
    let ends = best
        .cpu_range_us()
        .zip(other.cpu_range_us())
        .map(|(best, other)| [pct(best[0], other[0]), pct(best[1], other[1])]);
    SavedTime { pct: pct(best.time_us.cpu, other.time_us.cpu), ends }
}

/// A saving in words.
fn in_words(saved: SavedTime) -> String {
    let SavedTime { pct, ends } = saved;
    match ends {
        Some([low, high]) => format!(
            "{pct:.0} % ({low:.0} to {high:.0} %, as far as the price of an invalidation is known)"
        ),
        None => format!("{pct:.0} %"),
    }
}

fn lazy_finding(best: &PolicyReport, lazy: &PolicyReport, defaults: &Advice) -> String {
    let saved = saved(best, lazy);
    let said = format!(
        "This library's lazy saves {} of that, with {} syncs instead of {}, and leaves up to {} reachable for up to \
         {} after unmap",
        in_words(saved),
        grouped(lazy.syncs),
        grouped(best.syncs),
        bytes(lazy.exposed.max_bytes),
        duration(lazy.exposed.max_us),
    );
    let and = match (defaults.kept.policy, defaults.lazy_if_asked) {
        ("lazy", _) => {
            "it is this machine's default for trusted devices whose drivers keep their buffers, and others \
             stay strict"
                .to_owned()
        }
        (_, "no") => format!("it is refused here. {}", defaults.kept.reason),
        _ if saved.pct >= 10.0 => format!(
            "ask for it where the device is trusted, and stay with {} where it is not",
            best.policy
        ),
        _ => format!("that is little for memory that stays reachable; choose {}", best.policy),
    };
    format!("{said}: {}.", and.trim_end_matches('.'))
}

fn bounce_finding(bounce: &PolicyReport, best: Option<&PolicyReport>) -> Option<String> {
    let counts = bounce.bounce?;
    let what = if counts.forced { "everything" } else { "what devices of 32 bits do not reach" };
    let mut said = format!(
        "Bouncing {what} makes {} copies, {} in all, and holds at most {} of {} slots; it saves {} waits \
         for invalidations of {} pages and costs {} of CPU time",
        grouped(counts.copies),
        bytes(counts.bytes_copied),
        grouped(counts.slots_peak),
        grouped(counts.slots),
        grouped(counts.saved.syncs),
        grouped(counts.saved.pages),
        duration(bounce.time_us.cpu),
    );
    match best {
        Some(best) => {
            said.push_str(&format!(", where {} costs {}.", best.policy, duration(best.time_us.cpu)))
        }
        None => said.push('.'),
    }
    if bounce.rejected_maps > 0 {
        said.push_str(&format!(
            " {} found no room: give it more than {} slots, or fewer than {} areas.",
            counted(bounce.rejected_maps, "map"),
            grouped(counts.slots),
            grouped(counts.areas)
        ));
    }
    Some(said)
}

fn deferred_finding(best: &PolicyReport, deferred: &PolicyReport) -> String {
    format!(
        "A driver written for this library that gives its buffers away until they are invalidated (deferred) saves {} \
         with {} syncs: up to {} wait for up to {}, and nothing else uses them meanwhile.",
        in_words(saved(best, deferred)),
        grouped(deferred.syncs),
        bytes(deferred.exposed.max_bytes),
        duration(deferred.exposed.max_us),
    )
}
