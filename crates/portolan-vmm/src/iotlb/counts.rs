//! Counts of events, kept by threads that do not meet.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Events of an IOTLB since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Look-ups that found everything.
    pub hits: u64,
    /// Questions sent to the front-end; a look-up of several pages may send several.
    pub misses: u64,
    /// Misses that were refused, not answered in time, or had no front-end to answer them.
    pub failures: u64,
    /// Translations taken in.
    pub updates: u64,
    /// Invalidations carried out.
    pub invalidations: u64,
    /// Translations forgotten for want of room.
    pub evictions: u64,
    /// Invalidations that found a guard on their range, and waited for it.
    pub waits: u64,
}

/// Counters of one kind of event each, but for hits.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) hits: Striped,
    pub(super) misses: AtomicU64,
    pub(super) failures: AtomicU64,
    pub(super) updates: AtomicU64,
    pub(super) invalidations: AtomicU64,
    pub(super) evictions: AtomicU64,
    pub(super) waits: AtomicU64,
}

impl Counters {
    pub(super) fn read(&self) -> Counts {
        let of = |counter: &AtomicU64| counter.load(Relaxed);
        Counts {
            hits: self.hits.sum(),
            misses: of(&self.misses),
            failures: of(&self.failures),
            updates: of(&self.updates),
            invalidations: of(&self.invalidations),
            evictions: of(&self.evictions),
            waits: of(&self.waits),
        }
    }
}

/// A cache line, and the one that is fetched with it.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Line(AtomicU64);

const STRIPES: usize = 16;

/// A counter of which threads mostly have a cache line each.
#[derive(Debug, Default)]
pub(super) struct Striped([Line; STRIPES]);

static THREADS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static STRIPE: usize = THREADS.fetch_add(1, Relaxed) % STRIPES;
}

impl Striped {
    pub(super) fn add_one(&self) {
        // A thread that is ending has no number any more.
        let stripe = STRIPE.try_with(|stripe| *stripe).unwrap_or(0);
        self.0[stripe].0.fetch_add(1, Relaxed);
    }

    fn sum(&self) -> u64 {
        self.0.iter().map(|line| line.0.load(Relaxed)).sum()
    }
}
