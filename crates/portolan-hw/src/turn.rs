//! A value that one caller has at a time, without a lock.

use portolan::iommu::{Awaited, IommuError};
use portolan::platform::{Cpus, Guarded, Nanos, poll};

/// A value that one caller has at a time. Its holder waits for hardware and allocates, which the
/// holder of a lock must not.
#[derive(Debug)]
pub(crate) struct Turn<C: Cpus, T: Send>(Guarded<C, Option<T>>);

/// State of a unit that lets callers have a turn, or not.
pub(crate) trait Admission: core::fmt::Debug {
    /// Checks that they may have one.
    ///
    /// # Errors
    /// [`IommuError::Stopped`].
    fn running(&self) -> Result<(), IommuError>;
}

/// Longest wait for a turn, and the clock that measures it.
#[derive(Debug)]
pub(crate) struct TurnWait<'a, C> {
    pub(crate) clock: &'a C,
    pub(crate) limit: Nanos,
    /// The unit whose state the value is: who waits for the turn is refused it unless the
    /// unit runs.
    pub(crate) of: Option<&'a dyn Admission>,
}

impl<'a, C> TurnWait<'a, C> {
    pub(crate) const fn new(clock: &'a C, limit: Nanos) -> Self {
        Self { clock, limit, of: None }
    }

    /// The same while the unit runs.
    pub(crate) const fn while_running(self, of: &'a dyn Admission) -> Self {
        Self { of: Some(of), ..self }
    }

    /// The same in any state of the unit.
    pub(crate) const fn always(self) -> Self {
        Self { of: None, ..self }
    }
}

impl<C> Clone for TurnWait<'_, C> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<C> Copy for TurnWait<'_, C> {}

impl<C: Cpus, T: Send> Turn<C, T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Guarded::new(Some(value)))
    }

    /// Lends the value to `work` if no other caller has it. For an interrupt handler, which must
    /// not wait.
    pub(crate) fn try_with<X>(&self, work: impl FnOnce(&mut T) -> X) -> Option<X> {
        let mut value = self.0.lock().take()?;
        let done = work(&mut value);
        *self.0.lock() = Some(value);
        Some(done)
    }

    /// Waits for the value, not longer than the limit, and lends it to `work`. The unit is not to blame
    /// for a wait that was too long, and the error says so; it is [`IommuError::Stopped`] if the unit does
    /// not run.
    pub(crate) fn with<X>(
        &self,
        wait: TurnWait<'_, C>,
        work: impl FnOnce(&mut T) -> X,
    ) -> Result<X, IommuError> {
        let awaited = Awaited::Turn;
        let mut value = poll(wait.clock, wait.limit, || self.0.lock().take())
            .map_err(|waited| IommuError::TimedOut { awaited, waited })?;
        // With the turn: who suspends the unit has it meanwhile.
        let done = wait.of.map_or(Ok(()), |of| of.running()).map(|()| work(&mut value));
        *self.0.lock() = Some(value);
        done
    }
}
