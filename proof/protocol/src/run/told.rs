//! Counts of accepted runs and their steps, for the gate to print.
//!
//! Where `PORTOLAN_RUNS` names a file, each process adds lines to it: its name, runs, the library's steps, and the
//! protocol's, with tabs between them.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Noted, Run};

/// Variable that names the file.
const FILE: &str = "PORTOLAN_RUNS";

static COUNTS: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];

impl Drop for Run {
    /// Counts a run all of whose steps were accepted.
    fn drop(&mut self) {
        let tally = self.tally();
        if tally.told == 0 || tally.refused > 0 {
            return;
        }
        for (count, more) in COUNTS.iter().zip([1, tally.told, tally.made]) {
            count.fetch_add(more, Ordering::Relaxed);
        }
        if self.noted == Noted::Alone {
            note();
        }
    }
}

/// Adds the counts since the last time to the file, if there is one, and returns them.
fn note() -> [u64; 3] {
    let counts = [0, 1, 2].map(|at: usize| COUNTS[at].swap(0, Ordering::Relaxed));
    let Some(path) = std::env::var_os(FILE) else {
        return counts;
    };
    let program = std::env::args_os().next().unwrap_or_default();
    let name = Path::new(&program).file_stem().unwrap_or_default().to_string_lossy().into_owned();
    // Without the hash that cargo gives the program of a test.
    let name =
        name.rsplit_once('-').filter(|(_, hash)| hash.len() == 16).map_or(&*name, |(name, _)| name);
    let [runs, told, made] = counts;
    if let Ok(mut file) = OpenOptions::new().create(true).append(true).open(path) {
        let _ = file.write_all(format!("{name}\t{runs}\t{told}\t{made}\n").as_bytes());
    }
    counts
}

/// Prints the counts of runs since the last time, and adds them to the file.
pub fn say() {
    let [runs, told, made] = note();
    println!("{runs} runs of {told} steps, {made} of the protocol, accepted");
}
