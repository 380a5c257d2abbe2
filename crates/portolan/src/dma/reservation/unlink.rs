//! The way back: one buffer of a reservation, or all with one invalidation.

use alloc::vec::Vec;
use core::mem::ManuallyDrop;

use super::{LinkError, LinkState, LinkedBuffer, Reservation};
use crate::addr::IovaRange;
use crate::dma::device::Device;
use crate::dma::error::{Failed, MapError, UnmapError};
use crate::dma::flush_queue::{Chosen, Clearance, Wait};
use crate::dma::policy::{DataDirection, Policy};
use crate::inval::{Flushed, Gather};
use crate::platform::Cpus;
use crate::platform::contract::Buffer;

/// Buffers that [`Device::map_list`] did not map.
#[derive(Debug)]
pub struct NotLinked<P: Cpus + Clone, B: Buffer> {
    /// Those that no device has reached.
    pub buffers: Vec<B>,
    /// Those that one may have: the hardware failed, and they come back once it has recovered.
    pub linked: Option<Reservation<P, B>>,
}

impl<P: Cpus + Clone> Device<P> {
    /// Maps all of `buffers`, one behind the other, with one sync: [`Reservation::addresses`] and
    /// [`Reservation::segments`] say where.
    ///
    /// ```no_run
    /// # use portolan::dma::{Buffer, Device, Direction};
    /// # use portolan::platform::Platform;
    /// /// A receive ring is filled with one invalidation, and emptied with another.
    /// fn ring<P: Platform, B: Buffer>(card: &Device<P>, packets: Vec<B>) -> Option<Vec<B>> {
    ///     let ring = card.map_list(packets, Direction::FromDevice).ok()?;
    ///     // ... the card fills them ...
    ///     ring.unlink().ok()
    /// }
    /// ```
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// With the buffers; see [`LinkError`].
    pub fn map_list<B: Buffer>(
        &self,
        buffers: Vec<B>,
        direction: impl DataDirection,
    ) -> Result<Reservation<P, B>, Failed<NotLinked<P, B>, LinkError>> {
        let bytes =
            buffers.iter().fold(0u64, |sum, buffer| sum.saturating_add(self.most_bytes(buffer)));
        let mut made = match self.reserve(bytes) {
            Ok(made) => made,
            Err(error) => {
                let value = NotLinked { buffers, linked: None };
                return Err(Failed { error: error.into(), value });
            }
        };
        let mut buffers = buffers.into_iter();
        let failed = buffers.by_ref().find_map(|buffer| made.link(buffer, direction).err());
        let (error, refused) = match failed {
            Some(Failed { error, value }) => (error, Some(value)),
            None => match made.sync() {
                Ok(()) => return Ok(made),
                Err(error) => (LinkError::of(error), None),
            },
        };
        let (mut back, linked) = match made.unlink() {
            Ok(back) => (back, None),
            Err(failed) => (Vec::new(), Some(failed.value)),
        };
        back.extend(refused.into_iter().chain(buffers));
        Err(Failed { error, value: NotLinked { buffers: back, linked } })
    }

    /// Most bytes of addresses that `buffer` needs, behind any other.
    fn most_bytes<B: Buffer>(&self, buffer: &B) -> u64 {
        let limits = self.constraints();
        let granule = self.space().map_or(limits.align, |space| space.granule());
        let keep = limits.min_align_mask.max(granule);
        let apart = limits.seg_boundary.is_some_and(|size| size > keep) || keep > granule;
        let pieces = buffer.pieces().into_iter().fold(0u64, |sum, piece| {
            let pages = piece.pages(granule).saturating_mul(granule.bytes());
            // A piece begins at most as far behind the one before it as a boundary is, which it would cross.
            let lead = if apart { pages.saturating_add(2 * keep.bytes()) } else { 0 };
            sum.saturating_add(pages).saturating_add(lead)
        });
        let align = limits.align.max(granule).bytes();
        pieces.checked_next_multiple_of(align).unwrap_or(u64::MAX)
    }
}

impl LinkError {
    /// Converts the error of a sync.
    fn of(error: UnmapError) -> Self {
        Self::Map(match error {
            UnmapError::Iommu(error) => MapError::Iommu(error),
            UnmapError::Busy { waited } => MapError::Busy { waited },
            _ => MapError::Records,
        })
    }
}

impl<P: Cpus + Clone, B: Buffer> Reservation<P, B> {
    /// Unlinks the buffer that has the page at `offset`, and gives it back when no device reaches it any more. It waits
    /// for that under every policy. Its addresses stay in the reservation.
    ///
    /// *Context.* Atomic.
    ///
    /// # Errors
    /// [`UnmapError::NotLinked`] if there is none. If the hardware did not complete, the buffer is unmapped and stays
    /// here: call again.
    pub fn unlink_at(&mut self, offset: u64) -> Result<B, UnmapError> {
        let number = self.number_at(offset).ok_or(UnmapError::NotLinked { offset })?;
        self.unmap(number)?;
        let flushed = self.pay()?;
        let linked = self.linked.remove(number);
        Ok(self.end(linked, &Clearance::Flushed(flushed)))
    }

