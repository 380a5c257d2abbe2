//! Shortages of the reserve: a flag for each, so that no caller takes a lock to find out.

use core::sync::atomic::Ordering;

use super::class::Kind;
use crate::platform::{Cpus, SharedWord};

/// Permission to take room that records lack from the heap.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Heap {
    /// Room is taken: not in handlers of interrupts.
    Use,
    /// No room is taken: a call that lacks it fails.
    Spare,
}

/// The bit of [`Shortage`] for records; that of a kind's magazines is its index.
pub(super) const RECORDS: u64 = 1 << 63;

/// Flags of the shortages.
///
/// *Context.* Interrupt.
pub(super) struct Shortage<P: Cpus>(pub(super) P::Word);

impl<P: Cpus> Shortage<P> {
    /// Of records: there are none yet.
    pub fn new() -> Self {
        Self(P::Word::new(RECORDS))
    }

    /// Adds `bits`; writes only if one of them is new.
    pub fn add(&self, bits: u64) {
        if self.0.load(Ordering::Relaxed) & bits != bits {
            self.0.fetch_or(bits, Ordering::Relaxed);
        }
    }
}

/// The bit of a kind's magazines.
pub(super) const fn bit(kind: Kind) -> u64 {
    1 << kind.index()
}
