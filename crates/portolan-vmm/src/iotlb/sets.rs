//! Translations in sets, each of which is replaced as a whole.
//!
//! An address belongs to one set in each of four levels: its region's, of 32 KiB, 16 MiB, 8 GiB and of
//! everything. A translation is in the lowest level where it lies in one region, so that a look-up asks as many
//! sets as levels are in use: one, where a guest's pages are of one size.
//!
//! A set is never changed. A writer, under the lock of writers, puts a new one in its place; readers take the
//! present one, without a lock, and so hold it. The one that was replaced is kept in a list until its last
//! reader has gone: an invalidation waits for that. It waits for readers of neighbours in the set as well,
//! since it is not known which of its translations a reader uses.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use portolan::addr::{Iova, IovaRange};
use vm_memory::iommu::{Iotlb, IotlbIterator};
use vm_memory::{GuestAddress, Permissions};

use super::held::IotlbGuard;
use super::set::{Set, Translation, put};

/// Way in which room is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replacement {
    /// A set has room for 16 translations, and forgets its oldest for a new one: changes take as long
    /// for any capacity.
    InSets,
    /// Nothing is forgotten before the capacity is reached. For tests of guests and their IOMMUs, which are to
    /// see the translations that they did not invalidate.
    WhenFull,
}

/// A guard on a range was still held when the time was over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("translations of {range} are still in use")]
pub struct StillHeld {
    /// The range.
    pub range: IovaRange,
}

/// Exponents of the sizes of regions; the last level has one region.
const LEVELS: [u32; 4] = [15, 24, 33, 64];
/// Translations in a set at most: as many pages of 4 KiB as two regions of the first level have.
const WAYS: usize = 16;
/// Pieces of which a look-up may consist: 16 MiB in pages of 4 KiB.
const MOST_PIECES: usize = 4096;

#[derive(Debug)]
struct Level {
    shift: u32,
    /// Exponent of the number of sets.
    lg2: u32,
    sets: Box<[ArcSwap<Set>]>,
    /// Translations in it. A reader of an old number misses, or looks in vain.
    used: AtomicUsize,
}

impl Level {
    fn new(shift: u32, lg2: u32) -> Self {
        let empty = Arc::new(Set::default());
        let sets = (0..1usize << lg2).map(|_| ArcSwap::new(Arc::clone(&empty)));
        Self { shift, lg2, sets: sets.collect(), used: AtomicUsize::new(0) }
    }

    fn region(&self, at: Iova) -> u64 {
        at.get().checked_shr(self.shift).unwrap_or(0)
    }

    /// The place of a region's set: neighbours are spread evenly, multiples of any number too.
    fn place(&self, region: u64) -> usize {
        let spread = region.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        spread.checked_shr(64 - self.lg2).unwrap_or(0) as usize
    }

    fn set(&self, at: Iova) -> &ArcSwap<Set> {
        &self.sets[self.place(self.region(at))]
    }

    fn is_used(&self) -> bool {
        self.used.load(Relaxed) != 0
    }

    /// Places of the sets that may have something of `range`.
    fn places(&self, range: IovaRange) -> impl Iterator<Item = usize> {
        let first = self.region(range.start());
        let more = self.region(range.last()) - first;
        let all = more >= self.sets.len() as u64;
        let count = if all { self.sets.len() as u64 } else { more + 1 };
        (0..count).map(move |number| match all {
            true => number as usize,
            false => self.place(first + number),
        })
    }
}

/// State of changes, under the lock that keeps them in order.
#[derive(Debug, Default)]
struct Writer {
    /// Sets that were replaced, and that are still read.
    replaced: Vec<Arc<Set>>,
    /// Level and place at which room was last made.
    hand: (usize, usize),
}

impl Writer {
    /// Forgets sets that are not read any more.
    fn prune(&mut self) {
        // A reader of a set has a count of its own, since all of them were swapped out.
        self.replaced.retain_mut(|set| Arc::get_mut(set).is_none());
    }
}

