//! Records of random runs: the seed that replays one, counts of its events, and the violations that it found.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;

/// Violations that are told.
const TOLD: usize = 5;

/// Number of events of each kind, by name.
pub type EventCounts = BTreeMap<&'static str, u64>;

/// Results of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Record {
    /// Seed that replays the run.
    pub seed: u64,
    /// Operations done; fewer than asked for after a violation.
    pub operations: u64,
    /// Number of events of each kind.
    pub events: EventCounts,
    /// Violations that were found, the first few; none if all is well.
    pub violations: Vec<String>,
}

impl Record {
    /// Number of events of the kind `name`.
    pub fn count(&self, name: &str) -> u64 {
        self.events.get(name).copied().unwrap_or(0)
    }
}

/// Counts and violations of a run under way.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    operations: AtomicU64,
    events: Mutex<EventCounts>,
    violations: Mutex<Vec<String>>,
    /// Round under way, which begins the text of its violations, and the operations before it.
    round: Mutex<(String, u64)>,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Tally {
    /// Names the round that begins.
    pub(crate) fn begin(&self, round: String) {
        *lock(&self.round) = (round, self.operations());
    }

    /// Operations done so far.
    pub(crate) fn operations(&self) -> u64 {
        self.operations.load(Ordering::Relaxed)
    }

    /// Counts an operation; returns the number done.
    pub(crate) fn operation(&self) -> u64 {
        self.operations.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Counts an event.
    pub(crate) fn count(&self, name: &'static str) {
        self.add(name, 1);
    }

    /// Counts `number` events.
    pub(crate) fn add(&self, name: &'static str, number: u64) {
        *lock(&self.events).entry(name).or_default() += number;
    }

    /// Notes the greatest value of its kind; returns the greatest so far.
    pub(crate) fn most(&self, name: &'static str, value: u64) -> u64 {
        let mut events = lock(&self.events);
        let most = events.entry(name).or_default();
        *most = value.max(*most);
        *most
    }

    /// Notes a violation.
    pub(crate) fn violation(&self, text: impl std::fmt::Display) {
        let mut all = lock(&self.violations);
        if all.len() < TOLD {
            let (round, before) = &*lock(&self.round);
            let operation = self.operations() - before;
            all.push(format!("{round}, operation {operation}: {text}"));
        }
    }

    /// Tells if there were no violations so far.
    pub(crate) fn holds(&self) -> bool {
        lock(&self.violations).is_empty()
    }

    /// The results, of a run that `seed` replays.
    pub(crate) fn record(&self, seed: u64) -> Record {
        Record {
            seed,
            operations: self.operations(),
            events: lock(&self.events).clone(),
            violations: lock(&self.violations).clone(),
        }
    }
}

/// A round of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Round {
    /// Its seed: a run from there begins with this round.
    pub(crate) seed: u64,
    /// Operations that it does.
    pub(crate) operations: u64,
}

/// Does `operations` operations from `seed`, in rounds of at most `longest`, and stops after a round with a violation;
/// calls `progress` with the number done. The record has a count of each of `events`, of those that never happen too.
pub(crate) fn in_rounds(
    Round { seed, operations }: Round,
    longest: u64,
    events: &[&'static str],
    progress: &mut dyn FnMut(u64),
    mut round: impl FnMut(Round, &Arc<Tally>),
) -> Record {
    let tally = Arc::new(Tally::default());
    events.iter().for_each(|name| tally.add(name, 0));
    let mut next = seed;
    while tally.operations() < operations && tally.holds() {
        let left = operations - tally.operations();
        tally.count("rounds");
        round(Round { seed: next, operations: left.min(longest) }, &tally);
        next = next.wrapping_add(1);
        progress(tally.operations());
    }
    tally.record(seed)
}
