//! A value that one caller has at a time, without a lock.

use core::ops::{Deref, DerefMut};

use portolan::iommu::{Awaited, IommuError};
use portolan::platform::{Cpus, Guarded, Nanos, poll};

#[derive(Debug)]
struct Slot<T> {
    value: T,
    taken: bool,
}

/// A value that one caller has at a time. Its holder waits for hardware and allocates, which the
/// holder of a lock must not.
#[derive(Debug)]
pub(crate) struct Turn<C: Cpus, T: Default + Send>(Guarded<C, Slot<T>>);

/// The value, until this is dropped.
pub(crate) struct Taken<'a, C: Cpus, T: Default + Send> {
    turn: &'a Turn<C, T>,
    value: T,
}

impl<C: Cpus, T: Default + Send> Turn<C, T> {
    /// Nobody has `value`.
    pub(crate) fn new(value: T) -> Self {
        let taken = false;
        Self(Guarded::new(Slot { value, taken }))
    }

    /// The value, if nobody has it. For an interrupt handler, which must not wait.
    pub(crate) fn try_take(&self) -> Option<Taken<'_, C, T>> {
        let mut slot = self.0.lock();
        if slot.taken {
            return None;
        }
        slot.taken = true;
        let value = core::mem::take(&mut slot.value);
        Some(Taken { turn: self, value })
    }

    /// Waits for the value, not longer than `limit`. The unit is not to blame for a wait that was
    /// too long, and the error says so.
    pub(crate) fn take(&self, clock: &C, limit: Nanos) -> Result<Taken<'_, C, T>, IommuError> {
        let awaited = Awaited::Turn;
        poll(clock, limit, || self.try_take())
            .map_err(|waited| IommuError::TimedOut { awaited, waited })
    }
}

impl<C: Cpus, T: Default + Send> Deref for Taken<'_, C, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<C: Cpus, T: Default + Send> DerefMut for Taken<'_, C, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<C: Cpus, T: Default + Send> Drop for Taken<'_, C, T> {
    /// Puts the value back.
    fn drop(&mut self) {
        let mut slot = self.turn.0.lock();
        core::mem::swap(&mut slot.value, &mut self.value);
        slot.taken = false;
    }
}
