//! Findings of two replays side by side, in sentences that swap with the two.

use portolan_cli::display::{bytes, counted, duration, grouped, micros};

use super::figure::{CAUSES, Difference, Measure, Side, TOTAL, of_what};
use super::{Comparison, PolicyPair, load, prediction};
use crate::fleet::least_strict;
use crate::replay::{PolicyReport, ReplayReport, Sureness, understood};

/// The sentences of `two`.
pub(super) fn of(two: &Comparison) -> Vec<String> {
    let mut said = vec![comparable(two)];
    said.extend(recorded(two));
    let Some(measure) = two.measure else {
        said.extend(cautions(two));
        return said;
    };
    let figures = two.policies.iter().flat_map(|pair| &pair.figures);
    let mut different = figures.filter(|one| one.a != one.b);
    if two.policies.is_empty() {
        said.push("No policy was replayed in both.".to_owned());
    } else if different.next().is_none() {
        said.push("They cost the same under each policy, to the last figure.".to_owned());
    } else {
        said.extend(strict(two, measure));
        said.extend(range(two, measure));
        said.extend(saving(two, "lazy"));
        said.extend(saving(two, "deferred"));
        said.extend(exposed(two));
    }
    let predictions = two.predictions.iter();
    said.extend(predictions.map(|one| prediction::finding(one, two)));
    said.extend(cautions(two));
    said
}

const fn name(side: Side) -> &'static str {
    match side {
        Side::A => "A",
        Side::B => "B",
    }
}

impl Comparison {
    fn sides(&self) -> [(Side, &ReplayReport); 2] {
        [(Side::A, &self.a), (Side::B, &self.b)]
    }
}

/// Tells if the two can be compared, and by which measure.
fn comparable(two: &Comparison) -> String {
    let work = |(side, of): (Side, &ReplayReport)| {
        let (maps, size) = (counted(of.trace.maps, "map"), bytes(of.trace.bytes_mapped));
        format!("{} has {maps}, {size}", name(side))
    };
    let each = two.sides().map(work).join("; ");
    match two.measure {
        Some(Measure::Total) => format!(
            "Both did the same amount of work, {} of {}: their totals are compared.",
            counted(two.a.trace.maps, "map"),
            bytes(two.a.trace.bytes_mapped),
        ),
        Some(Measure::Operation) => {
            format!("{each}: what a map or unmap costs is compared.")
        }
        Some(Measure::Mib) => {
            let loads = two.sides().map(|(side, of)| format!("{}: {}", name(side), load(of)));
            format!(
                "{each}. Their operations are of different kinds ({}), so what a MiB costs is compared.",
                loads.join("; ")
            )
        }
        None => {
            let empty = two.sides().into_iter().filter(|(_, of)| of.trace.maps == 0);
            let empty: Vec<_> = empty.map(|(side, _)| name(side)).collect();
            match empty.as_slice() {
                [] => "They are not comparable: one of them maps no bytes.".to_owned(),
                [one] => format!("They are not comparable: {one} maps nothing."),
                _ => "They are not comparable: neither maps anything.".to_owned(),
            }
        }
    }
}

/// Costs of mapping for the recorded kernels themselves.
fn recorded(two: &Comparison) -> Option<String> {
    let of = |(side, report): (Side, &ReplayReport)| {
        let cost = report.cost.as_ref().filter(|cost| cost.now.cpu_us > 0.0)?;
        let policy = report.situation.now.name();
        Some(format!(
            "{} ({policy}) {} ns a request, {} µs of each CPU-second",
            name(side),
            micros(cost.now.ns_per_request),
            micros(cost.now.cpu_us_per_s)
        ))
    };
    let [a, b] = two.sides().map(of);
    Some(format!("Mapping costs the recorded kernels: {}; {}.", a?, b?))
}

/// The strict policy that costs least in a replay.
pub(crate) fn least(of: &ReplayReport) -> Option<&PolicyReport> {
    least_strict(&of.policies, |p| (p.policy.as_str(), p.time_us.cpu))
}

/// The strict policies that cost least in each, and where the difference is.
fn strict(two: &Comparison, measure: Measure) -> Option<String> {
    let (in_a, in_b) = (least(&two.a)?, least(&two.b)?);
    let costs =
        |report, policy: &PolicyReport| Some(policy.time_us.cpu / measure.part(report, policy)?);
    let (a, b) = (costs(&two.a, in_a)?, costs(&two.b, in_b)?);
    let under = if in_a.policy == in_b.policy {
        format!("Under {}, the strict policy that costs least in both,", in_a.policy)
    } else {
        format!(
            "Each under the strict policy that costs least there (A {}, B {}),",
            in_a.policy, in_b.policy
        )
    };
    let of = of_what(measure);
    if a != b && (a / b - 1.0).abs() < 0.01 {
        let (a, b) = (duration(a), duration(b));
        return Some(format!("{under} they cost the same to within 1 %: A {a}, B {b}{of}."));
    }
    let (better, worse, less, more) = match a.partial_cmp(&b)? {
        std::cmp::Ordering::Equal => return Some(format!("{under} they cost the same.")),
        std::cmp::Ordering::Less => (Side::A, Side::B, a, b),
        std::cmp::Ordering::Greater => (Side::B, Side::A, b, a),
    };
    let mut said = format!(
        "{under} {} costs CPUs {:.0} % less than {}: {} instead of {}{of}.",
        name(better),
        100.0 * (1.0 - less / more),
        name(worse),
        duration(less),
        duration(more),
    );
    if in_a.policy == in_b.policy {
        let pair = two.policies.iter().find(|pair| pair.policy == in_a.policy)?;
        said.extend(cause(pair, measure, better));
    }
    Some(said)
}

