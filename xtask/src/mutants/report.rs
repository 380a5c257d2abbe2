//! Results of a run, as a table and as JSON.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::sample::Mutant;

/// Fate of a mutant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// A test of its own package failed or hung.
    Caught,
    /// A test of another package did.
    CaughtWider,
    /// Does not compile.
    Unviable,
    /// Not noticed by any test.
    Survived,
    /// Only chosen, not tested.
    Untested,
}

/// The fates of a sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Commit that was mutated.
    pub commit: String,
    /// Seed of the sample.
    pub seed: u64,
    /// Number of mutants that the configuration does not exclude.
    pub of: usize,
    /// Number of those that it does, since they change nothing that matters.
    pub excluded: usize,
    /// Percentage that has to be caught.
    pub least: f64,
    /// Patterns of the configuration that match no mutant.
    pub stale: Vec<String>,
    /// Each mutant's fate.
    pub results: Vec<(Mutant, Fate)>,
}

/// Number of mutants of each fate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Chosen.
    pub sampled: usize,
    /// Caught by tests of their own package.
    pub own: usize,
    /// Caught by tests of other packages only.
    pub wider: usize,
    /// Mutants that do not compile.
    pub unviable: usize,
    /// Noticed by no test.
    pub survived: usize,
}

impl Counts {
    fn add(&mut self, fate: &Fate) {
        self.sampled += 1;
        match fate {
            Fate::Caught => self.own += 1,
            Fate::CaughtWider => self.wider += 1,
            Fate::Unviable => self.unviable += 1,
            Fate::Survived => self.survived += 1,
            Fate::Untested => {}
        }
    }

    fn caught(&self) -> usize {
        self.own + self.wider
    }

    /// Number of mutants that a test could have caught.
    fn could_be(&self) -> usize {
        self.caught() + self.survived
    }

    /// Percentage of the catchable mutants that were caught; 100 if there are none.
    pub fn percent(&self) -> f64 {
        self.percent_of(self.caught())
    }

    /// Percentage of the catchable mutants that a test of their own package catches.
    fn percent_of_own(&self) -> f64 {
        self.percent_of(self.own)
    }

    fn percent_of(&self, caught: usize) -> f64 {
        match self.could_be() {
            0 => 100.0,
            could_be => caught as f64 * 100.0 / could_be as f64,
        }
    }
}

#[derive(Serialize)]
struct Survivor<'r> {
    name: &'r str,
    package: &'r str,
    line: &'r str,
}

#[derive(Serialize)]
struct Json<'r> {
    commit: &'r str,
    seed: u64,
    of: usize,
    excluded: usize,
    percent: f64,
    percent_of_own: f64,
    least: f64,
    good: bool,
    total: Counts,
    rooms: BTreeMap<String, Counts>,
    survivors: Vec<Survivor<'r>>,
    untested: Vec<&'r str>,
    stale_exclusions: &'r [String],
}

impl Report {
    /// Over all rooms.
    pub fn total(&self) -> Counts {
        let mut total = Counts::default();
        for (_, fate) in &self.results {
            total.add(fate);
        }
        total
    }

    fn rooms(&self) -> BTreeMap<String, Counts> {
        let mut rooms: BTreeMap<String, Counts> = BTreeMap::new();
        for (mutant, fate) in &self.results {
            rooms.entry(mutant.room()).or_default().add(fate);
        }
        rooms
    }

    /// Tells if enough are caught, and each exclusion matches one of today's mutants.
    pub fn good(&self) -> bool {
        self.stale.is_empty() && self.total().percent() >= self.least
    }

    fn with<'r>(&'r self, fate: &'r Fate) -> impl Iterator<Item = &'r Mutant> {
        let same = move |result: &&'r (Mutant, Fate)| result.1 == *fate;
        self.results.iter().filter(same).map(|(mutant, _)| mutant)
    }

    /// Writes everything as JSON.
    pub fn json(&self) -> anyhow::Result<String> {
        let survivors = self.with(&Fate::Survived).map(|mutant| Survivor {
            name: &mutant.name,
            package: &mutant.package,
            line: &mutant.line,
        });
        let json = Json {
            commit: &self.commit,
            seed: self.seed,
            of: self.of,
            excluded: self.excluded,
            percent: self.total().percent(),
            percent_of_own: self.total().percent_of_own(),
            least: self.least,
            good: self.good(),
            total: self.total(),
            rooms: self.rooms(),
            survivors: survivors.collect(),
            untested: self.with(&Fate::Untested).map(|m| m.name.as_str()).collect(),
            stale_exclusions: &self.stale,
        };
        Ok(serde_json::to_string_pretty(&json)?)
    }
}

fn row(f: &mut fmt::Formatter<'_>, name: &str, counts: &Counts) -> fmt::Result {
    let Counts { sampled, own, wider, unviable, survived } = counts;
    writeln!(f, "{name:<26} {sampled:>7} {own:>5} {wider:>6} {unviable:>9} {survived:>9}")
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total = self.total();
        let (commit, seed) = (self.commit.get(..12).unwrap_or(&self.commit), self.seed);
        let (sampled, of) = (total.sampled, self.of);
        let excluded = self.excluded;
        writeln!(
            f,
            "{sampled} of {of} mutants of {commit}, --seed {seed}; {excluded} are excluded\n"
        )?;
        writeln!(f, "{:<26} sampled   own  wider  unviable  survived", "room")?;
        for (room, counts) in &self.rooms() {
            row(f, room, counts)?;
        }
        row(f, "total", &total)?;
        let mut heading = "\nsurvivors:";
        for mutant in self.with(&Fate::Survived) {
            writeln!(f, "{heading}\n  {}\n    {}", mutant.name, mutant.line)?;
            heading = "";
        }
        heading = "\nnot tested:";
        for mutant in self.with(&Fate::Untested) {
            writeln!(f, "{heading}\n  {}", mutant.name)?;
            heading = "";
        }
        for stale in &self.stale {
            writeln!(f, "\nan exclusion matches no mutant: {stale}")?;
        }
        writeln!(
            f,
            "\n{} of {} that could be caught are ({:.1} %), {:.1} % by their own package's tests; \
             {} % have to be",
            total.caught(),
            total.could_be(),
            total.percent(),
            total.percent_of_own(),
            self.least
        )
    }
}
