//! A CPU that may be interrupted between any two steps of the code under test.
//!
//! A *step* is an access to a word or lock that CPUs share, a look at the clock, or, by
//! [`Stepping`], an access to a register. [`sweep`] runs a scenario once for each step, and lets
//! the interrupt handler run there; while a lock is held, interrupts are out, and the handler runs
//! as soon as they are let in again, as it would on hardware.
//!
//! Two faults are found: a handler that takes a lock which the interrupted code holds (there is one CPU, so it would
//! wait for ever), and a handler that waits at all. With [`Masking::Absent`] locks do not keep interrupts out, so
//! that a test can show that it would notice.
//!
//! State is the thread's: each test has a CPU of its own.

use std::cell::{Cell, RefCell};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};

use portolan::addr::CpuId;
use portolan::platform::{Clock, Cpus, Leavings, LeftBehind, Lock, Mmio, Nanos, SharedWord};

/// Masking of interrupts while a lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Masking {
    /// The platform delivers the interrupt.
    Present,
    /// The platform does not deliver the interrupt, which is an error of the platform.
    Absent,
}

/// Nanoseconds that a step takes.
const STEP_NS: u64 = 10;
/// Nanoseconds that a look at something that another has to change takes.
const RELAX_NS: u64 = 1_000;

type Handler = Box<dyn FnOnce()>;

struct Interrupted {
    ns: Cell<u64>,
    steps: Cell<u64>,
    strike_at: Cell<Option<u64>>,
    /// Locks that are held.
    held: Cell<u32>,
    inside: Cell<bool>,
    masking: Cell<Masking>,
    handler: RefCell<Option<Handler>>,
    left: RefCell<Leavings>,
}

thread_local! {
    static CPU: Interrupted = const { Interrupted {
        ns: Cell::new(0),
        steps: Cell::new(0),
        strike_at: Cell::new(None),
        held: Cell::new(0),
        inside: Cell::new(false),
        masking: Cell::new(Masking::Present),
        handler: RefCell::new(None),
        left: RefCell::new(Leavings::new()),
    } };
}

/// Tells if the calling code is an interrupt handler of [`sweep`].
pub fn in_interrupt() -> bool {
    CPU.try_with(|cpu| cpu.inside.get()).unwrap_or(false)
}

/// Locks that the calling CPU holds.
pub fn locks_held() -> u32 {
    CPU.try_with(|cpu| cpu.held.get()).unwrap_or(0)
}

/// Takes a step: runs the handler if its time has come and interrupts are enabled.
fn step() {
    let handler = CPU.with(|cpu| {
        cpu.ns.set(cpu.ns.get() + STEP_NS);
        cpu.steps.set(cpu.steps.get() + 1);
        let due = cpu.strike_at.get().is_some_and(|at| cpu.steps.get() >= at);
        let masked = cpu.masking.get() == Masking::Present && cpu.held.get() != 0;
        if !due || masked || cpu.inside.get() {
            return None;
        }
        cpu.strike_at.set(None);
        cpu.handler.borrow_mut().take()
    });
    if let Some(handler) = handler {
        CPU.with(|cpu| cpu.inside.set(true));
        handler();
        CPU.with(|cpu| cpu.inside.set(false));
    }
}

/// Code that is interrupted, the handler that interrupts it, and a check of the result.
pub struct Scenario {
    /// Work of the CPU.
    pub body: Box<dyn FnOnce()>,
    /// Work of the handler: it must not wait.
    pub handler: Handler,
    /// Looks at the state that the two have left.
    pub after: Box<dyn FnOnce()>,
}

/// Arrival of an interrupt before the end of the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Struck {
    /// The handler ran.
    Yes,
    /// There is no such step.
    No,
}

/// Runs a scenario with the interrupt at the step `at`, counted from 1, or as soon as interrupts are enabled.
///
/// # Panics
/// If the handler needs a lock that the body holds, or waits; and if the scenario panics.
pub fn strike(masking: Masking, at: u64, scenario: Scenario) -> Struck {
    let Scenario { body, handler, after } = scenario;
    CPU.with(|cpu| {
        cpu.steps.set(0);
        cpu.held.set(0);
        cpu.inside.set(false);
        cpu.masking.set(masking);
        cpu.strike_at.set(Some(at));
        *cpu.handler.borrow_mut() = Some(handler);
    });
    body();
    let late = CPU.with(|cpu| {
        cpu.strike_at.set(None);
        cpu.handler.borrow_mut().take()
    });
    after();
    match late {
        Some(_) => Struck::No,
        None => Struck::Yes,
    }
}

/// Runs each scenario that `scenario` makes, with the interrupt at the first step, at the second, and so on until the
/// body has ended before. Returns the number of steps at which it struck.
///
/// # Panics
/// As [`strike`].
pub fn sweep(masking: Masking, mut scenario: impl FnMut() -> Scenario) -> u64 {
    for at in 1.. {
        if strike(masking, at, scenario()) == Struck::No {
            return at - 1;
        }
    }
    unreachable!("the loop has no end of its own")
}

/// The CPU of the calling thread.
#[derive(Clone, Copy, Debug, Default)]
pub struct InterruptedCpu;

impl Clock for InterruptedCpu {
    fn now(&self) -> Nanos {
        step();
        Nanos::new(CPU.with(|cpu| cpu.ns.get()))
    }

    fn relax(&self) {
        assert!(!in_interrupt(), "an interrupt handler waits");
        CPU.with(|cpu| cpu.ns.set(cpu.ns.get() + RELAX_NS));
        step();
    }
}