/// Largest part of the gain of `better`.
fn cause(pair: &PolicyPair, measure: Measure, better: Side) -> Option<String> {
    let gain = |one: &Difference| match better {
        Side::A => one.difference.unwrap_or(0.0),
        Side::B => -one.difference.unwrap_or(0.0),
    };
    let causes =
        CAUSES.iter().filter_map(|(name, words)| Some((pair.figure(name, measure)?, *words)));
    let (largest, words) =
        causes.max_by(|(one, _), (other, _)| gain(one).total_cmp(&gain(other)))?;
    let (less, more) = match better {
        Side::A => (largest.a?, largest.b?),
        Side::B => (largest.b?, largest.a?),
    };
    let share = gain(largest) / gain(pair.figure(TOTAL, measure)?);
    Some(format!(
        " The largest part of the difference comes from {words}: {} instead of {}{}, {:.0} % of it.",
        duration(less),
        duration(more),
        of_what(measure),
        100.0 * share,
    ))
}

/// Says if prices that are known as ranges leave open which of the two costs less.
fn range(two: &Comparison, measure: Measure) -> Option<String> {
    let (in_a, in_b) = (least(&two.a)?, least(&two.b)?);
    let ends = |report, policy: &PolicyReport| {
        let part = measure.part(report, policy)?;
        let range = policy.cpu_range_us().unwrap_or([policy.time_us.cpu; 2]);
        Some(range.map(|end| end / part))
    };
    let (a, b) = (ends(&two.a, in_a)?, ends(&two.b, in_b)?);
    // A price of one machine is at the same end of its range in both.
    let open = if two.a.machine == two.b.machine {
        (a[0] < b[0]) != (a[1] < b[1])
    } else {
        a[0] <= b[1] && b[0] <= a[1]
    };
    in_a.total_range_us.or(in_b.total_range_us)?;
    open.then(|| {
        format!(
            "Which of them costs less is open, as far as prices of invalidations are known: A {} to {}, B {} to {}{}.",
            duration(a[0]),
            duration(a[1]),
            duration(b[0]),
            duration(b[1]),
            of_what(measure),
        )
    })
}

/// Part of the strict policy's costs that `policy` saves in each.
fn saving(two: &Comparison, policy: &str) -> Option<String> {
    let saved = |of: &ReplayReport| {
        let best = least(of)?.time_us.cpu;
        let other = of.policies.iter().find(|one| one.policy == policy)?;
        (best > 0.0).then(|| 100.0 * (1.0 - other.time_us.cpu / best))
    };
    let (a, b) = (saved(&two.a)?, saved(&two.b)?);
    Some(format!(
        "Of what the strict policy costs, {policy} saves {a:.0} % in A and {b:.0} % in B."
    ))
}

/// Memory that lazy leaves exposed in each, and the longest time of that.
fn exposed(two: &Comparison) -> Option<String> {
    let of = |(side, report): (Side, &ReplayReport)| {
        let lazy = report.policies.iter().find(|one| one.policy == "lazy")?;
        let (most, longest) = (lazy.exposed.max_bytes, lazy.exposed.max_us);
        Some(format!("{} {} for {}", name(side), bytes(most), duration(longest)))
    };
    let [a, b] = two.sides().map(of);
    Some(format!(
        "Under this library's lazy, memory that was unmapped stays reachable, at most: {}; {}.",
        a?, b?
    ))
}

/// Cautions for the reader.
fn cautions(two: &Comparison) -> Vec<String> {
    let mut said = Vec::new();
    if two.a.machine != two.b.machine && two.a.trace.source != two.b.trace.source {
        said.push(
            "Both the trace and the machine are others: the differences are those of both. --machine names one \
             for the two."
                .to_owned(),
        );
    }
    for (side, of) in two.sides() {
        let chosen = of.chosen.as_ref().map(|choice| choice.sureness);
        match chosen {
            Some(Sureness::Guessed) => {
                said.push(format!("The machine of {} is a guess.", name(side)))
            }
            Some(Sureness::Assumed) => said.push(format!(
                "The machine of {} is assumed: its trace says nothing of it.",
                name(side)
            )),
            _ => {}
        }
        let told = of.trace.understood;
        if !told.is_enough() {
            said.push(format!(
                "{} was not understood: {} of its events and {} of its bytes were.",
                name(side),
                understood(told.events_pct),
                understood(told.bytes_pct)
            ));
        }
        let trace = &of.trace;
        let missing = [
            (trace.lost_events, "events that its recorder lost"),
            (trace.orphan_unmaps, "unmaps without a map"),
            (trace.bad_lines, "lines that could not be used"),
            (trace.rejected_maps, "maps that no policy could replay"),
        ];
        let missing = missing.iter().filter(|(count, _)| *count > 0);
        let missing: Vec<_> =
            missing.map(|(count, what)| format!("{} {what}", grouped(*count))).collect();
        if !missing.is_empty() {
            said.push(format!("{} is not whole: {}.", name(side), missing.join(", ")));
        }
        let faults: u64 = of.policies.iter().map(|policy| policy.device.faults).sum();
        if faults > 0 {
            said.push(format!(
                "In {} {} accesses to mapped memory were refused: this is a defect.",
                name(side),
                grouped(faults)
            ));
        }
    }
    said
}
