//! Counts of a process's runs and steps, for the gate to print.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Run;

/// Variable that names the file for the counts.
const FILE: &str = "PORTOLAN_RUNS";

static RUNS: AtomicU64 = AtomicU64::new(0);
static TOLD: AtomicU64 = AtomicU64::new(0);
static MADE: AtomicU64 = AtomicU64::new(0);

impl Drop for Run {
    /// Counts a run all of whose steps were accepted.
    fn drop(&mut self) {
        let tally = self.tally();
        if tally.told > 0 && tally.refused == 0 {
            RUNS.fetch_add(1, Ordering::Relaxed);
            TOLD.fetch_add(tally.told, Ordering::Relaxed);
            MADE.fetch_add(tally.made, Ordering::Relaxed);
        }
    }
}

/// Runs, steps of the library, and steps of the protocol since it was called last.
pub fn counted() -> [u64; 3] {
    [&RUNS, &TOLD, &MADE].map(|one| one.swap(0, Ordering::Relaxed))
}

/// Prints the counts, and adds them to the file that `PORTOLAN_RUNS` names.
pub fn say(source: &str) {
    let [runs, told, made] = counted();
    println!("{source}: {runs} runs of {told} steps, {made} of the protocol, accepted");
    let Some(path) = std::env::var_os(FILE) else {
        return;
    };
    let file = OpenOptions::new().create(true).append(true).open(path);
    if let Ok(mut file) = file {
        let _ = writeln!(file, "{source}\t{runs}\t{told}\t{made}");
    }
}
