//! CPUs, and the words that they share.
//!
//! Everything in the library that CPUs contend for is made of these, so that the same code runs on
//! bare hardware, under a model checker that explores interleavings, and on processors in virtual
//! time that charge each transfer of a cache line.
//!
//! *Context.* Interrupt, all methods of all traits here; constructors are called by tasks.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};

use super::{Clock, DataCache, LeftBehind, Lock, Nanos, ProtocolStep, Tracer};
use crate::addr::{CpuId, TableId};

/// A word that CPUs share, of 64 bits.
pub trait SharedWord: Send + Sync + 'static {
    /// A word that holds `value`.
    fn new(value: u64) -> Self;

    /// Reads it.
    fn load(&self, order: Ordering) -> u64;

    /// Writes it.
    fn store(&self, value: u64, order: Ordering);

    /// Replaces its value, and returns the old one.
    fn swap(&self, value: u64, order: Ordering) -> u64;

    /// Replaces `old` by `new` in one step; may fail for no reason.
    ///
    /// # Errors
    /// The value that was there.
    fn compare_exchange_weak(
        &self,
        old: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64>;

    /// Adds, wrapping around, and returns the old value.
    fn fetch_add(&self, value: u64, order: Ordering) -> u64;

    /// Sets the bits of `mask`, and returns the old value.
    fn fetch_or(&self, mask: u64, order: Ordering) -> u64;
}

/// The CPUs that call the library.
///
/// *Implementer's duties.* [`current`](Self::current) is below [`count`](Self::count). It may be
/// out of date as soon as it returns: the library uses it to choose memory that is near, and
/// relies on nothing else.
pub trait Cpus: Clock + Send + Sync + 'static {
    /// Words that CPUs share.
    type Word: SharedWord;
    /// Locks that CPUs share. While a CPU holds one, no interrupt handler that calls the library
    /// runs on that CPU: in a kernel [`IrqLock`](super::IrqLock), in a process any lock.
    type Lock<T: Send>: Lock<T>;

    /// Number of CPUs; at least 1.
    fn count(&self) -> usize;

    /// The CPU that calls.
    fn current(&self) -> CpuId;

    /// The time, where a caller can do with a cheap one that is late by up to a millisecond.
    fn coarse_now(&self) -> Nanos {
        self.now()
    }

    /// Called when a queue of deferred unmaps has reached one of its limits in a caller that may
    /// not wait, and when a space has broken. An embedder that never defers an unmap, or calls
    /// [`DmaSpace::tick`](crate::dma::DmaSpace::tick) soon anyway, has nothing to do.
    fn flush_wanted(&self);

    /// Called when the last user of something was an interrupt handler, or may have been: a task has
    /// to drop it. Where handlers call the library, it must not be dropped here.
    fn drop_later(&self, left: LeftBehind);

    /// Maintenance of the CPUs' caches, for each device that is opened and does not snoop. None, as by default, leaves
    /// it to [`Device::with_cache`](crate::dma::Device::with_cache); a [`Platform`](super::Platform) maintains them
    /// itself. *Context.* Task.
    fn data_cache(&self) -> Option<Arc<dyn DataCache>> {
        None
    }

    /// Tracer of maps, unmaps, flushes and faults. Without one, as by default, the reports are not
    /// compiled.
    #[inline]
    fn tracer(&self) -> Option<&dyn Tracer> {
        None
    }

    /// Called at each step that a space over the table `of` makes, for checkers of runs. By default nothing, which
    /// costs nothing.
    #[inline(always)]
    fn protocol_step(&self, of: TableId, step: ProtocolStep) {
        let _ = (of, step);
    }
}

/// Records are kept for so many CPUs at most: those with higher numbers share the first one's.
const MOST: usize = 8192;

/// Number of CPUs that records are kept for, within bounds.
pub(crate) fn count_of(cpus: &impl Cpus) -> usize {
    cpus.count().clamp(1, MOST)
}

impl<P: Cpus> Cpus for Arc<P> {
    type Word = P::Word;
    type Lock<T: Send> = P::Lock<T>;

    #[inline]
    fn count(&self) -> usize {
        (**self).count()
    }

    #[inline]
    fn current(&self) -> CpuId {
        (**self).current()
    }

    #[inline]
    fn coarse_now(&self) -> Nanos {
        (**self).coarse_now()
    }

