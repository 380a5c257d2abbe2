//! An invalidation queue whose hardware takes time: first come, first served.
//!
//! Commands and syncs are carried out one after another, each at its price. The CPU pays for writing commands and for
//! the doorbell, which keeps it as an exit to a hypervisor would, and waits for its sync. A [`Hardware`] is told the
//! commands at the time of completion, so that a device on another virtual CPU uses stale translations exactly until
//! then.
//!
//! Not modelled: commands taken out of order, hardware that works on several at once, errors other
//! than those of the [`Hardware`] and the deadline.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use portolan::addr::InvalTag;
use portolan::inval::{Command, InvalidationQueue, Step, TablesLeft};
use portolan::iommu::{Awaited, IommuError, TagPool};
use portolan::platform::{Lock, Nanos, SharedWord};
use serde::{Deserialize, Serialize};

use super::{SubmissionPrices, VirtualCpus, VirtualLock, VirtualWord, scheduler};
use crate::counters::{Invalidations, doorbells};
use crate::decode::WalkMemory;
use crate::iommu::{CommandPrices, Iommu, Owed, QueueError};
use crate::profile::QueueLimits;

/// Exclusion between CPUs that submit at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Submission {
    /// A lock is held from the first command to the end of the wait: Linux's VT-d driver, by the
    /// lock of its domain's cache tags.
    HeldAcrossWait,
    /// A lock is held while commands are written.
    LockedInsertion,
    /// Room in the queue is taken by one atomic step: Linux's SMMUv3 driver.
    LockFree,
}

/// Effect of commands.
pub trait Hardware: Send + Sync {
    /// Carries out steps: those before invalidations at once, the others when they complete.
    ///
    /// # Errors
    /// Errors of the unit.
    fn complete(&self, steps: &mut dyn Iterator<Item = Step>) -> Result<(), IommuError>;
}

/// Hardware without caches.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoCaches;

impl Hardware for NoCaches {
    fn complete(&self, steps: &mut dyn Iterator<Item = Step>) -> Result<(), IommuError> {
        steps.for_each(drop);
        Ok(())
    }
}

impl<M: WalkMemory + Send + Sync> Hardware for Iommu<M> {
    fn complete(&self, steps: &mut dyn Iterator<Item = Step>) -> Result<(), IommuError> {
        self.pay(steps, TablesLeft::ByDepth).map_err(|error| match error {
            QueueError::Failed { .. } => IommuError::Refused { code: 0 },
            QueueError::Illegal { .. } => IommuError::Unsupported,
            QueueError::TimedOut { waited_ns, .. } => {
                IommuError::TimedOut { awaited: Awaited::Completion, waited: Nanos::new(waited_ns) }
            }
        })
    }
}

impl<H: Hardware + ?Sized> Hardware for Arc<H> {
    fn complete(&self, steps: &mut dyn Iterator<Item = Step>) -> Result<(), IommuError> {
        (**self).complete(steps)
    }
}

/// Counts of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Taken {
    /// Invalidations by kind.
    pub invalidations: Invalidations,
    /// Syncs.
    pub syncs: u64,
    /// Doorbells, as in [`Counters::doorbells`](crate::counters::Counters::doorbells).
    pub doorbells: u64,
    /// Nanoseconds that it was not idle.
    pub busy_ns: f64,
}

/// A queue, and hardware behind it that takes its time.
#[derive(Debug)]
pub struct CommandServer<H> {
    cpus: VirtualCpus,
    commands: CommandPrices,
    prices: SubmissionPrices,
    limits: QueueLimits,
    way: Submission,
    lock: VirtualLock<()>,
    head: VirtualWord,
    state: Mutex<QueueState>,
    hardware: H,
}

/// Contents of the queue, and the work of the hardware behind it.
#[derive(Debug, Default)]
struct QueueState {
    /// Time at which all commands taken so far are done, in picoseconds.
    free_at: u64,
    /// Contents of the queue: the time at which each part is done, and its entries.
    queued: VecDeque<(u64, usize)>,
    taken: Taken,
}

impl<H: Hardware> CommandServer<H> {
    /// A queue for `cpus`, which submit in `way`.
    pub fn new(
        cpus: VirtualCpus,
        commands: CommandPrices,
        prices: SubmissionPrices,
        limits: QueueLimits,
        way: Submission,
        hardware: H,
    ) -> Self {
        Self {
            cpus,
            commands,
            prices,
            limits,
            way,
            lock: Lock::new(()),
            head: SharedWord::new(0),
            state: Mutex::default(),
            hardware,
        }
    }

    /// Counts so far.
    pub fn taken(&self) -> Taken {
        self.state().taken
    }

    /// The hardware behind the queue.
    pub fn hardware(&self) -> &H {
        &self.hardware
    }

