//! What was unmapped and is not quiet yet: one queue a CPU.
//!
//! An entry joins the queue of the CPU that unmaps, in the queue's open *generation*. A flush
//! closes the generation, pays for all of it at once without holding a lock, and only then gives
//! its addresses back and says that the generation is quiet. One flush of a queue is under way at
//! a time; who needs a generation that is being flushed waits for that flush.
//!
//! If the hardware does not complete, the debt and the addresses go back into the open generation:
//! nothing is lost, and nothing is reused.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use super::error::RetireError;
use crate::addr::IovaRange;
use crate::inval::Gather;
use crate::platform::{Cpus, Lock, Nanos, SharedWord};
use crate::unit::{Awaited, Domain, UnitError, UnmapFailed};

/// How much may be unmapped and not yet invalidated, in each CPU's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Mappings; at least 1. Whoever adds the last one flushes.
    pub entries: usize,
    /// Bytes; whoever reaches it flushes.
    pub bytes: u64,
    /// Age of the oldest; looked at by each unmap and by
    /// [`DmaSpace::tick`](super::DmaSpace::tick).
    pub age: Nanos,
}

impl Default for Bounds {
    /// 256 mappings, 64 MiB, 10 ms.
    fn default() -> Self {
        Self {
            entries: 256,
            bytes: 64 << 20,
            age: Nanos::from_millis(10),
        }
    }
}

/// A place in a queue: quiet once its generation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket {
    queue: usize,
    generation: u64,
}

/// Whether a queue has reached one of its bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fill {
    Room,
    Due,
}

/// The open generation of a queue.
struct Open {
    debt: Gather,
    ranges: Vec<IovaRange>,
    /// The vector that the next flush leaves here.
    spare: Vec<IovaRange>,
    /// Ranges that a flush has taken and not yet given back.
    in_flight: usize,
    bytes: u64,
    oldest: Nanos,
    generation: u64,
}

/// Two cache lines, since some processors fetch pairs of them.
#[repr(align(128))]
struct Apart<T>(T);

struct Queue<P: Cpus> {
    open: P::Lock<Open>,
    /// The last generation that is quiet.
    quiet: P::Word,
    /// 1 while a flush is under way.
    busy: P::Word,
}

/// The queues of all CPUs.
pub(super) struct Pending<P: Cpus> {
    queues: Box<[Apart<Queue<P>>]>,
    bounds: Bounds,
    turn_limit: Nanos,
}

/// A generation taken out for a flush.
struct Taken {
    debt: Gather,
    ranges: Vec<IovaRange>,
    bytes: u64,
    oldest: Nanos,
    generation: u64,
}

impl<P: Cpus> Pending<P> {
    /// Queues for all of `cpus`. Who waits for somebody else's flush gives up after `turn_limit`.
    ///
    /// # Errors
    /// Without memory for them.
    pub(super) fn new(
        cpus: &P,
        bounds: Bounds,
        turn_limit: Nanos,
    ) -> Result<Self, alloc::collections::TryReserveError> {
        let bounds = Bounds {
            entries: bounds.entries.max(1),
            ..bounds
        };
        let mut queues = Vec::new();
        queues.try_reserve_exact(cpus.count())?;
        for _ in 0..cpus.count() {
            let mut vectors = [Vec::new(), Vec::new()];
            for vector in &mut vectors {
                vector.try_reserve_exact(bounds.entries.saturating_mul(2))?;
            }
            let [ranges, spare] = vectors;
            let open = Open {
                debt: Gather::new(),
                ranges,
                spare,
                in_flight: 0,
                bytes: 0,
                oldest: Nanos::new(0),
                generation: 1,
            };
            queues.push(Apart(Queue {
                open: Lock::new(open),
                quiet: SharedWord::new(0),
                busy: SharedWord::new(0),
            }));
        }
        Ok(Self {
            queues: queues.into_boxed_slice(),
            bounds,
            turn_limit,
        })
    }

    /// The number of queues.
    pub(super) fn len(&self) -> usize {
        self.queues.len()
    }

    /// The queue of the calling CPU.
    #[inline]
    fn own(&self, cpus: &P) -> usize {
        let cpu = cpus.current().get() as usize;
        // No division on the way of each unmap.
        match cpu < self.queues.len() {
            true => cpu,
            false => 0,
        }
    }

    /// Unmaps `mapped` and adds `range`, which holds it, to the calling CPU's queue. `None` if the
    /// queue has no room: the ticket is of the generation that has to be quiet first.
    #[inline]
    pub(super) fn retire(
        &self,
        cpus: &P,
        domain: &impl Domain,
        mapped: IovaRange,
        range: IovaRange,
    ) -> Result<(Ticket, Option<Fill>), UnmapFailed> {
        let queue = self.own(cpus);
        let Bounds {
            entries,
            bytes,
            age,
        } = self.bounds;
        self.queues[queue].0.open.with(|open| {
            let generation = open.generation;
            let ticket = Ticket { queue, generation };
            if open.ranges.len() >= entries || open.ranges.len() + open.in_flight >= 2 * entries {
                return Ok((ticket, None));
            }
            domain.unmap(mapped, &mut open.debt)?;
            let now = cpus.coarse_now();
            if open.ranges.is_empty() {
                open.oldest = now;
            }
            open.ranges.push(range);
            open.bytes = open
                .bytes
                .saturating_add(range.len_minus_one())
                .saturating_add(1);
            let due = open.ranges.len() >= entries
                || open.bytes >= bytes
                || now.since(open.oldest) >= age;
            Ok((ticket, Some(if due { Fill::Due } else { Fill::Room })))
        })
    }

