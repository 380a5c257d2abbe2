//! The way back: unmapping, paying, and giving up ranges that cannot be paid for.

use super::Policy;
use super::error::UnmapError;
use super::flush_queue::{Fill, Joined, Keeper, Ticket, Tried, Which};
use super::range::DmaRange;
use super::space::DmaSpace;
use super::streams::Streams;
use super::waiting::{Chosen, Held, Left, Until, Wait};
use crate::addr::IovaRange;
use crate::inval::Gather;
use crate::iommu::IommuError;
use crate::platform::{Cpus, Lock, SharedWord};
use core::sync::atomic::Ordering;

impl<P: Cpus + Clone> DmaSpace<P> {
    /// Unmaps. When it returns `Ok`, no device reaches the memory; under [`Policy::Lazy`] devices
    /// may, within the bounds.
    ///
    /// *Context.* Atomic. Where the calling CPU's queue is being flushed, by the code that a handler
    /// has interrupted or by another CPU, it pays for itself at once instead of waiting for that.
    ///
    /// # Errors
    /// With the range if nothing was unmapped, so that it can be tried again. Without, it is
    /// unmapped, and its addresses stay out of use until it is quiet.
    #[inline]
    pub fn unmap_range(&self, range: DmaRange) -> Result<(), (UnmapError, Option<DmaRange>)> {
        if let Err(error) = self.check(&range) {
            return Err((error, Some(range)));
        }
        self.unmap(range.addresses(), Until::Policy).map_err(|(error, left)| match left {
            Left::Mapped => (error, Some(range)),
            Left::Held(wait) => {
                self.keep(&wait);
                (error, None)
            }
        })
    }

    /// Pays for all entries that have reached a bound in any CPU's queue, and fills the reserve
    /// from which handlers map. A worker calls this at least as often as the bound on age wants it,
    /// and when [`DmaSpace::is_flush_due`] says so. Of a space that is broken, it blocks the
    /// streams; where the unit does not answer in time, one of them for each call.
    ///
    /// *Context.* Task. Where no task runs, [`DmaSpace::flush`] pays for entries that must not be
    /// put off.
    ///
    /// # Errors
    /// Of the first queue that was not made quiet; the others have been tried.
    pub fn tick(&self) -> Result<(), UnmapError> {
        self.replenish();
        if self.failure().is_some() {
            self.block_streams();
        }
        self.flush_queues(Which::Due)
    }

    /// Pays for everything that waits, and waits for entries for which others are paying. It fills
    /// the reserve as [`DmaSpace::tick`] does.
    ///
    /// *Context.* Atomic; memory is taken for the reserve.
    ///
    /// # Errors
    /// As [`DmaSpace::tick`].
    pub fn flush(&self) -> Result<(), UnmapError> {
        self.replenish();
        self.flush_queues(Which::All)
    }

    /// Tells if [`DmaSpace::tick`] should be called: the calling CPU's queue has reached one of its
    /// bounds, or the space has broken and its streams are not blocked yet.
    ///
    /// *Context.* Interrupt.
    pub fn is_flush_due(&self) -> bool {
        let broken = self.broken.load(Ordering::Relaxed) != 0;
        (broken && self.streams.with(|streams| streams.is_blocking()))
            || self.pending.is_due(&self.cpus)
    }

    /// Tries again to make everything quiet after the hardware has failed; if that succeeds, the
    /// space can be used as before. Streams that were blocked stay so until they are attached again.
    ///
    /// *Context.* Atomic.
    ///
    /// # Errors
    /// If the hardware still does not complete.
    pub fn recover(&self) -> Result<(), UnmapError> {
        for queue in 0..self.pending.len() {
            if let Some(ticket) = self.pending.waiting(&self.cpus, queue, Which::All) {
                self.pay_for(ticket)?;
            }
        }
        self.streams.with(Streams::end_blocking);
        self.broken.store(0, Ordering::Relaxed);
        self.release_held();
        Ok(())
    }

    fn flush_queues(&self, which: Which) -> Result<(), UnmapError> {
        let mut first = Ok(());
        for queue in 0..self.pending.len() {
            if let Some(ticket) = self.pending.waiting(&self.cpus, queue, which) {
                first = first.and(self.settle_ticket(ticket));
            }
        }
        self.release_held();
        first
    }

