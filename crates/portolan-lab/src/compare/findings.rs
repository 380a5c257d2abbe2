//! What two replays side by side come to, in sentences that swap with the two.

use portolan_cli::display::{bytes, grouped, micros};

use super::figure::{CAUSES, Difference, Measure, Side, TOTAL, unit_of};
use super::{Comparison, PolicyPair, load, prediction};
use crate::fleet::least_strict;
use crate::replay::{PolicyReport, ReplayReport, Sureness};

/// The sentences of `two`.
pub(super) fn of(two: &Comparison) -> Vec<String> {
    let mut said = vec![comparable(two)];
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

/// Whether they can be compared, and by what.
fn comparable(two: &Comparison) -> String {
    let work = |(side, of): (Side, &ReplayReport)| {
        let (maps, size) = (grouped(of.trace.maps), bytes(of.trace.bytes_mapped));
        format!("{} maps {maps} times, {size}", name(side))
    };
    let each = two.sides().map(work).join("; ");
    match two.measure {
        Some(Measure::Total) => format!(
            "Both did the same amount of work, {} maps of {}: their totals are compared.",
            grouped(two.a.trace.maps),
            bytes(two.a.trace.bytes_mapped),
        ),
        Some(Measure::Operation) => {
            format!("{each}: what a map or unmap costs is compared.")
        }
        Some(Measure::Mib) => {
            let loads = two.sides();
            let loads = loads.map(|(side, of)| format!("{}: {}", name(side), load(of)));
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

/// The strict policy that costs least in a replay.
pub(crate) fn least(of: &ReplayReport) -> Option<&PolicyReport> {
    least_strict(&of.policies, |p| (p.policy.as_str(), p.time_us.total))
}

/// The strict policies that cost least in each, and where the difference is.
fn strict(two: &Comparison, measure: Measure) -> Option<String> {
    let (in_a, in_b) = (least(&two.a)?, least(&two.b)?);
    let costs =
        |report, policy: &PolicyReport| Some(policy.time_us.total / measure.part(report, policy)?);
    let (a, b) = (costs(&two.a, in_a)?, costs(&two.b, in_b)?);
    let under = match in_a.policy == in_b.policy {
        true => format!(
            "Under {}, the strict policy that costs least in both,",
            in_a.policy
        ),
        false => format!(
            "Each under the strict policy that costs least there (A {}, B {}),",
            in_a.policy, in_b.policy
        ),
    };
    let (better, worse, less, more) = match a.partial_cmp(&b)? {
        std::cmp::Ordering::Equal => return Some(format!("{under} they cost the same.")),
        std::cmp::Ordering::Less => (Side::A, Side::B, a, b),
        std::cmp::Ordering::Greater => (Side::B, Side::A, b, a),
    };
    let mut said = format!(
        "{under} {} costs {:.0} % less than {}: {} instead of {} {}.",
        name(better),
        100.0 * (1.0 - less / more),
        name(worse),
        micros(less),
        micros(more),
        unit_of(measure),
    );
    if in_a.policy == in_b.policy {
        let pair = two
            .policies
            .iter()
            .find(|pair| pair.policy == in_a.policy)?;
        said.extend(cause(pair, measure, better));
    }
    Some(said)
}

/// The largest part of what `better` does better.
fn cause(pair: &PolicyPair, measure: Measure, better: Side) -> Option<String> {
    let gain = |one: &Difference| match better {
        Side::A => one.difference.unwrap_or(0.0),
        Side::B => -one.difference.unwrap_or(0.0),
    };
    let causes = CAUSES
        .iter()
        .filter_map(|(name, words)| Some((pair.figure(name, measure)?, *words)));
    let (largest, words) =
        causes.max_by(|(one, _), (other, _)| gain(one).total_cmp(&gain(other)))?;
    let (less, more) = match better {
        Side::A => (largest.a?, largest.b?),
        Side::B => (largest.b?, largest.a?),
    };
    let share = gain(largest) / gain(pair.figure(TOTAL, measure)?);
    Some(format!(
        " The largest part of the difference comes from {words}: {} instead of {} {}, {:.0} % of it.",
        micros(less),
        micros(more),
        unit_of(measure),
        100.0 * share,
    ))
}

/// Whether prices that are known as ranges leave open which of the two costs less.
fn range(two: &Comparison, measure: Measure) -> Option<String> {
    let (in_a, in_b) = (least(&two.a)?, least(&two.b)?);
    let ends = |report, policy: &PolicyReport| {
        let part = measure.part(report, policy)?;
        let range = policy.total_range_us.unwrap_or([policy.time_us.total; 2]);
        Some(range.map(|end| end / part))
    };
    let (a, b) = (ends(&two.a, in_a)?, ends(&two.b, in_b)?);
    // A price of one machine is at the same end of its range in both.
    let open = match two.a.machine == two.b.machine {
        true => (a[0] < b[0]) != (a[1] < b[1]),
        false => a[0] <= b[1] && b[0] <= a[1],
    };
    in_a.total_range_us.or(in_b.total_range_us)?;
    open.then(|| {
        format!(
            "Which of them costs less is open, as far as prices of invalidations are known: A {} to {}, B {} to {} {}.",
            micros(a[0]),
            micros(a[1]),
            micros(b[0]),
            micros(b[1]),
            unit_of(measure),
        )
    })
}

/// What `policy` saves in each.
fn saving(two: &Comparison, policy: &str) -> Option<String> {
    let saved = |of: &ReplayReport| {
        let best = least(of)?.time_us.total;
        let other = of.policies.iter().find(|one| one.policy == policy)?;
        (best > 0.0).then(|| 100.0 * (1.0 - other.time_us.total / best))
    };
    let (a, b) = (saved(&two.a)?, saved(&two.b)?);
    Some(format!(
        "Of that, {policy} saves {a:.0} % in A and {b:.0} % in B."
    ))
}

/// What lazy leaves open in each.
fn exposed(two: &Comparison) -> Option<String> {
    let of = |(side, report): (Side, &ReplayReport)| {
        let lazy = report.policies.iter().find(|one| one.policy == "lazy")?;
        let (most, longest) = (lazy.exposed.max_bytes, lazy.exposed.max_us);
        Some(format!(
            "{} {} for {} µs",
            name(side),
            bytes(most),
            micros(longest)
        ))
    };
    let [a, b] = two.sides().map(of);
    Some(format!(
        "Under lazy, memory that was unmapped stays reachable, at most: {}; {}.",
        a?, b?
    ))
}

/// What to keep in mind.
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
        if chosen == Some(Sureness::Guessed) {
            said.push(format!("The machine of {} is a guess.", name(side)));
        }
        let trace = &of.trace;
        let missing = [
            (trace.lost_events, "events that its recorder lost"),
            (trace.orphan_unmaps, "unmaps without a map"),
            (trace.bad_lines, "lines that could not be used"),
            (trace.rejected_maps, "maps that no policy could replay"),
        ];
        let missing = missing.iter().filter(|(count, _)| *count > 0);
        let missing: Vec<_> = missing
            .map(|(count, what)| format!("{} {what}", grouped(*count)))
            .collect();
        if !missing.is_empty() {
            said.push(format!(
                "{} is not whole: {}.",
                name(side),
                missing.join(", ")
            ));
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
