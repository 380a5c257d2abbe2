//! Synchronisations that several callers share.
//!
//! A unit has one status bit for each context bank, and one for all. Were every caller to begin a
//! synchronisation of its own, each would put off all others' end. So one is under way at a time:
//! callers that come meanwhile wait for the next, which one of them begins for all.
//!
//! No caller waits for another. Each looks at the status bit itself, ends the synchronisation that
//! it finds complete, its own or another's, and begins the next. So a handler that comes on the CPU
//! whose caller waits here waits for the hardware alone, and a caller that is held up holds up no
//! other.
//!
//! *Context.* Atomic: waits for the hardware, and for nothing else.

use portolan::iommu::{Awaited, IommuError};
use portolan::platform::{Clock, Cpus, Guarded, Nanos};

#[derive(Debug, Default)]
struct State {
    /// The number of the last synchronisation that was begun.
    begun: u64,
    /// All up to this number are complete.
    done: u64,
    /// Those above `done` up to this number failed, the last of them with `error`.
    failed: u64,
    error: Option<IommuError>,
}

impl State {
    fn fail(&mut self, error: IommuError) -> IommuError {
        (self.failed, self.error) = (self.begun, Some(error));
        error
    }

    /// Tells if a synchronisation was begun whose end is not known.
    fn is_under_way(&self) -> bool {
        self.begun > self.done.max(self.failed)
    }
}

/// The synchronisations of one status bit.
///
/// *Locking.* The lock is held for a few instructions and two accesses to registers, never across a
/// wait.
#[derive(Debug)]
pub(super) struct Gate<C: Cpus>(Guarded<C, State>);

impl<C: Cpus> Default for Gate<C> {
    fn default() -> Self {
        Self(Guarded::default())
    }
}

/// The synchronisation that a caller has seen under way, and since when. It had been begun by then,
/// so that the hardware is never given less time than it has.
struct Seen {
    number: u64,
    since: Option<Nanos>,
}

impl Seen {
    /// Time for which `number` has been under way at `now`, a time before which no caller had ended
    /// it.
    fn age(&mut self, number: u64, now: Nanos) -> Nanos {
        if self.number != number {
            // `now` may be a time before this one was begun.
            (self.number, self.since) = (number, None);
            return Nanos::new(0);
        }
        now.since(*self.since.get_or_insert(now))
    }
}

impl<C: Cpus> Gate<C> {
    /// Returns once a synchronisation that was begun after this call is complete. `begin` and
    /// `active` reach the hardware, and do not wait.
    ///
    /// # Errors
    /// The error of `active`, or [`IommuError::TimedOut`] if the hardware takes longer than `limit`
    /// for one synchronisation.
    pub fn pass(
        &self,
        clock: &impl Clock,
        limit: Nanos,
        begin: impl Fn(),
        active: impl Fn() -> Result<bool, IommuError>,
    ) -> Result<(), IommuError> {
        let wanted = self.0.lock().begun + 1;
        let mut seen = Seen { number: 0, since: None };
        loop {
            // Taken before the look: the synchronisation under way then was so at this time.
            let now = clock.now();
            if let Some(result) = self.look(wanted, (now, limit), &mut seen, &begin, &active) {
                return result;
            }
            clock.relax();
        }
    }

