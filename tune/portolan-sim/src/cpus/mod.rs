//! CPUs in virtual time: the library's own code on up to 256 of them, on one thread.
//!
//! Each virtual CPU is a coroutine with a clock of its own. Before it touches a word or a lock that
//! CPUs share, all CPUs with an earlier clock run up to that time; so accesses happen in the order
//! of virtual time, and any access is a point where another CPU may come in between. Equal clocks
//! are ordered by the seed, and equal seeds give equal runs.
//!
//! Charged are: an access to a word or lock, by the CPU's having its cache line or not; waiting for a line that
//! others want, for a lock, for hardware ([`VirtualCpus::sleep_until`]); and all work that is declared
//! ([`VirtualCpus::work`]). Memory is sequentially consistent here: a model checker covers weaker orderings.
//! `docs/virtual-time.md` says more.
//!
//! * [`VirtualCpus`]: the machine; [`VirtualCpus::run`] runs a body on each of its CPUs.
//! * [`SharingPrices`]: prices of sharing.
//! * [`CommandServer`]: an invalidation queue whose hardware takes time.

mod entry;
mod line;
mod lock;
mod prices;
mod run;
mod scheduler;
mod server;
#[cfg(test)]
mod tests;
mod word;

pub use entry::{SharedTables, VirtualEntry};
pub use lock::VirtualLock;
pub use prices::{LockKind, SharingPrices, SharingTable, SubmissionPrices, SubmissionTable};
pub use run::{RunError, RunReport, Schedule};
pub use scheduler::{Pace, SharingCounters};
pub use server::{CommandServer, Hardware, NoCaches, Submission, Taken};
pub use word::VirtualWord;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use portolan::addr::CpuId;
use portolan::platform::{Clock, Cpus, Nanos};

/// The most CPUs that a machine can have.
pub const MAX_CPUS: usize = 256;

/// A machine's CPUs.
///
/// Outside a run its words and locks work as usual and cost nothing, and its clock moves whenever a caller relaxes. A
/// run lives on the thread that started it.
#[derive(Clone, Debug)]
pub struct VirtualCpus(Arc<Machine>);

#[derive(Debug)]
struct Machine {
    count: usize,
    prices: SharingPrices,
    /// Nanoseconds relaxed outside runs.
    idle: AtomicU64,
}

impl VirtualCpus {
    /// A machine of `count` CPUs, at least 1 and at most [`MAX_CPUS`].
    pub fn new(count: usize, prices: SharingPrices) -> Self {
        Self(Arc::new(Machine { count: count.clamp(1, MAX_CPUS), prices, idle: AtomicU64::new(0) }))
    }

    /// Prices of sharing.
    pub fn prices(&self) -> &SharingPrices {
        &self.0.prices
    }

    /// The calling CPU computes for `ns` nanoseconds; outside a run, nothing.
    pub fn work(&self, ns: f64) {
        scheduler::with(|core| core.advance(scheduler::picoseconds(ns)));
    }

    /// The calling CPU's clock in nanoseconds, with their fraction; outside a run, zero.
    pub fn now_exact_ns(&self) -> f64 {
        scheduler::with(|core| core.now() as f64 / 1000.0).unwrap_or(0.0)
    }

    /// The calling CPU does nothing until its clock shows `ns`; a time that has passed is now. A
    /// point where others run. Outside a run, nothing.
    pub fn sleep_until(&self, ns: f64) {
        scheduler::sleep_until(scheduler::picoseconds(ns));
    }
}

impl Clock for VirtualCpus {
    fn now(&self) -> Nanos {
        let inside = scheduler::with(|core| Nanos::new(core.now() / 1000));
        inside.unwrap_or_else(|| Nanos::new(self.0.idle.load(Ordering::Relaxed)))
    }

    fn relax(&self) {
        if scheduler::relax() == scheduler::CallPlace::Outside {
            self.0.idle.fetch_add(1000, Ordering::Relaxed);
        }
    }
}

impl Cpus for VirtualCpus {
    type Word = VirtualWord;
    type Lock<T: Send> = VirtualLock<T>;

    fn count(&self) -> usize {
        self.0.count
    }

    fn current(&self) -> CpuId {
        let cpu = scheduler::with(|core| core.current()).unwrap_or(0);
        CpuId::new(cpu as u32)
    }

    fn flush_wanted(&self) {}

    fn drop_later(&self, left: portolan::platform::LeftBehind) {
        drop(left);
    }
}
