//! A lock with a cache line of its own, and a queue of CPUs that wait for it.
//!
//! What the lock guards is taken to lie on the lock's line, so it comes with the lock.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use portolan::platform::Lock;

use super::LockKind;
use super::line::Line;
use super::scheduler::{self, Core, Place};

/// A spinning lock in virtual time.
#[derive(Debug)]
pub struct VirtualLock<T> {
    state: Mutex<State>,
    value: Mutex<T>,
}

#[derive(Debug, Default)]
struct State {
    line: Line,
    held: Held,
    waiters: VecDeque<u16>,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum Held {
    #[default]
    ByNobody,
    BySomebody,
}

/// How an attempt ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Attempt {
    Got,
    Failed,
}

impl State {
    fn attempt(&mut self, core: &mut Core) -> Attempt {
        self.line.write(core);
        match self.held {
            Held::BySomebody => Attempt::Failed,
            Held::ByNobody => {
                self.held = Held::BySomebody;
                Attempt::Got
            }
        }
    }

    fn release(&mut self, core: &mut Core) {
        self.line.write(core);
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
            self.held = Held::ByNobody;
            return;
        };
        let next = usize::from(next);
        let at = core.now().max(core.clock_of(next)) + delay;
        self.line.hand_to(next, at);
        core.unblock(next, at);
    }
}

impl<T> VirtualLock<T> {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The value, for whoever holds the lock.
    fn held<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        f(&mut self.value.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn release(&self) {
        scheduler::point();
        scheduler::with(|core| self.state().release(core));
    }
}

impl<T: Send> Lock<T> for VirtualLock<T> {
    fn new(value: T) -> Self {
        Self {
            state: Mutex::default(),
            value: Mutex::new(value),
        }
    }

    fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        if scheduler::point() == Place::Outside {
            return self.held(f);
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
        let result = self.held(f);
        self.release();
        result
    }

    fn try_with<R>(&self, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        if scheduler::point() == Place::Outside {
            return match self.value.try_lock() {
                Ok(mut value) => Some(f(&mut value)),
                Err(TryLockError::Poisoned(poisoned)) => Some(f(&mut poisoned.into_inner())),
                Err(TryLockError::WouldBlock) => None,
            };
        }
        if scheduler::with(|core| self.state().attempt(core)) == Some(Attempt::Failed) {
            return None;
        }
        let result = self.held(f);
        self.release();
        Some(result)
    }

    fn into_inner(self) -> T {
        self.value
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
