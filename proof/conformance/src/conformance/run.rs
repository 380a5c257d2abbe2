//! Runs all scenarios, each on a new machine, and compares the submitted commands with those that another observer
//! counted.

use std::collections::BTreeMap;
use std::fmt;

use super::{Host, Machine, Outcome, Rig, UNCOUNTED, scenarios};

/// Result of a scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The scenario.
    pub name: &'static str,
    /// Seed of its random numbers, if it has any.
    pub seed: Option<u64>,
    /// Outcome of the scenario.
    pub outcome: Outcome,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name;
        match &self.outcome {
            Outcome::Pass => write!(f, "PASS  {name}")?,
            Outcome::Fail(why) => write!(f, "FAIL  {name}: {why}")?,
            Outcome::Skip(why) => return write!(f, "SKIP  {name}: {why}"),
        }
        self.seed.map_or(Ok(()), |seed| write!(f, " (seed {seed:#x})"))
    }
}

/// The name under which the counts of all scenarios are compared.
pub const COUNTS: &str = "submitted-commands-are-seen";

/// Runs every scenario on a machine of `make`'s, and tells `progress` of each.
pub fn run<U, D, H>(
    make: impl Fn() -> Result<Rig<U, D, H>, Outcome>,
    progress: &mut dyn FnMut(&Line),
) -> Vec<Line>
where
    Box<Rig<U, D, H>>: Machine,
    H: Host,
{
    let mut lines = Vec::new();
    let mut counts = Counting::Nobody;
    for scenario in scenarios::<Box<Rig<U, D, H>>>() {
        let outcome = match make().map(Box::new) {
            Ok(machine) => {
                let outcome = scenario.run(&machine);
                if !UNCOUNTED.contains(&scenario.name) {
                    let submitted = (machine.submitted)(&machine.unit);
                    counts.compare(scenario.name, submitted, machine.host.witnessed());
                }
                outcome
            }
            Err(outcome) => outcome,
        };
        let line = Line { name: scenario.name, seed: scenario.seed, outcome };
        progress(&line);
        lines.push(line);
    }
    let line = Line { name: COUNTS, seed: None, outcome: counts.outcome() };
    progress(&line);
    lines.push(line);
    lines
}

/// Result of comparing counts.
enum Counting {
    /// There is no other observer that counts.
    Nobody,
    /// Both sides saw this number of commands.
    Agreed(u64),
    /// The sides differ.
    Differed(String),
}

impl Counting {
    fn compare(
        &mut self,
        name: &str,
        submitted: BTreeMap<String, u64>,
        witnessed: Option<BTreeMap<String, u64>>,
    ) {
        let Some(witnessed) = witnessed else {
            return;
        };
        let some = |counts: BTreeMap<String, u64>| -> BTreeMap<String, u64> {
            counts.into_iter().filter(|(_, count)| *count > 0).collect()
        };
        let (submitted, witnessed) = (some(submitted), some(witnessed));
        if submitted != witnessed {
            let what = format!("{name}: submitted {submitted:?}, seen {witnessed:?}");
            *self = Self::Differed(what);
            return;
        }
        let total: u64 = submitted.values().sum();
        match self {
            Self::Nobody => *self = Self::Agreed(total),
            Self::Agreed(sum) => *sum += total,
            Self::Differed(_) => {}
        }
    }

    fn outcome(self) -> Outcome {
        match self {
            Self::Nobody => Outcome::Skip("nothing else counts".to_owned()),
            Self::Agreed(0) => Outcome::Fail("no command was seen".to_owned()),
            Self::Agreed(_) => Outcome::Pass,
            Self::Differed(what) => Outcome::Fail(what),
        }
    }
}
