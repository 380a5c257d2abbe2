//! Mappings that own their buffers.

use alloc::sync::Arc;
use core::future::Future;
use core::marker::PhantomData;
use core::pin::Pin;
use core::task::{Context, Poll};

use super::buffer::{Buffer, DmaSegments, Placing};
use super::direction::{Direction, Fills};
use super::error::RetireError;
use super::pending::Ticket;
use super::space::{DmaRange, DmaSpace, Handle};
use super::{Constraints, Policy};
use crate::addr::{Iova, PageSize, PhysRange};
use crate::platform::DataCache;

/// Where a mapping lies.
#[derive(Debug)]
pub(super) enum Place<H: Handle> {
    /// In a space.
    Space(H, DmaRange),
    /// Where the memory is.
    Identity,
}

/// The parts of a mapping.
struct Parts<H: Handle, B> {
    place: Place<H>,
    buffer: B,
    constraints: Constraints,
    cache: Option<Arc<dyn DataCache>>,
}

/// A buffer that a device can reach, and that nobody else has meanwhile.
///
/// Dropping one leaves it mapped, since the device may be using it: its memory is never freed and
/// its addresses never reused, and [`DmaSpace::quarantine`] counts it. End a mapping with
/// [`Mapping::retire`] or [`Mapping::unmap`] once the device is done.
#[must_use = "a mapping that is dropped is never taken back"]
pub struct Mapping<H: Handle, B: Buffer, Dir: Direction> {
    parts: Option<Parts<H, B>>,
    direction: PhantomData<Dir>,
}

/// A mapping that was not ended: it is as it was.
pub struct NotRetired<H: Handle, B: Buffer, Dir: Direction> {
    /// Why.
    pub error: RetireError,
    /// The mapping.
    pub mapping: Mapping<H, B, Dir>,
}

/// A buffer that was unmapped, and that devices may reach until it is reclaimed.
///
/// Dropping one means that the buffer is never freed; [`DmaSpace::quarantine`] counts it. Its
/// addresses come back all the same.
#[must_use = "a retired buffer that is dropped is never freed"]
pub struct Retired<H: Handle, B: Buffer> {
    waiting: Option<(B, Option<(H, Ticket)>)>,
}

/// A retired buffer that is not known to be quiet: it is kept, to be asked for again.
pub struct NotReclaimed<H: Handle, B: Buffer> {
    /// Why.
    pub error: RetireError,
    /// The buffer.
    pub retired: Retired<H, B>,
}

/// Why [`Mapping::unmap`] did not give the buffer back.
pub enum NotUnmapped<H: Handle, B: Buffer, Dir: Direction> {
    /// The mapping is as it was.
    Mapped(NotRetired<H, B, Dir>),
    /// It is unmapped, and not known to be quiet.
    Retired(NotReclaimed<H, B>),
}

/// What the compiler knows to be there until the value is consumed or dropped.
const PRESENT: &str = "taken only when the value is consumed";

impl<H: Handle, B: Buffer, Dir: Direction> Mapping<H, B, Dir> {
    pub(super) fn new(
        place: Place<H>,
        buffer: B,
        constraints: Constraints,
        cache: Option<Arc<dyn DataCache>>,
    ) -> Self {
        let mapping = Self {
            parts: Some(Parts {
                place,
                buffer,
                constraints,
                cache,
            }),
            direction: PhantomData,
        };
        mapping.sync_for_device();
        mapping
    }

    fn parts(&self) -> &Parts<H, B> {
        self.parts.as_ref().expect(PRESENT)
    }

