//! Mappings that own their buffers.

use alloc::sync::Arc;
use core::future::Future;
use core::marker::PhantomData;
use core::pin::Pin;
use core::task::{Context, Poll};

use super::buffer::{Buffer, DmaSegments, Placing, bytes_of};
use super::copies::{Copies, Copying, Reached};
use super::direction::{Direction, Fills};
use super::error::RetireError;
use super::pending::Ticket;
use super::space::{DmaRange, DmaSpace, Handle};
use super::standing::Standing;
use super::{Constraints, Policy};
use crate::addr::{Iova, PageSize, PhysRange};
use crate::bounce::{Bouncer, Way};
use crate::platform::DataCache;

/// Where a mapping lies.
#[derive(Debug)]
pub(super) enum Place<H: Handle> {
    /// In a space.
    Space(H, DmaRange),
    /// In a pool that stays mapped.
    Standing(Arc<Standing<H>>),
    /// Where the memory is.
    Identity,
}

/// The parts of a mapping.
struct Parts<H: Handle, B> {
    place: Place<H>,
    buffer: B,
    extras: Extras,
}

/// What a device needs for its buffers, shared with their mappings.
#[derive(Clone)]
pub(super) struct Kit {
    pub constraints: Constraints,
    pub cache: Option<Arc<dyn DataCache>>,
    pub copying: Option<Copying>,
}

/// What comes with the device.
pub(super) struct Extras {
    pub kit: Arc<Kit>,
    pub copies: Copies,
}

impl Extras {
    /// Where the copies are; there if there are some.
    fn pool(&self) -> Option<&dyn Bouncer> {
        let copying = self.kit.copying.as_ref()?;
        (!self.copies.is_empty()).then_some(&*copying.pool)
    }

    /// Copies the part of `part`, or all, that is copied.
    fn copy(&self, way: Way, part: Option<PhysRange>) {
        if let Some(pool) = self.pool() {
            self.copies.copy(pool, way, part);
        }
    }

    /// Gives the copies back, which no device reaches any more.
    fn give_back(&mut self) {
        let Self { kit, copies } = self;
        if let (Some(copying), false) = (&kit.copying, copies.is_empty()) {
            copies.give_back(&*copying.pool);
        }
    }
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
    waiting: Option<Waiting<H, B>>,
}

/// A buffer and what it waits for.
struct Waiting<H: Handle, B> {
    buffer: B,
    extras: Extras,
    held: Option<(H, Ticket)>,
}

impl<H: Handle, B> Waiting<H, B> {
    /// The buffer, which no device reaches any more; its copies go back.
    fn into_buffer(mut self) -> B {
        self.extras.give_back();
        self.buffer
    }
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
    pub(super) fn new(place: Place<H>, buffer: B, extras: Extras) -> Self {
        let mapping = Self {
            parts: Some(Parts {
                place,
                buffer,
                extras,
            }),
            direction: PhantomData,
        };
        mapping.clean(None);
        mapping
    }

    fn parts(&self) -> &Parts<H, B> {
        self.parts.as_ref().expect(PRESENT)
    }

    /// What the device takes into its descriptors.
    pub fn segments(&self) -> DmaSegments<Reached<'_, B::Pieces<'_>>> {
        let parts = self.parts();
        let (placing, granule) = match &parts.place {
            Place::Space(space, range) => (
                DmaSpace::<H::Domain, H::Cpus>::placing(range),
                space.granule(),
            ),
            Place::Standing(pool) => (pool.placing(), pool.space().granule()),
            Place::Identity => (Placing::Identity, PageSize::SIZE_4K),
        };
        let reached = parts.extras.copies.reached(parts.buffer.pieces());
        DmaSegments::new(reached, placing, granule, &parts.extras.kit.constraints)
    }

    /// The first address.
    pub fn iova(&self) -> Iova {
        // A buffer without pieces is not mapped.
        let first = self.segments().next();
        first.map_or(Iova::new(0), |segment| segment.iova)
    }

    /// Whether a part of the buffer is reached as a copy.
    pub fn is_copied(&self) -> bool {
        !self.parts().extras.copies.is_empty()
    }

    /// Makes what the device wrote visible to the CPU, and lets it look. The device must not be
    /// writing; it may go on afterwards, once [`Mapping::sync_for_device`] was called.
    pub fn for_cpu(&mut self) -> &mut B {
        let parts = self.parts.as_mut().expect(PRESENT);
        Self::take_in(parts, None);
        &mut parts.buffer
    }

    /// As [`Mapping::for_cpu`], of the bytes in `part` alone, by their physical address.
    pub fn part_for_cpu(&mut self, part: PhysRange) -> &mut B {
        let parts = self.parts.as_mut().expect(PRESENT);
        Self::take_in(parts, Some(part));
        &mut parts.buffer
    }

    /// Makes what the CPU wrote visible to the device.
    pub fn sync_for_device(&self) {
        self.parts().extras.copy(Way::In, None);
        self.clean(None);
    }

    /// As [`Mapping::sync_for_device`], of the bytes in `part` alone.
    pub fn sync_part_for_device(&self, part: PhysRange) {
        self.parts().extras.copy(Way::In, Some(part));
        self.clean(Some(part));
    }

    /// Writes lines back that the device is to see; also before it writes, since a line written
    /// back later would overwrite that.
    fn clean(&self, part: Option<PhysRange>) {
        let parts = self.parts();
        if let Some(cache) = &parts.extras.kit.cache {
            Self::lines(parts, part, |lines| cache.clean(lines));
        }
    }