impl Cpus for InterruptedCpu {
    type Word = InterruptedWord;
    type Lock<T: Send> = InterruptedLock<T>;

    fn count(&self) -> usize {
        1
    }

    fn current(&self) -> CpuId {
        CpuId::new(0)
    }

    /// Keeps it for [`drop_left`].
    fn drop_later(&self, left: LeftBehind) {
        CPU.with(|cpu| cpu.left.borrow_mut().push(left));
    }

    fn flush_wanted(&self) {}
}

/// Drops the objects that were left behind on the calling thread's CPU, and returns their number.
pub fn drop_left() -> usize {
    let mut left = CPU.with(|cpu| cpu.left.borrow_mut().take());
    core::iter::from_fn(|| left.pop()).count()
}

/// A word; each access is a step.
#[derive(Debug)]
pub struct InterruptedWord(AtomicU64);

impl InterruptedWord {
    fn at(&self) -> &AtomicU64 {
        step();
        &self.0
    }
}

impl SharedWord for InterruptedWord {
    fn new(value: u64) -> Self {
        Self(AtomicU64::new(value))
    }

    fn load(&self, order: Ordering) -> u64 {
        self.at().load(order)
    }

    fn store(&self, value: u64, order: Ordering) {
        self.at().store(value, order);
    }

    fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.at().swap(value, order)
    }

    fn compare_exchange_weak(
        &self,
        old: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        self.at().compare_exchange(old, new, success, failure)
    }

    fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.at().fetch_add(value, order)
    }

    fn fetch_or(&self, mask: u64, order: Ordering) -> u64 {
        self.at().fetch_or(mask, order)
    }
}

/// A lock: taking it and letting it go are steps.
#[derive(Debug)]
pub struct InterruptedLock<T>(Mutex<T>);

/// The guard of [`InterruptedLock`].
#[derive(Debug)]
pub struct InterruptedGuard<'a, T>(Option<MutexGuard<'a, T>>);

impl<T> InterruptedGuard<'_, T> {
    fn taken(value: MutexGuard<'_, T>) -> InterruptedGuard<'_, T> {
        CPU.with(|cpu| cpu.held.set(cpu.held.get() + 1));
        let guard = InterruptedGuard(Some(value));
        step();
        guard
    }
}

impl<T> Deref for InterruptedGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("there until it is dropped")
    }
}

impl<T> DerefMut for InterruptedGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().expect("there until it is dropped")
    }
}

impl<T> Drop for InterruptedGuard<'_, T> {
    fn drop(&mut self) {
        self.0 = None;
        CPU.with(|cpu| cpu.held.set(cpu.held.get().saturating_sub(1)));
        if !std::thread::panicking() {
            step();
        }
    }
}

impl<T> InterruptedLock<T> {
    /// The value, if the lock is free: a panic elsewhere does not count.
    fn free(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(value) => Some(value),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

impl<T: Send> Lock<T> for InterruptedLock<T> {
    type Guard<'a>
        = InterruptedGuard<'a, T>
    where
        T: 'a;

    fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    fn lock(&self) -> InterruptedGuard<'_, T> {
        step();
        match self.free() {
            Some(value) => InterruptedGuard::<T>::taken(value),
            None => panic!("the lock is held by the code that was interrupted"),
        }
    }

    fn try_lock(&self) -> Option<InterruptedGuard<'_, T>> {
        step();
        self.free().map(InterruptedGuard::<T>::taken)
    }

    fn into_inner(self) -> T {
        self.0.into_inner().expect("no test goes on after a panic")
    }
}

/// Registers whose accesses are steps.
#[derive(Clone, Debug)]
pub struct Stepping<R>(pub R);

impl<R: Mmio> Mmio for Stepping<R> {
    fn read32(&self, offset: usize) -> u32 {
        step();
        self.0.read32(offset)
    }

    fn write32(&self, offset: usize, value: u32) {
        step();
        self.0.write32(offset, value);
    }

    fn read64(&self, offset: usize) -> u64 {
        step();
        self.0.read64(offset)
    }

    fn write64(&self, offset: usize, value: u64) {
        step();
        self.0.write64(offset, value);
    }
}

#[cfg(test)]
mod tests {
    use super::{InterruptedCpu, InterruptedLock, Masking, Scenario, locks_held, sweep};
    use portolan::platform::{Clock, Lock, Nanos};
    use std::sync::Arc;

    fn add_twice() -> Scenario {
        let lock = Arc::new(InterruptedLock::new(0));
        let (body, handler, after) = (lock.clone(), lock.clone(), lock);
        Scenario {
            body: Box::new(move || {
                *body.lock() += 1;
                *body.lock() += 1;
            }),
            handler: Box::new(move || *handler.lock() += 10),
            after: Box::new(move || {
                let ones = *after.lock() % 10;
                assert_eq!((ones, locks_held()), (2, 0));
            }),
        }
    }

    #[test]
    fn each_step_is_struck_and_locks_keep_the_handler_out() {
        assert_eq!(sweep(Masking::Present, add_twice), 6);
    }

    #[test]
    #[should_panic(expected = "held by the code that was interrupted")]
    fn a_lock_that_does_not_mask_is_noticed() {
        sweep(Masking::Absent, add_twice);
    }

    #[test]
    #[should_panic(expected = "an interrupt handler waits")]
    fn a_handler_that_waits_is_noticed() {
        sweep(Masking::Present, || Scenario {
            body: Box::new(|| assert!(InterruptedCpu.now() > Nanos::new(0))),
            handler: Box::new(|| InterruptedCpu.relax()),
            after: Box::new(|| {}),
        });
    }
}
