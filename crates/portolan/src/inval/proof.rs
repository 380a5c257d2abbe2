//! Proofs that a debt was settled, without which nothing of it comes back to its owner.
//!
//! [`settle`](super::queue::settle) hands a debt to a queue and returns it as [`Settled`]: the key
//! to its table pages. When those are taken back, [`Flushed`] is left, which has no size: the key to
//! addresses and buffers. [`FlushedUpTo`] keeps it where other CPUs find it.
//!
//! *Context.* Interrupt: values.

use core::sync::atomic::Ordering::{Acquire, Release};

use super::gather::Gather;
use super::{Quiesced, TableChain};
use crate::addr::TableId;
use crate::platform::SharedWord;

/// Proof that an invalidation has completed: no device uses translations that were owed it.
///
/// Domains return it from [`Domain::sync`](crate::iommu::Domain::sync). A queue that has carried out
/// the steps of a debt makes it, and [`Gather::paid`] for domains without page tables.
#[derive(Debug)]
pub struct Flushed(());

impl Flushed {
    /// For a debt that was just settled.
    #[inline]
    pub(super) const fn new() -> Self {
        Self(())
    }
}

/// A debt that a queue has settled, with the table pages that waited for that.
#[derive(Debug)]
#[must_use = "its table pages are free"]
pub(crate) struct Settled<'g>(&'g mut Gather);

impl<'g> Settled<'g> {
    /// For `owed`, whose steps a queue has just carried out.
    #[inline(always)]
    pub(super) const fn new(owed: &'g mut Gather) -> Self {
        Self(owed)
    }

    /// Hands its table pages to `reclaim`, if there are some.
    #[inline(always)]
    pub(crate) fn reclaim(self, reclaim: impl FnOnce(&TableChain)) -> Flushed {
        if self.0.holds_tables() {
            // Where it is: a copy is read in pieces that differ from those in which it was just written.
            reclaim(&self.0.tables);
        }
        self.0.clear();
        Flushed::new()
    }

    /// The proof of a debt of `table`, with its table pages, to keep.
    #[inline]
    pub(crate) fn into_quiesced(self, table: TableId) -> Quiesced {
        self.0.take_quiesced(table)
    }
}

/// Number of the last generation of debts that was settled.
#[derive(Debug)]
pub(crate) struct FlushedUpTo<W>(W);

impl<W: SharedWord> FlushedUpTo<W> {
    /// None so far: generations count from 1.
    pub(crate) fn none() -> Self {
        Self(W::new(0))
    }

    /// Notes that `generation`, and all before it, are settled.
    #[inline]
    pub(crate) fn note(&self, generation: u64, _: Flushed) {
        self.0.store(generation, Release);
    }

    /// The proof that `generation` is settled, if it is.
    #[inline]
    pub(crate) fn proof(&self, generation: u64) -> Option<Flushed> {
        (self.0.load(Acquire) >= generation).then(Flushed::new)
    }
}