    /// The memory that the device reaches of `part`, or of all.
    fn lines(parts: &Parts<H, B>, part: Option<PhysRange>, each: impl FnMut(PhysRange)) {
        let copies = &parts.extras.copies;
        match part {
            // Copies are written back whole.
            Some(part) if copies.is_empty() => {
                let pieces = parts.buffer.pieces();
                pieces
                    .filter_map(|piece| piece.intersection(part))
                    .for_each(each);
            }
            _ => copies.reached(parts.buffer.pieces()).for_each(each),
        }
    }

    /// Brings what the device wrote to the buffer.
    fn take_in(parts: &Parts<H, B>, part: Option<PhysRange>) {
        if Dir::FILLS == Fills::Nothing {
            return;
        }
        if let Some(cache) = &parts.extras.kit.cache {
            Self::lines(parts, part, |lines| cache.invalidate(lines));
        }
        parts.extras.copy(Way::Out, part);
    }

    /// Ends the mapping. The buffer is given back by [`Retired`], once no device can reach it. The
    /// cheap way is to retire many and then to reclaim them.
    ///
    /// # Errors
    /// With the mapping, which is as it was.
    #[allow(clippy::result_large_err)] // What was handed in travels back whole, without a heap.
    pub fn retire(mut self) -> Result<Retired<H, B>, NotRetired<H, B, Dir>> {
        let parts = self.parts.take().expect(PRESENT);
        let Parts {
            place,
            buffer,
            extras,
        } = parts;
        let (place, held) = match place {
            // Nothing of it is unmapped: the device is trusted to be done with the slots.
            place @ (Place::Identity | Place::Standing(_)) => (place, None),
            Place::Space(space, range) => match space.retire(range) {
                Ok(ticket) => (Place::Identity, Some((space, ticket))),
                Err((error, range)) => {
                    let parts = Parts {
                        place: Place::Space(space, range),
                        buffer,
                        extras,
                    };
                    let mapping = Self {
                        parts: Some(parts),
                        direction: PhantomData,
                    };
                    return Err(NotRetired { error, mapping });
                }
            },
        };
        let parts = Parts {
            place,
            buffer,
            extras,
        };
        // The device is done; what it writes from now on changes its copy at most.
        Self::take_in(&parts, None);
        Ok(Retired {
            waiting: Some(Waiting {
                buffer: parts.buffer,
                extras: parts.extras,
                held,
            }),
        })
    }

    /// Ends the mapping and gives the buffer back, when no device can reach it any more; under
    /// [`Policy::Lazy`] before that, within the bounds of the space; a buffer that is copied is
    /// waited for under each policy, since its slots are others' next.
    ///
    /// # Errors
    /// With what is left: the mapping as it was, or the retired buffer.
    #[allow(clippy::result_large_err)] // What was handed in travels back whole, without a heap.
    pub fn unmap(self) -> Result<B, NotUnmapped<H, B, Dir>> {
        let lazy = matches!(&self.parts().place,
            Place::Space(space, _) if space.policy() == Policy::Lazy);
        let lazy = lazy && !self.is_copied();
        let mut retired = self.retire().map_err(NotUnmapped::Mapped)?;
        if lazy {
            return Ok(retired.waiting.take().expect(PRESENT).buffer);
        }
        retired.wait().map_err(NotUnmapped::Retired)
    }
}

impl<H: Handle, B: Buffer, Dir: Direction> Drop for Mapping<H, B, Dir> {
    fn drop(&mut self) {
        let Some(parts) = self.parts.take() else {
            return;
        };
        match &parts.place {
            Place::Space(space, range) => {
                let bytes = range.addresses().len_minus_one().saturating_add(1);
                space.count_dropped(bytes);
            }
            Place::Standing(pool) => pool.space().count_dropped(bytes_of(&parts.buffer)),
            Place::Identity => {}
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
    #[allow(clippy::result_large_err)] // What was handed in travels back whole, without a heap.
    pub fn wait(mut self) -> Result<B, NotReclaimed<H, B>> {
        if let Some(Waiting {
            held: Some((space, ticket)),
            ..
        }) = &self.waiting
        {
            if let Err(error) = space.settle(*ticket) {
                let retired = self;
                return Err(NotReclaimed { error, retired });
            }
        }
        Ok(self.waiting.take().expect(PRESENT).into_buffer())
    }

    /// Gives the buffer back if no device can reach it any more, and itself if some may. Never
    /// waits and submits nothing.
    ///
    /// # Errors
    /// With the buffer, which stays retired.
    #[allow(clippy::result_large_err)] // What was handed in travels back whole, without a heap.
    pub fn poll(mut self) -> Result<B, Self> {
        if self.is_quiet() {
            Ok(self.waiting.take().expect(PRESENT).into_buffer())
        } else {
            Err(self)
        }
    }

    /// Whether no device can reach the buffer any more.
    pub fn is_quiet(&self) -> bool {
        match &self.waiting {
            Some(Waiting {
                held: Some((space, ticket)),
                ..
            }) => space.is_quiet(*ticket),
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
        let Some(waiting) = self.waiting.take() else {
            return;
        };
        match &waiting.held {
            Some((space, ticket)) if !space.is_quiet(*ticket) => {
                space.count_dropped(bytes_of(&waiting.buffer));
                core::mem::forget(waiting.buffer);
            }
            _ => drop(waiting.into_buffer()),
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
