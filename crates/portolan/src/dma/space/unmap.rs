//! The way back: unmapping, paying, and giving up ranges that cannot be paid for.

use super::members::SpaceStreams;
use super::{DmaRange, DmaSpace};
use crate::addr::IovaRange;
use crate::dma::error::{Failed, UnmapError};
use crate::dma::flush_queue::{
    Chosen, Fill, FlushTicket, HeldRange, JoinedPlace, NotQueued, UnmapOutcome, Wait,
};
use crate::dma::policy::{MayBlock, Policy};
use crate::dma::trace;
use crate::inval::{Flushed, Gather};
use crate::iommu::IommuError;
use crate::platform::{Cpus, Lock, ProtocolStep, SharedWord};
use core::sync::atomic::Ordering;

/// Payment of the debt of an unmap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::dma) enum UnmapPaid {
    /// As the policy of the space says.
    ByPolicy,
    /// Before it returns, perhaps with what waits in the CPU's queue.
    BeforeReturn,
    /// Before it returns, without that.
    Alone,
}

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
    #[inline(always)]
    pub fn unmap_range(&self, range: DmaRange) -> Result<(), Failed<Option<DmaRange>, UnmapError>> {
        if let Err(error) = self.check(&range) {
            return Err(Failed { error, value: Some(range) });
        }
        match self.unmap(range.addresses(), UnmapPaid::ByPolicy) {
            Ok(_) => Ok(()),
            Err((error, UnmapOutcome::Waits(wait))) => {
                self.keep(&wait);
                Err(Failed { error, value: None })
            }
            Err((error, _)) => Err(Failed { error, value: Some(range) }),
        }
    }

    /// Pays for all entries that have reached a bound in any CPU's queue, fills the reserve from which
    /// handlers map, and gives addresses that lie idle in large numbers back to all CPUs. It gives table
    /// pages back beyond [`SpaceOptions::keep_tables`](super::SpaceOptions::keep_tables), and drops
    /// buffers of [`SpaceOptions::dropped_buffers`](super::SpaceOptions::dropped_buffers) that no device
    /// reaches any more. A worker calls this at least as often as the bound on age wants it,
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
        self.retired.replenish();
        self.iova.trim_overfull();
        if self.failure().is_some() {
            self.block_streams();
        }
        self.flush_queues(true).and_then(|()| self.tick_tables())
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
        self.flush_queues(false)
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
            if let Some(ticket) = self.pending.waiting(&self.cpus, queue, false) {
                self.pay_for(ticket)?;
            }
        }
        self.streams.with(SpaceStreams::end_blocking);
        self.broken.store(0, Ordering::Relaxed);
        self.release_held();
        self.drop_retired();
        Ok(())
    }

    fn flush_queues(&self, only_due: bool) -> Result<(), UnmapError> {
        let mut first = Ok(());
        for queue in 0..self.pending.len() {
            if let Some(ticket) = self.pending.waiting(&self.cpus, queue, only_due) {
                first = first.and(self.settle_ticket(ticket).map(drop));
            }
        }
        self.release_held();
        self.drop_retired();
        first
    }

    /// Unmaps, and pays as `paid` says.
    ///
    /// # Errors
    /// With [`UnmapOutcome::Waits`] or [`UnmapOutcome::Mapped`].
    #[inline]
    pub(in crate::dma) fn unmap(
        &self,
        range: IovaRange,
        paid: UnmapPaid,
    ) -> Result<UnmapOutcome, (UnmapError, UnmapOutcome)> {
        if self.policy != Policy::Strict && paid != UnmapPaid::Alone {
            return self.unmap_queued(range, paid);
        }
        let mut owed = Gather::new();
        if let Err(error) = self.domain.unmap(range, &mut owed) {
            return Err((error.into(), UnmapOutcome::Mapped));
        }
        self.trace_unmap(range);
        match self.pay_now(&mut owed, Some(range)) {
            Ok(flushed) => Ok(UnmapOutcome::Flushed(flushed)),
            Err(error) => Err((error, self.hold_after(error, range, &mut owed))),
        }
    }

    /// As [`DmaSpace::unmap`], by the queue of the calling CPU, where that has room.
    #[inline]
    fn unmap_queued(
        &self,
        range: IovaRange,
        paid: UnmapPaid,
    ) -> Result<UnmapOutcome, (UnmapError, UnmapOutcome)> {
        let lazy = self.policy == Policy::Lazy && paid == UnmapPaid::ByPolicy;
        // That flush may be underneath us: it is not waited for.
        if !lazy && self.pending.is_flushing(&self.cpus) {
            return self.unmap_alone(range);
        }
        let (may_block, mut why) = (MayBlock::Yes, None);
        let joined = self.pending.join(&self.cpus, &*self.domain, range, may_block, &mut why);
        let Some(joined) = joined else {
            return self.unmap_unqueued(range, why);
        };
        self.trace_unmap(range);
        let ticket = joined.ticket();
        match joined.place {
            JoinedPlace::Queued(Fill::Room) if lazy => Ok(UnmapOutcome::Waits(Wait::on(ticket))),
            // While another flush is under way there is room for as much again.
            JoinedPlace::Queued(Fill::Due) if lazy => {
                let waits = || UnmapOutcome::Waits(Wait::on(ticket));
                let tried = self.try_settle_ticket(ticket).map_err(|error| (error, waits()))?;
                Ok(tried.map_or_else(waits, UnmapOutcome::Flushed))
            }
            _ => {
                let settled = self.settle_ticket(ticket).map(UnmapOutcome::Flushed);
                settled.map_err(|error| (error, UnmapOutcome::Waits(Wait::on(ticket))))
            }
        }
    }

    /// Unmaps `range`, which did not join the queue, and `why`.
    #[cold]
    #[inline(never)]
    fn unmap_unqueued(
        &self,
        range: IovaRange,
        why: Option<NotQueued>,
    ) -> Result<UnmapOutcome, (UnmapError, UnmapOutcome)> {
        match why {
            Some(NotQueued::Unpaid(owed)) => {
                self.trace_unmap(range);
                self.pay_unmapped(range, owed)
            }
            Some(NotQueued::Mapped(error)) => Err((error.into(), UnmapOutcome::Mapped)),
            Some(NotQueued::NoRoom) | None => self.unmap_alone(range),
        }
    }

    /// Unmaps beside the queue.
    #[cold]
    #[inline(never)]
    fn unmap_alone(&self, range: IovaRange) -> Result<UnmapOutcome, (UnmapError, UnmapOutcome)> {
        self.unmap(range, UnmapPaid::Alone)
    }

    /// Pays for `range`, which is unmapped.
    #[cold]
    fn pay_unmapped(
        &self,
        range: IovaRange,
        mut owed: Gather,
    ) -> Result<UnmapOutcome, (UnmapError, UnmapOutcome)> {
        let paid = self.pay_rarely(&mut owed, Some(range)).map(UnmapOutcome::Flushed);
        paid.map_err(|error| (error, self.hold_after(error, range, &mut owed)))
    }

    #[cold]
    pub(super) fn hold_after(
        &self,
        error: UnmapError,
        range: IovaRange,
        owed: &mut Gather,
    ) -> UnmapOutcome {
        let waits = UnmapOutcome::Waits(self.hold(range, core::mem::take(owed)));
        self.fail_by(error);
        waits
    }

    /// Pays `owed`, unless the space is broken, and gives the addresses `given` back for which it was owed. In line,
    /// as a call would cost a twentieth of an unmap.
    #[inline(always)]
    pub(in crate::dma) fn pay_now(
        &self,
        owed: &mut Gather,
        given: Option<IovaRange>,
    ) -> Result<Flushed, UnmapError> {
        let synced = match self.failure() {
            Some(error) => Err(error),
            None => self.domain.sync(owed).map_err(IommuError::from),
        };
        let flushed = synced.map_err(UnmapError::of)?;
        self.trace_flush(1);
        if let Some(range) = given {
            self.give_back(range, &flushed);
        }
        Ok(flushed)
    }

    /// Pays `owed` as [`DmaSpace::pay_now`] does: out of line, for what is rare.
    #[cold]
    pub(in crate::dma) fn pay_rarely(
        &self,
        owed: &mut Gather,
        given: Option<IovaRange>,
    ) -> Result<Flushed, UnmapError> {
        self.pay_now(owed, given)
    }

    /// Keeps `range`, which is unmapped, until `owed` is paid.
    pub(in crate::dma) fn hold(&self, range: IovaRange, owed: Gather) -> Wait {
        let (ticket, range) = self.pending.hold(&self.cpus, &*self.domain, range, owed);
        let ticket = Some(ticket);
        Wait { ticket, range }
    }

    /// Keeps addresses for good that could not be unmapped, and their debt.
    pub(in crate::dma) fn hold_mapped(&self, owed: Gather) -> Wait {
        self.owe(owed);
        self.lost.count_addresses(1);
        Wait { ticket: None, range: None }
    }

    /// Adds `owed` to the debt that the next flush of the calling CPU's queue pays.
    pub(in crate::dma) fn owe(&self, owed: Gather) -> FlushTicket {
        self.pending.owe(&self.cpus, &*self.domain, owed)
    }

    /// Unmaps, and adds the range to the CPU's queue. Waits for nothing.
    #[inline(always)]
    pub(in crate::dma) fn defer(&self, range: IovaRange) -> Result<Wait, UnmapError> {
        let (may_block, mut why) = (MayBlock::No, None);
        let joined = self.pending.join(&self.cpus, &*self.domain, range, may_block, &mut why);
        let Some(joined) = joined else {
            return self.not_deferred(range, why);
        };
        self.trace_unmap(range);
        let (ticket, kept) = (joined.ticket(), joined.place == JoinedPlace::Kept);
        if joined.place != JoinedPlace::Queued(Fill::Room) {
            self.cpus.flush_wanted();
        }
        Ok(Wait { ticket: Some(ticket), range: kept.then_some(range) })
    }

    /// The wait of `range`, which did not join the queue, and `why`.
    #[cold]
    #[inline(never)]
    fn not_deferred(&self, range: IovaRange, why: Option<NotQueued>) -> Result<Wait, UnmapError> {
        match why {
            Some(NotQueued::Unpaid(owed)) => {
                self.trace_unmap(range);
                Ok(self.hold(range, owed))
            }
            Some(NotQueued::Mapped(error)) => Err(error.into()),
            // Not for a caller that keeps the addresses.
            Some(NotQueued::NoRoom) | None => Err(UnmapError::StillMapped),
        }
    }

    /// Unmaps a part of a range, whose addresses go back with the rest, and pays at once.
    #[cold]
    pub(in crate::dma) fn take_down_share(
        &self,
        part: IovaRange,
    ) -> Result<UnmapOutcome, (UnmapError, UnmapOutcome)> {
        let mut owed = self.unmapped(part).map_err(|error| (error, UnmapOutcome::Mapped))?;
        self.pay_rarely(&mut owed, None).map(UnmapOutcome::Flushed).map_err(|error| {
            self.fail_by(error);
            (error, UnmapOutcome::Waits(self.hold_share(part, owed)))
        })
    }

    /// The same, and waits for nothing.
    #[cold]
    pub(in crate::dma) fn defer_share(&self, part: IovaRange) -> Result<Wait, UnmapError> {
        let owed = self.unmapped(part)?;
        Ok(self.hold_share(part, owed))
    }

    /// Debt of `range`, which it unmaps.
    fn unmapped(&self, range: IovaRange) -> Result<Gather, UnmapError> {
        let mut owed = Gather::new();
        self.domain.unmap(range, &mut owed)?;
        self.trace_unmap(range);
        Ok(owed)
    }

    fn hold_share(&self, part: IovaRange, owed: Gather) -> Wait {
        Wait::on(self.pending.hold_share(&self.cpus, &*self.domain, part, owed))
    }

    /// Flushes `wait`.
    pub(in crate::dma) fn settle(&self, wait: &Wait) -> Result<Flushed, UnmapError> {
        self.settle_ticket(wait.ticket.ok_or(UnmapError::StillMapped)?)
    }

    /// Flushes `wait`, unless another caller is at it: then there is no proof.
    pub(in crate::dma) fn try_settle(&self, wait: &Wait) -> Result<Option<Flushed>, UnmapError> {
        self.try_settle_ticket(wait.ticket.ok_or(UnmapError::StillMapped)?)
    }

    /// The proof that `wait` was flushed, if it was.
    #[inline]
    pub(in crate::dma) fn proof(&self, wait: &Wait) -> Option<Flushed> {
        self.pending.proof(wait.ticket?)
    }

    /// Gives addresses back that `wait`, which is flushed, kept.
    #[inline]
    pub(in crate::dma) fn release(&self, wait: &Wait, flushed: &Flushed) {
        if let Some(range) = wait.range {
            self.give_back(range, flushed);
        }
    }

    /// Keeps the addresses that `wait` kept until they are quiet: no other caller gives them back.
    ///
    /// *Context.* Atomic: takes memory for a record. Without, they are given up.
    pub(in crate::dma) fn keep(&self, wait: &Wait) {
        if let (Some(ticket), Some(range)) = (wait.ticket, wait.range) {
            let chosen = Chosen::Allocator;
            self.hold_until_quiet(HeldRange { ticket, range, chosen });
        }
    }

    /// Keeps addresses of which nothing is mapped any more until their debt is paid.
    ///
    /// *Context.* Atomic, as [`DmaSpace::keep`].
    pub(in crate::dma) fn hold_until_paid(
        &self,
        range: IovaRange,
        owed: Gather,
        chosen: Chosen,
    ) -> FlushTicket {
        let ticket = self.owe(owed);
        self.hold_until_quiet(HeldRange { ticket, range, chosen });
        ticket
    }

    #[cold]
    pub(super) fn hold_until_quiet(&self, held: HeldRange) {
        if self.note(held, |known| &mut known.held).is_err() {
            self.lost.count_addresses(1);
        }
    }

    /// Gives back held ranges that are quiet by now.
    fn release_held(&self) {
        let next = || {
            self.regions.with(|known| {
                let held = known.held.iter();
                let mut proofs = held.enumerate().filter_map(|(at, held)| {
                    self.pending.proof(held.ticket).map(|flushed| (at, flushed))
                });
                let (at, flushed) = proofs.next()?;
                Some((known.held.swap_remove(at), flushed))
            })
        };
        while let Some((held, flushed)) = next() {
            match held.chosen {
                Chosen::Allocator => self.give_back(held.range, &flushed),
                Chosen::Caller => self.give_back_chosen(held.range, &flushed),
            }
        }
    }

    /// Tells a checker of runs, if there is one.
    #[inline(always)]
    pub(super) fn tell(&self, step: ProtocolStep) {
        self.cpus.protocol_step(self.id, step);
    }

    /// Gives up the addresses that `wait` kept: no caller asks for them again.
    ///
    /// *Context.* Interrupt.
    pub(in crate::dma) fn abandon(&self, wait: &Wait) {
        self.lost.count_addresses(u64::from(wait.range.is_some()));
    }

    /// Takes addresses back that were flushed.
    #[inline]
    pub(in crate::dma) fn give_back(&self, range: IovaRange, _: &Flushed) {
        self.give_back_unused(range);
    }

    /// Takes addresses back at which nothing was mapped.
    #[inline]
    pub(in crate::dma) fn give_back_unused(&self, range: IovaRange) {
        self.tell(ProtocolStep::GiveBack { range });
        if self.iova.free(range).is_err() {
            self.lost.count_addresses(1);
        }
    }

    /// Takes back the addresses of a queue that was flushed.
    pub(in crate::dma) fn give_back_all(&self, ranges: &[IovaRange], flushed: &Flushed) {
        self.trace_flush(ranges.len());
        match ranges {
            [range] => self.give_back(*range, flushed),
            _ => {
                ranges.iter().for_each(|&range| self.tell(ProtocolStep::GiveBack { range }));
                match self.iova.free_all(ranges) {
                    0 => {}
                    lost => self.lost.count_addresses(lost),
                }
            }
        }
    }

    /// Takes addresses back that a caller chose, and that were flushed.
    pub(in crate::dma) fn give_back_chosen(&self, range: IovaRange, _: &Flushed) {
        self.give_back_chosen_unused(range);
    }

    /// Takes addresses back that a caller chose, and at which nothing was mapped.
    pub(in crate::dma) fn give_back_chosen_unused(&self, range: IovaRange) {
        self.tell(ProtocolStep::GiveBack { range });
        if self.iova.release(range).is_err() {
            self.lost.count_addresses(1);
        }
    }

    #[inline]
    fn trace_flush(&self, ranges: usize) {
        if let Some(tracer) = self.cpus.tracer() {
            trace::flushed(tracer, ranges);
        }
    }

    fn settle_ticket(&self, ticket: FlushTicket) -> Result<Flushed, UnmapError> {
        if let Some(flushed) = self.pending.proof(ticket) {
            return Ok(flushed);
        }
        match self.failure() {
            Some(error) => Err(UnmapError::Iommu(error)),
            None => self.pay_for(ticket),
        }
    }

    fn pay_for(&self, ticket: FlushTicket) -> Result<Flushed, UnmapError> {
        let give_back = |ranges: &[IovaRange], by: &Flushed| self.give_back_all(ranges, by);
        let settled = self.pending.settle(&self.cpus, &*self.domain, ticket, give_back);
        settled.inspect_err(|&error| self.fail_by(error))
    }

    fn try_settle_ticket(&self, ticket: FlushTicket) -> Result<Option<Flushed>, UnmapError> {
        if let Some(error) = self.failure() {
            return Err(UnmapError::Iommu(error));
        }
        let mut give_back = |ranges: &[IovaRange], by: &Flushed| self.give_back_all(ranges, by);
        let tried = self.pending.try_settle(&*self.domain, ticket, &mut give_back);
        tried.map_err(UnmapError::of).inspect_err(|&error| self.fail_by(error))
    }

    /// Marks the space as broken if it is the hardware that failed.
    pub(in crate::dma) fn fail_by(&self, error: UnmapError) {
        if let UnmapError::Iommu(error) = error {
            self.fail(error);
        }
    }

    /// Counts a buffer that will never come back.
    pub(in crate::dma) fn count_dropped(&self, bytes: u64) {
        self.lost.count(bytes);
    }
}
