//! Strict invalidation for many CPUs: a caller that finds the queue idle submits for all.
//!
//! While one submission is under way, callers put their commands into the open batch and take its
//! number as their ticket. When the submission has completed, the batch's first caller submits all
//! of it with one sync; the others wait until the number of the last completed batch has reached
//! their ticket. No lock is held while hardware is waited for, and nothing is allocated.
//!
//! *Failure.* A batch that fails is no caller's failure yet: each of its callers submits its own
//! commands once more, alone, and gets its own answer. So an error reaches only those callers whose
//! commands were not carried out. A caller whose submitter does not come back in time does the
//! same, so a waiting caller depends on nothing but the queue under it.
//!
//! *Handlers.* A handler that submits on the CPU whose submission it has interrupted waits until
//! the limit and then submits alone, so that it needs only the queue under it. It takes no part any
//! more in a batch that has its commands.
//!
//! *Order.* A caller cleans and drains for its own plan first, before its commands are seen by
//! others. Plans with more than one sync, without any, or with many commands pass through.

use alloc::boxed::Box;
use core::sync::atomic::Ordering;

use super::batch::{Debt, Merger, Merging, Parsed, Ranges, parse, sealed};
use super::{InvalidationQueue, Step, TablesLeft};
use crate::platform::{Cpus, Nanos, SharedWord, count_of};
use group::{BatchPlace, BatchTicket, CombineGroup, OpenBatch};

mod group;

/// Options of combining callers.
///
/// *Context.* Interrupt: values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CombineOptions {
    /// Numbers of CPUs that share a batch; each such group submits on its own. At least 1.
    pub cpus_per_group: usize,
    /// Callers of a group that submit by themselves beside the batch that is under way: for
    /// hardware whose queue takes commands from many at once, where waiting for others gains
    /// nothing while few are there.
    pub beside: usize,
    /// Merging of many commands for one context in a batch.
    pub merging: Merging,
    /// Longest wait for the first caller of a batch before another one takes its place.
    pub timeout: Nanos,
    /// Longest wait of a caller for others before it submits its own commands alone: somewhat more
    /// than a submission takes. It may wait in a handler that has interrupted the submitter, which
    /// then cannot go on.
    pub wait_limit: Nanos,
}

impl Default for CombineOptions {
    /// One group, no caller beside it, one range for the third command of a context on, of 4,096
    /// granules at most, the context from the 17th command on, 100 microseconds, one millisecond.
    fn default() -> Self {
        Self {
            cpus_per_group: usize::MAX,
            beside: 0,
            merging: Merging { above: 2, granules: 1 << 12, context_above: 16 },
            timeout: Nanos::new(100_000),
            wait_limit: Nanos::from_millis(1),
        }
    }
}

/// Callers that submit together, in front of a queue that each of them names: always the same one.
///
/// *Locking.* A lock for each group, held to add or take a batch.
///
/// *Waiting.* Bounded by [`CombineOptions::wait_limit`], the time that the lock takes and twice the
/// queue's own deadline.
///
/// *Context.* Atomic: [`Combiner::pay`] waits for hardware and, within the limit, for other CPUs; a
/// handler may call it while the CPU's own submission is under way, if it may call that of the queue.
/// [`Combiner::new`] is for tasks.
pub struct Combiner<P: Cpus> {
    groups: Box<[CombineGroup<P>]>,
    merger: Merger,
    options: CombineOptions,
}

/// A queue in front of `Q` that combines commands that CPUs submit at the same time, by its
/// [`Combiner`].
///
/// *Context.* Atomic, as the [`Combiner`]; [`Combined::new`] is for tasks.
pub struct Combined<P: Cpus, Q> {
    cpus: P,
    queue: Q,
    combiner: Combiner<P>,
}

/// A caller at work: its queue, and its clock.
struct Caller<'a, P: Cpus, Q: ?Sized> {
    cpus: &'a P,
    queue: &'a Q,
    combiner: &'a Combiner<P>,
}

/// End of a wait.
#[allow(clippy::large_enum_variant)] // The batch moves to the submitter's stack, without a heap.
enum Waited {
    /// The batch was carried out.
    Done,
    /// It was not, or not in time: no other caller will tell.
    Alone,
    /// It is the caller's to submit.
    Submit(u64, OpenBatch),
}

impl<P: Cpus> Combiner<P> {
    /// Combines callers on `cpus`, for hardware with the range commands `ranges`.
    ///
    /// *Context.* Task.
    pub fn new(cpus: &P, ranges: Ranges, options: CombineOptions) -> Self {
        let groups = count_of(cpus).div_ceil(options.cpus_per_group.max(1));
        let merger = Merger { ranges, limits: options.merging };
        Self { groups: (0..groups).map(|_| CombineGroup::new()).collect(), merger, options }
    }

    /// Has `queue` carry out `steps`, alone or with those of other callers on `cpus`, as
    /// [`InvalidationQueue::pay`] says.
    ///
    /// # Errors
    /// The queue's, of these steps.
    pub fn pay<Q: InvalidationQueue + ?Sized>(
        &self,
        cpus: &P,
        queue: &Q,
        steps: &mut dyn Iterator<Item = Step>,
        tables: TablesLeft,
    ) -> Result<(), Q::Error> {
        let caller = Caller { cpus, queue, combiner: self };
        caller.pay(steps, tables)
    }

