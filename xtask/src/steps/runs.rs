//! Runs of the protocol that other steps have made and checked, counted (`docs/protocol.md`).
//!
//! Each process of theirs adds lines to one file: its name, runs, the library's steps, and the protocol's.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::outcome::Outcome;

/// Programs without whose runs the gate does not pass.
const NEEDED: [&str; 10] = [
    "generations",
    "interleavings",
    "taken_back",
    "torture",
    "runs",
    "bad_input",
    "bounced",
    "conformance",
    "contract",
    "smp",
];

fn file(root: &Path) -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR");
    target.map_or_else(|| root.join("target"), |path| root.join(path)).join("runs.tsv")
}

/// Has a command note its runs.
pub(super) fn noted<'c>(root: &Path, command: &'c mut Command) -> &'c mut Command {
    command.env("PORTOLAN_RUNS", file(root))
}

/// Sums of each program.
fn sums(text: &str) -> BTreeMap<&str, [u64; 3]> {
    let mut sums: BTreeMap<&str, [u64; 3]> = BTreeMap::new();
    for line in text.lines() {
        let mut cells = line.split('\t');
        let sum = sums.entry(cells.next().unwrap_or_default()).or_default();
        for (sum, cell) in sum.iter_mut().zip(cells) {
            *sum += cell.parse::<u64>().unwrap_or(0);
        }
    }
    sums
}

/// Prints the counts, and begins anew.
pub(super) fn count(root: &Path) -> Outcome {
    let path = file(root);
    let Ok(text) = std::fs::read_to_string(&path) else {
        return Outcome::Skip("no step before has noted a run".to_owned());
    };
    let sums = sums(&text);
    let mut all = [0; 3];
    for (name, sum) in &sums {
        let [runs, told, made] = sum;
        println!("{name:24} {runs:>10} runs {told:>12} steps {made:>12} of the protocol");
        all.iter_mut().zip(sum).for_each(|(all, one)| *all += one);
    }
    let [runs, told, made] = all;
    println!("{:24} {runs:>10} runs {told:>12} steps {made:>12} of the protocol", "all");
    let missing: Vec<_> = NEEDED.iter().filter(|name| !sums.contains_key(**name)).collect();
    if !missing.is_empty() {
        eprintln!("no runs of {missing:?}");
        return Outcome::Fail;
    }
    match std::fs::remove_file(&path) {
        Ok(()) => Outcome::Pass,
        Err(error) => {
            eprintln!("{}: {error}", path.display());
            Outcome::Fail
        }
    }
}
