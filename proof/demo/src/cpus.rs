//! The machine's CPUs: all but the first one wait for work, and do it.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::hint::spin_loop;
use core::mem;
use core::sync::atomic::{AtomicUsize, Ordering};

use portolan::platform::{Nanos, Platform, SpinLock, poll};
use portolan_bare::Machine;

use crate::Outcome;
use crate::arch::{self, Loader};

/// Something to be done by one CPU.
pub type Task<T> = Box<dyn FnOnce() -> T + Send>;

/// The most CPUs that are used.
pub const MOST: usize = 8;
/// Bytes of a stack.
const STACK: usize = 128 * 1024;
/// Longest time that a CPU may take to start, and to finish its work.
const LIMIT: Nanos = Nanos::from_millis(30_000);

/// End of the stack of the CPU that starts next: `boot.s` reads it.
#[unsafe(no_mangle)]
static NEXT_STACK: AtomicUsize = AtomicUsize::new(0);
/// Number of CPUs that have started, which is the number of the next one.
static STARTED: AtomicUsize = AtomicUsize::new(1);
/// Next task of each CPU.
static NEXT_TASK: [SpinLock<Option<Task<()>>>; MOST] = [const { SpinLock::new(None) }; MOST];

/// The hardware's numbers of the used CPUs, without the calling one.
fn others(machine: &Machine) -> impl Iterator<Item = u64> {
    let me = arch::processor();
    let others = machine.processors().filter(move |one| *one != me);
    others.take(MOST - 1)
}

/// Number of CPUs that are used.
pub fn count(machine: &Machine) -> usize {
    1 + others(machine).count()
}

/// CPUs that have started.
pub struct Cpus {
    machine: Machine,
    count: usize,
}

impl Cpus {
    /// Starts all CPUs that are used, one after the other.
    pub fn start(machine: Machine, loader: &Loader) -> Outcome<Self> {
        for (before, other) in others(&machine).enumerate() {
            let mut stack = machine.pages(STACK).ok_or("no memory")?;
            let end = stack.bytes_mut().as_mut_ptr_range().end;
            NEXT_STACK.store(end.expose_provenance(), Ordering::Release);
            // The CPU uses it for ever.
            mem::forget(stack);
            loader.start_processor(&machine, other)?;
            let number = before + 1;
            let started = || (STARTED.load(Ordering::Acquire) > number).then_some(());
            poll(&machine, LIMIT, started).map_err(|_| "a CPU does not start")?;
        }
        let count = STARTED.load(Ordering::Acquire);
        Ok(Self { machine, count })
    }

    /// Number of CPUs that have started.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Runs `tasks`, one on each CPU at the same time, and waits for their results.
    pub fn run<T: Send + 'static>(&self, tasks: Vec<Task<T>>) -> Outcome<Vec<T>> {
        let (machine, count) = (self.machine, tasks.len());
        if count > self.count {
            return Err("there are more tasks than CPUs".into());
        }
        let results = (0..count).map(|_| SpinLock::new(None));
        let meeting: Arc<Meeting<T>> =
            Arc::new(Meeting { there: AtomicUsize::new(0), results: results.collect() });
        for (cpu, task) in tasks.into_iter().enumerate() {
            let meeting = meeting.clone();
            let task: Task<()> = Box::new(move || {
                let result = meeting.attend(machine, cpu, count).map(|()| task());
                *meeting.results[cpu].lock() = Some(result);
            });
            *NEXT_TASK[cpu].lock() = Some(task);
        }
        do_next(0);
        let result = |of: &SpinLock<Option<Outcome<T>>>| {
            let done = poll(&machine, LIMIT, || of.lock().take());
            done.map_err(|_| "a CPU does not finish its work")?
        };
        meeting.results.iter().map(result).collect()
    }
}

/// Tasks that begin together, and their results.
struct Meeting<T> {
    there: AtomicUsize,
    results: Vec<SpinLock<Option<Outcome<T>>>>,
}

impl<T> Meeting<T> {
    /// Waits until all `count` CPUs are there; the caller is `cpu`.
    fn attend(&self, machine: Machine, cpu: usize, count: usize) -> Outcome<()> {
        self.there.fetch_add(1, Ordering::AcqRel);
        let all = || (self.there.load(Ordering::Acquire) == count).then_some(());
        poll(&machine, LIMIT, all).map_err(|_| "a CPU does not begin its work")?;
        if machine.cpu().get() as usize == cpu {
            Ok(())
        } else {
            Err("a CPU has another one's number".into())
        }
    }
}

/// Entry from `boot.s` on each CPU but the first one.
#[unsafe(no_mangle)]
extern "C" fn kernel_other() -> ! {
    // They start one after the other.
    let number = STARTED.load(Ordering::Acquire);
    arch::set_number(number);
    STARTED.store(number + 1, Ordering::Release);
    loop {
        do_next(number);
        spin_loop();
    }
}

/// Runs the next task of the calling CPU.
fn do_next(number: usize) {
    let task = NEXT_TASK.get(number).and_then(|next| next.lock().take());
    task.into_iter().for_each(|task| task());
}
