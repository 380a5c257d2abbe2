//! Locks that CPUs share, and that interrupt handlers may take.
//!
//! A handler that takes a lock which the interrupted code holds waits for ever. So a lock of the
//! library keeps the interrupts of its CPU out as long as it is held: [`IrqLock`] does so by
//! [`Interrupts`], which a kernel implements. A process without signal handlers that call the
//! library can use `spin::Mutex` as it is.
//!
//! *Rules of the library.* While a lock is held, nothing waits for hardware or for another CPU, and
//! nothing is allocated. No two locks are held at once, unless the inner one's type is documented
//! as a leaf.

use core::fmt;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};

use super::Cpus;

/// A lock around a `T`.
///
/// *Implementer's duties.* One holder at a time. While a CPU holds the lock, no interrupt handler
/// that calls the library runs on it; when the guard is dropped, interrupts are as they were before.
/// Locks nest: the inner one's guard is dropped first.
///
/// *Context.* Interrupt: sections are short and wait for nothing.
pub trait Lock<T>: Send + Sync {
    /// Holds the lock until it is dropped.
    type Guard<'a>: DerefMut<Target = T>
    where
        Self: 'a;

    /// A lock that is free.
    fn new(value: T) -> Self;

    /// Waits for the lock, and takes it.
    fn lock(&self) -> Self::Guard<'_>;

    /// Takes the lock if it is free.
    fn try_lock(&self) -> Option<Self::Guard<'_>>;

    /// The value of a lock that is owned, and so free.
    fn into_inner(self) -> T
    where
        Self: Sized;

    /// Waits for the lock, and holds it during `f`.
    #[inline]
    fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        f(&mut self.lock())
    }
}

impl<T: Send> Lock<T> for spin::Mutex<T> {
    type Guard<'a>
        = spin::MutexGuard<'a, T>
    where
        T: 'a;

    fn new(value: T) -> Self {
        Self::new(value)
    }

    #[inline]
    fn lock(&self) -> spin::MutexGuard<'_, T> {
        self.try_lock().unwrap_or_else(|| wait_for(self))
    }

    #[inline]
    fn try_lock(&self) -> Option<spin::MutexGuard<'_, T>> {
        self.try_lock()
    }

    fn into_inner(self) -> T {
        self.into_inner()
    }
}

/// Waits for a lock that another CPU holds: out of line, since a kernel has a hundred places that lock.
#[cold]
#[inline(never)]
fn wait_for<T>(lock: &spin::Mutex<T>) -> spin::MutexGuard<'_, T> {
    lock.lock()
}

/// The interrupts of the calling CPU.
///
/// *Implementer's duties.* Between `disable` and the `restore` of its value, no interrupt handler
/// runs on the CPU, and the caller stays on that CPU. Pairs nest.
///
/// *Context.* Interrupt, all methods.
pub trait Interrupts: Send + Sync + 'static {
    /// Keeps interrupts out; returns their state before, in the form that `restore` wants.
    fn disable() -> usize;

    /// Makes it as it was before the `disable` that returned `before`.
    fn restore(before: usize);
}

/// A spinning lock that keeps interrupts out while it is held.
pub struct IrqLock<T, I> {
    inner: spin::Mutex<T>,
    interrupts: PhantomData<fn(I)>,
}

/// The guard of [`IrqLock`]. It stays in its thread, since it restores the interrupts of its CPU.
pub struct IrqGuard<'a, T, I: Interrupts> {
    // Dropped before `masked`: the lock is free before a handler can run.
    inner: spin::MutexGuard<'a, T>,
    masked: Masked<I>,
}

/// Interrupts are out until this is dropped, on the CPU that made it: so it does not move to another
/// thread.
struct Masked<I: Interrupts> {
    before: usize,
    interrupts: PhantomData<fn(I)>,
    cpu: PhantomData<*mut ()>,
}

impl<I: Interrupts> Masked<I> {
    #[inline]
    fn new() -> Self {
        Self { before: I::disable(), interrupts: PhantomData, cpu: PhantomData }
    }
}

impl<I: Interrupts> Drop for Masked<I> {
    #[inline]
    fn drop(&mut self) {
        I::restore(self.before);
    }
}

