//! Bits that say where there is work to do, so that no caller takes a lock to find out.

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

/// The bit for records; that of a kind is its index.
pub(super) const RECORDS: u64 = 1 << 63;

/// The bit for caches of CPUs.
pub(super) const CACHES: u64 = 1 << 62;

/// Bits of kinds, and one each for records and for caches of CPUs.
///
/// *Context.* Interrupt.
pub(super) struct KindBits<P: Cpus>(P::Word);

impl<P: Cpus> KindBits<P> {
    pub fn new(bits: u64) -> Self {
        Self(P::Word::new(bits))
    }

    /// Adds `bits`; writes only if one of them is new.
    pub fn add(&self, bits: u64) {
        if self.0.load(Ordering::Relaxed) & bits != bits {
            self.0.fetch_or(bits, Ordering::Relaxed);
        }
    }

    /// Tells if there is one.
    #[inline]
    pub fn any(&self) -> bool {
        // No order needed: the work itself is done under locks.
        self.0.load(Ordering::Relaxed) != 0
    }

    /// Takes all of them.
    pub fn take(&self) -> u64 {
        self.0.swap(0, Ordering::Relaxed)
    }
}

/// The bit of a kind.
pub(super) const fn bit(kind: Kind) -> u64 {
    1 << kind.index()
}
