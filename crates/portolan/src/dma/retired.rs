//! Buffers that were unmapped, until they are quiet.

use core::future::Future;
use core::mem::ManuallyDrop;
use core::pin::Pin;
use core::task::{Context, Poll};

use super::buffer::{Buffer, bytes_of};
use super::error::RetireError;
use super::mapping::Extras;
use super::pending::Tried;
use super::quieting::Wait;
use super::space::Handle;

/// A buffer that was unmapped, and that devices may reach until it is reclaimed.
///
/// *Drop.* Interrupt, unless it has the last reference to its space. One that is quiet gives its
/// buffer and its addresses back; of any other the buffer is never freed, and
/// [`DmaSpace::quarantine`](super::DmaSpace::quarantine) counts it.
#[must_use = "a retired buffer that is dropped is never freed"]
pub struct Retired<H: Handle, B: Buffer> {
    waiting: Option<Waiting<H, B>>,
}

/// A buffer and what it waits for. The buffer is dropped by nobody who does not say so.
struct Waiting<H: Handle, B> {
    buffer: ManuallyDrop<B>,
    extras: Extras,
    held: Option<(H, Wait)>,
}

impl<H: Handle, B> Waiting<H, B> {
    /// The buffer, which no device reaches any more; its copies and its addresses go back.
    fn into_buffer(mut self) -> B {
        self.extras.give_back();
        if let Some((space, wait)) = &self.held {
            space.release(wait);
        }
        ManuallyDrop::into_inner(self.buffer)
    }

    fn is_quiet(&self) -> bool {
        match &self.held {
            Some((space, wait)) => space.is_quiet(wait),
            None => true,
        }
    }
}

/// A retired buffer that is not known to be quiet: it is kept, to be asked for again.
pub struct NotReclaimed<H: Handle, B: Buffer> {
    /// Why.
    pub error: RetireError,
    /// The buffer.
    pub retired: Retired<H, B>,
}

/// What the compiler knows to be there until the value is consumed or dropped.
const PRESENT: &str = "taken only when the value is consumed";

impl<H: Handle, B: Buffer> Retired<H, B> {
    pub(super) fn new(buffer: ManuallyDrop<B>, extras: Extras, held: Option<(H, Wait)>) -> Self {
        Self {
            waiting: Some(Waiting {
                buffer,
                extras,
                held,
            }),
        }
    }

    /// Waits until no device can reach the buffer, and gives it back. Pays for all that was
    /// retired before on the same CPU.
    ///
    /// *Context.* Atomic. Not from a handler, which may have interrupted the flush that it would
    /// wait for: [`RetireError::Busy`] is the answer after the space's limit.
    ///
    /// # Errors
    /// With the buffer, which stays retired, if the hardware did not complete, or if somebody else
    /// who is paying for it did not in time.
    pub fn wait(mut self) -> Result<B, NotReclaimed<H, B>> {
        if let Some((space, wait)) = self.waiting.as_ref().and_then(|it| it.held.as_ref()) {
            if let Err(error) = space.settle(wait) {
                let retired = self;
                return Err(NotReclaimed { error, retired });
            }
        }
        Ok(self.waiting.take().expect(PRESENT).into_buffer())
    }

    /// Gives the buffer back if no device can reach it any more, and itself if some may. Never
    /// waits and submits nothing.
    ///
    /// *Context.* Interrupt.
    ///
    /// # Errors
    /// With the buffer, which stays retired.
    pub fn poll(mut self) -> Result<B, Self> {
        if self.is_quiet() {
            Ok(self.waiting.take().expect(PRESENT).into_buffer())
        } else {
            Err(self)
        }
    }

    /// Whether no device can reach the buffer any more.
    ///
    /// *Context.* Interrupt.
    pub fn is_quiet(&self) -> bool {
        self.waiting.as_ref().is_none_or(Waiting::is_quiet)
    }

    /// A future that is ready once no device can reach the buffer; then [`Retired::poll`] gives it
    /// back. It lets other tasks run once, so that what they retire can join, and then pays for all
    /// of it, unless somebody else does. Dropping it early loses nothing.
    ///
    /// *Context.* Interrupt; its `poll` is atomic, and never waits for another CPU.
    pub fn reclaim(&mut self) -> Reclaim<'_, H, B> {
        Reclaim {
            retired: self,
            turn: Turn::First,
        }
    }
}

impl<H: Handle, B: Buffer> Drop for Retired<H, B> {
    fn drop(&mut self) {
        let Some(waiting) = self.waiting.take() else {
            return;
        };
        if waiting.is_quiet() {
            drop(waiting.into_buffer());
        } else if let Some((space, wait)) = &waiting.held {
            space.count_dropped(bytes_of(&*waiting.buffer));
            space.abandon(wait);
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    First,
    Second,
}

/// The future of [`Retired::reclaim`].
#[must_use = "a future does nothing unless it is polled"]
pub struct Reclaim<'r, H: Handle, B: Buffer> {
    retired: &'r mut Retired<H, B>,
    turn: Turn,
}

impl<H: Handle, B: Buffer> Future for Reclaim<'_, H, B> {
    type Output = Result<(), RetireError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let waiting = self.retired.waiting.as_ref();
        let Some((space, wait)) = waiting.and_then(|waiting| waiting.held.as_ref()) else {
            return Poll::Ready(Ok(()));
        };
        if space.is_quiet(wait) {
            return Poll::Ready(Ok(()));
        }
        if self.turn == Turn::Second {
            match space.try_settle(wait) {
                Ok(Tried::Quiet) => return Poll::Ready(Ok(())),
                Ok(Tried::Busy) => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        self.turn = Turn::Second;
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

/// Waits for all of `retired`, in whatever order they were retired, and hands each buffer to
/// `give`. Each queue in which some of them wait is paid for once.
///
/// *Context.* Atomic, as [`Retired::wait`].
///
/// # Errors
/// The first failure; buffers that are not known to be quiet are handed to `keep`.
pub fn reclaim_all<H: Handle, B: Buffer>(
    retired: impl IntoIterator<Item = Retired<H, B>>,
    mut give: impl FnMut(B),
    mut keep: impl FnMut(Retired<H, B>),
) -> Result<(), RetireError> {
    let mut first = Ok(());
    for one in retired {
        match one.wait() {
            Ok(buffer) => give(buffer),
            Err(failed) => {
                first = first.and(Err(failed.error));
                keep(failed.retired);
            }
        }
    }
    first
}
