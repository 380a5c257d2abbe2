//! Synchronisations that several callers share.
//!
//! A unit has one status bit for each context bank, and one for all. Were every caller to begin a
//! synchronisation of its own, each would put off all others' end. So one is under way at a time:
//! whoever comes meanwhile waits for the next, which one of them begins for all.

use portolan::platform::{Clock, Cpus, Guarded, Nanos, poll};
use portolan::unit::{Awaited, UnitError};

#[derive(Debug, Default)]
struct State {
    begun: u64,
    done: u64,
    under_way: bool,
}

/// The synchronisations of one status bit.
///
/// *Locking.* The lock is held for a few instructions, never across a wait.
#[derive(Debug)]
pub(super) struct Gate<C: Cpus>(Guarded<C, State>);

impl<C: Cpus> Default for Gate<C> {
    fn default() -> Self {
        Self(Guarded::default())
    }
}

/// What a caller found to do.
enum Role {
    /// It has begun number so much.
    Leads(u64),
    /// It waits until number so much is done.
    Follows(u64),
}

impl<C: Cpus> Gate<C> {
    /// Returns once a synchronisation that was begun after this call is complete.
    ///
    /// # Errors
    /// What `active` says, or [`UnitError::TimedOut`] after `limit`.
    pub fn pass(
        &self,
        clock: &impl Clock,
        limit: Nanos,
        begin: impl Fn(),
        active: impl Fn() -> Result<bool, UnitError>,
    ) -> Result<(), UnitError> {
        let wanted = self.0.lock().begun + 1;
        let mut role = Role::Follows(wanted);
        let look = || {
            if let Role::Follows(wanted) = role {
                let mut state = self.0.lock();
                if state.done >= wanted {
                    return Some(Ok(()));
                }
                if state.under_way {
                    return None;
                }
                state.under_way = true;
                state.begun += 1;
                role = Role::Leads(state.begun);
                begin();
            }
            let Role::Leads(number) = role else {
                return None;
            };
            match active() {
                Ok(true) => None,
                Ok(false) => {
                    let mut state = self.0.lock();
                    state.done = state.done.max(number);
                    state.under_way = false;
                    Some(Ok(()))
                }
                Err(error) => Some(Err(error)),
            }
        };
        let awaited = Awaited::Invalidation;
        let result = poll(clock, limit, look)
            .unwrap_or_else(|waited| Err(UnitError::TimedOut { awaited, waited }));
        if let (Role::Leads(_), Err(_)) = (&role, &result) {
            // Somebody else may try.
            self.0.lock().under_way = false;
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::Cell;
    use core::sync::atomic::{AtomicU64, Ordering};

    struct Ticks(AtomicU64);
    impl portolan::platform::OneCpu for Ticks {}

    impl Clock for Ticks {
        fn now(&self) -> Nanos {
            Nanos::new(self.0.fetch_add(1, Ordering::Relaxed) + 1)
        }
    }

    #[test]
    fn ends_late_or_not_at_all() {
        let (gate, clock) = (Gate::<Ticks>::default(), Ticks(AtomicU64::new(0)));
        let (begun, looks) = (Cell::new(0), Cell::new(0));
        let begin = || begun.set(begun.get() + 1);
        let after_three = || {
            looks.set(looks.get() + 1);
            Ok(looks.get() < 3)
        };
        assert_eq!(
            gate.pass(&clock, Nanos::new(50), begin, after_three),
            Ok(())
        );
        assert_eq!((begun.get(), looks.get()), (1, 3));
        let never = gate.pass(&clock, Nanos::new(50), begin, || Ok(true));
        assert!(matches!(never, Err(UnitError::TimedOut { .. })));
        // The next caller is not held up by the one that gave up.
        assert_eq!(
            gate.pass(&clock, Nanos::new(50), begin, || Ok(false)),
            Ok(())
        );
        assert_eq!(begun.get(), 3);
        let gone = gate.pass(&clock, Nanos::new(50), begin, || Err(UnitError::Gone));
        assert_eq!(gone, Err(UnitError::Gone));
    }
}
