//! Queues of unmapped ranges that are not quiet yet: one for each CPU that has unmapped. Until a caller
//! that may take heap memory has made it, a CPU uses the first one.
//!
//! An entry joins the queue of the CPU that unmaps, in the queue's open *generation*: its debt,
//! which always has room, and its addresses, as far as there is room. A flush closes the
//! generation, pays for all of it at once without holding a lock, gives its addresses back and only
//! then says that the generation is quiet. One flush of a queue is under way at a time. It may be
//! underneath a handler that wants to unmap on the same CPU: so nothing that a handler calls waits
//! for a flush.
//!
//! If the hardware does not complete, the debt and the addresses go back into the open generation:
//! nothing is lost, and nothing is reused.

use core::num::NonZeroU64;
use core::sync::atomic::Ordering::Relaxed;

use self::queue::{OpenGeneration, Queue};
use super::error::UnmapError;
use super::policy::{LazyBounds, MayBlock};
use crate::addr::{Iova, IovaRange, PageSize};
use crate::inval::{Flushed, Gather};
use crate::iommu::{Domain, DomainUnmapError, IommuError};
use crate::platform::{CachePadded, Cpus, Lock, Nanos, PerCpu, PerCpuError, SharedWord, count_of};

mod queue;

/// Granules that are unmapped under the lock of a queue; more are unmapped before it is taken.
const UNDER_LOCK: u64 = 64;

/// A place in a queue: quiet once its generation is. Small, since each deferred buffer carries one
/// about, and without room between its parts, where a CPU would wait for a load of both; generations count from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FlushTicket {
    queue: usize,
    generation: NonZeroU64,
}

/// Wait of an unmapped range.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    /// `None`: the range is never known to be flushed.
    pub ticket: Option<FlushTicket>,
    /// Addresses that are to be given back once it is flushed: the queue had no room for them.
    pub range: Option<IovaRange>,
}

impl Wait {
    /// For what waits in a queue, with its addresses.
    ///
    /// *Context.* Interrupt.
    pub fn on(ticket: FlushTicket) -> Self {
        Self { ticket: Some(ticket), range: None }
    }
}

/// Outcome of an unmap.
#[derive(Debug)]
pub(super) enum UnmapOutcome {
    /// No device reaches the range any more.
    Flushed(Flushed),
    /// It is unmapped, and devices may reach it.
    Waits(Wait),
    /// It is mapped, as it was.
    Mapped,
}

/// Reason for which a buffer, or the slots of its copies, go back to their owner.
#[derive(Debug)]
pub(super) enum Clearance {
    /// No device reaches them any more.
    Flushed(Flushed),
    /// No device has reached them, or not through tables: its driver says when it is done.
    Untranslated,
    /// The policy is lazy: devices that are trusted may reach them within its bounds.
    Lazy,
}

/// Chooser of addresses, which decides the way they go back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Chosen {
    Allocator,
    Caller,
}

/// Addresses for which a queue had no place, or that are none of its kind, until they are flushed.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeldRange {
    pub ticket: FlushTicket,
    pub range: IovaRange,
    pub chosen: Chosen,
}

/// State of a queue: it has reached one of its bounds, or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fill {
    Room,
    Due,
}

/// Addresses that were unmapped and joined a queue. Two words, which come back in registers: in memory they would
/// be read in other parts than they were written in, for which a CPU waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Joined {
    generation: NonZeroU64,
    queue: u32,
    pub place: JoinedPlace,
}

/// Place of addresses that joined a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JoinedPlace {
    /// The queue.
    Queued(Fill),
    /// They are the caller's to give back, once the ticket is quiet.
    Kept,
}

impl Joined {
    /// The ticket of the generation that they joined.
    ///
    /// *Context.* Interrupt.
    #[inline]
    pub fn ticket(self) -> FlushTicket {
        FlushTicket { queue: self.queue as usize, generation: self.generation }
    }
}

