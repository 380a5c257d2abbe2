//! Strict invalidation for many CPUs: whoever finds the queue idle submits for all.
//!
//! While one submission is under way, callers put their commands into the open batch and take its
//! number as their ticket. When the submission has completed, the batch's first caller submits all
//! of it with one sync; the others wait until the number of the last completed batch has reached
//! their ticket. No lock is held while hardware is waited for, and nothing is allocated.
//!
//! *Failure.* A batch that fails is nobody's failure yet: each of its callers submits its own
//! commands once more, alone, and gets its own answer. So an error reaches those whose commands were
//! not carried out and nobody else. A caller whose submitter does not come back in time does
//! the same, so a waiting caller depends on nothing but the queue under it.
//!
//! *Handlers.* A handler that submits on the CPU whose submission it has interrupted waits until the
//! limit and then submits alone, so that it needs nobody but the queue under it. What it had put into
//! a batch it takes no part in any more.
//!
//! *Order.* What a caller's plan has to clean or drain first it does itself, before its commands are
//! seen by others. Plans with more than one sync, without any, or with many commands pass through.

use alloc::boxed::Box;
use core::sync::atomic::Ordering;

use super::batch::{Added, Batch, Merging, Own, Parsed, parse, sealed};
use super::{Capabilities, InvalidationQueue, RangeForm, Step};
use crate::addr::PageSize;
use crate::platform::{Cpus, Lock, Nanos, SharedWord};

/// How callers are combined.
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
    /// What becomes of many commands for one context in a batch.
    pub merging: Merging,
    /// How long the first caller of a batch is waited for before another one takes its place.
    pub timeout: Nanos,
    /// How long a caller waits for others before it submits its own commands alone: somewhat more
    /// than a submission takes. It may wait in a handler that has interrupted the submitter, which
    /// then cannot go on.
    pub wait_limit: Nanos,
}

impl Default for CombineOptions {
    /// One group, nobody beside it, no ranges, the context from the 17th command on, 100
    /// microseconds, one millisecond.
    fn default() -> Self {
        Self {
            cpus_per_group: usize::MAX,
            beside: 0,
            merging: Merging {
                form: RangeForm::Absent,
                granule: PageSize::SIZE_4K,
                above: 2,
                granules: 1 << 12,
                context_above: 16,
            },
            timeout: Nanos::new(100_000),
            wait_limit: Nanos::from_millis(1),
        }
    }
}

impl CombineOptions {
    /// The default for hardware with `caps`: where it has range commands, the third command of one
    /// context makes one range of all, 4,096 granules long at most.
    pub fn of(caps: &Capabilities) -> Self {
        let default = Self::default();
        Self {
            merging: Merging {
                form: caps.range,
                granule: caps.granule,
                ..default.merging
            },
            ..default
        }
    }
}

/// A queue in front of `Q` that combines what CPUs submit at the same time.
///
/// *Locking.* A lock for each group, held to add or take a batch.
///
/// *Waiting.* Bounded by [`CombineOptions::wait_limit`], the time that the lock takes and twice the
/// queue's own deadline.
///
/// *Context.* Atomic: [`InvalidationQueue::execute`] waits for hardware and, within the limit, for
/// other CPUs; a handler may call it while the CPU's own submission is under way, if it may call
/// that of the queue under it. [`Combined::new`] is for tasks.
pub struct Combined<P: Cpus, Q> {
    cpus: P,
    queue: Q,
    groups: Box<[Group<P>]>,
    options: CombineOptions,
}

/// CPUs that share a batch. Only whoever took the batch that follows `done` writes `failed` and
/// `done`.
struct Group<P: Cpus> {
    open: P::Lock<Open>,
    /// Number of the last batch that has been submitted and has ended, well or not.
    done: P::Word,
    /// Number of the last one that failed; stored before `done`.
    failed: P::Word,
    /// Callers that submit beside the batches.
    beside: P::Word,
}

/// The batch that commands are added to.
#[derive(Debug)]
struct Open {
    number: u64,
    callers: usize,
    batch: Batch,
}

/// What a caller is to do.
enum Place {
    /// Nothing is under way: submit as this batch.
    Submit(u64),
    /// Something is.
    Busy,
}

/// Where a caller's commands are.
enum Ticket {
    /// In this batch, as its first.
    First(u64),
    /// In this batch.
    Later(u64),
    /// Nowhere.
    NoRoom,
}

/// How a wait ended.
#[allow(clippy::large_enum_variant)] // The batch moves to the submitter's stack, without a heap.
enum Waited {
    /// The batch was carried out.
    Done,
    /// It was not, or not in time: nobody else will tell.
    Alone,
    /// It is the caller's to submit.
    Submit(u64, Open),
}

impl<P: Cpus> Group<P> {
    fn new() -> Self {
        Self {
            open: Lock::new(Open::of(1)),
            done: SharedWord::new(0),
            failed: SharedWord::new(0),
            beside: SharedWord::new(0),
        }
    }

    /// Whether the caller may submit beside the batches, where `most` may; it has to say when it is
    /// done.
    fn step_beside(&self, most: usize) -> bool {
        let most = most as u64;
        if most == 0 || self.beside.load(Ordering::Relaxed) >= most {
            return false;
        }
        // One addition, not a loop: many CPUs come at once, and few of them find a place.
        let joined = self.beside.fetch_add(1, Ordering::Relaxed) < most;
        if !joined {
            self.step_back();
        }
        joined
    }

