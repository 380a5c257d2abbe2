//! Waits for a unit that works.
//!
//! A unit is given up only if it does nothing for as long as `Machine::limit`: a long queue of other
//! CPUs' commands, or a CPU that holds the lock for long, is no fault of the unit's.

use super::*;

/// Looks at a message between two looks at the registers.
const LOOKS: u32 = 256;

impl<R: Mmio, M: TableMem<AtomicU64>, C: Cpus> CommandQueue<R, M, C> {
    /// Waits until a sync is complete.
    pub(super) fn complete(&self, waited: Waited) -> Result<(), IommuError> {
        let mut looks = 0u32;
        self.wait_while_it_works(Awaited::Completion, |look| {
            if self.done.load(Ordering::Acquire) >= waited.position || self.told(waited.sync) {
                return Ok(Some(()));
            }
            looks = looks.wrapping_add(1);
            let message = self.messages.is_some() && looks % LOOKS != 0;
            if look == Look::IfFree && message {
                return Ok(None);
            }
            let reached = |ring: &Ring| ring.consumed >= waited.position;
            Ok(self.look(look, reached)?.filter(|&there| there).map(drop))
        })
    }

    /// Waits until there is room for a command.
    pub(super) fn wait_for_room(&self) -> Result<(), IommuError> {
        self.wait_while_it_works(Awaited::QueueRoom, |look| {
            let room = |ring: &Ring| self.free(ring) >= self.needed();
            Ok(self.look(look, room)?.filter(|&there| there).map(drop))
        })
    }

    /// Looks how far the unit is, and what `find` makes of it; nothing if somebody else holds the
    /// lock and the look can be left for later.
    fn look<T>(&self, look: Look, find: impl FnOnce(&Ring) -> T) -> Result<Option<T>, IommuError> {
        let ring = match look {
            Look::IfFree => self.ring.try_lock(),
            Look::Now => Some(self.ring.lock()),
        };
        let Some(mut ring) = ring else {
            return Ok(None);
        };
        self.observe(&mut ring)?;
        Ok(Some(find(&ring)))
    }

    /// Looks until `look` finds something. The time that counts begins again whenever the unit has
    /// consumed a command, and the last look is at the unit itself.
    fn wait_while_it_works<T>(
        &self,
        awaited: Awaited,
        mut look: impl FnMut(Look) -> Result<Option<T>, IommuError>,
    ) -> Result<T, IommuError> {
        let machine = &*self.machine;
        let mut begin = machine.clock.now();
        let mut done = self.done.load(Ordering::Acquire);
        loop {
            if let Some(found) = look(Look::IfFree)? {
                return Ok(found);
            }
            let waited = machine.clock.now().since(begin);
            let overdue = waited >= machine.limit;
            if overdue {
                if let Some(found) = look(Look::Now)? {
                    return Ok(found);
                }
            }
            let now = self.done.load(Ordering::Acquire);
            if now != done {
                done = now;
                begin = machine.clock.now();
            } else if overdue {
                return Err(IommuError::TimedOut { awaited, waited });
            }
            machine.clock.relax();
        }
    }
}

/// How to look at the unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    /// If the lock is free.
    IfFree,
    /// At once: whoever holds the lock lets go of it soon.
    Now,
}
