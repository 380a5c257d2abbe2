//! A run: a body on every CPU, from the same moment until all have returned.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use generator::{Generator, Gn};
use portolan::addr::CpuId;
use portolan::platform::Cpus;
use serde::Serialize;
use thiserror::Error;

use super::VirtualCpus;
use super::entry::forget_lines;
use super::scheduler::{self, Core, Pace, SharingCounters};

/// Words of a virtual CPU's stack: 1 MiB, of which the kernel gives what is touched. Without optimisation a CPU's
/// cache of addresses passes through a dozen frames before it is on the heap.
const STACK: usize = 1 << 17;

/// Conditions of a run besides the prices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    /// Orders events of one time, and all else that is left to chance.
    pub seed: u64,
    /// Pace of the CPUs.
    pub pace: Pace,
    /// Virtual nanoseconds after which the run is given up.
    pub limit_ns: u64,
}

impl Schedule {
    /// Even pace, for at most 100 virtual seconds.
    pub fn of_seed(seed: u64) -> Self {
        Self { seed, pace: Pace::Even, limit_ns: 100_000_000_000 }
    }

    /// Adds random delays of up to `ns` to accesses, for tests of interleavings.
    #[must_use]
    pub fn ragged(self, ns: f64) -> Self {
        Self { pace: Pace::Ragged(ns), ..self }
    }
}

/// Results of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunReport {
    /// Time at which the body of each CPU returned, in nanoseconds.
    pub finished_ns: Vec<f64>,
    /// Counts of sharing.
    pub counters: SharingCounters,
}

impl RunReport {
    /// Time at which the last body returned, in nanoseconds.
    pub fn end_ns(&self) -> f64 {
        self.finished_ns.iter().copied().fold(0.0, f64::max)
    }
}

/// A run that did not end. Its CPUs' stacks, and the values that they own, are leaked.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RunError {
    /// All CPUs that have not returned wait for locks.
    #[error("with seed {seed:#x} CPUs {waiting:?} wait for each other")]
    Deadlock {
        /// The seed.
        seed: u64,
        /// The CPUs.
        waiting: Vec<usize>,
    },
    /// The run took longer than its limit in virtual time.
    #[error("with seed {seed:#x} the run was not over after {limit_ns} ns of virtual time")]
    TooLong {
        /// The seed.
        seed: u64,
        /// The limit.
        limit_ns: u64,
    },
    /// The thread is already in a run.
    #[error("a run was started from within another one")]
    Nested,
}

impl VirtualCpus {
    /// Runs `body` on each CPU, all from time zero, until all have returned.
    ///
    /// # Errors
    /// [`RunError`] if they do not.
    ///
    /// # Panics
    /// If a body panics: with its message, the CPU and the seed. The stacks of the other CPUs, and the values that
    /// they own, are leaked.
    pub fn run(
        &self,
        schedule: &Schedule,
        body: impl Fn(CpuId) + Sync,
    ) -> Result<RunReport, RunError> {
        if scheduler::with(|_| ()).is_some() {
            return Err(RunError::Nested);
        }
        let count = self.count();
        let body = &body;
        #[allow(deprecated)] // See `scheduler::switch`.
        let mut stacks: Vec<Generator<'_, (), ()>> = (0..count)
            .map(|cpu| Gn::new_opt(STACK, move || body(CpuId::new(cpu as u32))))
            .collect();
        let limit = schedule.limit_ns.saturating_mul(1000);
        let (seed, pace) = (schedule.seed, schedule.pace);
        forget_lines();
        scheduler::install(Core::new(count, self.prices(), seed, pace, limit));
        while let Some(cpu) = scheduler::with(Core::next).flatten() {
            let ran = catch_unwind(AssertUnwindSafe(|| stacks[cpu].resume()));
            if let Err(panic) = ran {
                scheduler::remove();
                std::mem::forget(stacks);
                again(panic, cpu, seed);
            }
            if stacks[cpu].is_done() {
                scheduler::with(|core| core.finish(cpu));
            }
        }
        let ended = stacks.iter().all(Generator::is_done);
        let core = scheduler::remove().ok_or(RunError::Nested)?;
        if ended {
            return Ok(core.report());
        }
        // Their destructors would run code in the middle of a body.
        std::mem::forget(stacks);
        let limit_ns = schedule.limit_ns;
        Err(if core.is_overrun() {
            RunError::TooLong { seed, limit_ns }
        } else {
            RunError::Deadlock { seed, waiting: core.blocked() }
        })
    }
}

impl Core {
    fn report(self) -> RunReport {
        let count = self.count();
        let clock = |cpu| self.clock_of(cpu) as f64 / 1000.0;
        RunReport { finished_ns: (0..count).map(clock).collect(), counters: self.counters }
    }
}

/// Panics in the CPU's place.
fn again(panic: Box<dyn Any + Send>, cpu: usize, seed: u64) -> ! {
    let text = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied());
    match text {
        Some(text) => panic!("virtual CPU {cpu} with seed {seed:#x}: {text}"),
        None => {
            eprintln!("virtual CPU {cpu} with seed {seed:#x} panicked");
            resume_unwind(panic)
        }
    }
}
