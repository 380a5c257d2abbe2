//! Buffers that were unmapped, until their invalidation has completed.

use alloc::sync::Arc;
use core::future::Future;
use core::mem::ManuallyDrop;
use core::pin::Pin;
use core::task::{Context, Poll};

use crate::dma::error::{Failed, UnmapError};
use crate::dma::flush_queue::{Clearance, Wait};
use crate::dma::reach::{CopyRecord, DeviceContext};
use crate::dma::space::DmaSpace;
use crate::platform::Cpus;
use crate::platform::contract::{Buffer, bytes_of};

/// A buffer that was unmapped, and that devices may reach until it is reclaimed: its invalidation is
/// deferred, so that one can be for many.
///
/// ```no_run
/// # use portolan::dma::{Buffer, Deferred, Mapping};
/// # use portolan::platform::Platform;
/// /// A handler of interrupts unmaps what the card has filled; a worker has the buffers.
/// fn filled<P: Platform, B: Buffer>(done: Mapping<P, B>, waiting: &mut Vec<Deferred<P, B>>) {
///     waiting.extend(done.defer().ok());
/// }
/// fn next<P: Platform, B: Buffer>(waiting: &mut Vec<Deferred<P, B>>) -> Option<B> {
///     waiting.pop()?.reclaim().ok()
/// }
/// ```
///
/// *Drop.* Interrupt. One that no device reaches any more gives its buffer and its addresses back. Any
/// other waits for that in its space, if that has room
/// ([`SpaceOptions::dropped_buffers`](crate::dma::SpaceOptions::dropped_buffers)); without, the buffer is never
/// freed, and [`DmaSpace::quarantine`](crate::dma::DmaSpace::quarantine) counts it.
#[must_use = "a deferred buffer that is dropped does not come back"]
pub struct Deferred<P: Cpus + Clone, B: Buffer> {
    waiting: Option<WaitingBuffer<P, B>>,
}

impl<P: Cpus + Clone, B: Buffer> core::fmt::Debug for Deferred<P, B> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Deferred").finish_non_exhaustive()
    }
}

/// A buffer and its wait. The buffer is dropped only by code that says so.
struct WaitingBuffer<P: Cpus + Clone, B> {
    context: Arc<DeviceContext<P>>,
    copies: Option<CopyRecord>,
    buffer: ManuallyDrop<B>,
    /// Nothing, if no device has reached it through a space.
    held: Option<Wait>,
}

impl<P: Cpus + Clone, B> WaitingBuffer<P, B> {
    /// The space, and the wait there.
    #[inline]
    fn held(&self) -> Option<(&DmaSpace<P>, &Wait)> {
        self.context.space.as_deref().zip(self.held.as_ref())
    }

    /// The buffer; its copies and its addresses go back.
    #[inline(always)]
    fn into_buffer(self, clearance: Clearance) -> B {
        if let (Some((space, wait)), Clearance::Flushed(flushed)) = (self.held(), &clearance) {
            space.release(wait, flushed);
        }
        self.context.give_back(self.copies, &clearance);
        DeviceContext::let_go(self.context);
        ManuallyDrop::into_inner(self.buffer)
    }

    /// Reason for which the buffer may come back by now, if it may.
    #[inline]
    fn clearance(&self) -> Option<Clearance> {
        match self.held() {
            Some((space, wait)) => space.proof(wait).map(Clearance::Flushed),
            None => Some(Clearance::Untranslated),
        }
    }
}

/// Message for a value that is there until it is consumed or dropped.
const PRESENT: &str = "taken only when the value is consumed";

impl<P: Cpus + Clone, B: Buffer> Deferred<P, B> {
    pub(in crate::dma) const fn new(
        context: Arc<DeviceContext<P>>,
        copies: Option<CopyRecord>,
        buffer: ManuallyDrop<B>,
        held: Option<Wait>,
    ) -> Self {
        let waiting = Some(WaitingBuffer { context, copies, buffer, held });
        Self { waiting }
    }

    /// Takes its contents out, without the effects of a drop.
    #[inline]
    fn into_waiting(mut self) -> WaitingBuffer<P, B> {
        let waiting = self.waiting.take().expect(PRESENT);
        // Nothing is left in it.
        core::mem::forget(self);
        waiting
    }

    /// Waits until no device can reach the buffer, and gives it back. It invalidates all that was
    /// deferred before on the same CPU.
    ///
    /// *Context.* Atomic. Not from a handler, which may have interrupted the flush that it would
    /// wait for: [`UnmapError::Busy`] is the answer after the space's limit.
    ///
    /// # Errors
    /// With the buffer, which stays deferred, if the hardware did not complete, or if another CPU's
    /// flush did not in time.
    #[inline]
    pub fn reclaim(self) -> Result<B, Failed<Self, UnmapError>> {
        let clearance = match self.waiting.as_ref().and_then(WaitingBuffer::clearance) {
            Some(clearance) => clearance,
            None => match self.settle() {
                Ok(clearance) => clearance,
                Err(error) => return Err(Failed { error, value: self }),
            },
        };
        Ok(self.into_waiting().into_buffer(clearance))
    }

