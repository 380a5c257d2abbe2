//! The tables of docs/performance.md and the README's rows, so that no figure there is typed.

use std::fmt::Write as _;

use crate::all;
use crate::figures::{MachineFigures, Make, RowFigures, SpreadFigures};
use crate::linux;
use crate::scenarios::{Sample, Scenario, Target};

/// Lines that the figures stand between.
const BEGIN: &str = "<!-- figures: written by portolan-bench -->\n";
const END: &str = "<!-- end of figures -->\n";

/// Versions of Linux; a scenario is compared with one of them.
const LINUX: [&str; 2] = [linux::NAME, linux::GENERIC_PT_NAME];

/// The machines, in the order of [`Make::ALL`].
type Machines = [MachineFigures; 2];

/// `page` with its figures replaced; `None` if it has no place for them.
pub(crate) fn with_figures(page: &str, machines: &Machines) -> Option<String> {
    let (before, rest) = page.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}{}{END}{after}", tables(machines)))
}

/// `readme` with the figures of its rows `| operation | benchmark | ours | Linux |` replaced by those of `machine`.
pub(crate) fn with_rows(readme: &str, machine: &MachineFigures) -> String {
    let replaced = |line: &str| -> Option<String> {
        let cells: Vec<&str> = line.strip_prefix("| ")?.strip_suffix(" |")?.split(" | ").collect();
        let [operation, name, ..] = cells[..] else { return None };
        let row = machine.row(name.strip_prefix('`')?.strip_suffix('`')?)?;
        let [ours, theirs] = [row.ours.median, linux_of(row)?.median].map(ns);
        Some(format!("| {operation} | {name} | {ours} | {theirs} |"))
    };
    let line = |line: &str| replaced(line).unwrap_or_else(|| line.to_owned()) + "\n";
    readme.lines().map(line).collect()
}

fn tables(machines: &Machines) -> String {
    let mut out = String::new();
    let [amd, intel] = Make::ALL.map(Make::name);
    let _ = write!(out, "| | {amd} | {intel} |\n|---|---|---|\n");
    let [a, b] = machines;
    let load = |machine: &MachineFigures| {
        machine.load_average.map_or("not noted".to_owned(), |load| format!("{load:.1}"))
    };
    let _ = write!(
        out,
        "| machine | {} | {} |\n| measured | {}, commit {} | {}, commit {} |\n\
         | load average at the end | {} | {} |\n",
        a.machine,
        b.machine,
        a.date,
        a.commit,
        b.date,
        b.commit,
        load(a),
        load(b)
    );
    let all = all();
    let any = |scenario: &&Scenario| machines.iter().any(|m| m.row(scenario.name).is_some());
    let shown: Vec<&Scenario> = all.iter().filter(any).collect();
    beside_linux(&mut out, machines, &shown);
    beside_limits(&mut out, machines, &shown);
    beside_others(&mut out, machines, &shown);
    calls(&mut out, machines, &shown);
    out
}

fn beside_linux(out: &mut String, machines: &Machines, scenarios: &[&Scenario]) {
    let [amd, intel] = Make::ALL.map(Make::name);
    let _ = write!(
        out,
        "\n| benchmark | {amd}, ours: ns | Linux's code: ns | times as fast | {intel}, ours: ns | Linux's code: ns | \
         times as fast | wanted, judged by the worse |\n|---|---|---|---|---|---|---|---|\n"
    );
    for scenario in scenarios {
        let cells = machines.iter().map(|machine| {
            let Some(row) = machine.row(scenario.name) else { return "| | ".to_owned() };
            let theirs = linux_of(row);
            let times = theirs.map(|theirs| format!("{:.2}", theirs.median / row.ours.median));
            let theirs = theirs.map(spread).unwrap_or_default();
            format!("{} | {theirs} | {}", spread(&row.ours), times.unwrap_or_default())
        });
        let cells = cells.collect::<Vec<_>>().join(" | ");
        let wanted = wanted(scenario, machines, |target| !matches!(target, Target::Limit(_)));
        let _ = writeln!(out, "| `{}` | {cells} | {wanted} |", scenario.name);
    }
}

