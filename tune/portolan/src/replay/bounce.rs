//! Bouncing: the library's pool, which devices reach at all times, and counts of its copies.
//!
//! Slots have 2 KiB. The pool lies below 4 GiB. Pieces longer than 256 KiB are copied in parts.

use std::num::NonZeroU32;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result};
use portolan::addr::{PhysAddr, PhysRange};
use portolan::bounce::{Area, GiveError, LockFree, Pool, PoolMemory, PoolOptions, Want};
use portolan::dma::{Constraints, CopyWhen, Copying};
use portolan::platform::{Clearing, Cpus, PhysMemory, Transfer};
use portolan_sim::cpus::VirtualCpus;

use crate::buffers::of_pool;

/// Slots that a word of an area has bits for.
const SLOTS_OF_WORD: u32 = 64;
/// End of the pool: the first address beyond it.
const END: u64 = 1 << 32;
/// Bytes of a slot.
const SLOT: u64 = 2 << 10;
/// Slots of the largest pool, of 1 GiB, which is entirely below 4 GiB.
const MOST_SLOTS: u32 = 1 << 19;
/// The most that is copied in one part.
const PART: u64 = 256 << 10;

/// Memory that is bounced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Force {
    /// Every mapping.
    Everything,
    /// Copies of memory above 32-bit addresses, which is Linux's limit for a device unless its driver sets another.
    Needed,
}

/// A pool, as Linux's parameter `swiotlb=` has it: `SLOTS[,AREAS][,force]` or `force`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Swiotlb {
    /// Slots of 2 KiB.
    pub slots: NonZeroU32,
    /// Areas, rounded up to a power of two; one for each CPU if `None`.
    pub areas: Option<NonZeroU32>,
    /// Memory that is bounced.
    pub force: Force,
}

impl Default for Swiotlb {
    /// The 64 MiB that Linux has unless told otherwise, for everything.
    fn default() -> Self {
        Self {
            slots: NonZeroU32::MIN.saturating_add((1 << 15) - 1),
            areas: None,
            force: Force::Everything,
        }
    }
}

impl FromStr for Swiotlb {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |why: String| format!("{why}; wanted is SLOTS[,AREAS][,force], or force");
        let mut words = text.split(',').peekable();
        let mut number = |what: &str| {
            let digits = |word: &&str| word.starts_with(|first: char| first.is_ascii_digit());
            let Some(word) = words.next_if(digits) else {
                return Ok(None);
            };
            let number: Result<NonZeroU32, _> = word.parse();
            number.map(Some).map_err(|_| wrong(format!("`{word}` is no number of {what}")))
        };
        let (slots, areas) = (number("slots")?, number("areas")?);
        let force = match (words.next(), slots) {
            (Some("force"), _) => Force::Everything,
            (None, Some(_)) => Force::Needed,
            (Some("noforce"), _) => {
                let why = "`noforce` bounces nothing, which leaves nothing to replay";
                return Err(wrong(why.to_owned()));
            }
            (other, _) => return Err(wrong(format!("`{}` says nothing", other.unwrap_or(text)))),
        };
        if let Some(word) = words.next() {
            return Err(wrong(format!("`{word}` is one word too many")));
        }
        let slots = slots.unwrap_or(Self::default().slots);
        if slots.get() > MOST_SLOTS {
            return Err(format!("{slots} slots do not fit below 4 GiB: {MOST_SLOTS} at most"));
        }
        Ok(Self { slots, areas, force })
    }
}

impl Swiotlb {
    fn bytes(&self) -> u64 {
        u64::from(self.slots.get()) * SLOT
    }

    /// Addresses that devices reach.
    pub(super) fn limits(&self) -> Constraints {
        match self.force {
            Force::Everything => Constraints::trusted(),
            Force::Needed => Constraints::trusted().address_bits(32),
        }
    }
}

/// Counts of a pool.
#[derive(Default)]
struct PoolCounters {
    used: AtomicU64,
    peak: AtomicU64,
    copies: AtomicU64,
    /// Bytes copied so far to the device and from it.
    moved: [AtomicU64; 2],
}

