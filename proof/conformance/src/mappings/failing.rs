//! Hardware that fails in the middle: it refuses, answers late or not at all, dies and comes back.
//!
//! The work before a failure stays done, and translations after it stay cached: the steps of a
//! failed submission are carried out up to a random one.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use fastrand::Rng;
use portolan::inval::Step;
use portolan::iommu::{Awaited, IommuError};
use portolan::platform::Nanos;
use portolan_sim::cpus::Hardware;
use serde::Serialize;

/// One of so many completions fails.
const ONE_IN: u32 = 48;
/// One of so many failures kills the unit.
const DEATHS: u32 = 8;
/// Most completions for which a dead unit stays dead.
const DEAD: u64 = 60;

/// State of the hardware in a round: it works, or it fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Health {
    /// No completion fails.
    Sound,
    /// Completions fail until the round ends.
    Failing,
}

impl Health {
    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sound => "sound",
            Self::Failing => "failing",
        }
    }
}

/// The state that the hardware and the round share.
#[derive(Debug)]
pub(super) struct Ailment {
    health: AtomicU8,
    failures: AtomicU64,
    state: Mutex<FailureSchedule>,
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

impl Ailment {
    pub(super) fn new(health: Health, seed: u64) -> Arc<Self> {
        Arc::new(Self {
            health: AtomicU8::new(u8::from(health == Health::Failing)),
            failures: AtomicU64::new(0),
            state: Mutex::new(FailureSchedule { rng: Rng::with_seed(seed), dead: 0 }),
        })
    }

    /// Tells if something may fail now.
    pub(super) fn health(&self) -> Health {
        match self.health.load(Ordering::Relaxed) {
            0 => Health::Sound,
            _ => Health::Failing,
        }
    }

    /// Stops all failures.
    pub(super) fn heal(&self) {
        self.health.store(0, Ordering::Relaxed);
    }

    /// Completions that failed.
    pub(super) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    fn fate(&self) -> CompletionFate {
        if self.health() == Health::Sound {
            return CompletionFate::Completes;
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let late =
            IommuError::TimedOut { awaited: Awaited::Completion, waited: Nanos::from_millis(10) };
        if state.dead > 0 {
            state.dead -= 1;
            return CompletionFate::Fails(0, IommuError::Gone);
        }
        if state.rng.u32(..ONE_IN) != 0 {
            return CompletionFate::Completes;
        }
        if state.rng.u32(..DEATHS) == 0 {
            state.dead = state.rng.u64(1..=DEAD);
            return CompletionFate::Fails(0, IommuError::Gone);
        }
        match state.rng.u32(..3) {
            0 => CompletionFate::Fails(0, late),
            1 => CompletionFate::Fails(state.rng.usize(..8), IommuError::Refused { code: 1 }),
            // All was done, and the answer is lost.
            _ => CompletionFate::Fails(usize::MAX, late),
        }
    }
}

/// `hardware` that fails according to its ailment.
pub(super) struct AilingHardware<H> {
    pub(super) hardware: H,
    pub(super) ailment: Arc<Ailment>,
}

impl<H: Hardware> Hardware for AilingHardware<H> {
    fn complete(&self, steps: &mut dyn Iterator<Item = Step>) -> Result<(), IommuError> {
        match self.ailment.fate() {
            CompletionFate::Completes => self.hardware.complete(steps),
            CompletionFate::Fails(done, error) => {
                self.ailment.failures.fetch_add(1, Ordering::Relaxed);
                self.hardware.complete(&mut steps.take(done))?;
                Err(error)
            }
        }
    }
}