fn beside_limits(out: &mut String, machines: &Machines, scenarios: &[&Scenario]) {
    let [amd, intel] = Make::ALL.map(Make::name);
    let _ = write!(
        out,
        "\n| benchmark | limit | {amd}, limit: ns | ours by limit | {intel}, limit: ns | ours by limit | wanted, \
         judged by the worse |\n|---|---|---|---|---|---|---|\n"
    );
    for scenario in scenarios {
        let cells = machines.iter().map(|machine| {
            let Some(row) = machine.row(scenario.name) else { return "| ".to_owned() };
            format!("{} | {:.2}", ns(row.limit), row.ours.median / row.limit)
        });
        let cells = cells.collect::<Vec<_>>().join(" | ");
        let wanted = wanted(scenario, machines, |target| matches!(target, Target::Limit(_)));
        let _ = writeln!(out, "| `{}` | {} | {cells} | {wanted} |", scenario.name, scenario.limit);
    }
}

fn beside_others(out: &mut String, machines: &Machines, scenarios: &[&Scenario]) {
    let [amd, intel] = Make::ALL.map(Make::name);
    let _ = write!(
        out,
        "\n| benchmark | {amd}, others in the same run: ns | {intel}, others: ns |\n|---|---|---|\n"
    );
    for scenario in scenarios {
        let others = machines.each_ref().map(|machine| {
            let peers = machine.row(scenario.name).map(|row| &row.peers).into_iter().flatten();
            let others = peers.filter(|(name, _)| !LINUX.contains(&name.as_str()));
            let others = others.map(|(name, spread)| format!("{name} {}", ns(spread.median)));
            others.collect::<Vec<_>>().join(", ")
        });
        if others.iter().any(|others| !others.is_empty()) {
            let _ = writeln!(out, "| `{}` | {} |", scenario.name, others.join(" | "));
        }
    }
}

/// Scenarios whose calls are timed one by one: their slowest.
fn calls(out: &mut String, machines: &Machines, scenarios: &[&Scenario]) {
    out.push_str(
        "\n| single calls | machine | who | median: ns | mean | p99 | p99.9 | largest |\n\
         |---|---|---|---|---|---|---|---|\n",
    );
    for scenario in scenarios.iter().filter(|scenario| scenario.sample == Sample::Call) {
        for (make, machine) in Make::ALL.iter().zip(machines) {
            let Some(row) = machine.row(scenario.name) else { continue };
            let peers = row.peers.iter().map(|(name, spread)| (name.as_str(), spread));
            for (who, spread) in std::iter::once(("ours", &row.ours)).chain(peers) {
                let SpreadFigures { median, mean, p99, p99_9, max, .. } = *spread;
                let cells = [Some(median), mean, p99, p99_9, max];
                let cells = cells.map(|cell| cell.map(ns).unwrap_or_default()).join(" | ");
                let (name, make) = (scenario.name, make.name());
                let _ = writeln!(out, "| `{name}` | {make} | {who} | {cells} |");
            }
        }
    }
}

fn linux_of(row: &RowFigures) -> Option<&SpreadFigures> {
    LINUX.iter().find_map(|name| row.peers.get(*name))
}

/// Targets of a scenario, each with the outcome on the machine that is worse for it.
fn wanted(scenario: &Scenario, machines: &Machines, of: impl Fn(&Target) -> bool) -> String {
    let one = |target: &Target| {
        let (sign, wanted, by) = match *target {
            Target::Linux(wanted) => ("≥", wanted, ""),
            Target::LinuxMean(wanted) => ("≥", wanted, " by mean"),
            Target::LinuxP99(wanted) => ("≥", wanted, " by p99"),
            Target::LinuxP999(wanted) => ("≥", wanted, " by p99.9"),
            Target::Limit(wanted) => ("≤", wanted, ""),
        };
        let of_machines = Make::ALL.iter().zip(machines);
        let measured = of_machines.filter_map(|(make, machine)| {
            Some((measured(*target, machine.row(scenario.name)?)?, make.name()))
        });
        let worse = match target {
            Target::Limit(_) => measured.max_by(|a, b| a.0.total_cmp(&b.0)),
            _ => measured.min_by(|a, b| a.0.total_cmp(&b.0)),
        };
        let outcome = match (worse, sign) {
            (None, _) => "not measured".to_owned(),
            (Some((ratio, _)), "≤") if ratio <= wanted => "met".to_owned(),
            (Some((ratio, _)), "≥") if ratio >= wanted => "met".to_owned(),
            (Some((ratio, make)), _) => format!("**missed** ({make}: {ratio:.2})"),
        };
        format!("{sign} {wanted}{by}: {outcome}")
    };
    let targets = scenario.targets.iter().filter(|target| of(target));
    targets.map(one).collect::<Vec<_>>().join(", ")
}

