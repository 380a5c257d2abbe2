//! The tables of docs/performance.md, so that no figure there is typed.

use std::fmt::Write as _;

use crate::linux;
use crate::measure::{BenchReport, BenchRow, Outcome};
use crate::spread::Spread;

/// Versions of Linux; a scenario is compared with one of them.
const LINUX: [&str; 2] = [linux::NAME, linux::GENERIC_PT_NAME];

/// Writes the tables: ours compared with Linux's code and the limit; with others; means and slowest hundredths, if
/// single calls were timed.
pub fn tables(report: &BenchReport) -> String {
    let mut out = String::from(
        "| benchmark | ours: ns | Linux's code: ns | times as fast | wanted | limit: ns | ours by limit | wanted |\n\
         |---|---|---|---|---|---|---|---|\n",
    );
    let judged = |row: &&BenchRow| linux_of(row).is_some() || !row.targets.is_empty();
    for row in report.benchmarks.iter().filter(judged) {
        let _ = writeln!(out, "{}", beside_linux(row));
    }
    out.push_str("\n| benchmark | ours: ns | others in the same run: ns |\n|---|---|---|\n");
    for row in &report.benchmarks {
        let others = row.peers.iter().filter(|(name, _)| !LINUX.contains(name));
        let others: Vec<_> =
            others.map(|(name, spread)| format!("{name} {}", ns(spread.median))).collect();
        if !others.is_empty() {
            let (ours, others) = (ns(row.ours.median), others.join(", "));
            let _ = writeln!(out, "| `{}` | {ours} | {others} |", row.name);
        }
    }
    out.push_str("\n| benchmark | who | median: ns | mean | p99 |\n|---|---|---|---|---|\n");
    let by_call = |row: &&BenchRow| row.targets.iter().any(|target| target.of == "p99");
    for row in report.benchmarks.iter().filter(by_call) {
        let all = std::iter::once((&"ours", &row.ours)).chain(&row.peers);
        for (who, spread) in all {
            let [median, mean, p99] = [spread.median, spread.mean, spread.p99].map(ns);
            let _ = writeln!(out, "| `{}` | {who} | {median} | {mean} | {p99} |", row.name);
        }
    }
    for (what, why) in &report.skipped {
        let _ = writeln!(out, "\nSKIP {what}: {why}");
    }
    out
}

fn linux_of(row: &BenchRow) -> Option<&Spread> {
    LINUX.iter().find_map(|name| row.peers.get(name))
}

fn beside_linux(row: &BenchRow) -> String {
    let (limits, peers): (Vec<&Outcome>, Vec<&Outcome>) =
        row.targets.iter().partition(|target| target.against == "limit");
    let by = |outcome: &Outcome| match outcome.of {
        "median" => String::new(),
        of => format!(" by {of}"),
    };
    let named = peers.iter().filter(|outcome| outcome.of != "median");
    let named: Vec<_> = named
        .filter_map(|outcome| Some(format!("{:.2}{}", outcome.measured?, by(outcome))))
        .collect();
    let times = match (linux_of(row), named.as_slice()) {
        (Some(theirs), []) => format!("{:.2}", theirs.median / row.ours.median),
        (_, named) => named.join(", "),
    };
    let wanted = |sign, outcomes: &[&Outcome]| {
        let one = |outcome: &&Outcome| {
            let shown = match outcome.met {
                Some(true) => "met",
                Some(false) => "**missed**",
                None => "SKIP",
            };
            let of = by(outcome);
            let wanted = (outcome.wanted * 100.0).round() / 100.0;
            format!("{sign} {wanted}{of}: {shown}")
        };
        outcomes.iter().map(one).collect::<Vec<_>>().join(", ")
    };
    format!(
        "| `{}` | {} | {} | {times} | {} | {}: {} | {:.2} | {} |",
        row.name,
        spread(&row.ours),
        linux_of(row).map(spread).unwrap_or_default(),
        wanted("≥", &peers),
        ns(row.limit.median),
        row.limit.what,
        row.ratio,
        wanted("≤", &limits),
    )
}

fn spread(spread: &Spread) -> String {
    let Spread { median, p10, p90, .. } = *spread;
    format!("{} ({}–{})", ns(median), ns(p10), ns(p90))
}

/// Three digits, or whole nanoseconds.
fn ns(ns: f64) -> String {
    match ns {
        ns if ns < 10.0 => format!("{ns:.2}"),
        ns if ns < 100.0 => format!("{ns:.1}"),
        ns => {
            let whole = format!("{ns:.0}");
            let digits = whole.len();
            let grouped = whole.chars().enumerate().flat_map(|(at, digit)| {
                let comma = at > 0 && (digits - at).is_multiple_of(3);
                comma.then_some(',').into_iter().chain([digit])
            });
            grouped.collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spread::Limit;
    use std::collections::BTreeMap;

    fn row(targets: Vec<Outcome>) -> BenchRow {
        let spread = |median: f64| Spread {
            median,
            p10: median - 1.0,
            p90: median + 1.0,
            p99: 10.0 * median,
            p99_9: 10.0 * median,
            max: 10.0 * median,
            mean: median,
        };
        BenchRow {
            name: "an_operation",
            what: "",
            size_bytes: 0,
            threads: 1,
            unit: "ns",
            samples: 1,
            ours: spread(20.0),
            peers: BTreeMap::from([(linux::NAME, spread(1234.5)), ("other", spread(7.0))]),
            limit: Limit { what: "a loop", median: 10.0, p10: 9.0 },
            ratio: 2.0,
            targets,
        }
    }

    fn outcome(against: &'static str, of: &'static str, met: Option<bool>) -> Outcome {
        Outcome { against, of, wanted: 1.5, measured: met.map(|_| 3.0), met }
    }

    #[test]
    fn a_row_says_what_was_measured_and_what_was_wanted() {
        let targets = vec![
            outcome(linux::NAME, "median", Some(true)),
            outcome("limit", "median", Some(false)),
        ];
        let report = BenchReport {
            benchmarks: vec![row(targets)],
            skipped: BTreeMap::from([("a_peer", "it is not here")]),
        };
        let text = tables(&report);
        for wanted in [
            "| `an_operation` | 20.0 (19.0–21.0) | 1,234 (1,234–1,236) | 61.73 | ≥ 1.5: met |",
            "| 10.0: a loop | 2.00 | ≤ 1.5: **missed** |",
            "| `an_operation` | 20.0 | other 7.00 |",
            "SKIP a_peer: it is not here",
        ] {
            assert!(text.contains(wanted), "{text}");
        }
    }

    #[test]
    fn what_is_judged_by_the_slowest_calls_has_a_table_of_them() {
        let report = BenchReport {
            benchmarks: vec![row(vec![outcome(linux::NAME, "p99", None)])],
            skipped: BTreeMap::new(),
        };
        let text = tables(&report);
        assert!(text.contains("| `an_operation` | ours | 20.0 | 20.0 | 200 |"), "{text}");
        assert!(text.contains("by p99: SKIP"), "{text}");
    }
}
