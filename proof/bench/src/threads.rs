//! Several threads that do an operation at once, each as one CPU.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use portolan::addr::CpuId;
use portolan::platform::{Clock, Cpus, Nanos, SpinLock};
use rustix::time::{ClockId, clock_gettime};

use crate::workload::{Failure, Workload};

thread_local! {
    static CPU: Cell<u32> = const { Cell::new(0) };
}

/// Number of CPUs.
pub(crate) const CPUS: usize = 2;

/// The calling thread's, below [`CPUS`].
#[inline]
pub(crate) fn cpu() -> u32 {
    CPU.get()
}

/// Two CPUs, each a thread whose number is one load away, as in a kernel.
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

    fn drop_later(&self, left: portolan::platform::LeftBehind) {
        drop(left);
    }
}

/// Any number of CPUs, of which the calling thread is one after the other.
#[derive(Debug)]
pub(crate) struct InTurn(pub(crate) usize);

impl InTurn {
    /// Makes the calling thread another CPU.
    pub(crate) fn be(&self, cpu: usize) {
        CPU.set((cpu % self.0) as u32);
    }
}

impl Clock for InTurn {
    fn now(&self) -> Nanos {
        Nanos::new(0)
    }
}

impl Cpus for InTurn {
    type Word = AtomicU64;
    type Lock<T: Send> = SpinLock<T>;

    fn count(&self) -> usize {
        self.0
    }

    fn current(&self) -> CpuId {
        CpuId::new(cpu())
    }

    fn flush_wanted(&self) {}

    fn drop_later(&self, left: portolan::platform::LeftBehind) {
        drop(left);
    }
}

/// Work of a thread: the operation, so many times.
pub(crate) type Turn = Box<dyn FnMut(u64) -> Result<(), Failure>>;

/// An operation done by several threads at once, each for itself.
pub(crate) struct Together {
    /// Operations of each thread in one pass, enough that starting it does not count.
    each: u64,
    count: u32,
    /// Passes asked for; all ones ends the threads.
    asked: Arc<AtomicU64>,
    /// Passes done, by all threads.
    done: Arc<AtomicU64>,
    /// Nanoseconds of processor time that they took.
    used: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Together {
    /// Starts `count` threads; `make` makes the turn of each from its number.
    pub(crate) fn new<M>(count: u32, each: u64, make: M) -> Self
    where
        M: Fn(u32) -> Result<Turn, Failure> + Send + Sync + 'static,
    {
        let [asked, done, used] = [(); 3].map(|()| Arc::new(AtomicU64::new(0)));
        let make = Arc::new(make);
        let threads = (0..count).map(|cpu| {
            let [asked, done, used] = [&asked, &done, &used].map(Arc::clone);
            let make = Arc::clone(&make);
            std::thread::spawn(move || {
                CPU.set(cpu);
                let Ok(mut turn) = make(cpu) else { return };
                let mut passes = 0;
                loop {
                    match asked.load(Ordering::Acquire) {
                        u64::MAX => break,
                        now if now == passes => std::thread::yield_now(),
                        now => {
                            passes = now;
                            let begin = used_ns();
                            // A failure shows as a thread that has ended.
                            if turn(each).is_err() {
                                break;
                            }
                            used.fetch_add((used_ns() - begin) as u64, Ordering::Relaxed);
                            done.fetch_add(1, Ordering::Release);
                        }
                    }
                }
            })
        });
        let threads = threads.collect();
        Self { each, count, asked, done, used, threads }
    }
}

impl Workload for Together {
    fn units(&self) -> u64 {
        self.each
    }

    fn run(&mut self) -> Result<(), Failure> {
        let passes = self.asked.load(Ordering::Relaxed) + 1;
        self.asked.store(passes, Ordering::Release);
        while self.done.load(Ordering::Acquire) < u64::from(self.count) * passes {
            if self.threads.iter().any(JoinHandle::is_finished) {
                return Err(Failure::NotPrepared);
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    fn run_timed(&mut self) -> Result<f64, Failure> {
        let before = self.used.load(Ordering::Relaxed);
        self.run()?;
        let used = self.used.load(Ordering::Relaxed) - before;
        Ok(used as f64 / f64::from(self.count))
    }
}

/// Nanoseconds of processor time that the calling thread has used.
pub(crate) fn used_ns() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

impl Drop for Together {
    fn drop(&mut self) {
        self.asked.store(u64::MAX, Ordering::Release);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
