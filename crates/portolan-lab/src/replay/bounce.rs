//! Forced bouncing: the library's pool, which the device reaches at all times, and a count of what is
//! copied.
//!
//! The pool has 64 MiB in slots of 2 KiB, as Linux has it unless told otherwise, with an area for
//! each CPU. Pieces longer than 256 KiB are copied in parts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result};
use portolan::addr::{PhysAddr, PhysRange};
use portolan::bounce::{
    BouncePool, Fill, GiveError, Need, Pool, PoolOptions, PoolUse, Slots, TakeError,
};
use portolan::dma::{CopyWhen, Copying};
use portolan_model::cpus::VirtualCpus;

/// Where the pool lies, and its bytes.
const AT: u64 = 1 << 32;
const BYTES: u64 = 64 << 20;
/// Bytes of a slot.
const SLOT: u64 = 2 << 10;
/// The most that is copied in one part.
const PART: u64 = 256 << 10;

/// A pool of a simulated machine, whose bytes are counted and not copied.
pub(super) struct CountedPool {
    pool: Pool<VirtualCpus>,
    used: AtomicU64,
    peak: AtomicU64,
    copies: AtomicU64,
    /// Bytes copied so far to the device and from it.
    moved: [AtomicU64; 2],
}

fn slots_of(slots: &Slots) -> u64 {
    slots.data().len_minus_one() / SLOT + 1
}

impl CountedPool {
    pub(super) fn new(cpus: &VirtualCpus) -> Result<Self> {
        let memory = PhysRange::from_len(PhysAddr::new(AT), BYTES).context("no pool")?;
        Ok(Self {
            pool: Pool::new(cpus.clone(), memory, PoolOptions::for_cpus(cpus))?,
            used: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            copies: AtomicU64::new(0),
            moved: Default::default(),
        })
    }

    /// Copies of everything, for a device.
    pub(super) fn copying(self: Arc<Self>) -> Copying {
        Copying {
            pool: self,
            when: CopyWhen::Always,
            // What a device leaves alone comes back as it was.
            fill: Fill::Buffer,
        }
    }

    /// Slots that there are, most of them in use at once, and how often some were taken.
    pub(super) fn slots(&self) -> [u64; 3] {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        [BYTES / SLOT, of(&self.peak), of(&self.copies)]
    }

    /// Bytes copied to the device and from it.
    pub(super) fn moved(&self) -> [u64; 2] {
        self.moved
            .each_ref()
            .map(|bytes| bytes.load(Ordering::Relaxed))
    }
}

impl BouncePool for CountedPool {
    fn take(&self, need: &Need) -> Result<Slots, TakeError> {
        let slots = self.pool.take(need)?;
        self.copies.fetch_add(1, Ordering::Relaxed);
        let taken = slots_of(&slots);
        let used = self.used.fetch_add(taken, Ordering::Relaxed) + taken;
        self.peak.fetch_max(used, Ordering::Relaxed);
        Ok(slots)
    }

    fn give(&self, slots: Slots) -> Result<(), GiveError> {
        self.used.fetch_sub(slots_of(&slots), Ordering::Relaxed);
        self.pool.give(slots)
    }

    fn copy(&self, _from: PhysAddr, to: PhysAddr, bytes: u64) {
        let inward = (AT..AT + BYTES).contains(&to.get());
        self.moved[usize::from(!inward)].fetch_add(bytes, Ordering::Relaxed);
    }

    fn clear(&self, _memory: PhysRange) {}

    fn in_use(&self) -> PoolUse {
        self.pool.in_use()
    }
}

/// The first `bytes` bytes of `pieces`, in parts that are copied one by one.
pub(super) fn parts(pieces: &[PhysRange], bytes: u64) -> Vec<PhysRange> {
    let mut parts = Vec::new();
    let mut left = bytes;
    for piece in pieces {
        let mut rest = piece.len_minus_one().saturating_add(1).min(left);
        let mut at = Some(piece.start());
        left -= rest;
        while let Some(part) = at.and_then(|at| PhysRange::from_len(at, rest.min(PART))) {
            parts.push(part);
            rest -= rest.min(PART);
            at = part.last().checked_add(1);
        }
    }
    parts
}
