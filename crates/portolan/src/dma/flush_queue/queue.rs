//! The queue of one CPU: the generation that is open, and the flush that closes it.
//!
//! *Context.* Interrupt, but for making one, which is for atomic code: it takes heap memory. A flush pays
//! without holding a lock, and may wait for the hardware as the domain's `sync` does.

use alloc::vec::Vec;
use core::num::NonZeroU64;
use core::sync::atomic::Ordering::Relaxed;

use super::{Fill, FlushTicket};
use crate::addr::IovaRange;
use crate::dma::policy::LazyBounds;
use crate::inval::{Flushed, FlushedUpTo, Gather};
use crate::iommu::{Domain, IommuError};
use crate::platform::{Cpus, Lock, Nanos, PerCpuError, SharedWord};

/// The open generation of a queue.
pub(super) struct OpenGeneration {
    pub debt: Gather,
    /// Never longer than its capacity, with those in flight as well.
    pub ranges: Vec<IovaRange>,
    /// The vector that the next flush leaves here.
    spare: Vec<IovaRange>,
    /// Ranges that a flush has taken and not yet given back.
    pub in_flight: usize,
    flush: Flush,
    /// Mappings, those that keep their addresses themselves included.
    entries: usize,
    pub bytes: u64,
    oldest: Nanos,
    pub generation: NonZeroU64,
}

/// State of the flush of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flush {
    None,
    UnderWay,
}

/// The queue of a CPU.
pub(super) struct Queue<P: Cpus> {
    pub open: P::Lock<OpenGeneration>,
    /// The last generation that is quiet.
    pub quiet: FlushedUpTo<P::Word>,
    /// 1 while a flush is under way.
    pub busy: P::Word,
}

/// A generation taken out for a flush.
struct TakenGeneration {
    debt: Gather,
    ranges: Vec<IovaRange>,
    entries: usize,
    bytes: u64,
    oldest: Nanos,
    generation: NonZeroU64,
}

impl OpenGeneration {
    /// The ticket of what is in it, of the queue of number `queue`.
    #[inline]
    pub fn ticket(&self, queue: usize) -> FlushTicket {
        FlushTicket { queue, generation: self.generation }
    }

    #[inline]
    fn has_room(&self, bounds: &LazyBounds) -> bool {
        self.ranges.len() + self.in_flight < bounds.entries.saturating_mul(2)
    }

    /// Tells if there is room for a range whose buffer is its owner's again at once: for its
    /// addresses, and for its bytes, where no flush can be begun because one is under way.
    #[inline]
    pub fn takes(&self, range: IovaRange, bounds: &LazyBounds) -> bool {
        let bytes = range.len_minus_one().saturating_add(self.bytes);
        self.has_room(bounds) && (self.flush == Flush::None || bytes < bounds.bytes)
    }

    /// Counts a mapping of `range`.
    #[inline]
    pub fn count(&mut self, range: IovaRange, now: Nanos) {
        if self.entries == 0 {
            self.oldest = now;
        }
        self.entries += 1;
        let bytes = range.len_minus_one().saturating_add(1);
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Counts a mapping of `range`, and keeps its addresses if there is room.
    #[inline]
    pub fn add(&mut self, range: IovaRange, now: Nanos, bounds: &LazyBounds) -> bool {
        self.count(range, now);
        let room = self.has_room(bounds);
        if room {
            self.ranges.push(range);
        }
        room
    }

    #[inline]
    pub fn fill(&self, now: Nanos, bounds: &LazyBounds) -> Fill {
        let due = self.entries >= bounds.entries
            || self.bytes >= bounds.bytes
            || (self.entries != 0 && now.since(self.oldest) >= bounds.age);
        match due {
            true => Fill::Due,
            false => Fill::Room,
        }
    }

    pub fn holds_something(&self) -> bool {
        self.entries != 0 || !self.ranges.is_empty() || !self.debt.is_empty()
    }
}

impl<P: Cpus> Queue<P> {
    /// An empty one.
    pub fn new(bounds: &LazyBounds) -> Result<Self, PerCpuError> {
        let mut vectors = [Vec::new(), Vec::new()];
        for vector in &mut vectors {
            let most = bounds.entries.saturating_mul(2);
            vector.try_reserve_exact(most).map_err(|_| PerCpuError)?;
        }
        let [ranges, spare] = vectors;
        let open = OpenGeneration {
            debt: Gather::new(),
            ranges,
            spare,
            in_flight: 0,
            flush: Flush::None,
            entries: 0,
            bytes: 0,
            oldest: Nanos::new(0),
            generation: NonZeroU64::MIN,
        };
        let (quiet, busy) = (FlushedUpTo::none(), SharedWord::new(0));
        Ok(Self { open: Lock::new(open), quiet, busy })
    }

    /// Begins a flush, unless one is under way, and tells if it did. A caller that does not begin
    /// writes nothing.
    pub fn begin(&self) -> bool {
        let begun = self.busy.compare_exchange_weak(0, 1, Relaxed, Relaxed);
        begun.is_ok()
    }

    /// Closes the open generation and pays for it. The caller has set `busy`.
    pub fn flush(
        &self,
        domain: &dyn Domain,
        give_back: &mut dyn FnMut(&[IovaRange], &Flushed),
    ) -> Result<(), IommuError> {
        let mut taken = self.open.with(|open| {
            let spare = core::mem::take(&mut open.spare);
            let taken = TakenGeneration {
                debt: core::mem::take(&mut open.debt),
                ranges: core::mem::replace(&mut open.ranges, spare),
                entries: core::mem::take(&mut open.entries),
                bytes: core::mem::take(&mut open.bytes),
                oldest: open.oldest,
                generation: open.generation,
            };
            open.in_flight = taken.ranges.len();
            open.flush = Flush::UnderWay;
            open.generation = open.generation.saturating_add(1);
            taken
        });
        let mut ranges = taken.ranges;
        match domain.sync(&mut taken.debt) {
            Ok(flushed) => {
                // First the addresses: a CPU that finds the generation quiet finds them free.
                give_back(&ranges, &flushed);
                self.quiet.note(taken.generation.get(), flushed);
                ranges.clear();
                self.open.with(|open| {
                    open.spare = ranges;
                    open.in_flight = 0;
                    open.flush = Flush::None;
                });
                Ok(())
            }
            Err(error) => {
                self.open.with(|open| {
                    // Both are of this domain.
                    let _ = domain.absorb(&mut open.debt, &mut taken.debt);
                    // There is room for all of them: see `has_room`.
                    open.ranges.append(&mut ranges);
                    open.spare = ranges;
                    open.entries += taken.entries;
                    open.bytes = open.bytes.saturating_add(taken.bytes);
                    open.oldest = taken.oldest;
                    open.in_flight = 0;
                    open.flush = Flush::None;
                });
                Err(error.into())
            }
        }
    }
}
