//! A guest's memory in this process: populated by real page faults, taken back page by page.
//!
//! Populating a page is to write to it, so that the system has to provide it. Memory is taken back
//! by [`GuestMemory::reclaim`], which tells the notifier, waits until it is quiet, and then gives
//! the pages to the system. [`GuestMemory::follow`] sees pages that other threads give back, unmap
//! or move. Nothing is pinned: pages that the system itself swaps or moves behind this process are
//! not seen, since that takes a kernel's own notifier; `pin` counts, so that pins are balanced, and
//! keeps `reclaim` away.

mod follow;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use portolan::addr::{Iova, IovaRange, PageSize, PhysAddr, PhysRange};
use portolan::demand::{Frames, InvalidateError, Pager, PopulateError, Unreached};
use portolan::table::Access;
use thiserror::Error;

use crate::memory::HostMemory;

const PAGE: u64 = PageSize::SIZE_4K.bytes();
/// Number of looks at a page that is being given back, after which its fault fails.
const LOOKS: u32 = 100_000;

/// Reason why memory was not taken back.
#[derive(Debug, Error)]
pub enum ReclaimError {
    /// Not whole pages of this memory.
    #[error("{range} is not whole pages of the guest's memory")]
    Range {
        /// Range that the caller wanted to take back.
        range: IovaRange,
    },
    /// Part of it is pinned.
    #[error("{iova} is pinned")]
    Pinned {
        /// The address at which the guest has no memory.
        iova: Iova,
    },
    /// Devices may still reach it; it stays.
    #[error(transparent)]
    Notifier(#[from] InvalidateError),
    /// The system refused.
    #[error("the system did not take the pages: {0}")]
    System(#[from] io::Error),
}

/// Pages of a guest that are on their way, pinned, given to devices or gone.
#[derive(Debug, Default)]
struct PageSets {
    /// Ranges that are being taken back, by first page: a populating thread waits there.
    leaving: BTreeMap<u64, u64>,
    /// Pins of each page.
    pinned: BTreeMap<u64, u32>,
    /// Pages that a thread gives back: their old contents may still be there.
    removed: BTreeSet<u64>,
    /// Pages that devices may have got since they were last taken from them.
    handed: BTreeSet<u64>,
    /// Pages that there are no more.
    gone: BTreeSet<u64>,
    /// Pages that threads wait for, and that could not be made yet.
    waiting: Vec<PhysAddr>,
}

impl PageSets {
    fn is_leaving(&self, first: u64, last: u64) -> bool {
        (self.leaving.iter()).any(|(start, end)| *start <= last && first <= *end)
    }
}

/// Host memory that a guest sees from some address on.
#[derive(Debug)]
pub struct GuestMemory {
    memory: HostMemory,
    base: Iova,
    state: Mutex<PageSets>,
    settled: Condvar,
}

impl GuestMemory {
    /// `memory`, which devices see from `base` on.
    pub fn new(memory: HostMemory, base: Iova) -> Self {
        Self { memory, base, state: Mutex::default(), settled: Condvar::new() }
    }

    /// The memory.
    pub fn memory(&self) -> &HostMemory {
        &self.memory
    }

    /// Its addresses for devices, if they end below the top.
    pub fn range(&self) -> Option<IovaRange> {
        IovaRange::from_len(self.base, self.memory.bytes())
    }

    /// Address of the guest's `iova` in the memory; `None` if it is outside.
    pub fn behind(&self, iova: Iova) -> Option<PhysAddr> {
        let offset = iova.get().checked_sub(self.base.get())?;
        let inside = offset < self.memory.bytes();
        let start = self.memory.range().start();
        start.checked_add(offset).filter(|_| inside)
    }

    fn state(&self) -> MutexGuard<'_, PageSets> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts each page of `range` as pinned once less.
    fn let_go(&self, range: IovaRange) {
        let (first, last) = Self::numbers(range);
        let mut state = self.state();
        state.pinned.retain(|page, count| {
            if (first..=last).contains(page) {
                *count = count.saturating_sub(1);
            }
            *count != 0
        });
    }

    fn numbers(range: IovaRange) -> (u64, u64) {
        (range.start().get() / PAGE, range.last().get() / PAGE)
    }

    /// Waits until nothing of `range` is being taken back.
    fn settled(&self, range: IovaRange) -> MutexGuard<'_, PageSets> {
        let (first, last) = Self::numbers(range);
        let mut state = self.state();
        while state.is_leaving(first, last) {
            state = (self.settled.wait(state)).unwrap_or_else(PoisonError::into_inner);
        }
        state
    }

    /// Takes `range` back: nothing there is populated any more, `notify` sees to it that no device
    /// reaches it (through [`Ioas::invalidate`](portolan::demand::Ioas)), and then the system gets
    /// the pages.
    ///
    /// # Errors
    /// See [`ReclaimError`]: the pages stay, and the same range can be taken back again. If it was the
    /// notifier, devices may still reach them until that has succeeded.
    pub fn reclaim(
        &self,
        range: IovaRange,
        notify: impl FnOnce(IovaRange) -> Result<u64, InvalidateError>,
    ) -> Result<u64, ReclaimError> {
        let wrong = ReclaimError::Range { range };
        let bytes = range.len_minus_one().wrapping_add(1);
        let start = self.behind(range.start());
        let pages = start.and_then(|start| PhysRange::from_len(start, bytes));
        let pages = pages.filter(|pages| self.memory.range().covers(*pages));
        let Some(pages) = pages.filter(|_| bytes.is_multiple_of(PAGE)) else {
            return Err(wrong);
        };
        let (first, last) = Self::numbers(range);
        {
            let mut state = self.settled(range);
            if let Some((page, _)) = state.pinned.range(first..=last).next() {
                let iova = Iova::new(page * PAGE);
                return Err(ReclaimError::Pinned { iova });
            }
            state.leaving.insert(first, last);
        }
        let _leaving = Leaving { of: self, first };
        let taken = notify(range)?;
        self.memory.discard(pages)?;
        Ok(taken)
    }

    /// Writes to a page, so that it is there, and tells if it is; one that is being given back is not taken for it.
    fn touch_page(&self, page: u64, at: PhysAddr) -> bool {
        let Ok(byte) = self.memory.byte(at) else {
            return false;
        };
        for _ in 0..LOOKS {
            if self.state().gone.contains(&page) {
                return false;
            }
            // A write of any byte; adding nothing may become a mere read.
            let _ = byte.compare_exchange(0, 0, Ordering::Relaxed, Ordering::Relaxed);
            let mut state = self.state();
            if !state.removed.contains(&page) {
                state.handed.insert(page);
                return true;
            }
            drop(state);
            // The thread that gives it back has been told to go on.
            std::thread::yield_now();
        }
        false
    }

    /// Writes to each page, so that it is there, and hands it over.
    fn touch(&self, range: IovaRange, frames: &mut Frames) -> Result<(), PopulateError> {
        let iova = range.start();
        let absent = PopulateError::Absent { iova };
        let (first, last) = Self::numbers(range);
        for page in first..=last {
            let at = self.behind(Iova::new(page * PAGE)).ok_or(absent)?;
            if !self.touch_page(page, at) {
                return Err(absent);
            }
            let page = self.memory.for_devices(at, PAGE).map_err(|_| absent)?;
            if frames.push(page).is_err() {
                break;
            }
        }
        Ok(())
    }
}

/// A range that is being taken back, by its first page. When this is dropped, by unwinding as well,
/// threads that populate there go on.
struct Leaving<'g> {
    of: &'g GuestMemory,
    first: u64,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.of.state().leaving.remove(&self.first);
        self.of.settled.notify_all();
    }
}

impl Pager for GuestMemory {
    fn populate(
        &self,
        range: IovaRange,
        _access: Access,
        frames: &mut Frames,
    ) -> Result<(), PopulateError> {
        // Pages that are taken back from here on are told to the notifier, which the fault will notice.
        drop(self.settled(range));
        self.touch(range, frames)
    }

    fn pin(
        &self,
        range: IovaRange,
        _access: Access,
        frames: &mut Frames,
    ) -> Result<(), PopulateError> {
        let (first, last) = Self::numbers(range);
        {
            let mut state = self.settled(range);
            for page in first..=last {
                *state.pinned.entry(page).or_default() += 1;
            }
        }
        // Not under the lock: the thread that makes missing pages takes it.
        let touched = self.touch(range, frames);
        let done = match touched {
            Ok(()) => frames.bytes() / PAGE,
            Err(_) => 0,
        };
        if let Some(rest) = IovaRange::new(Iova::new((first + done) * PAGE), range.last()) {
            self.let_go(rest);
        }
        touched
    }

    fn unpin(&self, pinned: &Unreached) {
        self.let_go(pinned.range());
    }
}

#[cfg(test)]
mod tests;