/// All translations.
#[derive(Debug)]
pub(crate) struct Sets {
    levels: [Level; LEVELS.len()],
    capacity: usize,
    ways: usize,
    writer: Mutex<Writer>,
}

impl Sets {
    pub(crate) fn new(capacity: NonZeroUsize, replacement: Replacement) -> Self {
        // Four times as much room in sets as there may be translations, so that most regions find some.
        let lg2 = capacity.get().div_ceil(WAYS / 4).min(1 << 24);
        let lg2 = lg2.next_power_of_two().ilog2();
        let level = |shift| Level::new(shift, if shift < 64 { lg2 } else { 0 });
        Self {
            levels: LEVELS.map(level),
            capacity: capacity.get(),
            ways: match replacement {
                Replacement::InSets => WAYS,
                Replacement::WhenFull => usize::MAX,
            },
            writer: Mutex::default(),
        }
    }

    /// The writers' side. A panic under it leaves every set whole.
    fn writer(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Translations of all of `range` that allow `access`; or else the first address that has none. Takes no
    /// lock.
    pub(crate) fn find(
        &self,
        range: IovaRange,
        access: Permissions,
    ) -> Result<IotlbIterator<IotlbGuard>, Missing> {
        let (start, length) = ends(range)?;
        for level in self.levels.iter().filter(|level| level.is_used()) {
            if level.region(range.start()) != level.region(range.last()) {
                continue;
            }
            let set = level.set(range.start()).load();
            // A look-up in vain would list the missing translations, on the heap.
            if set.find(range.start(), access).is_some() {
                let found = Iotlb::lookup(IotlbGuard::one(set), start, length, access);
                if let Ok(found) = found {
                    return Ok(found);
                }
            }
        }
        self.pieces(range, access)
    }

    /// The same, of pieces that may be in several sets.
    #[cold]
    fn pieces(
        &self,
        range: IovaRange,
        access: Permissions,
    ) -> Result<IotlbIterator<IotlbGuard>, Missing> {
        let (start, length) = ends(range)?;
        let (mut copies, mut sets) = (Iotlb::new(), Vec::<Arc<Set>>::new());
        let mut at = range.start();
        for _ in 0..MOST_PIECES {
            let (entry, set) = self.piece(at, access).ok_or(Missing::At(at))?;
            put(&mut copies, entry);
            if !sets.last().is_some_and(|last| Arc::ptr_eq(last, &set)) {
                sets.push(set);
            }
            if entry.iova.last() >= range.last() {
                let guard = IotlbGuard::several(copies, sets);
                let found = Iotlb::lookup(guard, start, length, access);
                // The copies have only translations that were found.
                return found.map_err(|_| Missing::At(range.start()));
            }
            at = Iova::new(entry.iova.last().get() + 1);
        }
        Err(Missing::Pieces)
    }

    fn piece(&self, at: Iova, access: Permissions) -> Option<(Translation, Arc<Set>)> {
        let mut levels = self.levels.iter().filter(|level| level.is_used());
        levels.find_map(|level| {
            let set = level.set(at).load();
            let entry = set.find(at, access)?;
            Some((entry, arc_swap::Guard::into_inner(set)))
        })
    }

    /// Takes in `new`, in place of everything that it overlaps; returns the number of others that went
    /// for want of room.
    pub(crate) fn insert(&self, new: Translation) -> u64 {
        let mut writer = self.writer();
        self.remove(&mut writer, new.iova);
        let mut evicted = 0;
        while self.count() >= self.capacity {
            evicted += self.make_room(&mut writer);
        }
        let fits = |level: &&Level| level.region(new.iova.start()) == level.region(new.iova.last());
        // The last level has one region, so one fits.
        let Some(level) = self.levels.iter().find(fits) else {
            return evicted;
        };
        let place = level.place(level.region(new.iova.start()));
        let mut entries = level.sets[place].load().entries().to_vec();
        let gone = entries.len().saturating_sub(self.ways - 1);
        entries.drain(..gone);
        entries.push(new);
        self.replace(&mut writer, level, place, entries);
        evicted + gone as u64
    }

    /// Forgets every translation that overlaps `range`, and waits until no thread uses one any more.
    /// Returns the number of looks that this took: 1 if none was in use. No lock is held across the wait.
    ///
    /// # Errors
    /// If one was in use all the time until `limit` was over.
    pub(crate) fn invalidate(&self, range: IovaRange, limit: Duration) -> Result<u32, StillHeld> {
        let mut writer = self.writer();
        self.remove(&mut writer, range);
        let (mut until, mut looks) = (None, 1);
        loop {
            writer.prune();
            if !writer.replaced.iter().any(|set| set.overlaps(range)) {
                return Ok(looks);
            }
            drop(writer);
            let until = *until.get_or_insert_with(|| Instant::now() + limit);
            if Instant::now() >= until {
                return Err(StillHeld { range });
            }
            pause(looks);
            looks = looks.saturating_add(1);
            writer = self.writer();
        }
    }

    /// Number of translations.
    pub(crate) fn count(&self) -> usize {
        let counts = self.levels.iter().map(|level| level.used.load(Relaxed));
        counts.sum()
    }

    fn remove(&self, writer: &mut Writer, range: IovaRange) {
        for level in self.levels.iter().filter(|level| level.is_used()) {
            for place in level.places(range) {
                let set = level.sets[place].load();
                if set.overlaps(range) {
                    let entries = set.entries().iter().copied();
                    let left = entries.filter(|entry| !entry.iova.overlaps(range));
                    self.replace(writer, level, place, left.collect());
                }
            }
        }
    }

    /// Forgets the oldest translation of the next set that has one.
    fn make_room(&self, writer: &mut Writer) -> u64 {
        loop {
            let (number, place) = writer.hand;
            let level = &self.levels[number];
            writer.hand = match place + 1 < level.sets.len() && level.is_used() {
                true => (number, place + 1),
                false => ((number + 1) % self.levels.len(), 0),
            };
            let set = level.sets[place].load();
            if let [_, left @ ..] = set.entries() {
                self.replace(writer, level, place, left.to_vec());
                return 1;
            }
        }
    }

    fn replace(&self, writer: &mut Writer, level: &Level, place: usize, new: Vec<Translation>) {
        let added = new.len();
        let old = level.sets[place].swap(Arc::new(Set::of(new)));
        level.used.fetch_add(added, Relaxed);
        level.used.fetch_sub(old.entries().len(), Relaxed);
        if !old.entries().is_empty() {
            writer.replaced.push(old);
        }
        writer.prune();
    }
}

/// Reason why a look-up found nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    /// No translation of this address allows the access.
    At(Iova),
    /// It would consist of more pieces than one may.
    Pieces,
    /// The last byte of the address space, which `vm_memory` cannot name.
    Top,
}

impl Missing {
    /// The address that is missing; or why nothing that comes would help.
    pub(crate) fn at(self) -> Result<Iova, &'static str> {
        match self {
            Self::At(at) => Ok(at),
            Self::Pieces => Err("it consists of too many pieces"),
            Self::Top => Err("it ends with the address space"),
        }
    }
}

/// `range` as `vm_memory` says it.
fn ends(range: IovaRange) -> Result<(GuestAddress, usize), Missing> {
    match range.last().get() {
        u64::MAX => Err(Missing::Top),
        _ => Ok((GuestAddress(range.start().get()), range.len_minus_one() as usize + 1)),
    }
}

/// A reader takes as long as a copy of a buffer: soon gone, or not running at all.
fn pause(looks: u32) {
    match looks {
        ..64 => std::hint::spin_loop(),
        64..128 => std::thread::yield_now(),
        _ => std::thread::sleep(Duration::from_micros(50)),
    }
}
