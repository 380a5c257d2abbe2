//! Limits of pinned and mapped memory, and its present amounts.

use core::sync::atomic::{AtomicU64, Ordering};

use thiserror::Error;

/// Limits of a container, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Pinned.
    pub pinned: u64,
    /// Mapped, pinned memory included.
    pub mapped: u64,
}

impl Default for Limits {
    /// No limits.
    fn default() -> Self {
        Self { pinned: u64::MAX, mapped: u64::MAX }
    }
}

/// Quantity that reached its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limited {
    /// Pinned memory.
    Pinned,
    /// Mapped memory.
    Mapped,
}

/// More than the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{wanted} bytes more would be {what:?}: {used} of {limit} are already")]
pub struct LimitReached {
    /// Quantity whose limit it is.
    pub what: Limited,
    /// Bytes wanted.
    pub wanted: u64,
    /// Bytes that there are.
    pub used: u64,
    /// Bytes that there may be.
    pub limit: u64,
}

/// One quantity in bytes. It orders nothing: the memory that it counts is guarded elsewhere.
#[derive(Debug)]
pub(super) struct Quantity {
    what: Limited,
    limit: u64,
    used: AtomicU64,
}

impl Quantity {
    pub(super) fn new(what: Limited, limit: u64) -> Self {
        let used = AtomicU64::new(0);
        Self { what, limit, used }
    }

    pub(super) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    pub(super) fn take(&self, wanted: u64) -> Result<(), LimitReached> {
        let (what, limit) = (self.what, self.limit);
        let more = |used: u64| used.checked_add(wanted).filter(|sum| *sum <= limit);
        (self.used)
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .map(drop)
            .map_err(|used| LimitReached { what, wanted, used, limit })
    }

    /// Adds bytes that are not limited.
    pub(super) fn add(&self, bytes: u64) {
        self.used.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn give(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counts of a container since its start.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Usage {
            /// Bytes pinned now.
            pub pinned_bytes: u64,
            /// Bytes mapped now, pinned memory included.
            pub mapped_bytes: u64,
            /// Bytes that were unmapped and are not quiet: they are being taken back now, or the
            /// hardware did not complete that.
            pub leaving_bytes: u64,
            $($(#[$doc])* pub $name: u64,)*
        }

        /// Counters of a container. They order nothing.
        #[derive(Debug, Default)]
        pub(super) struct Counters {
            $(pub(super) $name: AtomicU64,)*
        }

        impl Counters {
            pub(super) fn read(
                &self,
                pinned_bytes: u64,
                mapped_bytes: u64,
                leaving_bytes: u64,
            ) -> Usage {
                Usage {
                    pinned_bytes,
                    mapped_bytes,
                    leaving_bytes,
                    $($name: self.$name.load(Ordering::Relaxed),)*
                }
            }
        }
    };
}

counters! {
    /// Faults.
    faults,
    /// Those that found the page mapped already.
    spurious,
    /// Those that were refused or failed.
    failed,
    /// Granules mapped on faults, those asked for and those before they were.
    granules_mapped,
    /// Granules among them for which no fault had asked.
    granules_premapped,
    /// Times that memory was taken back between populating and mapping it.
    raced,
    /// Ranges that the owner took back.
    invalidations,
    /// Granules unmapped for that.
    granules_taken_back,
}

pub(super) fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}