    #[inline]
    fn flush_wanted(&self) {
        (**self).flush_wanted();
    }

    fn drop_later(&self, left: LeftBehind) {
        (**self).drop_later(left);
    }

    fn data_cache(&self) -> Option<Arc<dyn DataCache>> {
        (**self).data_cache()
    }

    #[inline]
    fn tracer(&self) -> Option<&dyn Tracer> {
        (**self).tracer()
    }

    #[inline(always)]
    fn protocol_step(&self, of: TableId, step: ProtocolStep) {
        (**self).protocol_step(of, step);
    }
}

/// Makes a [`Clock`] the [`Cpus`] of a machine with one CPU, whose interrupt handlers do not call the
/// library, or of a process of few threads, with spinning locks: for tests and tools.
///
/// ```
/// use portolan::platform::{Clock, Nanos};
///
/// struct Still;
///
/// impl Clock for Still {
///     fn now(&self) -> Nanos { Nanos::new(0) }
/// }
///
/// portolan::one_cpu!(Still);
/// ```
#[macro_export]
macro_rules! one_cpu {
    ($clock:ty $(, $name:ident: $bound:path)*) => {
        impl<$($name: $bound + Send + Sync + 'static),*> $crate::platform::Cpus for $clock {
            type Word = ::core::sync::atomic::AtomicU64;
            type Lock<Guarded: Send> = $crate::platform::SpinLock<Guarded>;

            #[inline]
            fn count(&self) -> usize {
                1
            }

            #[inline]
            fn current(&self) -> $crate::addr::CpuId {
                $crate::addr::CpuId::new(0)
            }

            fn flush_wanted(&self) {}

            fn drop_later(&self, left: $crate::platform::LeftBehind) {
                drop(left);
            }
        }
    };
}

impl SharedWord for AtomicU64 {
    #[inline]
    fn new(value: u64) -> Self {
        Self::new(value)
    }

    #[inline]
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }

    #[inline]
    fn store(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }

    #[inline]
    fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.swap(value, order)
    }

    #[inline]
    fn compare_exchange_weak(
        &self,
        old: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        self.compare_exchange_weak(old, new, success, failure)
    }

    #[inline]
    fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.fetch_add(value, order)
    }

    #[inline]
    fn fetch_or(&self, mask: u64, order: Ordering) -> u64 {
        self.fetch_or(mask, order)
    }
}

/// CPUs with spinning locks, each named by the embedder's `current`, with the embedder's clock.
#[derive(Debug)]
pub struct SpinCpus<C, F> {
    count: usize,
    clock: C,
    current: F,
}

impl<C: Clock, F: Fn() -> CpuId> SpinCpus<C, F> {
    /// `count` CPUs, of which `current` names the caller's; a number too high counts from the
    /// start again.
    pub fn new(count: usize, clock: C, current: F) -> Self {
        let count = count.max(1);
        Self { count, clock, current }
    }
}

impl<C: Clock, F> Clock for SpinCpus<C, F> {
    #[inline]
    fn now(&self) -> Nanos {
        self.clock.now()
    }

    #[inline]
    fn relax(&self) {
        self.clock.relax();
    }
}

impl<C, F> Cpus for SpinCpus<C, F>
where
    C: Clock + Send + Sync + 'static,
    F: Fn() -> CpuId + Send + Sync + 'static,
{
    type Word = AtomicU64;
    type Lock<T: Send> = spin::Mutex<T>;

    #[inline]
    fn count(&self) -> usize {
        self.count
    }

    #[inline]
    fn current(&self) -> CpuId {
        let cpu = (self.current)();
        if (cpu.get() as usize) < self.count {
            cpu
        } else {
            CpuId::new(cpu.get() % self.count as u32)
        }
    }

    fn flush_wanted(&self) {}

    fn drop_later(&self, left: LeftBehind) {
        drop(left);
    }
}

/// A value on cache lines of its own: two, since some processors fetch pairs of them.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct CachePadded<T>(pub T);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::tests::Still;

    #[test]
    fn a_cpu_with_too_high_a_number_is_one_of_those_that_there_are() {
        let current = |number| SpinCpus::new(4, Still, move || CpuId::new(number)).current();
        for (number, cpu) in [(0, 0), (3, 3), (4, 0), (6, 2), (u32::MAX, 3)] {
            assert_eq!(current(number), CpuId::new(cpu));
        }
    }
}
