//! Hardware that fails in the middle: it refuses, answers late or not at all, dies and comes back.
//!
//! The work before a failure stays done, and translations after it stay cached: the steps of a
//! failed submission are carried out up to a random one.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use fastrand::Rng;
use portolan::inval::Step;
use portolan::iommu::{Awaited, IommuError};
use portolan::platform::Nanos;
use portolan_sim::cpus::Hardware;
use serde::Serialize;

use crate::record::Tally;

/// One of so many completions fails.
const ONE_IN: u32 = 32;
/// One of so many failures kills the unit.
const DEATHS: u32 = 8;
/// Most completions for which a dead unit stays dead.
const DEAD: u64 = 60;

/// State of a machine's hardware: it works, or it fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Health {
    /// No completion fails, and there is memory for tables.
    Sound,
    /// Completions fail until all CPUs are done, and memory for tables runs out.
    Failing,
}

impl Health {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Sound, Self::Failing];

    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sound => "sound",
            Self::Failing => "failing",
        }
    }
}

/// Failures of a machine's hardware, past and to come.
#[derive(Debug)]
pub(super) struct Failures {
    fails: AtomicBool,
    schedule: Mutex<FailureSchedule>,
    tally: Arc<Tally>,
}

#[derive(Debug)]
struct FailureSchedule {
    rng: Rng,
    /// Completions that a dead unit still refuses.
    dead: u64,
}

/// Result of one completion.
enum CompletionFate {
    Completes,
    /// Carries out so many steps, then returns this error.
    Fails(usize, IommuError),
}

impl Failures {
    pub(super) fn new(health: Health, seed: u64, tally: Arc<Tally>) -> Arc<Self> {
        let schedule = FailureSchedule { rng: Rng::with_seed(seed), dead: 0 };
        Arc::new(Self {
            fails: AtomicBool::new(health == Health::Failing),
            schedule: Mutex::new(schedule),
            tally,
        })
    }

    /// Tells if an error is expected now.
    pub(super) fn excuse(&self) -> bool {
        self.fails.load(Ordering::Relaxed)
    }

    /// Stops all failures.
    pub(super) fn heal(&self) {
        self.fails.store(false, Ordering::Relaxed);
    }

    fn fate(&self) -> CompletionFate {
        if !self.excuse() {
            return CompletionFate::Completes;
        }
        let mut schedule = self.schedule.lock().unwrap_or_else(PoisonError::into_inner);
        let FailureSchedule { rng, dead } = &mut *schedule;
        if *dead > 0 {
            *dead -= 1;
            return CompletionFate::Fails(0, IommuError::Gone);
        }
        if rng.u32(..ONE_IN) != 0 {
            return CompletionFate::Completes;
        }
        if rng.u32(..DEATHS) == 0 {
            self.tally.count("deaths");
            *dead = rng.u64(1..=DEAD);
            return CompletionFate::Fails(0, IommuError::Gone);
        }
        let error = match rng.bool() {
            true => IommuError::Refused { code: 1 },
            false => IommuError::TimedOut {
                awaited: Awaited::Completion,
                waited: Nanos::from_millis(10),
            },
        };
        // Of the last, all was done, and the answer is lost.
        let done = [0, rng.usize(..8), usize::MAX][rng.usize(..3)];
        CompletionFate::Fails(done, error)
    }
}

/// Hardware that has failures.
pub(super) struct FailingHardware {
    pub(super) hardware: Box<dyn Hardware>,
    pub(super) failures: Arc<Failures>,
}

impl Hardware for FailingHardware {
    fn complete(&self, steps: &mut dyn Iterator<Item = Step>) -> Result<(), IommuError> {
        match self.failures.fate() {
            CompletionFate::Completes => self.hardware.complete(steps),
            CompletionFate::Fails(done, error) => {
                self.failures.tally.count("failures");
                self.hardware.complete(&mut steps.take(done))?;
                Err(error)
            }
        }
    }
}