    fn step_back(&self) {
        // One less: there is no subtraction among the words.
        self.beside.fetch_add(u64::MAX, Ordering::Relaxed);
    }

    /// Takes the next batch, if nothing is in it or under way.
    fn enter(&self) -> Place {
        self.open.with(|open| {
            let idle = self.done.load(Ordering::Acquire) + 1 == open.number;
            if !idle || open.callers != 0 {
                return Place::Busy;
            }
            let number = open.number;
            *open = Open::of(number + 1);
            Place::Submit(number)
        })
    }

    fn add(&self, own: &Own, merging: &Merging) -> Ticket {
        self.open.with(|open| match open.batch.add(own, merging) {
            Added::NoRoom => Ticket::NoRoom,
            Added::All => {
                open.callers += 1;
                match open.callers {
                    1 => Ticket::First(open.number),
                    _ => Ticket::Later(open.number),
                }
            }
        })
    }

    /// Takes batch `number` unless somebody has; everything before it has ended.
    fn take(&self, number: u64) -> Option<Open> {
        self.open.with(|open| {
            let mine = open.number == number;
            mine.then(|| core::mem::replace(open, Open::of(number + 1)))
        })
    }

    /// Takes no part any more in batch `number`, if nobody has taken it yet. Its commands are carried
    /// out with it, or forgotten if it has no other callers.
    fn withdraw(&self, number: u64) {
        self.open.with(|open| {
            if open.number == number {
                open.callers -= 1;
            }
        });
    }

    /// Tells everybody that `number` has ended.
    fn finish<E>(&self, number: u64, outcome: &Result<(), E>) {
        if outcome.is_err() {
            self.failed.store(number, Ordering::Release);
        }
        self.done.store(number, Ordering::Release);
    }

    /// Whether batch `number`, which has ended, is known to have been carried out: a later failure
    /// may hide that it was.
    fn carried_out(&self, number: u64) -> bool {
        self.failed.load(Ordering::Acquire) < number
    }
}

impl Open {
    fn of(number: u64) -> Self {
        Self {
            number,
            callers: 0,
            batch: Batch::default(),
        }
    }
}

impl<P: Cpus, Q: InvalidationQueue> Combined<P, Q> {
    /// Combines callers on `cpus` in front of `queue`.
    ///
    /// *Context.* Task.
    pub fn new(cpus: P, queue: Q, options: CombineOptions) -> Self {
        let groups = cpus.count().div_ceil(options.cpus_per_group.max(1));
        Self {
            groups: (0..groups.max(1)).map(|_| Group::new()).collect(),
            cpus,
            queue,
            options,
        }
    }

    /// The queue under it.
    ///
    /// *Context.* Interrupt.
    pub fn queue(&self) -> &Q {
        &self.queue
    }

    fn group(&self) -> &Group<P> {
        let cpu = self.cpus.current().get() as usize;
        let group = cpu / self.options.cpus_per_group.max(1);
        // Never empty.
        &self.groups[group % self.groups.len()]
    }

    fn alone(&self, own: &Own) -> Result<(), Q::Error> {
        self.queue.execute(&mut sealed(own))
    }

    /// Hands `own` over, and sees it carried out.
    fn hand_over(&self, group: &Group<P>, own: &Own) -> Result<(), Q::Error> {
        let (number, timeout) = match group.add(own, &self.options.merging) {
            Ticket::First(number) => (number, Nanos::new(0)),
            Ticket::Later(number) => (number, self.options.timeout),
            Ticket::NoRoom => return self.alone(own),
        };
        match self.wait(group, number, timeout) {
            Waited::Done => Ok(()),
            Waited::Alone => self.alone(own),
            Waited::Submit(number, open) => {
                let outcome = self.queue.execute(&mut open.batch.steps());
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
    fn wait(&self, group: &Group<P>, number: u64, timeout: Nanos) -> Waited {
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
            if now.since(begin) >= self.options.wait_limit {
                group.withdraw(number);
                return Waited::Alone;
            }
            self.cpus.relax();
        }
    }
}

impl<P: Cpus, Q: InvalidationQueue> InvalidationQueue for Combined<P, Q> {
    type Error = Q::Error;

    fn execute(&self, steps: &mut dyn Iterator<Item = Step>) -> Result<(), Q::Error> {
        let group = self.group();
        if let Place::Submit(number) = group.enter() {
            let outcome = self.queue.execute(steps);
            group.finish(number, &outcome);
            return outcome;
        }
        if group.step_beside(self.options.beside) {
            let outcome = self.queue.execute(steps);
            group.step_back();
            return outcome;
        }
        let mut steps = steps.peekable();
        let prepares = |step: &Step| !matches!(step, Step::Invalidate(_) | Step::Sync);
        if steps.peek().is_some_and(prepares) {
            let mut first = core::iter::from_fn(|| steps.next_if(prepares));
            self.queue.execute(&mut first)?;
        }
        match parse(steps.next(), &mut steps) {
            Parsed::Whole(own) => self.hand_over(group, &own),
            Parsed::Other(own, rest) => {
                let own = own.into_iter().map(Step::Invalidate);
                self.queue.execute(&mut own.chain(rest).chain(steps))
            }
        }
    }
}

impl<P: Cpus, Q: core::fmt::Debug> core::fmt::Debug for Combined<P, Q> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Combined")
            .field("queue", &self.queue)
            .field("groups", &self.groups.len())
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