impl<T: Send, I: Interrupts> Lock<T> for IrqLock<T, I> {
    type Guard<'a>
        = IrqGuard<'a, T, I>
    where
        T: 'a;

    fn new(value: T) -> Self {
        Self { inner: spin::Mutex::new(value), interrupts: PhantomData }
    }

    #[inline]
    fn lock(&self) -> IrqGuard<'_, T, I> {
        let masked = Masked::new();
        IrqGuard { inner: Lock::lock(&self.inner), masked }
    }

    #[inline]
    fn try_lock(&self) -> Option<IrqGuard<'_, T, I>> {
        let masked = Masked::new();
        let inner = self.inner.try_lock()?;
        Some(IrqGuard { inner, masked })
    }

    fn into_inner(self) -> T {
        self.inner.into_inner()
    }
}

impl<T, I: Interrupts> Deref for IrqGuard<'_, T, I> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        let _: &Masked<I> = &self.masked;
        &self.inner
    }
}

impl<T, I: Interrupts> DerefMut for IrqGuard<'_, T, I> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

/// A `T` that is held: the guard of a lock of the platform `P`.
pub type Held<'a, P, T> = <<P as Cpus>::Lock<T> as Lock<T>>::Guard<'a>;

/// A `T` under a lock of the platform `P`.
///
/// *Context.* Interrupt.
pub struct Guarded<P: Cpus, T: Send>(P::Lock<T>);

impl<P: Cpus, T: Send> Guarded<P, T> {
    /// `value` under a free lock.
    pub fn new(value: T) -> Self {
        Self(Lock::new(value))
    }

    /// Waits for the lock, and takes it.
    #[inline]
    pub fn lock(&self) -> Held<'_, P, T> {
        self.0.lock()
    }

    /// Takes the lock if it is free.
    #[inline]
    pub fn try_lock(&self) -> Option<Held<'_, P, T>> {
        self.0.try_lock()
    }

    /// Waits for the lock, and holds it during `f`.
    #[inline]
    pub fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        self.0.with(f)
    }

    /// The value.
    pub fn into_inner(self) -> T {
        self.0.into_inner()
    }
}

impl<P: Cpus, T: Send + Default> Default for Guarded<P, T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<P: Cpus, T: Send + fmt::Debug> fmt::Debug for Guarded<P, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.try_lock() {
            Some(held) => f.debug_tuple("Guarded").field(&*held).finish(),
            None => f.write_str("Guarded(held)"),
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::{Interrupts, IrqLock, Lock};
    use core::sync::atomic::{AtomicUsize, Ordering};

    static DEPTH: AtomicUsize = AtomicUsize::new(0);

    struct Counted;

    impl Interrupts for Counted {
        fn disable() -> usize {
            DEPTH.fetch_add(1, Ordering::Relaxed)
        }

        fn restore(before: usize) {
            DEPTH.store(before, Ordering::Relaxed);
        }
    }

    #[test]
    fn interrupts_are_out_as_long_as_the_lock_is_held_and_no_longer() {
        let depth = || DEPTH.load(Ordering::Relaxed);
        let lock = IrqLock::<u32, Counted>::new(1);
        let outer = IrqLock::<u32, Counted>::new(1);
        {
            let _outer = outer.lock();
            assert_eq!(depth(), 1);
            assert!(outer.try_lock().is_none());
            assert_eq!(depth(), 1);
            *lock.lock() += 1;
            assert_eq!(depth(), 1);
        }
        assert_eq!((depth(), lock.into_inner()), (0, 2));
    }

    struct NoInterrupts;

    impl Interrupts for NoInterrupts {
        fn disable() -> usize {
            0
        }

        fn restore(_before: usize) {}
    }

    #[test]
    fn one_cpu_at_a_time_holds_the_lock() {
        let lock = IrqLock::<u64, NoInterrupts>::new(0);
        let add = || {
            for _ in 0..10_000 {
                let mut held = lock.lock();
                let before = *held;
                std::hint::black_box(&mut held);
                *held = before + 1;
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(add);
            scope.spawn(add);
        });
        assert_eq!(lock.into_inner(), 20_000);
    }
}
