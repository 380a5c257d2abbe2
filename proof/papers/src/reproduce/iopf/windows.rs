//! Adaptive windows compared with fixed ones: saved faults, and pages mapped in vain.

use std::num::NonZeroU32;

use anyhow::Result;
use portolan::demand::Window;
use portolan::demand::premap::Adaptive;
use portolan_sim::profile::Profile;

use super::super::rows::Check;
use super::machine::{AccessCounts, Machine, Whose};
use super::pattern::{self, Queues};
use super::rows::WindowRow;

const FIXED: [u32; 3] = [1, 64, 512];
/// A GiB.
const PAGES: u64 = 1 << 18;
const SEED: u64 = 1;
/// Accesses of the random workload.
const RANDOM: u64 = 20_000;
/// Pages of each hundred mapped that may be for nothing under random accesses.
const WASTE_BOUND: f64 = 10.0;

const SEQUENCE: &str = "a GiB in sequence";
const AT_RANDOM: &str = "20000 random pages of a GiB";

#[derive(Clone, Copy)]
enum Workload {
    Encrypt { bytes: u64, times: u64 },
    Sequence,
    Random,
}

const WORKLOADS: [(&str, Workload); 6] = [
    ("1 message of 1 MiB", encrypt(1, 1)),
    ("5000 messages of 1 MiB", encrypt(1, 5000)),
    ("1 message of 10 MiB", encrypt(10, 1)),
    ("1000 messages of 10 MiB", encrypt(10, 1000)),
    (SEQUENCE, Workload::Sequence),
    (AT_RANDOM, Workload::Random),
];

const fn encrypt(mib: u64, times: u64) -> Workload {
    let bytes = mib << 20;
    Workload::Encrypt { bytes, times }
}

struct WindowRun<'p> {
    profile: &'p Profile,
    workload: Workload,
    window: Window,
}

impl WindowRun<'_> {
    fn run(&self) -> Result<AccessCounts> {
        let (window, memory) = (self.window, pattern::MEMORY.max(PAGES << 12));
        let mut machine = Machine::new(self.profile, Whose::Guest, window, memory)?;
        match self.workload {
            Workload::Encrypt { bytes, times } => {
                pattern::encrypt(&mut machine, bytes, times, Queues::Inside)?;
            }
            Workload::Sequence => pattern::sequence(&mut machine, PAGES)?,
            Workload::Random => pattern::random(&mut machine, SEED, PAGES, RANDOM)?,
        }
        machine.counted()
    }
}

/// Each workload under each window.
pub(super) fn compare(profile: &Profile) -> Result<Vec<WindowRow>> {
    let fixed = FIXED.iter().filter_map(|pages| NonZeroU32::new(*pages));
    let windows: Vec<(String, Window)> = fixed
        .map(|pages| (pages.to_string(), Window::Fixed(pages)))
        .chain([("adaptive".to_owned(), Window::Adaptive(Adaptive::default()))])
        .collect();
    let mut rows = Vec::new();
    for (name, workload) in WORKLOADS {
        for (label, window) in &windows {
            let window = *window;
            let task = WindowRun { profile, workload, window };
            let counted = task.run()?;
            rows.push(WindowRow {
                workload: name,
                window: label.clone(),
                faults: counted.faults,
                pages_mapped: counted.mapped,
                pages_used: counted.used,
                wasted_pct: counted.wasted_pct(),
            });
        }
    }
    Ok(rows)
}

/// The bounds of adaptive windows.
pub(super) fn checks(rows: &[WindowRow]) -> Vec<Check> {
    let of = |workload: &'static str, adaptive: bool| {
        rows.iter()
            .filter(move |row| row.workload == workload && (row.window == "adaptive") == adaptive)
    };
    let best = of(SEQUENCE, false).map(|row| row.faults).min();
    let ours = of(SEQUENCE, true).map(|row| row.faults).next();
    let waste = of(AT_RANDOM, true).map(|row| row.wasted_pct).next();
    vec![
        Check {
            what: "in sequence, an adaptive window takes no more faults than the best fixed one"
                .to_owned(),
            found: format!("{} and {}", ours.unwrap_or(0), best.unwrap_or(0)),
            holds: ours.zip(best).is_some_and(|(ours, best)| ours <= best),
        },
        Check {
            what: format!("at random, it maps at most {WASTE_BOUND} % of its pages for nothing"),
            found: format!("{:.2} %", waste.unwrap_or(100.0)),
            holds: waste.is_some_and(|waste| waste <= WASTE_BOUND),
        },
    ]
}
