//! CPUs as threads of a model checker, which explores their interleavings.
//!
//! Time stands still, so nothing times out. A CPU that relaxes sleeps until another one has changed a
//! word, so that the search ends, and CPUs that all wait are found out.
#![allow(dead_code)] // Each test binary uses its part.

#[path = "runs.rs"]
pub mod runs;

use std::cell::Cell;

use loom::sync::atomic::{AtomicU64, Ordering};
use loom::sync::{Condvar, Mutex};
use portolan::addr::{CpuId, TableId};
use portolan::platform::{Clock, Cpus, Lock, Nanos, ProtocolStep, SharedWord};

loom::thread_local! {
    static CPU: Cell<u32> = Cell::new(0);
    /// Changes that the CPU has seen.
    static SEEN: Cell<u64> = Cell::new(0);
}

loom::lazy_static! {
    static ref CHANGES: AtomicU64 = AtomicU64::new(0);
    static ref GATE: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());
}

// All of a model's threads are one thread of the system, so this is common to them.
std::thread_local! {
    static ASLEEP: Cell<usize> = const { Cell::new(0) };
}

/// Counts a change. A caller that relaxes afterwards sees earlier writes: a word that was read
/// without relaxing may still read as it was.
fn changed() {
    CHANGES.fetch_add(1, Ordering::Release);
    if ASLEEP.get() != 0 {
        let _held = GATE.0.lock().unwrap();
        GATE.1.notify_all();
    }
}

/// Counts a change that its own CPU knows of: a caller that looks under a lock and relaxes does not
/// wake itself.
fn changed_by_me() {
    let before = changes();
    changed();
    SEEN.with(|seen| {
        if seen.get() == before && changes() == before + 1 {
            seen.set(before + 1);
        }
    });
}

fn changes() -> u64 {
    // An addition of nothing reads the last value, where a load may read an older one.
    CHANGES.fetch_add(0, Ordering::Acquire)
}

/// A number of CPUs.
#[derive(Clone, Copy, Debug)]
pub struct LoomCpus {
    count: usize,
}

impl LoomCpus {
    pub fn new(count: usize) -> Self {
        Self { count }
    }
}

/// Starts a thread that is CPU `number`; the thread that runs the model is CPU 0.
pub fn on_cpu<T: 'static>(
    number: u32,
    body: impl FnOnce() -> T + 'static,
) -> loom::thread::JoinHandle<T> {
    loom::thread::spawn(move || {
        CPU.with(|cpu| cpu.set(number));
        body()
    })
}

/// Does `body` as CPU `number` in the thread that runs the model.
pub fn as_cpu<T>(number: u32, body: impl FnOnce() -> T) -> T {
    let before = CPU.with(|cpu| cpu.replace(number));
    let done = body();
    CPU.with(|cpu| cpu.set(before));
    done
}

/// Explores all interleavings with at most `preemptions` forced switches.
pub fn explore(preemptions: usize, body: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    // All caches are gone through, word by word, before a request fails.
    model.max_branches = 20_000;
    model.check(move || {
        ASLEEP.set(0);
        runs::begin();
        body();
    });
    runs::say();
}

impl Clock for LoomCpus {
    fn now(&self) -> Nanos {
        Nanos::new(0)
    }

    fn relax(&self) {
        let seen = SEEN.with(Cell::get);
        if changes() == seen {
            ASLEEP.set(ASLEEP.get() + 1);
            let mut held = GATE.0.lock().unwrap();
            while changes() == seen {
                held = GATE.1.wait(held).unwrap();
            }
            ASLEEP.set(ASLEEP.get() - 1);
        }
        SEEN.with(|cell| cell.set(changes()));
    }
}

impl Cpus for LoomCpus {
    type Word = LoomWord;
    type Lock<T: Send> = LoomLock<T>;

    fn count(&self) -> usize {
        self.count
    }

    fn current(&self) -> CpuId {
        CpuId::new(CPU.with(Cell::get))
    }

    fn flush_wanted(&self) {}

    fn drop_later(&self, left: portolan::platform::LeftBehind) {
        drop(left);
    }

    fn protocol_step(&self, of: TableId, step: ProtocolStep) {
        runs::tell(of, step);
    }
}

#[derive(Debug)]
pub struct LoomWord(AtomicU64);

impl SharedWord for LoomWord {
    fn new(value: u64) -> Self {
        Self(AtomicU64::new(value))
    }

