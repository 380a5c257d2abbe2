//! Reads the progress of the unit, and sets it going again after a stop.

use super::*;

/// Progress of the unit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Progress {
    pub(super) head: u64,
    pub(super) free: u64,
}

impl<C: Cpus> Ring<C> {
    /// Reads the progress of the unit, and returns the register.
    pub(super) fn advance<U: Unit>(
        &self,
        unit: &U,
        state: &mut RingState,
    ) -> Result<u64, IommuError> {
        let value = unit.head()?;
        let index = U::index(value, self.shape);
        let ahead = self.index::<U>(index.wrapping_sub(state.head));
        if self.index::<U>(index) != index || ahead > state.tail - state.head {
            let offset = U::HEAD;
            return Err(IommuError::Nonsense { offset, value });
        }
        state.head += ahead;
        self.tell(state.head);
        Ok(value)
    }

    /// Tells who does not hold the lock that the unit has reached `head`, after what became of the commands
    /// in front (`news`). For who holds it.
    pub(super) fn tell(&self, head: u64) {
        self.done.store(head, Ordering::Release);
    }

    /// Reads the progress of the unit, and sets it going again if it has stopped.
    pub(crate) fn service<U: Unit<Cpus = C>>(&self, unit: &U) -> Result<(), IommuError> {
        self.service_locked(unit, self.state.lock()).map(drop)
    }

    pub(super) fn service_locked<'r, U: Unit<Cpus = C>>(
        &'r self,
        unit: &U,
        mut state: Held<'r, C, RingState>,
    ) -> Result<Progress, IommuError> {
        let look = |state: &mut RingState| {
            let value = self.advance(unit, state)?;
            match U::INDEX_COMPLETES && state.head == state.tail {
                true => Ok(None),
                false => unit.stopped(value),
            }
        };
        if let Some(stop) = look(&mut state)? {
            let head = state.head;
            drop(state);
            let why = |code| unit.why(code, self.address(head));
            let code = stop.refused.map(why);
            state = self.state.lock();
            // Another caller may have been here since.
            if look(&mut state)? == Some(stop) && state.head == head {
                self.repair(unit, &mut state, stop, code)?;
            }
        }
        Ok(Progress { head: state.head, free: self.free_slots::<U>(&state) })
    }

    /// The unit stopped at `state.head`.
    fn repair<U: Unit>(
        &self,
        unit: &U,
        state: &mut RingState,
        stop: Stop,
        code: Option<u32>,
    ) -> Result<(), IommuError> {
        let head = state.head;
        if let Some(stream) = stop.silent {
            let (after, before) = match U::ABORTS_SYNCS {
                true => (0, state.tail),
                false => (head, head + 1),
            };
            state.refusals.time_out(stream, after, before);
        }
        if let (Some(code), true) = (code, head < state.tail) {
            let owner = state.owners.get(self.slot(head)).map_or(NOBODY, |owner| *owner);
            self.write(unit, state, head, &U::harmless(self.spare()), NOBODY);
            unit.barrier();
            state.refusals.refuse(owner, head, code);
        }
        self.news.store(state.refusals.news, Ordering::Relaxed);
        let (head, tail) = (self.index::<U>(head), self.index::<U>(state.tail));
        unit.resume(stop, self.shape, head, tail)
    }
}