    /// Unmaps, and makes quiet as much as `until` asks for.
    #[inline]
    pub(super) fn unmap(&self, range: IovaRange, until: Until) -> Result<(), (UnmapError, Left)> {
        let lazy = match (self.policy, until) {
            (Policy::Strict, _) => return self.take_down(range),
            (Policy::Lazy, Until::Policy) => true,
            (Policy::Lazy | Policy::Deferred, _) => false,
        };
        // That flush may be underneath us: it is not waited for.
        if !lazy && self.pending.is_flushing(&self.cpus) {
            return self.take_down(range);
        }
        let (keeper, mut unpaid) = (Keeper::Queue, None);
        let joined =
            self.pending.join(&self.cpus, &*self.domain, range, range, keeper, &mut unpaid);
        if !matches!(joined, Err(_) | Ok(Joined::NoRoom)) {
            self.trace_unmap(range);
        }
        match joined {
            Ok(Joined::Queued(_, Fill::Room)) if lazy => Ok(()),
            // While another flush is under way there is room for as much again.
            Ok(Joined::Queued(ticket, _)) if lazy => match self.try_settle_ticket(ticket) {
                Ok(Tried::Quiet | Tried::Busy) => Ok(()),
                Err(error) => Err((error, Left::Held(Wait::on(ticket)))),
            },
            Ok(Joined::Queued(ticket, _) | Joined::Kept(ticket)) => {
                self.settle_ticket(ticket).map_err(|error| (error, Left::Held(Wait::on(ticket))))
            }
            Ok(Joined::NoRoom) => self.take_down(range),
            Ok(Joined::Unpaid) => self.pay(range, &mut unpaid.unwrap_or_default()),
            Err(error) => Err((error.into(), Left::Mapped)),
        }
    }

    /// Unmaps and pays at once.
    #[inline]
    pub(super) fn take_down(&self, range: IovaRange) -> Result<(), (UnmapError, Left)> {
        let mut owed = Gather::new();
        match self.domain.unmap(range, &mut owed) {
            Ok(()) => {
                self.trace_unmap(range);
                self.pay(range, &mut owed)
            }
            Err(error) => Err((error.into(), Left::Mapped)),
        }
    }

    /// Pays for `range`, which is unmapped.
    #[inline(always)]
    fn pay(&self, range: IovaRange, owed: &mut Gather) -> Result<(), (UnmapError, Left)> {
        if let Err(error) = self.pay_now(owed) {
            return Err((error, self.hold_after(error, range, owed)));
        }
        self.give_back(range);
        Ok(())
    }

    #[cold]
    fn hold_after(&self, error: UnmapError, range: IovaRange, owed: &mut Gather) -> Left {
        let left = Left::Held(self.hold(range, core::mem::take(owed)));
        self.fail_by(error);
        left
    }

    /// Pays `owed`, unless the space is broken.
    #[inline]
    pub(super) fn pay_now(&self, owed: &mut Gather) -> Result<(), UnmapError> {
        let synced = match self.failure() {
            Some(error) => Err(error),
            None => self.domain.sync(owed).map_err(IommuError::from),
        };
        synced.map_err(UnmapError::of)?;
        self.trace_flush(1);
        Ok(())
    }

    /// Keeps `range`, which is unmapped, until `owed` is paid.
    pub(super) fn hold(&self, range: IovaRange, owed: Gather) -> Wait {
        let (ticket, range) = self.pending.hold(&self.cpus, &*self.domain, range, owed);
        let ticket = Some(ticket);
        Wait { ticket, range }
    }

    /// Keeps addresses for good that could not be unmapped, and their debt.
    pub(super) fn hold_mapped(&self, owed: Gather) -> Wait {
        self.owe(owed);
        self.lost.count_addresses(1);
        Wait { ticket: None, range: None }
    }

    /// Adds `owed` to the debt that the next flush of the calling CPU's queue pays.
    pub(super) fn owe(&self, owed: Gather) -> Ticket {
        self.pending.owe(&self.cpus, &*self.domain, owed)
    }

    /// Unmaps, and adds the range to the CPU's queue. Waits for nothing.
    #[inline]
    pub(super) fn defer(&self, range: IovaRange) -> Result<Wait, UnmapError> {
        self.defer_part(range, range)
    }

    /// Unmaps `mapped`, and adds `range`, of which that is all that was mapped, to the queue.
    #[inline]
    pub(super) fn defer_part(
        &self,
        mapped: IovaRange,
        range: IovaRange,
    ) -> Result<Wait, UnmapError> {
        let (keeper, mut unpaid) = (Keeper::Caller, None);
        let joined =
            self.pending.join(&self.cpus, &*self.domain, mapped, range, keeper, &mut unpaid)?;
        if !matches!(joined, Joined::NoRoom) {
            self.trace_unmap(mapped);
        }
        Ok(match joined {
            Joined::Queued(ticket, Fill::Room) => Wait::on(ticket),
            Joined::Queued(ticket, Fill::Due) => {
                self.cpus.flush_wanted();
                Wait::on(ticket)
            }
            Joined::Kept(ticket) => {
                self.cpus.flush_wanted();
                Wait { ticket: Some(ticket), range: Some(range) }
            }
            // Not for a caller that keeps the addresses.
            Joined::NoRoom => return Err(UnmapError::StillMapped),
            Joined::Unpaid => self.hold(range, unpaid.unwrap_or_default()),
        })
    }

    /// Finishes the unmap of a blocking caller whose range has been deferred, as the policy wants
    /// it.
    pub(super) fn finish(&self, wait: &Wait) -> Result<(), UnmapError> {
        if self.policy == Policy::Lazy && wait.range.is_none() {
            return Ok(());
        }
        let settled = self.settle(wait);
        match settled {
            Ok(()) => self.release(wait),
            Err(_) => self.keep(wait),
        }
        settled
    }