fn measured(target: Target, row: &RowFigures) -> Option<f64> {
    let theirs = linux_of(row);
    match target {
        Target::Linux(_) => Some(theirs?.median / row.ours.median),
        Target::LinuxMean(_) => Some(theirs?.mean? / row.ours.mean?),
        Target::LinuxP99(_) => Some(theirs?.p99? / row.ours.p99?),
        Target::LinuxP999(_) => Some(theirs?.p99_9? / row.ours.p99_9?),
        Target::Limit(_) => Some(row.ours.median / row.limit),
    }
}

fn spread(spread: &SpreadFigures) -> String {
    let median = ns(spread.median);
    match (spread.p10, spread.p90) {
        (Some(p10), Some(p90)) => format!("{median} ({}–{})", ns(p10), ns(p90)),
        _ => median,
    }
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

    /// Figures of a machine in which Linux takes `times` as long as ours, 20 ns.
    fn machine(times: f64) -> MachineFigures {
        let spread = |median: f64| SpreadFigures {
            median,
            p10: Some(median - 1.0),
            p90: Some(median + 1.0),
            mean: Some(median),
            p99: Some(10.0 * median),
            ..SpreadFigures::default()
        };
        let row = |name: &str| RowFigures {
            name: name.to_owned(),
            ours: spread(20.0),
            peers: [
                (linux::NAME.to_owned(), spread(20.0 * times)),
                ("other".to_owned(), spread(7.0)),
            ]
            .into(),
            limit: 10.0,
        };
        MachineFigures {
            machine: "two CPUs".to_owned(),
            date: "2026-01-01".to_owned(),
            commit: "0".to_owned(),
            load_average: None,
            rows: vec![row("map_sg"), row("iova_large")],
        }
    }

    #[test]
    fn targets_are_judged_by_the_worse_machine() {
        let text = tables(&[machine(61.725), machine(2.0)]);
        for wanted in [
            "| `map_sg` | 20.0 (19.0–21.0) | 1,234 (1,234–1,236) | 61.73 | 20.0 (19.0–21.0) | \
             40.0 (39.0–41.0) | 2.00 | ≥ 12: **missed** (Intel: 2.00) |",
            "| `map_sg` | stores from the list | 10.0 | 2.00 | 10.0 | 2.00 | ≤ 2.5: met |",
            "| `map_sg` | other 7.00 | other 7.00 |",
            "| `iova_large` | AMD | ours | 20.0 | 20.0 | 200 |  |  |",
        ] {
            assert!(text.contains(wanted), "{text}");
        }
    }

    #[test]
    fn figures_replace_those_that_are_there() {
        let machines = [machine(2.0), machine(3.0)];
        let page = format!("before\n{BEGIN}old\n{END}after\n");
        let once = with_figures(&page, &machines).unwrap();
        assert!(once.starts_with("before\n") && once.ends_with("after\n") && !once.contains("old"));
        assert_eq!(with_figures(&once, &machines).as_deref(), Some(&*once));
        assert_eq!(with_figures("nothing\n", &machines), None);
        let readme = "text\n| map | `map_sg` | 1 | 2 |\n| b | `other` | 3 | 4 |\n";
        let wanted = "text\n| map | `map_sg` | 20.0 | 40.0 |\n| b | `other` | 3 | 4 |\n";
        assert_eq!(with_rows(readme, &machines[0]), wanted);
    }
}