    /// Keeps `range`, unmapped already, until `debt` is paid.
    pub(super) fn hold(
        &self,
        cpus: &P,
        domain: &impl Domain,
        range: IovaRange,
        mut debt: Gather,
    ) -> Ticket {
        let queue = self.own(cpus);
        self.queues[queue].0.open.with(|open| {
            // Both are of this domain.
            let _ = domain.absorb(&mut open.debt, &mut debt);
            if open.ranges.is_empty() {
                open.oldest = cpus.coarse_now();
            }
            // The hardware has failed: room beyond the bounds may be taken from the heap. Without
            // it the addresses stay out of use for good.
            if open.ranges.try_reserve(1).is_ok() {
                open.ranges.push(range);
            }
            let generation = open.generation;
            Ticket { queue, generation }
        })
    }

    /// Keeps a debt of which no addresses wait.
    pub(super) fn owe(&self, cpus: &P, domain: &impl Domain, mut debt: Gather) {
        let queue = self.own(cpus);
        let open = &self.queues[queue].0.open;
        // Both are of this domain.
        let _ = open.with(|open| domain.absorb(&mut open.debt, &mut debt));
    }

    /// Whether the ticket's generation is quiet.
    #[inline]
    pub(super) fn is_quiet(&self, ticket: Ticket) -> bool {
        self.queues[ticket.queue].0.quiet.load(Acquire) >= ticket.generation
    }

    /// Makes the ticket's generation quiet, by waiting for a flush that is under way or by a flush of
    /// its own; `give_back` takes the addresses that have become free.
    ///
    /// # Errors
    /// What became of the hardware; nothing has become free then.
    pub(super) fn settle(
        &self,
        cpus: &P,
        domain: &impl Domain,
        ticket: Ticket,
        mut give_back: impl FnMut(&[IovaRange]),
    ) -> Result<(), RetireError> {
        let queue = &self.queues[ticket.queue].0;
        let mut begin = None;
        loop {
            if queue.quiet.load(Acquire) >= ticket.generation {
                return Ok(());
            }
            if queue.busy.load(Relaxed) == 0 && queue.begin() {
                let done = match queue.quiet.load(Acquire) >= ticket.generation {
                    true => Ok(()),
                    false => queue.flush(domain, &mut give_back),
                };
                queue.busy.store(0, Release);
                return done.map_err(RetireError::Unit);
            }
            let now = cpus.now();
            let waited = now.since(*begin.get_or_insert(now));
            if waited >= self.turn_limit {
                let awaited = Awaited::Turn;
                return Err(UnitError::TimedOut { awaited, waited }.into());
            }
            cpus.relax();
        }
    }

    /// The open generation of `queue` if it holds something, at least `age` old.
    pub(super) fn older_than(&self, cpus: &P, queue: usize, age: Nanos) -> Option<Ticket> {
        let now = cpus.now();
        self.queues.get(queue)?.0.open.with(|open| {
            let generation = open.generation;
            let holds = !open.ranges.is_empty() || !open.debt.is_empty();
            let due = holds && now.since(open.oldest) >= age;
            due.then_some(Ticket { queue, generation })
        })
    }

    /// The bound on age.
    pub(super) fn age(&self) -> Nanos {
        self.bounds.age
    }

    /// Mappings and bytes that wait, in flushes under way as well.
    pub(super) fn held(&self) -> (usize, u64) {
        let held = self.queues.iter().map(|queue| {
            let open = &queue.0.open;
            open.with(|open| (open.ranges.len() + open.in_flight, open.bytes))
        });
        held.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }
}

impl<P: Cpus> Queue<P> {
    /// Whether the caller is to flush. Who is not writes nothing.
    fn begin(&self) -> bool {
        let begun = self.busy.compare_exchange_weak(0, 1, AcqRel, Relaxed);
        begun.is_ok()
    }

    /// Closes the open generation and pays for it. The caller has set `busy`.
    fn flush(
        &self,
        domain: &impl Domain,
        give_back: &mut impl FnMut(&[IovaRange]),
    ) -> Result<(), UnitError> {
        let mut taken = self.open.with(|open| {
            let spare = core::mem::take(&mut open.spare);
            let taken = Taken {
                debt: core::mem::take(&mut open.debt),
                ranges: core::mem::replace(&mut open.ranges, spare),
                bytes: core::mem::take(&mut open.bytes),
                oldest: open.oldest,
                generation: open.generation,
            };
            open.in_flight = taken.ranges.len();
            open.generation += 1;
            taken
        });
        let mut ranges = taken.ranges;
        match domain.sync(&mut taken.debt) {
            Ok(()) => {
                self.quiet.store(taken.generation, Release);
                give_back(&ranges);
                ranges.clear();
                self.open.with(|open| {
                    open.spare = ranges;
                    open.in_flight = 0;
                });
                Ok(())
            }
            Err(error) => {
                self.open.with(|open| {
                    // Both are of this domain.
                    let _ = domain.absorb(&mut open.debt, &mut taken.debt);
                    if open.ranges.try_reserve(ranges.len()).is_ok() {
                        open.ranges.append(&mut ranges);
                    }
                    ranges.clear();
                    open.spare = ranges;
                    open.bytes = open.bytes.saturating_add(taken.bytes);
                    open.oldest = taken.oldest;
                    open.in_flight = 0;
                });
                Err(error.into())
            }
        }
    }
}
