//! No heap memory is taken or freed while a lock of the platform is held, since interrupts are out
//! then; nor at all by what handlers of interrupts may call.
#![allow(missing_docs)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, MutexGuard};

use portolan::addr::{CpuId, PageSize, PhysAddr, PhysRange};
use portolan::bounce::{GrowingPool, Growth, Need, Pool, PoolOptions, PoolSource};
use portolan::platform::{Clock, Cpus, Lock, Nanos};

thread_local! {
    /// Locks that this thread holds.
    static HELD: Cell<u32> = const { Cell::new(0) };
    /// Uses of the heap while one was held.
    static UNDER_LOCK: Cell<u32> = const { Cell::new(0) };
    /// All uses of the heap.
    static USES: Cell<u32> = const { Cell::new(0) };
}

struct Watching;

fn note() {
    USES.set(USES.get() + 1);
    if HELD.get() > 0 {
        UNDER_LOCK.set(UNDER_LOCK.get() + 1);
    }
}

// SAFETY: all memory is the system allocator's, with the layout that the caller gave.
unsafe impl GlobalAlloc for Watching {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note();
        // SAFETY: the caller's duties are the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        note();
        // SAFETY: the caller's duties are the same.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        note();
        // SAFETY: the caller's duties are the same.
        unsafe { System.realloc(pointer, layout, bytes) }
    }
}

#[global_allocator]
static MEMORY: Watching = Watching;

struct Counted<T>(Mutex<T>);

struct CountedGuard<'a, T>(MutexGuard<'a, T>);

impl<T> Drop for CountedGuard<'_, T> {
    fn drop(&mut self) {
        HELD.set(HELD.get() - 1);
    }
}

impl<T> Deref for CountedGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for CountedGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T: Send> Lock<T> for Counted<T> {
    type Guard<'a>
        = CountedGuard<'a, T>
    where
        T: 'a;

    fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    fn lock(&self) -> CountedGuard<'_, T> {
        HELD.set(HELD.get() + 1);
        CountedGuard(self.0.lock().expect("a lock that nobody panicked under"))
    }

    fn try_lock(&self) -> Option<CountedGuard<'_, T>> {
        let held = self.0.try_lock().ok()?;
        HELD.set(HELD.get() + 1);
        Some(CountedGuard(held))
    }

    fn into_inner(self) -> T {
        self.0
            .into_inner()
            .expect("a lock that nobody panicked under")
    }
}

struct Machine;

impl Clock for Machine {
    fn now(&self) -> Nanos {
        Nanos::new(0)
    }
}

impl Cpus for Machine {
    type Word = AtomicU64;
    type Lock<T: Send> = Counted<T>;

    fn count(&self) -> usize {
        2
    }

    fn current(&self) -> CpuId {
        CpuId::new(0)
    }
}

/// Fails if the heap was used under a lock since the last call; how often it was used at all.
fn uses(context: &str) -> u32 {
    assert_eq!(UNDER_LOCK.take(), 0, "{context}: heap under a lock");
    USES.take()
}

struct Blocks(AtomicU64);

impl PoolSource for Blocks {
    fn grow(&self, bytes: u64) -> Option<PhysRange> {
        assert_eq!(HELD.get(), 0, "memory is asked for under a lock");
        let start = self
            .0
            .fetch_add(bytes, std::sync::atomic::Ordering::Relaxed);
        PhysRange::from_len(PhysAddr::new(start), bytes)
    }

    fn shrink(&self, _memory: PhysRange) {
        assert_eq!(HELD.get(), 0, "memory is given back under a lock");
    }
}

#[test]
fn a_pool_grows_and_shrinks_with_no_heap_under_its_lock() {
    let cpus = Arc::new(Machine);
    let options = PoolOptions {
        slot: PageSize::of_lg2(11),
        ..PoolOptions::for_cpus(&*cpus)
    };
    let memory = PhysRange::from_len(PhysAddr::new(1 << 30), 256 << 11).unwrap();
    let first = Pool::new(cpus.clone(), memory, options).unwrap();
    let growth = Growth {
        step: 64 << 11,
        most: 1 << 30,
        patience: 1,
    };
    let source = Blocks(AtomicU64::new(1 << 32));
    let pool = GrowingPool::new(cpus, first, source, growth, options);
    let mut held = Vec::with_capacity(64);
    uses("making it");
    for round in 0..20 {
        let need = Need::bytes(128 << 11);
        while let Ok(slots) = pool.take(&need) {
            held.push(slots);
        }
        let used = uses("taking");
        assert_eq!(
            used, 0,
            "round {round}: a handler of interrupts takes slots"
        );
        assert!(pool.maintain().grown > 0, "round {round}");
        uses("growing");
    }
    for slots in held.drain(..) {
        pool.give(slots).unwrap();
    }
    assert_eq!(
        uses("giving"),
        0,
        "a handler of interrupts gives slots back"
    );
    let shrunk: u64 = (0..4).map(|_| pool.maintain().shrunk).sum();
    assert!(shrunk > 0);
    uses("shrinking");
}