/// Reason for which addresses did not join a queue.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "no heap may be touched, and a caller has one at most"
)]
pub(super) enum NotQueued {
    /// Nothing was unmapped: the queue has no room for the addresses.
    NoRoom,
    /// They are unmapped, the queue has no room for them, and this is their debt.
    Unpaid(Gather),
    /// Nothing was unmapped: the domain has refused it.
    Mapped(DomainUnmapError),
}

/// The queues of all CPUs.
pub(super) struct FlushQueue<P: Cpus> {
    queues: PerCpu<Queue<P>, P::Word>,
    /// 1 while a CPU wants a queue of its own.
    queue_wanted: CachePadded<P::Word>,
    bounds: LazyBounds,
    turn_timeout: Nanos,
    /// The longest range that is unmapped under a lock, in bytes, less one.
    short: u64,
}

impl<P: Cpus> FlushQueue<P> {
    /// Queues for all of `cpus`. A caller that waits for another's flush gives up after
    /// `turn_timeout`.
    ///
    /// # Errors
    /// Without memory for them.
    pub(super) fn new(
        cpus: &P,
        bounds: LazyBounds,
        turn_timeout: Nanos,
        granule: PageSize,
    ) -> Result<Self, PerCpuError> {
        let bounds = LazyBounds { entries: bounds.entries.max(1), ..bounds };
        Ok(Self {
            queues: PerCpu::new(count_of(cpus), Queue::new(&bounds)?)?,
            queue_wanted: CachePadded(SharedWord::new(0)),
            bounds,
            turn_timeout,
            short: granule.bytes().saturating_mul(UNDER_LOCK) - 1,
        })
    }

    /// Tells if [`FlushQueue::make_wanted`] has something to do.
    #[inline]
    pub(super) fn wants_queues(&self) -> bool {
        self.queue_wanted.0.load(Relaxed) != 0
    }

    /// Makes queues for the CPUs that unmapped without one. Without memory, they try again.
    ///
    /// *Context.* Atomic: takes heap memory.
    #[cold]
    pub(super) fn make_wanted(&self) {
        self.queue_wanted.0.store(0, Relaxed);
        self.queues.make_wanted(|| Queue::new(&self.bounds).ok());
    }

    /// The number of queues, those that have not been made yet included.
    pub(super) fn len(&self) -> usize {
        self.queues.len()
    }

    /// The queue of the calling CPU and its number; the first one until the CPU has its own.
    #[inline]
    fn own(&self, cpus: &P) -> (usize, &Queue<P>) {
        let cpu = cpus.current().get() as usize;
        // No division on the way of each unmap.
        match self.queues.own(cpu) {
            Some(queue) => (cpu, queue),
            None => self.first(cpu),
        }
    }

    /// The same, made if the CPU has none, for a caller that may take heap memory.
    #[inline]
    fn own_if(&self, cpus: &P, may_block: MayBlock) -> (usize, &Queue<P>) {
        let cpu = cpus.current().get() as usize;
        match self.queues.own(cpu) {
            Some(queue) => (cpu, queue),
            None => self.made_or_first(cpu, may_block),
        }
    }

    #[cold]
    fn made_or_first(&self, cpu: usize, may_block: MayBlock) -> (usize, &Queue<P>) {
        let made = match may_block {
            MayBlock::Yes => self.queues.make(cpu, || Queue::new(&self.bounds).ok()),
            MayBlock::No => None,
        };
        made.map_or_else(|| self.first(cpu), |queue| (cpu, queue))
    }

    #[cold]
    fn first(&self, cpu: usize) -> (usize, &Queue<P>) {
        if self.queues.want(cpu) && !self.wants_queues() {
            self.queue_wanted.0.store(1, Relaxed);
        }
        (0, self.queues.first())
    }

    /// The queue of a ticket.
    #[inline]
    fn of(&self, ticket: FlushTicket) -> &Queue<P> {
        self.queues.own(ticket.queue).unwrap_or_else(|| self.queues.first())
    }