    fn group(&self, cpus: &P) -> &CombineGroup<P> {
        let cpu = cpus.current().get() as usize;
        let group = cpu / self.options.cpus_per_group.max(1);
        // Never empty.
        &self.groups[group % self.groups.len()]
    }
}

impl<P: Cpus, Q: InvalidationQueue> Combined<P, Q> {
    /// Combines callers on `cpus` in front of `queue`, for hardware with the range commands `ranges`.
    ///
    /// *Context.* Task.
    pub fn new(cpus: P, queue: Q, ranges: Ranges, options: CombineOptions) -> Self {
        Self { combiner: Combiner::new(&cpus, ranges, options), cpus, queue }
    }

    /// The queue under it.
    ///
    /// *Context.* Interrupt.
    pub fn queue(&self) -> &Q {
        &self.queue
    }
}

impl<P: Cpus, Q: InvalidationQueue + ?Sized> Caller<'_, P, Q> {
    fn alone(&self, own: &Debt) -> Result<(), Q::Error> {
        self.queue.pay(&mut sealed(&own.commands), own.tables)
    }

    /// Hands `own` over, and sees it carried out.
    fn hand_over(&self, group: &CombineGroup<P>, own: &Debt) -> Result<(), Q::Error> {
        let (number, timeout) = match group.add(own, &self.combiner.merger) {
            BatchTicket::First(number) => (number, Nanos::new(0)),
            BatchTicket::Later(number) => (number, self.combiner.options.timeout),
            BatchTicket::NoRoom => return self.alone(own),
        };
        match self.wait(group, number, timeout) {
            Waited::Done => Ok(()),
            Waited::Alone => self.alone(own),
            Waited::Submit(number, open) => {
                let outcome = self.queue.pay(&mut open.batch.steps(), open.batch.tables());
                group.finish(number, &outcome);
                match open.callers {
                    0 | 1 => outcome,
                    _ => outcome.or_else(|_| self.alone(own)),
                }
            }
        }
    }

    /// Waits for batch `number`, or for the turn to submit it: `timeout` after the one before
    /// has ended.
    fn wait(&self, group: &CombineGroup<P>, number: u64, timeout: Nanos) -> Waited {
        let begin = self.cpus.now();
        let mut next_since = None;
        let mut taken = false;
        loop {
            let done = group.done.load(Ordering::Acquire);
            if done >= number {
                return match group.carried_out(number) {
                    true => Waited::Done,
                    false => Waited::Alone,
                };
            }
            let now = self.cpus.now();
            if done + 1 == number && !taken {
                let since = *next_since.get_or_insert(now);
                if now.since(since) >= timeout {
                    if let Some(open) = group.take(number) {
                        return Waited::Submit(number, open);
                    }
                    taken = true;
                }
            }
            if now.since(begin) >= self.combiner.options.wait_limit {
                group.withdraw(number);
                return Waited::Alone;
            }
            self.cpus.relax();
        }
    }

    fn pay(
        &self,
        steps: &mut dyn Iterator<Item = Step>,
        tables: TablesLeft,
    ) -> Result<(), Q::Error> {
        let group = self.combiner.group(self.cpus);
        if let BatchPlace::Submit(number) = group.enter() {
            let outcome = self.queue.pay(steps, tables);
            group.finish(number, &outcome);
            return outcome;
        }
        if group.step_beside(self.combiner.options.beside) {
            let outcome = self.queue.pay(steps, tables);
            group.step_back();
            return outcome;
        }
        let mut steps = steps.peekable();
        let prepares = |step: &Step| !matches!(step, Step::Invalidate(_) | Step::Sync);
        if steps.peek().is_some_and(prepares) {
            let mut first = core::iter::from_fn(|| steps.next_if(prepares));
            self.queue.pay(&mut first, tables)?;
        }
        match parse(steps.next(), &mut steps) {
            Parsed::Whole(commands) => self.hand_over(group, &Debt { commands, tables }),
            Parsed::Other(own, rest) => {
                let own = own.into_iter().map(Step::Invalidate);
                let mut all = own.chain(rest).chain(steps);
                self.queue.pay(&mut all, tables)
            }
        }
    }
}

impl<P: Cpus, Q: InvalidationQueue> InvalidationQueue for Combined<P, Q> {
    type Error = Q::Error;

    fn pay(
        &self,
        steps: &mut dyn Iterator<Item = Step>,
        tables: TablesLeft,
    ) -> Result<(), Q::Error> {
        self.combiner.pay(&self.cpus, &self.queue, steps, tables)
    }
}

impl<P: Cpus> core::fmt::Debug for Combiner<P> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Combiner")
            .field("groups", &self.groups.len())
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl<P: Cpus, Q: core::fmt::Debug> core::fmt::Debug for Combined<P, Q> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Combined")
            .field("queue", &self.queue)
            .field("combiner", &self.combiner)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