    /// Waits until no device can reach the buffer.
    #[cold]
    fn settle(&self) -> Result<Clearance, UnmapError> {
        match self.waiting.as_ref().and_then(WaitingBuffer::held) {
            Some((space, wait)) => space.settle(wait).map(Clearance::Flushed),
            None => Ok(Clearance::Untranslated),
        }
    }

    /// Gives the buffer back if no device can reach it any more, and itself if some may. Never
    /// waits and submits nothing.
    ///
    /// *Context.* Interrupt.
    ///
    /// # Errors
    /// With the buffer, which stays deferred.
    #[inline]
    pub fn try_reclaim(self) -> Result<B, Self> {
        match self.waiting.as_ref().and_then(WaitingBuffer::clearance) {
            Some(clearance) => Ok(self.into_waiting().into_buffer(clearance)),
            None => Err(self),
        }
    }

    /// Tells if no device can reach the buffer any more.
    ///
    /// *Context.* Interrupt.
    pub fn is_quiet(&self) -> bool {
        self.waiting.as_ref().is_none_or(|waiting| waiting.clearance().is_some())
    }

    /// A future that is ready once no device can reach the buffer; then [`Deferred::try_reclaim`]
    /// gives it back. It lets other tasks run once, so that buffers that they defer can join, and
    /// then invalidates all of them, unless another CPU does. Dropping it early loses nothing.
    ///
    /// *Context.* Interrupt; its `poll` is atomic, and never waits for another CPU.
    pub fn quiet(&mut self) -> Quiet<'_, P, B> {
        Quiet { deferred: self, turn: QuietTurn::First }
    }
}

impl<P: Cpus + Clone, B: Buffer> Drop for Deferred<P, B> {
    fn drop(&mut self) {
        let Some(waiting) = self.waiting.take() else {
            return;
        };
        if let Some(clearance) = waiting.clearance() {
            drop(waiting.into_buffer(clearance));
            return;
        }
        let WaitingBuffer { context, copies, buffer, held } = waiting;
        if let (Some(space), Some(wait)) = (&context.space, held) {
            let bytes = bytes_of(&*buffer);
            let copies = context.retired(copies);
            let buffer = ManuallyDrop::into_inner(buffer);
            if let Err(kept) = space.retire(&wait, (copies, buffer)) {
                // Its slots stay the device's as well.
                core::mem::forget(kept);
                space.count_dropped(bytes);
                space.abandon(&wait);
            }
        }
        DeviceContext::let_go(context);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QuietTurn {
    First,
    Second,
}

/// The future of [`Deferred::quiet`].
#[must_use = "a future does nothing unless it is polled"]
pub struct Quiet<'r, P: Cpus + Clone, B: Buffer> {
    deferred: &'r mut Deferred<P, B>,
    turn: QuietTurn,
}

impl<P: Cpus + Clone, B: Buffer> core::fmt::Debug for Quiet<'_, P, B> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Quiet").field("turn", &self.turn).finish_non_exhaustive()
    }
}

impl<P: Cpus + Clone, B: Buffer> Future for Quiet<'_, P, B> {
    type Output = Result<(), UnmapError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let waiting = self.deferred.waiting.as_ref();
        let Some((space, wait)) = waiting.and_then(WaitingBuffer::held) else {
            return Poll::Ready(Ok(()));
        };
        if space.proof(wait).is_some() {
            return Poll::Ready(Ok(()));
        }
        if self.turn == QuietTurn::Second {
            match space.try_settle(wait) {
                Ok(Some(_)) => return Poll::Ready(Ok(())),
                Ok(None) => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        self.turn = QuietTurn::Second;
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

/// Waits for all of `deferred`, in any order of their deferral, and hands each buffer to `give`.
/// Each queue in which some of them wait is flushed once.
///
/// *Context.* Atomic, as [`Deferred::reclaim`].
///
/// # Errors
/// The first failure; buffers that a device may still reach are handed to `keep`.
pub fn reclaim_all<P: Cpus + Clone, B: Buffer>(
    deferred: impl IntoIterator<Item = Deferred<P, B>>,
    mut give: impl FnMut(B),
    mut keep: impl FnMut(Deferred<P, B>),
) -> Result<(), UnmapError> {
    let mut first = Ok(());
    for one in deferred {
        match one.reclaim() {
            Ok(buffer) => give(buffer),
            Err(failed) => {
                first = first.and(Err(failed.error));
                keep(failed.value);
            }
        }
    }
    first
}