/// Memory of a simulated machine whose pool ends at [`END`]; bytes are counted, and not copied.
struct CountedMemory {
    counts: Arc<PoolCounters>,
    pool: PhysRange,
}

impl PhysMemory for CountedMemory {
    fn copy(&self, transfer: &Transfer) {
        let inward = self.pool.contains(transfer.to());
        let moved = &self.counts.moved[usize::from(!inward)];
        moved.fetch_add(transfer.bytes(), Ordering::Relaxed);
    }

    fn clear(&self, _clearing: &Clearing) {}
}

/// An area of the library's, with its slots counted.
struct CountedArea {
    area: LockFree<<VirtualCpus as Cpus>::Word>,
    counts: Arc<PoolCounters>,
}

impl Area for CountedArea {
    fn take(&self, want: Want) -> Option<u32> {
        let first = self.area.take(want)?;
        let (counts, taken) = (&self.counts, u64::from(want.count));
        counts.copies.fetch_add(1, Ordering::Relaxed);
        let used = counts.used.fetch_add(taken, Ordering::Relaxed) + taken;
        counts.peak.fetch_max(used, Ordering::Relaxed);
        Some(first)
    }

    fn give(&self, first: u32, count: u32) -> Result<(), GiveError> {
        self.counts.used.fetch_sub(count.into(), Ordering::Relaxed);
        self.area.give(first, count)
    }

    fn is_taken(&self, first: u32, count: u32) -> bool {
        self.area.is_taken(first, count)
    }

    fn survey(&self) -> (u32, u32) {
        self.area.survey()
    }
}

/// A pool of a simulated machine.
pub(super) struct CountedPool {
    pool: Arc<PoolMemory<VirtualCpus, CountedMemory, CountedArea>>,
    counts: Arc<PoolCounters>,
    force: Force,
}

impl CountedPool {
    /// # Errors
    /// If its slots do not make as many areas.
    pub(super) fn new(cpus: &VirtualCpus, wanted: &Swiotlb) -> Result<Self> {
        let bytes = wanted.bytes();
        let pool = PhysRange::from_len(PhysAddr::new(END - bytes), bytes).context("no pool")?;
        let options = match wanted.areas {
            Some(areas) => PoolOptions::of_areas(areas.get()),
            None => PoolOptions::for_cpus(cpus),
        };
        let counts = Arc::<PoolCounters>::default();
        let area = |slots| {
            let area = LockFree::new(slots / SLOTS_OF_WORD)?;
            let counts = counts.clone();
            Ok(CountedArea { area, counts })
        };
        let slots = Pool::with_areas(cpus.clone(), of_pool(pool), options, area)?;
        let memory = CountedMemory { counts: counts.clone(), pool };
        Ok(Self { pool: Arc::new(PoolMemory::new(slots, memory)), counts, force: wanted.force })
    }

    /// Copying of everything, or of memory that has to be copied, for a device.
    pub(super) fn copying(&self) -> Copying {
        Copying {
            when: match self.force {
                Force::Everything => CopyWhen::Always,
                Force::Needed => CopyWhen::Needed,
            },
            pool: self.pool.clone(),
            // Bytes that a device leaves alone come back as they were.
        }
    }

    /// Number of slots, most of them in use at once, and number of times that some were taken.
    pub(super) fn slots(&self) -> [u64; 3] {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let slots = (self.pool.pool().memory().len_minus_one() + 1) / SLOT;
        [slots, of(&self.counts.peak), of(&self.counts.copies)]
    }

    /// Number of areas, and the memory that it is for.
    pub(super) fn shape(&self) -> (u64, Force) {
        (self.pool.pool().areas().into(), self.force)
    }

    /// Bytes copied to the device and from it.
    pub(super) fn moved(&self) -> [u64; 2] {
        let moved = self.counts.moved.each_ref();
        moved.map(|bytes| bytes.load(Ordering::Relaxed))
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
