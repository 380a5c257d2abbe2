//! Threads that do an operation over and over, timed by the processor time that each of them used.
//!
//! Processor time leaves out the waits of a thread while others run on its core, so that figures of
//! a machine that does other work as well mean something. But the other threads of a pass may not
//! be running at that moment: contention is seen only where the machine has a core for each thread.

use std::cell::Cell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use portolan::addr::CpuId;
use portolan::platform::SpinCpus;

use crate::Failure;
use portolan_chips::fixture::Still;

use crate::threads::used_ns;

/// Operations between two checks if the others are done.
const MORE: u64 = 16;

thread_local! {
    static CPU: Cell<u32> = const { Cell::new(0) };
}

/// CPUs that are threads.
pub(super) type Threads = SpinCpus<Still, fn() -> CpuId>;

/// `count` of them.
pub(super) fn cpus(count: usize) -> Threads {
    SpinCpus::new(count, Still, || CpuId::new(CPU.get()))
}

/// Work of one thread.
pub(super) trait Turn {
    /// The operation, so many times.
    fn turn(&mut self, times: u64) -> Result<(), Failure>;
}

/// Nanoseconds of processor time an operation, the mean of the threads, one for each of `turns`; all
/// work at the same time, and a thread that is done goes on untimed until all are.
///
/// # Errors
/// That of an operation.
pub(super) fn pass<T: Turn + Send>(turns: &mut [T], times: u64) -> Result<f64, Failure> {
    let count = turns.len() as u32;
    let (ready, done) = (AtomicU32::new(0), AtomicU32::new(0));
    let sum = Mutex::new(Ok(0.0));
    let each = |cpu: usize, turn: &mut T| {
        CPU.set(cpu as u32);
        let mut one = turn.turn(MORE);
        ready.fetch_add(1, Ordering::AcqRel);
        while ready.load(Ordering::Acquire) < count {
            std::thread::yield_now();
        }
        let begin = used_ns();
        one = one.and_then(|()| turn.turn(times));
        let used = used_ns() - begin;
        done.fetch_add(1, Ordering::AcqRel);
        while done.load(Ordering::Acquire) < count && one.is_ok() {
            one = turn.turn(MORE);
        }
        if let Ok(mut sum) = sum.lock() {
            *sum = one.and_then(|()| (*sum).map(|sum: f64| sum + used / times as f64));
        }
    };
    match turns {
        // No thread is started for one alone.
        [one] => each(0, one),
        several => std::thread::scope(|scope| {
            for (cpu, turn) in several.iter_mut().enumerate() {
                let each = &each;
                scope.spawn(move || each(cpu, turn));
            }
        }),
    }
    let sum = sum.into_inner().map_err(|_| Failure::NotPrepared)??;
    Ok(sum / f64::from(count.max(1)))
}