    fn load(&self, order: Ordering) -> u64 {
        self.0.load(order)
    }

    fn store(&self, value: u64, order: Ordering) {
        self.0.store(value, order);
        changed();
    }

    fn swap(&self, value: u64, order: Ordering) -> u64 {
        let old = self.0.swap(value, order);
        changed();
        old
    }

    fn compare_exchange_weak(
        &self,
        old: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        let found = self.0.compare_exchange(old, new, success, failure)?;
        changed();
        Ok(found)
    }

    fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        let old = self.0.fetch_add(value, order);
        changed();
        old
    }

    fn fetch_or(&self, mask: u64, order: Ordering) -> u64 {
        let old = self.0.fetch_or(mask, order);
        changed();
        old
    }
}

#[derive(Debug)]
pub struct LoomLock<T>(loom::sync::Mutex<T>);

impl<T: Send> Lock<T> for LoomLock<T> {
    type Guard<'a>
        = loom::sync::MutexGuard<'a, T>
    where
        T: 'a;

    fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
        self.0.lock().unwrap()
    }

    fn try_lock(&self) -> Option<loom::sync::MutexGuard<'_, T>> {
        self.0.try_lock().ok()
    }

    fn into_inner(self) -> T {
        self.0.into_inner().unwrap()
    }
}

/// CPUs whose time runs out at the second look at a clock.
#[derive(Clone, Copy, Debug)]
pub struct HastyCpus(pub LoomCpus);

loom::thread_local! {
    static LOOKS: Cell<u64> = Cell::new(0);
}

impl Clock for HastyCpus {
    fn now(&self) -> Nanos {
        let looks = LOOKS.with(|looks| looks.replace(looks.get() + 1));
        Nanos::from_millis(looks * 1_000_000)
    }

    fn relax(&self) {
        loom::thread::yield_now();
    }
}

impl Cpus for HastyCpus {
    type Word = LoomWord;
    type Lock<T: Send> = LoomLock<T>;

    fn count(&self) -> usize {
        self.0.count()
    }

    fn current(&self) -> CpuId {
        self.0.current()
    }

    fn flush_wanted(&self) {}

    fn drop_later(&self, left: portolan::platform::LeftBehind) {
        drop(left);
    }

    fn protocol_step(&self, of: TableId, step: ProtocolStep) {
        runs::tell(of, step);
    }
}

/// CPUs that wait for changes under locks: each use of a lock counts as a change.
#[derive(Clone, Copy, Debug)]
pub struct TellingCpus(pub LoomCpus);

impl Clock for TellingCpus {
    fn now(&self) -> Nanos {
        self.0.now()
    }

    fn relax(&self) {
        self.0.relax();
    }
}

impl Cpus for TellingCpus {
    type Word = LoomWord;
    type Lock<T: Send> = TellingLock<T>;

    fn count(&self) -> usize {
        self.0.count()
    }

    fn current(&self) -> CpuId {
        self.0.current()
    }

    fn flush_wanted(&self) {
        self.0.flush_wanted();
    }

    fn drop_later(&self, left: portolan::platform::LeftBehind) {
        self.0.drop_later(left);
    }

    fn protocol_step(&self, of: TableId, step: ProtocolStep) {
        runs::tell(of, step);
    }
}

#[derive(Debug)]
pub struct TellingLock<T>(LoomLock<T>);

/// Tells of the use of a lock once it is free again.
pub struct TellingGuard<'a, T>(Option<loom::sync::MutexGuard<'a, T>>);

impl<T> std::ops::Deref for TellingGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().unwrap()
    }
}

impl<T> std::ops::DerefMut for TellingGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().unwrap()
    }
}

impl<T> Drop for TellingGuard<'_, T> {
    fn drop(&mut self) {
        self.0 = None;
        changed_by_me();
    }
}

impl<T: Send> Lock<T> for TellingLock<T> {
    type Guard<'a>
        = TellingGuard<'a, T>
    where
        T: 'a;

    fn new(value: T) -> Self {
        Self(LoomLock::new(value))
    }

    fn lock(&self) -> TellingGuard<'_, T> {
        TellingGuard(Some(self.0.lock()))
    }

    fn try_lock(&self) -> Option<TellingGuard<'_, T>> {
        let held = self.0.try_lock();
        if held.is_none() {
            changed_by_me();
        }
        held.map(|held| TellingGuard(Some(held)))
    }

    fn into_inner(self) -> T {
        self.0.into_inner()
    }
}