    /// Unmaps `range` and adds it to the calling CPU's queue; or else says `why` not. A caller that may not block
    /// keeps addresses for which there is no room.
    #[inline]
    pub(super) fn join(
        &self,
        cpus: &P,
        domain: &dyn Domain,
        range: IovaRange,
        may_block: MayBlock,
        why: &mut Option<NotQueued>,
    ) -> Option<Joined> {
        let (number, queue) = self.own_if(cpus, may_block);
        if range.len_minus_one() > self.short {
            return self.join_long(cpus, domain, range, may_block, why);
        }
        queue.open.with(|open| {
            if may_block == MayBlock::Yes && !open.takes(range, &self.bounds) {
                *why = Some(NotQueued::NoRoom);
                return None;
            }
            if let Err(error) = domain.unmap(range, &mut open.debt) {
                *why = Some(NotQueued::Mapped(error));
                return None;
            }
            Some(self.joined(cpus, number, open, range))
        })
    }

    #[inline]
    fn joined(
        &self,
        cpus: &P,
        queue: usize,
        open: &mut OpenGeneration,
        range: IovaRange,
    ) -> Joined {
        let now = cpus.coarse_now();
        let FlushTicket { queue, generation } = open.ticket(queue);
        let place = match open.add(range, now, &self.bounds) {
            true => JoinedPlace::Queued(open.fill(now, &self.bounds)),
            false => JoinedPlace::Kept,
        };
        // There are no more queues than CPUs.
        Joined { generation, queue: queue as u32, place }
    }

    /// The same of a long range: the walk through its tables is outside of the lock.
    #[cold]
    fn join_long(
        &self,
        cpus: &P,
        domain: &dyn Domain,
        range: IovaRange,
        may_block: MayBlock,
        why: &mut Option<NotQueued>,
    ) -> Option<Joined> {
        let mut owed = Gather::new();
        if let Err(error) = domain.unmap(range, &mut owed) {
            *why = Some(NotQueued::Mapped(error));
            return None;
        }
        let (number, queue) = self.own_if(cpus, may_block);
        let joined = queue.open.with(|open| {
            if may_block == MayBlock::Yes && !open.takes(range, &self.bounds) {
                return None;
            }
            // Both are of this domain.
            let _ = domain.absorb(&mut open.debt, &mut owed);
            Some(self.joined(cpus, number, open, range))
        });
        if joined.is_none() {
            *why = Some(NotQueued::Unpaid(owed));
        }
        joined
    }

    /// Keeps `debt`, and the addresses of `range`, unmapped already, until it is paid; without room
    /// the addresses are the caller's to keep.
    pub(super) fn hold(
        &self,
        cpus: &P,
        domain: &dyn Domain,
        range: IovaRange,
        mut debt: Gather,
    ) -> (FlushTicket, Option<IovaRange>) {
        let (number, queue) = self.own(cpus);
        queue.open.with(|open| {
            // Both are of this domain.
            let _ = domain.absorb(&mut open.debt, &mut debt);
            let kept = open.add(range, cpus.coarse_now(), &self.bounds);
            (open.ticket(number), (!kept).then_some(range))
        })
    }

    /// Keeps `debt` until it is paid. The addresses of `range`, unmapped already, go back by another way.
    pub(super) fn hold_share(
        &self,
        cpus: &P,
        domain: &dyn Domain,
        range: IovaRange,
        mut debt: Gather,
    ) -> FlushTicket {
        let (number, queue) = self.own(cpus);
        queue.open.with(|open| {
            // Both are of this domain.
            let _ = domain.absorb(&mut open.debt, &mut debt);
            open.count(range, cpus.coarse_now());
            open.ticket(number)
        })
    }

    /// Keeps a debt of which no addresses wait here.
    pub(super) fn owe(&self, cpus: &P, domain: &dyn Domain, mut debt: Gather) -> FlushTicket {
        let (number, queue) = self.own(cpus);
        queue.open.with(|open| {
            // Both are of this domain.
            let _ = domain.absorb(&mut open.debt, &mut debt);
            open.ticket(number)
        })
    }

    /// The proof that the ticket's generation was flushed, if it was.
    #[inline]
    pub(super) fn proof(&self, ticket: FlushTicket) -> Option<Flushed> {
        self.of(ticket).quiet.proof(ticket.generation.get())
    }

