//! A lock on a separate cache line, with a queue of waiting CPUs.
//!
//! The data that the lock guards is taken to lie on the lock's line, so it comes with the lock.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use portolan::platform::Lock;

use super::LockKind;
use super::line::{Line, LineAccess};
use super::scheduler::{self, CallPlace, Core};

/// A spinning lock in virtual time.
#[derive(Debug)]
pub struct VirtualLock<T> {
    state: Mutex<LockState>,
    value: Mutex<T>,
}

/// The lock, and the CPUs that wait for it.
#[derive(Debug, Default)]
struct LockState {
    line: Line,
    held: LockHold,
    waiters: VecDeque<u16>,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum LockHold {
    #[default]
    Free,
    Taken,
}

/// Outcome of an attempt.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Attempt {
    Got,
    Failed,
}

impl LockState {
    fn attempt(&mut self, core: &mut Core) -> Attempt {
        self.line.touch(core, LineAccess::Write, core.ticks.hit);
        match self.held {
            LockHold::Taken => Attempt::Failed,
            LockHold::Free => {
                self.held = LockHold::Taken;
                Attempt::Got
            }
        }
    }

    fn release(&mut self, core: &mut Core) {
        self.line.touch(core, LineAccess::Write, core.ticks.hit);
        let (index, delay) = match core.ticks.lock {
            LockKind::Queued => (0, core.ticks.handover),
            // All that spin read the line again, and one of them gets it.
            LockKind::TestAndSet => {
                let others = self.waiters.len().saturating_sub(1) as u64;
                let index = core.pick(self.waiters.len());
                (index, core.ticks.handover + others * core.ticks.share)
            }
        };
        let Some(next) = self.waiters.remove(index) else {
            self.held = LockHold::Free;
            return;
        };
        let next = usize::from(next);
        let at = core.now().max(core.clock_of(next)) + delay;
        self.line.hand_to(next, at);
        core.unblock(next, at);
    }
}

impl<T> VirtualLock<T> {
    fn state(&self) -> MutexGuard<'_, LockState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The value, for the holder.
    fn guard(&self, place: CallPlace) -> VirtualGuard<'_, T> {
        let value = self.value.lock().unwrap_or_else(PoisonError::into_inner);
        VirtualGuard { value: Some(value), lock: self, place }
    }

    fn release(&self) {
        scheduler::point();
        scheduler::with(|core| self.state().release(core));
    }
}

/// The guard of [`VirtualLock`].
#[derive(Debug)]
pub struct VirtualGuard<'a, T> {
    value: Option<MutexGuard<'a, T>>,
    lock: &'a VirtualLock<T>,
    place: CallPlace,
}

impl<T> std::ops::Deref for VirtualGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect("there until it is dropped")
    }
}

impl<T> std::ops::DerefMut for VirtualGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_mut().expect("there until it is dropped")
    }
}

impl<T> Drop for VirtualGuard<'_, T> {
    fn drop(&mut self) {
        self.value = None;
        if self.place != CallPlace::Outside {
            self.lock.release();
        }
    }
}

impl<T: Send> Lock<T> for VirtualLock<T> {
    type Guard<'a>
        = VirtualGuard<'a, T>
    where
        T: 'a;

    fn new(value: T) -> Self {
        Self { state: Mutex::default(), value: Mutex::new(value) }
    }

    fn lock(&self) -> VirtualGuard<'_, T> {
        let place = scheduler::point();
        if place == CallPlace::Outside {
            return self.guard(place);
        }
        let blocked = scheduler::with(|core| {
            let mut state = self.state();
            let attempt = state.attempt(core);
            if attempt == Attempt::Failed {
                state.waiters.push_back(core.current() as u16);
                core.counters.lock_waits += 1;
                core.block();
            }
            attempt
        });
        if blocked == Some(Attempt::Failed) {
            scheduler::wait_blocked();
        }
        self.guard(place)
    }

    fn try_lock(&self) -> Option<VirtualGuard<'_, T>> {
        let place = scheduler::point();
        if place == CallPlace::Outside {
            let value = match self.value.try_lock() {
                Ok(value) => value,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return None,
            };
            return Some(VirtualGuard { value: Some(value), lock: self, place });
        }
        if scheduler::with(|core| self.state().attempt(core)) == Some(Attempt::Failed) {
            return None;
        }
        Some(self.guard(place))
    }

    fn into_inner(self) -> T {
        self.value.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}
