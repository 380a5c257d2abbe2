//! Mutants, and choosing some so that each room has its share.

use std::collections::BTreeMap;

use serde::Deserialize;

/// A small change of the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mutant {
    /// cargo-mutants' whole name for it: file, line, column and change.
    pub name: String,
    /// The package.
    pub package: String,
    /// The file, from the root of the workspace.
    pub file: String,
    /// The change and the function, without a place that moves with every edit.
    pub change: String,
    /// The line of the source that it changes, without the space around it.
    pub line: String,
    /// The change as a unified diff, as cargo-mutants gives it.
    pub diff: String,
}

/// Entry of `cargo mutants --list --json`, without the fields that are of no interest.
#[derive(Debug, Deserialize)]
pub struct Listed {
    name: String,
    package: String,
    file: String,
    span: Span,
    diff: String,
}

#[derive(Debug, Deserialize)]
struct Span {
    start: Place,
}

#[derive(Debug, Deserialize)]
struct Place {
    line: usize,
}

impl Mutant {
    /// The mutant, with the text of its line in `source`, the text of its file.
    pub fn of(listed: Listed, source: &str) -> Self {
        // "crates/x/src/y.rs:12:34: replace a with b in c"
        let change = listed.name.split_once(": ");
        let change = change.map_or("", |(_, change)| change);
        let line = listed.span.start.line.checked_sub(1);
        let line = line.and_then(|line| source.lines().nth(line));
        Self {
            change: change.to_owned(),
            line: line.unwrap_or_default().trim().to_owned(),
            name: listed.name,
            diff: listed.diff,
            package: listed.package,
            file: listed.file,
        }
    }

    /// The diff with the file's name on both sides, as git wants it.
    pub fn patch(&self) -> String {
        let hunks = self.diff.splitn(3, '\n').nth(2).unwrap_or_default();
        format!("--- a/{0}\n+++ b/{0}\n{hunks}", self.file)
    }

    /// The room of the library, or the driver: the package and its module below the root.
    pub fn room(&self) -> String {
        let below = self.file.split_once("/src/").map_or("", |(_, below)| below);
        let module = below.split('/').next().unwrap_or_default();
        let module = module.strip_suffix(".rs").unwrap_or(module);
        format!("{}/{module}", self.package)
    }
}

impl Listed {
    /// The file, from the root of the workspace.
    pub fn file(&self) -> &str {
        &self.file
    }
}

/// Chooses `many` of `all`, or all if there are fewer: the same number from each room, as long as it has that many.
/// Equal mutants and seeds give equal choices, in any order of the mutants.
pub fn choose(all: &[Mutant], many: usize, seed: u64) -> Vec<Mutant> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut rooms: BTreeMap<String, Vec<&Mutant>> = BTreeMap::new();
    for mutant in all {
        rooms.entry(mutant.room()).or_default().push(mutant);
    }
    let mut rooms: Vec<Vec<&Mutant>> = rooms.into_values().collect();
    for room in &mut rooms {
        room.sort_by(|one, other| one.name.cmp(&other.name));
        rng.shuffle(room);
    }
    // If there are fewer places than rooms, chance also decides which rooms get one.
    rng.shuffle(&mut rooms);
    let mut chosen = Vec::new();
    while chosen.len() < many {
        let before = chosen.len();
        for room in &mut rooms {
            if chosen.len() < many {
                chosen.extend(room.pop().cloned());
            }
        }
        if chosen.len() == before {
            break;
        }
    }
    chosen.sort_by(|one, other| one.name.cmp(&other.name));
    chosen
}
