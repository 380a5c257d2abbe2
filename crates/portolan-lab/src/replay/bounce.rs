//! Bouncing: the library's pool, which devices reach at all times, and a count of what is copied.
//!
//! Slots have 2 KiB. The pool lies below 4 GiB. Pieces longer than 256 KiB are copied in parts.

use std::num::NonZeroU32;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result};
use portolan::addr::{PhysAddr, PhysRange};
use portolan::bounce::{BouncePool, GiveError, Need, Pool, PoolOptions, PoolUse, Slots, TakeError};
use portolan::dma::{Constraints, CopyWhen, Copying};
use portolan_model::cpus::VirtualCpus;

/// Where the pool ends.
const END: u64 = 1 << 32;
/// Bytes of a slot.
const SLOT: u64 = 2 << 10;
/// Slots of the largest pool, of 1 GiB: all of it lies below 4 GiB.
const MOST_SLOTS: u32 = 1 << 19;
/// The most that is copied in one part.
const PART: u64 = 256 << 10;

/// What is bounced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Force {
    /// All that is mapped.
    Everything,
    /// What lies above the 32 bits of address that Linux takes a device to have unless its driver says
    /// otherwise.
    Needed,
}

/// A pool, as Linux's parameter `swiotlb=` has it: `SLOTS[,AREAS][,force]` or `force`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Swiotlb {
    /// Slots of 2 KiB.
    pub slots: NonZeroU32,
    /// Areas, rounded up to a power of two; one for each CPU if `None`.
    pub areas: Option<NonZeroU32>,
    /// What is bounced.
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
            number
                .map(Some)
                .map_err(|_| wrong(format!("`{word}` is no number of {what}")))
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
            return Err(format!(
                "{slots} slots do not fit below 4 GiB: {MOST_SLOTS} at most"
            ));
        }
        Ok(Self {
            slots,
            areas,
            force,
        })
    }
}

impl Swiotlb {
    fn bytes(&self) -> u64 {
        u64::from(self.slots.get()) * SLOT
    }

    /// What devices reach.
    pub(super) fn limits(&self) -> Constraints {
        match self.force {
            Force::Everything => Constraints::default(),
            Force::Needed => Constraints::default().address_bits(32),
        }
    }
}

/// A pool of a simulated machine, whose bytes are counted and not copied.
pub(super) struct CountedPool {
    pool: Pool<VirtualCpus>,
    force: Force,
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
    /// # Errors
    /// If its slots do not make as many areas.
    pub(super) fn new(cpus: &VirtualCpus, wanted: &Swiotlb) -> Result<Self> {
        let bytes = wanted.bytes();
        let memory = PhysRange::from_len(PhysAddr::new(END - bytes), bytes).context("no pool")?;
        let options = match wanted.areas {
            Some(areas) => PoolOptions::of_areas(areas.get()),
            None => PoolOptions::for_cpus(cpus),
        };
        Ok(Self {
            pool: Pool::new(cpus.clone(), memory, options)?,
            force: wanted.force,
            used: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            copies: AtomicU64::new(0),
            moved: Default::default(),
        })
    }

    /// Copies of everything, or of what has to be copied, for a device.
    pub(super) fn copying(self: Arc<Self>) -> Copying {
        Copying {
            when: match self.force {
                Force::Everything => CopyWhen::Always,
                Force::Needed => CopyWhen::Needed,
            },
            pool: self,
            // What a device leaves alone comes back as it was.
        }
    }

    /// Slots that there are, most of them in use at once, and how often some were taken.
    pub(super) fn slots(&self) -> [u64; 3] {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let slots = (self.pool.memory().len_minus_one() + 1) / SLOT;
        [slots, of(&self.peak), of(&self.copies)]
    }

    /// How many areas it has, and what it is for.
    pub(super) fn shape(&self) -> (u64, Force) {
        (self.pool.areas().into(), self.force)
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
        let inward = self.pool.memory().contains(to);
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