    /// One look at the hardware; `None` if there is more to wait for.
    fn look(
        &self,
        wanted: u64,
        (now, limit): (Nanos, Nanos),
        seen: &mut Seen,
        begin: &impl Fn(),
        active: &impl Fn() -> Result<bool, IommuError>,
    ) -> Option<Result<(), IommuError>> {
        let mut state = self.0.lock();
        loop {
            if state.done >= wanted {
                return Some(Ok(()));
            }
            if let Some(error) = state.error.filter(|_| state.failed >= wanted) {
                return Some(Err(error));
            }
            if !state.is_under_way() {
                begin();
                state.begun += 1;
            }
            match active() {
                // What was begun may have got lost as well.
                Err(error) => return Some(Err(state.fail(error))),
                Ok(false) => state.done = state.begun,
                Ok(true) => {
                    let (awaited, waited) = (Awaited::Invalidation, seen.age(state.begun, now));
                    if waited < limit {
                        return None;
                    }
                    let error = state.fail(IommuError::TimedOut { awaited, waited });
                    return Some(Err(error));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::Cell;
    use core::sync::atomic::{AtomicU64, Ordering};

    struct Ticks(AtomicU64);
    portolan::one_cpu!(Ticks);

    impl Clock for Ticks {
        fn now(&self) -> Nanos {
            Nanos::new(self.0.fetch_add(1, Ordering::Relaxed) + 1)
        }
    }

    const LIMIT: Nanos = Nanos::new(50);

    #[test]
    fn ends_late_or_not_at_all() {
        let (gate, clock) = (Gate::<Ticks>::default(), Ticks(AtomicU64::new(0)));
        let (begun, looks) = (Cell::new(0), Cell::new(0));
        let begin = || begun.set(begun.get() + 1);
        let after_three = || {
            looks.set(looks.get() + 1);
            Ok(looks.get() < 3)
        };
        assert_eq!(gate.pass(&clock, LIMIT, begin, after_three), Ok(()));
        assert_eq!((begun.get(), looks.get()), (1, 3));
        let never = gate.pass(&clock, LIMIT, begin, || Ok(true));
        assert!(matches!(never, Err(IommuError::TimedOut { .. })));
        // The next caller is not held up by the one that gave up.
        assert_eq!(gate.pass(&clock, LIMIT, begin, || Ok(false)), Ok(()));
        assert_eq!(begun.get(), 3);
        let gone = gate.pass(&clock, LIMIT, begin, || Err(IommuError::Gone));
        assert_eq!(gone, Err(IommuError::Gone));
        assert_eq!(gate.pass(&clock, LIMIT, begin, || Ok(false)), Ok(()));
        assert_eq!(begun.get(), 5);
    }

    /// Clock that calls `strike` between two looks of a waiting caller, once.
    struct Struck<F: Fn() + Send + Sync + 'static> {
        ticks: AtomicU64,
        step: u64,
        strikes: AtomicU64,
        strike: F,
    }

    impl<F: Fn() + Send + Sync + 'static> Clock for Struck<F> {
        fn now(&self) -> Nanos {
            Nanos::new(self.ticks.fetch_add(self.step, Ordering::Relaxed))
        }

        fn relax(&self) {
            if self.strikes.fetch_add(1, Ordering::Relaxed) == 0 {
                (self.strike)();
            }
        }
    }

    /// The status bit of a synchronisation that takes so many looks.
    struct Iommu {
        left: AtomicU64,
        looks: u64,
        begun: AtomicU64,
    }

    impl Iommu {
        fn taking(looks: u64) -> alloc::sync::Arc<Self> {
            alloc::sync::Arc::new(Self { left: AtomicU64::new(0), looks, begun: AtomicU64::new(0) })
        }

        fn begin(&self) {
            self.begun.fetch_add(1, Ordering::Relaxed);
            self.left.store(self.looks, Ordering::Relaxed);
        }

        fn is_active(&self) -> bool {
            let left = self.left.load(Ordering::Relaxed);
            self.left.store(left.saturating_sub(1), Ordering::Relaxed);
            left > 0
        }
    }

    #[test]
    fn a_handler_on_the_cpu_whose_caller_waits_gets_its_own_synchronisation() {
        let gate = alloc::sync::Arc::new(Gate::<Ticks>::default());
        let unit = Iommu::taking(4);
        let (inner, registers) = (gate.clone(), unit.clone());
        let handled = alloc::sync::Arc::new(spin::Mutex::new(None));
        let result = handled.clone();
        let clock = Struck {
            ticks: AtomicU64::new(0),
            step: 1,
            strikes: AtomicU64::new(0),
            strike: move || {
                let ticks = Ticks(AtomicU64::new(0));
                let begin = || registers.begin();
                let passed = inner.pass(&ticks, LIMIT, begin, || Ok(registers.is_active()));
                *result.lock() = Some(passed);
            },
        };
        let begin = || unit.begin();
        let passed = gate.pass(&clock, LIMIT, begin, || Ok(unit.is_active()));
        assert_eq!((passed, *handled.lock()), (Ok(()), Some(Ok(()))));
        // The handler's was begun after its own call, and the one that it struck was over by then.
        assert_eq!(unit.begun.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_caller_that_was_held_up_does_not_call_the_hardware_slow() {
        let gate = Gate::<Ticks>::default();
        let unit = Iommu::taking(2);
        // Between two looks of this caller more time passes than the hardware has.
        let clock = Struck {
            ticks: AtomicU64::new(0),
            step: 2 * LIMIT.get(),
            strikes: AtomicU64::new(0),
            strike: || {},
        };
        let begin = || unit.begin();
        let passed = gate.pass(&clock, LIMIT, begin, || Ok(unit.is_active()));
        assert_eq!(passed, Ok(()));
    }
}