    /// Takes the lock as Linux does after a map that owes nothing, where its lock is held across waits: it finds
    /// nothing to do, and so waits for the invalidations of all CPUs. Elsewhere nothing.
    pub fn after_map(&self) {
        if self.way == Submission::HeldAcrossWait {
            self.lock.with(|()| ());
        }
    }

    fn state(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Submits commands and the sync after them, and waits for it.
    fn submit(&self, commands: &[Command]) -> Result<(), IommuError> {
        let entries = commands.len() + 1;
        match self.way {
            Submission::HeldAcrossWait => self.lock.with(|()| {
                let done = self.insert(entries, commands);
                self.wait(done, commands)
            }),
            Submission::LockedInsertion => {
                let done = self.lock.with(|()| self.insert(entries, commands));
                self.wait(done, commands)
            }
            Submission::LockFree => {
                let entries = entries as u64;
                self.head.fetch_add(entries, std::sync::atomic::Ordering::AcqRel);
                let done = self.insert(entries as usize, commands);
                self.wait(done, commands)
            }
        }
    }

    /// Writes commands into the queue; returns when they will have been carried out, in
    /// picoseconds.
    fn insert(&self, entries: usize, commands: &[Command]) -> u64 {
        self.cpus.work(self.prices.descriptor * entries as f64);
        self.cpus.work(self.prices.doorbell);
        scheduler::point();
        while let Some(at) = self.full(entries) {
            scheduler::sleep_until(at);
        }
        let mut state = self.state();
        let price = |command: &Command| self.commands.of_command(*command, Owed::AfterUnmap);
        let ns = commands.iter().map(price).sum::<f64>() + self.commands.sync;
        let doorbells = doorbells(commands.len() as u64);
        let ns = ns + self.commands.exit * doorbells as f64;
        for command in commands {
            count(&mut state.taken.invalidations, *command);
        }
        state.taken.syncs += 1;
        state.taken.doorbells += doorbells;
        state.taken.busy_ns += ns;
        let now = scheduler::with(|core| core.now()).unwrap_or(0);
        let done = state.free_at.max(now) + scheduler::picoseconds(ns);
        state.free_at = done;
        state.queued.push_back((done, entries));
        done
    }

    /// Time at which the queue has less in it, if it has no room now.
    fn full(&self, entries: usize) -> Option<u64> {
        let now = scheduler::with(|core| core.now()).unwrap_or(u64::MAX);
        let mut state = self.state();
        while state.queued.front().is_some_and(|(done, _)| *done <= now) {
            state.queued.pop_front();
        }
        let used = state.queued.iter().map(|(_, count)| count).sum::<usize>();
        // Entries that are more than the queue holds go through it in pieces.
        if used + entries <= self.limits.depth as usize {
            return None;
        }
        state.queued.front().map(|(done, _)| *done)
    }

    fn wait(&self, done: u64, commands: &[Command]) -> Result<(), IommuError> {
        // Outside a run no time passes, and nothing is late.
        let mut late = false;
        if let Some(begin) = scheduler::with(|core| core.now()) {
            let limit = begin.saturating_add(self.limits.deadline_ns.saturating_mul(1000));
            scheduler::sleep_until(done.min(limit));
            late = done > limit;
        }
        if late {
            return Err(IommuError::TimedOut {
                awaited: Awaited::Completion,
                waited: Nanos::new(self.limits.deadline_ns),
            });
        }
        let steps = commands.iter().copied().map(Step::Invalidate);
        let outcome = self.hardware.complete(&mut steps.chain([Step::Sync]));
        self.cpus.work(self.prices.latency);
        outcome
    }
}

fn count(invalidations: &mut Invalidations, command: Command) {
    let kind = match command {
        Command::Page { .. } => &mut invalidations.page,
        Command::Range { .. } => &mut invalidations.range,
        Command::Context { .. } => &mut invalidations.context,
        Command::Global => &mut invalidations.global,
        Command::Configuration { .. } => &mut invalidations.configuration,
    };
    *kind += 1;
}

impl<H: Hardware> InvalidationQueue for CommandServer<H> {
    type Error = IommuError;

    fn pay(&self, steps: &mut dyn Iterator<Item = Step>, _: TablesLeft) -> Result<(), IommuError> {
        let mut commands = Vec::new();
        for step in steps {
            match step {
                Step::Invalidate(command) => commands.push(command),
                Step::Sync => {
                    self.submit(&commands)?;
                    commands.clear();
                }
                flushes => self.hardware.complete(&mut std::iter::once(flushes))?,
            }
        }
        // Commands without a sync are awaited all the same.
        if commands.is_empty() { Ok(()) } else { self.submit(&commands) }
    }
}

impl<H: Hardware> TagPool for CommandServer<H> {
    /// Identifiers are not kept here: this one's translations are invalidated, and that is all.
    fn release(&self, context: InvalTag) -> Result<(), IommuError> {
        self.submit(&[Command::Context { context }])
    }
}
