//! The CPU: one, whose number is a load, as a kernel's is.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use portolan::addr::CpuId;
use portolan::platform::{Clock, Cpus, LeftBehind, Nanos, SpinLock};

static CPU: AtomicU32 = AtomicU32::new(0);

/// Number of CPUs, as the benchmark has them.
pub(crate) const CPUS: usize = 2;

/// The calling CPU's.
#[inline]
pub(crate) fn cpu() -> u32 {
    CPU.load(Ordering::Relaxed)
}

/// The CPUs, of which one calls.
#[derive(Debug)]
pub struct Threads;

impl Clock for Threads {
    fn now(&self) -> Nanos {
        Nanos::new(0)
    }
}

impl Cpus for Threads {
    type Word = AtomicU64;
    type Lock<T: Send> = SpinLock<T>;

    #[inline]
    fn count(&self) -> usize {
        CPUS
    }

    #[inline]
    fn current(&self) -> CpuId {
        CpuId::new(cpu())
    }

    fn flush_wanted(&self) {}

    fn drop_later(&self, left: LeftBehind) {
        drop(left);
    }
}
