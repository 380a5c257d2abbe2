//! A heap that notes its uses while a lock of the platform is held.
#![allow(dead_code)] // Each test binary uses its part.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::{Cell, RefCell};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, MutexGuard};

use portolan::addr::CpuId;
use portolan::platform::{Clock, Cpus, Leavings, LeftBehind, Lock, Nanos};

thread_local! {
    /// Locks that this thread holds.
    static HELD: Cell<u32> = const { Cell::new(0) };
    /// Uses of the heap while one was held.
    static UNDER_LOCK: Cell<u32> = const { Cell::new(0) };
    /// Values that handlers left behind.
    static LEFT: RefCell<Leavings> = const { RefCell::new(Leavings::new()) };
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

pub struct Counted<T>(Mutex<T>);

pub struct CountedGuard<'a, T>(MutexGuard<'a, T>);

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
        CountedGuard(self.0.lock().expect("a lock under which nothing panicked"))
    }

    fn try_lock(&self) -> Option<CountedGuard<'_, T>> {
        let held = self.0.try_lock().ok()?;
        HELD.set(HELD.get() + 1);
        Some(CountedGuard(held))
    }

    fn into_inner(self) -> T {
        self.0.into_inner().expect("a lock under which nothing panicked")
    }
}

/// Two CPUs, whose locks are counted while they are held.
pub struct Machine;

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

    fn drop_later(&self, left: LeftBehind) {
        LEFT.with(|list| list.borrow_mut().push(left));
    }

    fn flush_wanted(&self) {}
}

/// Drops values that handlers left behind; returns their number.
pub fn drop_left() -> usize {
    let mut left = LEFT.with(|list| list.borrow_mut().take());
    std::iter::from_fn(|| left.pop()).count()
}

/// Locks that this thread holds.
pub fn held() -> u32 {
    HELD.get()
}

/// Runs hardware, whose locks and heap are not those of the code under test.
pub fn aside<T>(hardware: impl FnOnce() -> T) -> T {
    let before = (HELD.take(), UNDER_LOCK.get(), USES.get());
    let done = hardware();
    HELD.set(before.0);
    UNDER_LOCK.set(before.1);
    USES.set(before.2);
    done
}

/// Fails if the heap was used under a lock since the last call; returns the number of all uses.
pub fn uses(context: &str) -> u32 {
    assert_eq!(UNDER_LOCK.take(), 0, "{context}: heap under a lock");
    USES.take()
}