    /// Tells if the calling CPU's queue is being flushed.
    #[inline]
    pub(super) fn is_flushing(&self, cpus: &P) -> bool {
        self.own(cpus).1.busy.load(Relaxed) != 0
    }

    /// Makes the ticket's generation quiet, unless a flush of its queue is under way: then there is no
    /// proof. `give_back` takes the addresses that have become free.
    ///
    /// # Errors
    /// The failure of the hardware; nothing has become free then.
    pub(super) fn try_settle(
        &self,
        domain: &dyn Domain,
        ticket: FlushTicket,
        give_back: &mut impl FnMut(&[IovaRange], &Flushed),
    ) -> Result<Option<Flushed>, IommuError> {
        let queue = self.of(ticket);
        if let Some(flushed) = self.proof(ticket) {
            return Ok(Some(flushed));
        }
        if queue.busy.load(Relaxed) != 0 || !queue.begin() {
            return Ok(None);
        }
        let done = match self.proof(ticket) {
            Some(_) => Ok(()),
            None => queue.flush(domain, give_back),
        };
        queue.busy.store(0, Relaxed);
        done.map(|()| self.proof(ticket))
    }

    /// Makes the ticket's generation quiet, by waiting for a flush that is under way or by a flush of
    /// its own; `give_back` takes the addresses that have become free.
    ///
    /// # Errors
    /// The failure of the hardware, or [`UnmapError::Busy`] if another's flush took too long;
    /// nothing is lost then.
    pub(super) fn settle(
        &self,
        cpus: &P,
        domain: &dyn Domain,
        ticket: FlushTicket,
        mut give_back: impl FnMut(&[IovaRange], &Flushed),
    ) -> Result<Flushed, UnmapError> {
        let mut begin = None;
        loop {
            let tried = self.try_settle(domain, ticket, &mut give_back);
            if let Some(flushed) = tried.map_err(UnmapError::of)? {
                return Ok(flushed);
            }
            let now = cpus.now();
            let waited = now.since(*begin.get_or_insert(now));
            if waited >= self.turn_timeout {
                return Err(UnmapError::Busy { waited });
            }
            cpus.relax();
        }
    }

    /// Ticket of all that waits in `queue`, if there is something, which may be a generation that is
    /// being flushed; with `only_due`, of entries that have reached a bound.
    pub(super) fn waiting(&self, cpus: &P, queue: usize, only_due: bool) -> Option<FlushTicket> {
        let now = cpus.now();
        self.queues.own(queue)?.open.with(|open| {
            let wanted = match only_due {
                true => open.fill(now, &self.bounds) == Fill::Due,
                false => open.holds_something(),
            };
            if wanted {
                return Some(open.ticket(queue));
            }
            let generation = NonZeroU64::new(open.generation.get() - 1)?;
            let ticket = FlushTicket { generation, ..open.ticket(queue) };
            (!only_due && self.proof(ticket).is_none()).then_some(ticket)
        })
    }

    /// Tells if the calling CPU's queue has reached a bound.
    pub(super) fn is_due(&self, cpus: &P) -> bool {
        let now = cpus.coarse_now();
        let open = &self.own(cpus).1.open;
        open.with(|open| open.fill(now, &self.bounds) == Fill::Due)
    }

    /// The range with `iova` that waits, and whose flush has not begun.
    pub(super) fn find(&self, iova: Iova) -> Option<IovaRange> {
        let waits = |open: &mut OpenGeneration| {
            let mut ranges = open.ranges.iter();
            ranges.find(|range| range.contains(iova)).copied()
        };
        self.queues.iter().find_map(|queue| queue.open.with(waits))
    }

    /// Mappings and bytes that wait, in flushes under way as well.
    pub(super) fn held(&self) -> (usize, u64) {
        let held = self.queues.iter().map(|queue| {
            let open = &queue.open;
            open.with(|open| (open.ranges.len() + open.in_flight, open.bytes))
        });
        held.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }
}