    /// Unmaps everything that is linked and gives the buffers and the addresses back, with one invalidation for all of
    /// it; under [`Policy::Lazy`] that is paid later, unless the addresses were
    /// the caller's choice, or something is copied.
    ///
    /// *Context.* Atomic; memory is taken for the list, and for records of addresses that the caller chose.
    ///
    /// # Errors
    /// With the reservation. What is unmapped and not known to be out of reach stays in it: call again.
    pub fn unlink(mut self) -> Result<Vec<B>, Failed<Self, UnmapError>> {
        if self.linked.is_empty() {
            return Ok(Vec::new());
        }
        for number in 0..self.linked.len() {
            if let Err(error) = self.unmap(number) {
                return Err(Failed { error, value: self });
            }
        }
        let copied = self.linked.iter().any(|linked| linked.copies.is_some());
        if self.space.policy == Policy::Lazy && self.chosen == Chosen::Allocator && !copied {
            if let Some(back) = self.unlink_lazily() {
                return Ok(back);
            }
        }
        match self.pay() {
            Err(error) => Err(Failed { error, value: self }),
            Ok(flushed) => {
                if let Some(range) = self.range.take() {
                    match self.chosen {
                        Chosen::Allocator => self.space.give_back(range, &flushed),
                        Chosen::Caller => self.space.give_back_chosen(range, &flushed),
                    }
                }
                Ok(self.end_all(&Clearance::Flushed(flushed)))
            }
        }
    }

    /// Leaves the addresses, of which nothing is mapped any more, to the queue, if that has room.
    fn unlink_lazily(&mut self) -> Option<Vec<B>> {
        if self.queued.is_some() {
            return None;
        }
        let owed = core::mem::replace(&mut self.owed, Gather::paid_before_use());
        let Wait { ticket, range } = self.space.hold(self.addresses(), owed);
        if range.is_some() {
            // It has none: they are waited for.
            self.queued = Some(Wait { ticket, range: None });
            return None;
        }
        self.range = None;
        Some(self.end_all(&Clearance::Lazy))
    }

    /// Unmaps a buffer, if it is mapped.
    fn unmap(&mut self, number: usize) -> Result<(), UnmapError> {
        if let Some(linked) = self.linked.get_mut(number) {
            if linked.state == LinkState::Mapped {
                self.space.domain.unmap(linked.pages, &mut self.owed)?;
                linked.state = LinkState::Unmapped;
                self.space.trace_unmap(linked.pages);
            }
        }
        Ok(())
    }

    /// Pays for all that was linked and unmapped.
    fn pay(&mut self) -> Result<Flushed, UnmapError> {
        if let Some(wait) = &self.queued {
            self.space.settle(wait)?;
            self.queued = None;
        }
        let paid = self.space.pay_rarely(&mut self.owed, None);
        paid.inspect_err(|&error| self.space.fail_by(error))
    }

    /// The buffer, with the bytes that the device wrote; its copies go back.
    fn end(&self, linked: LinkedBuffer<B>, clearance: &Clearance) -> B {
        let LinkedBuffer { direction, copies, buffer, .. } = linked;
        if let Some(context) = &self.context {
            if direction.device_writes() {
                context.take_in(&*buffer, copies.as_deref(), 0, u64::MAX);
            }
            context.give_back(copies, clearance);
        }
        ManuallyDrop::into_inner(buffer)
    }

    fn end_all(&mut self, clearance: &Clearance) -> Vec<B> {
        let linked = core::mem::take(&mut self.linked);
        linked.into_iter().map(|linked| self.end(linked, clearance)).collect()
    }

    /// Leaves what is unmapped to its space.
    fn abandon(&mut self, range: IovaRange, owed: Gather) {
        let mapped = self.linked.iter().filter(|linked| linked.state == LinkState::Mapped);
        let mapped = mapped.fold(0u64, |sum, linked| {
            sum.saturating_add(linked.pages.len_minus_one()).saturating_add(1)
        });
        // What waits in two queues has no one wait.
        if mapped != 0 || self.queued.is_some() {
            self.space.owe(owed);
            self.space.count_dropped(mapped);
            return;
        }
        let ticket = self.space.hold_until_paid(range, owed, self.chosen);
        for LinkedBuffer { copies, buffer, pages, .. } in core::mem::take(&mut self.linked) {
            if copies.is_none() && !core::mem::needs_drop::<B>() {
                continue;
            }
            let context = self.context.as_ref();
            let copies = context.and_then(|context| context.retired(copies));
            let value = (copies, ManuallyDrop::into_inner(buffer));
            let wait = Wait { ticket: Some(ticket), range: None };
            if let Err(kept) = self.space.retire(&wait, value) {
                core::mem::forget(kept);
                self.space.count_dropped(pages.len_minus_one().saturating_add(1));
            }
        }
    }
}

impl<P: Cpus + Clone, B: Buffer> Drop for Reservation<P, B> {
    fn drop(&mut self) {
        let Some(range) = self.range.take() else {
            return;
        };
        let owed = core::mem::take(&mut self.owed);
        if !self.linked.is_empty() {
            return self.abandon(range, owed);
        }
        match (owed.is_empty(), self.chosen) {
            // Tables that a link took out before it failed: walk caches lead to them, and past what is mapped there
            // next.
            (false, chosen) => drop(self.space.hold_until_paid(range, owed, chosen)),
            (true, Chosen::Allocator) => self.space.give_back_unused(range),
            (true, Chosen::Caller) => self.space.give_back_chosen_unused(range),
        }
    }
}