    /// Makes `wait` quiet.
    pub(super) fn settle(&self, wait: &Wait) -> Result<(), UnmapError> {
        self.settle_ticket(wait.ticket.ok_or(UnmapError::StillMapped)?)
    }

    /// Makes `wait` quiet, unless another caller is at it.
    pub(super) fn try_settle(&self, wait: &Wait) -> Result<Tried, UnmapError> {
        self.try_settle_ticket(wait.ticket.ok_or(UnmapError::StillMapped)?)
    }

    /// Tells if `wait` is quiet.
    #[inline]
    pub(super) fn is_quiet(&self, wait: &Wait) -> bool {
        wait.ticket.is_some_and(|ticket| self.pending.is_quiet(ticket))
    }

    /// Gives addresses back that `wait`, which is quiet, kept.
    pub(super) fn release(&self, wait: &Wait) {
        if let Some(range) = wait.range {
            self.give_back(range);
        }
    }

    /// Keeps the addresses that `wait` kept until they are quiet: no other caller gives them back.
    ///
    /// *Context.* Atomic: takes memory for a record. Without, they are given up.
    pub(super) fn keep(&self, wait: &Wait) {
        if let (Some(ticket), Some(range)) = (wait.ticket, wait.range) {
            let chosen = Chosen::Allocator;
            self.hold_until_quiet(Held { ticket, range, chosen });
        }
    }

    /// The same of addresses that a caller chose, with their debt.
    pub(super) fn keep_chosen(&self, range: IovaRange, owed: Gather) {
        let ticket = self.owe(owed);
        let chosen = Chosen::Caller;
        self.hold_until_quiet(Held { ticket, range, chosen });
    }

    #[cold]
    fn hold_until_quiet(&self, held: Held) {
        if self.note(held, |known| &mut known.held).is_err() {
            self.lost.count_addresses(1);
        }
    }

    /// Gives back held ranges that are quiet by now.
    fn release_held(&self) {
        let next = || {
            self.regions.with(|known| {
                let mut held = known.held.iter();
                let at = held.position(|held| self.pending.is_quiet(held.ticket))?;
                Some(known.held.swap_remove(at))
            })
        };
        while let Some(held) = next() {
            match held.chosen {
                Chosen::Allocator => self.give_back(held.range),
                Chosen::Caller => self.give_back_chosen(held.range),
            }
        }
    }

    /// Gives up the addresses that `wait` kept: no caller asks for them again.
    ///
    /// *Context.* Interrupt.
    pub(super) fn abandon(&self, wait: &Wait) {
        self.lost.count_addresses(u64::from(wait.range.is_some()));
    }

    /// Takes addresses back that are quiet.
    #[inline]
    pub(super) fn give_back(&self, range: IovaRange) {
        if self.iova.free(range).is_err() {
            self.lost.count_addresses(1);
        }
    }

    /// The same of many.
    pub(super) fn give_back_all(&self, ranges: &[IovaRange]) {
        match ranges {
            [range] => self.give_back(*range),
            _ => match self.iova.free_all(ranges) {
                0 => {}
                lost => self.lost.count_addresses(lost),
            },
        }
    }

    /// Takes addresses back that a caller chose, and that are quiet.
    pub(super) fn give_back_chosen(&self, range: IovaRange) {
        if self.iova.release(range).is_err() {
            self.lost.count_addresses(1);
        }
    }

    /// Takes back the addresses of a queue that was flushed.
    fn flushed(&self, ranges: &[IovaRange]) {
        self.trace_flush(ranges.len());
        self.give_back_all(ranges);
    }

    fn settle_ticket(&self, ticket: Ticket) -> Result<(), UnmapError> {
        if self.pending.is_quiet(ticket) {
            return Ok(());
        }
        match self.failure() {
            Some(error) => Err(UnmapError::Iommu(error)),
            None => self.pay_for(ticket),
        }
    }

    fn pay_for(&self, ticket: Ticket) -> Result<(), UnmapError> {
        let give_back = |ranges: &[IovaRange]| self.flushed(ranges);
        let settled = self.pending.settle(&self.cpus, &*self.domain, ticket, give_back);
        settled.inspect_err(|&error| self.fail_by(error))
    }

    fn try_settle_ticket(&self, ticket: Ticket) -> Result<Tried, UnmapError> {
        if let Some(error) = self.failure() {
            return Err(UnmapError::Iommu(error));
        }
        let mut give_back = |ranges: &[IovaRange]| self.flushed(ranges);
        let tried = self.pending.try_settle(&*self.domain, ticket, &mut give_back);
        tried.map_err(UnmapError::of).inspect_err(|&error| self.fail_by(error))
    }

    /// Marks the space as broken if it is the hardware that failed.
    pub(super) fn fail_by(&self, error: UnmapError) {
        if let UnmapError::Iommu(error) = error {
            self.fail(error);
        }
    }

    /// Counts a buffer that will never come back.
    pub(super) fn count_dropped(&self, bytes: u64) {
        self.lost.count(bytes);
    }
}