    /// What the device takes into its descriptors.
    pub fn segments(&self) -> DmaSegments<B::Pieces<'_>> {
        let parts = self.parts();
        let (placing, granule) = match &parts.place {
            Place::Space(space, range) => (
                DmaSpace::<H::Domain, H::Cpus>::placing(range),
                space.granule(),
            ),
            Place::Identity => (Placing::Identity, PageSize::SIZE_4K),
        };
        DmaSegments::new(parts.buffer.pieces(), placing, granule, &parts.constraints)
    }

    /// The first address.
    pub fn iova(&self) -> Iova {
        // A buffer without pieces is not mapped.
        let first = self.segments().next();
        first.map_or(Iova::new(0), |segment| segment.iova)
    }

    /// Makes what the device wrote visible to the CPU, and lets it look. The device must not be
    /// writing; it may go on afterwards, once [`Mapping::sync_for_device`] was called.
    pub fn for_cpu(&mut self) -> &mut B {
        let parts = self.parts.as_mut().expect(PRESENT);
        Self::drop_lines(parts);
        &mut parts.buffer
    }

    /// Makes what the CPU wrote visible to the device.
    pub fn sync_for_device(&self) {
        let parts = self.parts();
        if let Some(cache) = &parts.cache {
            // Also before the device writes: a line written back later would overwrite that.
            parts.buffer.pieces().for_each(|piece| cache.clean(piece));
        }
    }

    fn drop_lines(parts: &Parts<H, B>) {
        if let (Some(cache), Fills::Buffer) = (&parts.cache, Dir::FILLS) {
            let pieces = parts.buffer.pieces();
            pieces.for_each(|piece| cache.invalidate(piece));
        }
    }

    /// Ends the mapping. The buffer is given back by [`Retired`], once no device can reach it. The
    /// cheap way is to retire many and then to reclaim them.
    ///
    /// # Errors
    /// With the mapping, which is as it was.
    pub fn retire(mut self) -> Result<Retired<H, B>, NotRetired<H, B, Dir>> {
        let Parts {
            place,
            buffer,
            constraints,
            cache,
        } = self.parts.take().expect(PRESENT);
        let Place::Space(space, range) = place else {
            return Ok(Self::at_once(Parts {
                place,
                buffer,
                constraints,
                cache,
            }));
        };
        match space.retire(range) {
            Ok(ticket) => {
                if let (Some(cache), Fills::Buffer) = (&cache, Dir::FILLS) {
                    buffer.pieces().for_each(|piece| cache.invalidate(piece));
                }
                Ok(Retired {
                    waiting: Some((buffer, Some((space, ticket)))),
                })
            }
            Err((error, range)) => {
                let mapping = Self {
                    parts: Some(Parts {
                        place: Place::Space(space, range),
                        buffer,
                        constraints,
                        cache,
                    }),
                    direction: PhantomData,
                };
                Err(NotRetired { error, mapping })
            }
        }
    }

    /// The device reaches memory untranslated: there is nothing to wait for.
    fn at_once(parts: Parts<H, B>) -> Retired<H, B> {
        Self::drop_lines(&parts);
        Retired {
            waiting: Some((parts.buffer, None)),
        }
    }

    /// Ends the mapping and gives the buffer back, when no device can reach it any more; under
    /// [`Policy::Lazy`] before that, within the bounds of the space.
    ///
    /// # Errors
    /// With what is left: the mapping as it was, or the retired buffer.
    pub fn unmap(self) -> Result<B, NotUnmapped<H, B, Dir>> {
        let lazy = matches!(&self.parts().place,
            Place::Space(space, _) if space.policy() == Policy::Lazy);
        let mut retired = self.retire().map_err(NotUnmapped::Mapped)?;
        if lazy {
            let (buffer, _) = retired.waiting.take().expect(PRESENT);
            return Ok(buffer);
        }
        retired.wait().map_err(NotUnmapped::Retired)
    }
}

impl<H: Handle, B: Buffer, Dir: Direction> Drop for Mapping<H, B, Dir> {
    fn drop(&mut self) {
        let Some(parts) = self.parts.take() else {
            return;
        };
        if let Place::Space(space, range) = parts.place {
            let bytes = range.addresses().len_minus_one().saturating_add(1);
            space.count_dropped(bytes);
        }
        // The device may still be using the memory.
        core::mem::forget(parts.buffer);
    }
}

impl<H: Handle, B: Buffer> Retired<H, B> {
    /// Waits until no device can reach the buffer, and gives it back. Pays for all that was
    /// retired before on the same CPU.
    ///
    /// # Errors
    /// With the buffer, which stays retired, if the hardware did not complete.
    pub fn wait(mut self) -> Result<B, NotReclaimed<H, B>> {
        if let Some((_, Some((space, ticket)))) = &self.waiting {
            if let Err(error) = space.settle(*ticket) {
                let retired = self;
                return Err(NotReclaimed { error, retired });
            }
        }
        Ok(self.waiting.take().expect(PRESENT).0)
    }

    /// Gives the buffer back if no device can reach it any more, and itself if some may. Never
    /// waits and submits nothing.
    ///
    /// # Errors
    /// With the buffer, which stays retired.
    pub fn poll(mut self) -> Result<B, Self> {
        if self.is_quiet() {
            Ok(self.waiting.take().expect(PRESENT).0)
        } else {
            Err(self)
        }
    }

    /// Whether no device can reach the buffer any more.
    pub fn is_quiet(&self) -> bool {
        match &self.waiting {
            Some((_, Some((space, ticket)))) => space.is_quiet(*ticket),
            _ => true,
        }
    }

    /// Gives the buffer back as a future: it lets other tasks run once, so that what they retire
    /// can join, and then pays for all of it, unless somebody else did.
    pub fn reclaim(self) -> Reclaim<H, B> {
        Reclaim {
            retired: Some(self),
            turn: Turn::First,
        }
    }
}

impl<H: Handle, B: Buffer> Drop for Retired<H, B> {
    fn drop(&mut self) {
        let Some((buffer, held)) = self.waiting.take() else {
            return;
        };
        match held {
            Some((space, ticket)) if !space.is_quiet(ticket) => {
                let bytes = buffer.pieces().fold(0u64, |sum, piece: PhysRange| {
                    sum.saturating_add(piece.len_minus_one()).saturating_add(1)
                });
                space.count_dropped(bytes);
                core::mem::forget(buffer);
            }
            _ => drop(buffer),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    First,
    Second,
}

/// The future of [`Retired::reclaim`].
pub struct Reclaim<H: Handle, B: Buffer> {
    retired: Option<Retired<H, B>>,
    turn: Turn,
}

impl<H: Handle + Unpin, B: Buffer + Unpin> Future for Reclaim<H, B> {
    type Output = Result<B, NotReclaimed<H, B>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let quiet = self.retired.as_ref().is_none_or(Retired::is_quiet);
        if !quiet && self.turn == Turn::First {
            self.turn = Turn::Second;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        match self.retired.take() {
            Some(retired) => Poll::Ready(retired.wait()),
            // Polled after it was ready.
            None => Poll::Pending,
        }
    }
}

/// Waits for all of `retired`, in whatever order they were retired, and hands each buffer to
/// `give`. Each queue in which some of them wait is paid for once.
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
