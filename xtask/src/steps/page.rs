//! The page that lists the steps (`docs/checks.md`), compared with the steps themselves.
//!
//! A row is `| step | purpose | CPU seconds | run |`. A name that ends in ` …` stands for all steps that begin so;
//! seconds behind a `~` are an estimate.

use std::path::Path;

use super::{Extent, LongPart};

/// Path of the page, from the root of the workspace.
pub const PAGE: &str = "docs/checks.md";
/// The last column of steps that `cargo xtask test` runs.
const GATE: &str = "gate";
/// CPU seconds that a part of the long run may cost: 80 minutes of one CPU.
const LONG_LIMIT: u32 = 80 * 60;
/// CPU seconds that the gate may cost: 25 minutes of two CPUs.
const GATE_LIMIT: u32 = 2 * 25 * 60;

/// A step, and the run that has it.
struct NamedStep {
    name: &'static str,
    run: String,
}

/// A row of the page.
struct StepRow<'p> {
    name: &'p str,
    cpu_seconds: Option<u32>,
    run: &'p str,
}

impl StepRow<'_> {
    fn is_of(&self, step: &NamedStep) -> bool {
        match self.name.strip_suffix('…') {
            Some(start) => step.name.starts_with(start),
            None => step.name == self.name,
        }
    }
}

/// Differences between the page's text and the steps.
pub fn findings(root: &Path, text: &str) -> Vec<String> {
    compare(&all(root), &rows(text), text)
}

fn all(root: &Path) -> Vec<NamedStep> {
    let gate = super::first().into_iter().chain(super::steps(root));
    let gate = gate.chain(super::beside(root, Extent::Whole));
    let gate = gate.map(|step| NamedStep { name: step.name, run: GATE.to_owned() });
    let long = LongPart::ALL.into_iter().flat_map(|part| {
        let run = format!("`--long {}`", part.name());
        part.steps(root)
            .into_iter()
            .map(move |step| NamedStep { name: step.name, run: run.clone() })
    });
    gate.chain(long).collect()
}

fn rows(text: &str) -> Vec<StepRow<'_>> {
    let lines = text.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    let cells = lines.map(|line| line.split(" | ").collect::<Vec<_>>());
    let rows = cells.filter_map(|cells| match cells[..] {
        [name, _, seconds, run] if name != "step" => Some(StepRow {
            name,
            cpu_seconds: seconds.trim_start_matches('~').replace(',', "").parse().ok(),
            run,
        }),
        _ => None,
    });
    rows.collect()
}

fn compare(steps: &[NamedStep], rows: &[StepRow], text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for step in steps {
        let NamedStep { name, run } = step;
        // The longest start of a name is the one meant.
        match rows.iter().filter(|row| row.is_of(step)).max_by_key(|row| row.name.len()) {
            None => found.push(format!("no row for the step {name:?}")),
            Some(row) if row.run != run => {
                found.push(format!("{name:?} is run by {run}, not by {}", row.run));
            }
            Some(_) => {}
        }
    }
    for row in rows {
        if !steps.iter().any(|step| row.is_of(step)) {
            found.push(format!("there is no step {:?}", row.name));
        }
        if row.cpu_seconds.is_none() {
            found.push(format!("{:?} has no CPU seconds", row.name));
        }
    }
    let sum = |run: &str| -> u32 {
        rows.iter().filter(|row| row.run == run).filter_map(|row| row.cpu_seconds).sum()
    };
    let gate = sum(GATE);
    if !text.contains(&format!("{gate} CPU seconds in all")) {
        found.push(format!("does not say that the gate costs {gate} CPU seconds in all"));
    }
    if gate > GATE_LIMIT {
        found.push(format!("the gate costs {gate} CPU seconds, more than {GATE_LIMIT}"));
    }
    for part in LongPart::ALL {
        let cost = sum(&format!("`--long {}`", part.name()));
        if cost > LONG_LIMIT {
            found.push(format!(
                "--long {} costs {cost} CPU seconds, more than {LONG_LIMIT}",
                part.name()
            ));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "The gate: 12 CPU seconds in all.\n\n\
        | step | purpose | CPU seconds | run |\n|---|---|---|---|\n\
        | tests | all | 5 | gate |\n| demo … | kernels | 7 | gate |\n\
        | demo large | a large kernel | ~4,000 | `--long guests` |\n";

    fn found(page: &str) -> Vec<String> {
        let step = |name, run: &str| NamedStep { name, run: run.to_owned() };
        let long = step("demo large", "`--long guests`");
        let steps = [step("tests", GATE), step("demo a", GATE), step("demo b", GATE), long];
        compare(&steps, &rows(page), page)
    }

    #[test]
    fn the_page_has_each_step_in_its_run() {
        assert_eq!(found(PAGE), [""; 0]);
        assert_eq!(found(&PAGE.replace("| tests", "| test")).len(), 2);
        assert_eq!(found(&PAGE.replace("`--long guests`", "`--long torture`")).len(), 1);
        assert_eq!(found(&PAGE.replace("| ~4,000", "| some")).len(), 1);
    }

    #[test]
    fn costs_are_added_up_and_limited() {
        assert_eq!(found(&PAGE.replace("12 CPU", "13 CPU")).len(), 1);
        assert_eq!(found(&PAGE.replace("4,000", "4,801")).len(), 1);
        let dear = PAGE.replace("| 5 |", "| 2,994 |").replace("12 CPU", "3001 CPU");
        assert_eq!(found(&dear).len(), 1);
    }
}
