//! Removals of a guest's memory by other threads, followed by its notifier.
//!
//! The system tells of pages that are given back before they go, and waits until it was read, no longer: it
//! cannot be made to wait for hardware. So devices lose a page while the old one may still be there, and no
//! fault hands that one over: the page counts as removed until a new one was made where it was missing. A page
//! that is made and handed over between the two goes as well; its next touch is told, and devices lose it
//! before any thread sees the page in its place. Meanwhile devices reach the old page, which is pinned by the
//! code that maps it for hardware (VFIO, iommufd).

use portolan::addr::{Iova, IovaRange, PageSize, PhysAddr, PhysRange};
use portolan::demand::InvalidateError;

use super::{GuestMemory, PAGE, ReclaimError};
use crate::memory::{MadeBy, Told, UserFaults};

impl GuestMemory {
    /// Waits no longer than `milliseconds` for events of the memory, and acts on them: makes pages that
    /// are missing, and has `notify` ([`Ioas::invalidate`](portolan::demand::Ioas)) see to it that no
    /// device reaches those that go. To be called again and again by one thread that does nothing else:
    /// others wait for it when they touch the memory or give pages back.
    ///
    /// # Errors
    /// The error of the system, or of the notifier: then devices may still reach old pages of the range
    /// that is told in the error, until it has been invalidated with success.
    pub fn follow(
        &self,
        faults: &UserFaults,
        milliseconds: u32,
        notify: impl FnOnce(IovaRange) -> Result<u64, InvalidateError>,
    ) -> Result<Option<Told>, ReclaimError> {
        let left = self.make_waiting(faults)?;
        // The thread that keeps them from being made goes on soon.
        let limit = if left == 0 { milliseconds } else { milliseconds.min(1) };
        let Some(told) = faults.next(limit)? else {
            return Ok(None);
        };
        self.act(told, notify)?;
        self.make_waiting(faults)?;
        Ok(Some(told))
    }

    pub(super) fn act(
        &self,
        told: Told,
        notify: impl FnOnce(IovaRange) -> Result<u64, InvalidateError>,
    ) -> Result<(), ReclaimError> {
        match told {
            Told::Missing { page } => {
                let missing = self.seen(PhysRange::page(page, PageSize::SIZE_4K));
                let mut state = self.state();
                state.waiting.push(page);
                let handed = |range: &IovaRange| state.handed.remove(&Self::numbers(*range).0);
                let stale = missing.filter(handed);
                drop(state);
                // Devices have another page there than the waiting thread will see.
                stale.map_or(Ok(0), notify)?;
            }
            Told::Removed { range } | Told::Gone { range } => {
                let Some(range) = self.seen(range) else {
                    return Ok(());
                };
                let (first, last) = Self::numbers(range);
                let mut state = self.state();
                match told {
                    Told::Gone { .. } => state.gone.extend(first..=last),
                    _ => state.removed.extend(first..=last),
                }
                state.handed.retain(|page| !(first..=last).contains(page));
                drop(state);
                notify(range)?;
            }
        }
        Ok(())
    }

    /// Makes the pages that threads wait for, as far as that can be now; returns the number that are left.
    fn make_waiting(&self, faults: &UserFaults) -> Result<usize, ReclaimError> {
        let pages = std::mem::take(&mut self.state().waiting);
        let mut left = Vec::new();
        for page in pages {
            match faults.zero(page) {
                // The old one has gone.
                Ok(MadeBy::Caller) => {
                    let number = self.seen_at(page).map(|iova| iova.get() / PAGE);
                    let mut state = self.state();
                    number.map(|number| state.removed.remove(&number));
                }
                Ok(MadeBy::Others) => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => left.push(page),
                // It was unmapped meanwhile.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(error.into()),
            }
        }
        let count = left.len();
        self.state().waiting.append(&mut left);
        Ok(count)
    }

    /// Address at which devices see the byte at `at`.
    fn seen_at(&self, at: PhysAddr) -> Option<Iova> {
        let offset = at.get().checked_sub(self.memory.range().start().get())?;
        self.base.checked_add(offset)
    }

    fn seen(&self, range: PhysRange) -> Option<IovaRange> {
        IovaRange::new(self.seen_at(range.start())?, self.seen_at(range.last())?)
    }
}
