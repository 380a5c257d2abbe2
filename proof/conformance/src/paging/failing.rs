//! Hardware that fails now and then, and pages that owners do not have back because of that.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use portolan::inval::Step;
use portolan::iommu::{Awaited, IommuError};
use portolan::platform::Nanos;
use portolan_sim::cpus::Hardware;

use super::world::Taken;

/// One of so many syncs fails, if single syncs fail.
const EVERY: u64 = 9;
/// Syncs in a phase in which the hardware works or is dead.
const PHASE: u64 = 40;

/// Way in which the hardware of a round fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Temper {
    /// Never.
    Works,
    /// Now and then a sync is not carried out, or only its first step.
    Refuses,
    /// Now and then a sync is carried out, but reported as timed out.
    Silent,
    /// The unit dies for a while, and recovers.
    Dies,
}

impl Temper {
    /// Mode of a round. Every second round the hardware works; in the others it fails in each way in turn. After
    /// twelve rounds the two change places, so that each way occurs with everything else that changes by rounds.
    pub(super) const fn of_round(round: u64) -> Self {
        match ((round + round / 12) % 2, round % 3) {
            (0, _) => Self::Works,
            (_, 0) => Self::Silent,
            (_, 1) => Self::Refuses,
            _ => Self::Dies,
        }
    }
}

/// Record of the failures of a round's hardware.
#[derive(Debug)]
pub(super) struct Failures {
    pub(super) temper: Temper,
    seen: AtomicU64,
    pub(super) failed: AtomicU64,
    healed: AtomicBool,
}

const TIMED_OUT: IommuError =
    IommuError::TimedOut { awaited: Awaited::Completion, waited: Nanos::new(10_000_000) };

impl Failures {
    pub(super) fn new(temper: Temper) -> Arc<Self> {
        Arc::new(Self {
            temper,
            seen: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            healed: AtomicBool::new(false),
        })
    }

    /// Stops all failures.
    pub(super) fn heal(&self) {
        self.healed.store(true, Ordering::Relaxed);
    }

    /// Tells if an error is expected.
    pub(super) fn excuses(&self) -> bool {
        self.temper != Temper::Works && !self.healed.load(Ordering::Relaxed)
    }
}

/// Hardware that fails according to the round.
pub(super) struct FailingHardware<H> {
    pub(super) hardware: H,
    pub(super) failures: Arc<Failures>,
}

impl<H: Hardware> Hardware for FailingHardware<H> {
    fn complete(&self, steps: &mut dyn Iterator<Item = Step>) -> Result<(), IommuError> {
        let number = self.failures.seen.fetch_add(1, Ordering::Relaxed);
        let (single, dead) = (number % EVERY == EVERY - 1, number / PHASE % 4 == 3);
        match self.failures.temper {
            _ if !self.failures.excuses() => return self.hardware.complete(steps),
            Temper::Refuses if single => match number / EVERY % 2 {
                0 => {}
                _ => self.hardware.complete(&mut steps.take(1))?,
            },
            Temper::Silent if single => self.hardware.complete(steps)?,
            Temper::Dies if dead => {}
            _ => return self.hardware.complete(steps),
        }
        self.failures.failed.fetch_add(1, Ordering::Relaxed);
        Err(TIMED_OUT)
    }
}

/// Pages that were taken back in vain: the first, their number, and their memory.
#[derive(Debug)]
pub(super) struct NotBack {
    pub(super) first: u64,
    pub(super) count: u64,
    pub(super) taken: Taken,
}

/// Pages that owners do not have back yet.
#[derive(Debug, Default)]
pub(super) struct PendingPages(Mutex<Vec<NotBack>>);

impl PendingPages {
    pub(super) fn put(&self, not_back: NotBack) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(not_back);
    }

    /// The entry that has waited longest.
    pub(super) fn next(&self) -> Option<NotBack> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (!all.is_empty()).then(|| all.remove(0))
    }
}
