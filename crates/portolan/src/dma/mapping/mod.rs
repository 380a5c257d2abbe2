//! Mappings that own their buffers.

mod deferred;
mod split;

use alloc::sync::Arc;
use core::mem::ManuallyDrop;

use super::error::{AccessError, Failed, UnmapError};
use super::flush_queue::{Clearance, UnmapOutcome};
use super::layout::Layout;
use super::policy::{DataDirection, Direction};
use super::reach::{Copies, CopyRecord, DeviceContext, DmaSegments, Placing, Reached};
use super::space::{DmaSpace, UnmapPaid};
use super::trace::Traced;
use crate::addr::{Iova, IovaRange};
use crate::platform::Cpus;
use crate::platform::contract::{Buffer, Sharing, bytes_of, read, write};
pub use deferred::{Deferred, Quiet, reclaim_all};
pub use split::DivisibleMapping;

/// Place of a mapping. In a word, of which most values are none: those say that there is no mapping. In a byte they
/// would be fewer than those of a buffer's own parts, and a mapping would be moved in pieces around that byte, whose
/// stores and loads differ: a CPU waits for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(in crate::dma) enum MappingPlace {
    /// In the device's space.
    Space,
    /// In the device's space, at a part of addresses that go back together.
    Part,
    /// In the device's pool that stays mapped.
    Premapped,
    /// At the memory's own address.
    Identity,
}

/// Place of a buffer, and its addresses there.
#[derive(Clone, Copy, Debug)]
pub(in crate::dma) struct PlacedBuffer {
    pub(in crate::dma) place: MappingPlace,
    /// The addresses in a space; otherwise none that counts.
    pub(in crate::dma) range: IovaRange,
}

/// The parts of a mapping. The buffer is dropped by explicit code alone: after a panic in between,
/// its memory stays.
struct MappingParts<P: Cpus + Clone, B, D> {
    context: Arc<DeviceContext<P>>,
    place: MappingPlace,
    /// The addresses, if it is in a space. Not in `place`: a mapping stays small.
    range: IovaRange,
    copies: Option<CopyRecord>,
    buffer: ManuallyDrop<B>,
    direction: D,
}

/// Way in which a device reaches a mapped buffer.
pub(in crate::dma) struct MappingReach<'m, P: Cpus + Clone> {
    pub context: &'m Arc<DeviceContext<P>>,
    pub reached: Reached<'m>,
    pub placing: Placing,
}

/// A buffer that a device can reach, and that no other code has meanwhile, unless it is
/// [shared](crate::dma::Sharing).
///
/// The CPU looks at its bytes by copies ([`Mapping::read`], [`Mapping::write`]), between
/// [`Mapping::sync_for_cpu`] and [`Mapping::sync_for_device`]. End a mapping with
/// [`Mapping::defer`] or [`Mapping::unmap`] once the device is done.
///
/// ```no_run
/// # use portolan::dma::{Buffer, Device, MapFailed, ToDevice, UnmapFailed};
/// # use portolan::platform::Platform;
/// /// Sends a packet whose last byte the driver fills in, and gives its buffer back.
/// fn send<P: Platform, B: Buffer>(
///     card: &Device<P>, packet: B,
/// ) -> Result<Result<B, UnmapFailed<P, B, ToDevice>>, MapFailed<P, B>> {
///     let mut sent = card.map(packet, ToDevice)?;
///     sent.write(63, &[0xff]).expect("the buffer has 64 bytes");
///     sent.sync_for_device();
///     for segment in sent.segments() {
///         // ... segment.iova and segment.bytes go into a descriptor ...
///     }
///     // ... the card says that it is done ...
///     Ok(sent.unmap())
/// }
/// ```
///
/// `D` is the direction: a value of [`Direction`], or a type such as
/// [`ToDevice`](super::ToDevice), so that a signature says it.
///
/// *Drop.* Interrupt. In a space with room for dropped buffers
/// ([`SpaceOptions::dropped_buffers`](super::SpaceOptions::dropped_buffers)) it is unmapped, and its buffer dropped
/// once no device reaches it. Elsewhere the device may be using it: it stays mapped, its memory is never freed and
/// its addresses are never reused, and [`Device::quarantine`](super::Device::quarantine) counts it.
#[must_use = "the buffer of a mapping that is dropped does not come back"]
pub struct Mapping<P: Cpus + Clone, B: Buffer, D: DataDirection = Direction> {
    parts: Option<MappingParts<P, B, D>>,
}

/// Rest of a mapping that [`Mapping::unmap`] did not end.
pub enum NotUnmapped<P: Cpus + Clone, B: Buffer, D: DataDirection = Direction> {
    /// The mapping as it was.
    Mapped(Mapping<P, B, D>),
    /// It is unmapped, and devices may still reach the buffer.
    Deferred(Deferred<P, B>),
}

impl<P: Cpus + Clone, B: Buffer, D: DataDirection> core::fmt::Debug for Mapping<P, B, D> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Mapping").finish_non_exhaustive()
    }
}

impl<P: Cpus + Clone, B: Buffer, D: DataDirection> core::fmt::Debug for NotUnmapped<P, B, D> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Mapped(_) => "Mapped(..)",
            Self::Deferred(_) => "Deferred(..)",
        })
    }
}

/// The error of [`Mapping::unmap`], with the rest of the mapping.
pub type UnmapFailed<P, B, D = Direction> = Failed<NotUnmapped<P, B, D>, UnmapError>;

/// Message for a value that is there until it is consumed or dropped.
const PRESENT: &str = "taken only when the value is consumed";

impl<P: Cpus + Clone, B: Buffer, D: DataDirection> Mapping<P, B, D> {
    /// A mapping of `buffer`, which was placed; lines of it are the caller's to write back.
    #[inline]
    pub(in crate::dma) fn new(
        context: Arc<DeviceContext<P>>,
        placed: PlacedBuffer,
        copies: Option<CopyRecord>,
        buffer: ManuallyDrop<B>,
        direction: D,
    ) -> Self {
        let PlacedBuffer { place, range } = placed;
        Self::of(MappingParts { context, place, range, copies, buffer, direction })
    }

    const fn of(parts: MappingParts<P, B, D>) -> Self {
        Self { parts: Some(parts) }
    }

    #[inline]
    fn parts(&self) -> &MappingParts<P, B, D> {
        self.parts.as_ref().expect(PRESENT)
    }

    /// Way in which the device reaches the buffer.
    pub(in crate::dma) fn reach(&self) -> MappingReach<'_, P> {
        let parts = self.parts();
        MappingReach {
            context: &parts.context,
            reached: Reached::new(parts.buffer.pieces(), parts.copies()),
            placing: parts.placing(),
        }
    }

    /// The buffer, which a device may reach.
    pub(in crate::dma) fn buffer(&self) -> &B {
        &self.parts().buffer
    }

    /// Its parts, without the effects of dropping it.
    #[inline]
    fn into_parts(mut self) -> MappingParts<P, B, D> {
        let parts = self.parts.take().expect(PRESENT);
        // Nothing is left in it.
        core::mem::forget(self);
        parts
    }

    /// Reports that it was mapped.
    #[inline]
    pub(in crate::dma) fn trace_map(&self) {
        let parts = self.parts();
        if let Some(tracer) = parts.context.platform.tracer() {
            parts.traced().mapped(tracer);
        }
    }

    /// The direction.
    ///
    /// *Context.* Interrupt.
    pub fn direction(&self) -> Direction {
        self.parts().direction.direction()
    }

    /// Segments for the device's descriptors.
    ///
    /// *Context.* Interrupt.
    pub fn segments(&self) -> DmaSegments<'_> {
        self.parts().segments()
    }

    /// The first address.
    ///
    /// *Context.* Interrupt.
    #[inline]
    pub fn iova(&self) -> Iova {
        self.parts().first()
    }

    /// The offset in the buffer that the device reaches at `iova`: for a handler of faults, which asks
    /// the mappings that its driver has.
    ///
    /// *Context.* Interrupt.
    pub fn offset_of(&self, iova: Iova) -> Option<u64> {
        self.segments().offset_of(iova)
    }

    /// Tells if a part of the buffer is reached as a copy.
    ///
    /// *Context.* Interrupt.
    pub fn is_copied(&self) -> bool {
        self.parts().copies.is_some()
    }

    /// Copies bytes of the buffer, from offset `at`, as the CPU sees them. Bytes that the device
    /// wrote are there after [`Mapping::sync_for_cpu`].
    ///
    /// *Context.* Interrupt.
    ///
    /// # Errors
    /// See [`AccessError`]; nothing is copied.
    pub fn read(&self, at: u64, to: &mut [u8]) -> Result<(), AccessError> {
        let buffer = &*self.parts().buffer;
        let offset = self.offset(at, to.len())?;
        match read(buffer, offset, to) {
            true => Ok(()),
            false => Err(AccessError::NoView),
        }
    }

    /// Copies `from` to the bytes of the buffer, from offset `at`. The device sees them after
    /// [`Mapping::sync_for_device`], and may see them before.
    ///
    /// *Context.* Interrupt.
    ///
    /// # Errors
    /// See [`AccessError`]; nothing is copied.
    pub fn write(&mut self, at: u64, from: &[u8]) -> Result<(), AccessError> {
        let offset = self.offset(at, from.len())?;
        let parts = self.parts.as_mut().expect(PRESENT);
        if !parts.buffer.device_may_write() {
            return Err(AccessError::ReadOnly);
        }
        if !write(&mut *parts.buffer, offset, from) {
            return Err(AccessError::NoView);
        }
        if let Some(last) = (from.len() as u64).checked_sub(1) {
            parts.write_through(at, at + last);
        }
        Ok(())
    }

    /// Makes all that the device wrote visible to the CPU. The device must not be writing; it may
    /// go on afterwards, once [`Mapping::sync_for_device`] was called.
    ///
    /// *Context.* Interrupt.
    pub fn sync_for_cpu(&mut self) {
        self.parts().take_in(0, u64::MAX);
    }

    /// As [`Mapping::sync_for_cpu`], of `bytes` bytes from offset `at`.
    ///
    /// *Context.* Interrupt.
    ///
    /// # Errors
    /// See [`AccessError`]; nothing is synced.
    pub fn sync_part_for_cpu(&mut self, at: u64, bytes: u64) -> Result<(), AccessError> {
        if let Some(last) = self.last_of(at, bytes)? {
            self.parts().take_in(at, last);
        }
        Ok(())
    }

    /// Makes all bytes that the CPU wrote visible to the device. Bytes that the device wrote itself
    /// stay, also if the CPU has not taken them in.
    ///
    /// Where a buffer is written in another way than by [`Mapping::write`], being
    /// [shared](crate::dma::Sharing::Shared) or without a view, its driver takes the bytes in first if the device
    /// writes as well: all of the range then has the CPU's bytes.
    ///
    /// *Context.* Interrupt.
    pub fn sync_for_device(&self) {
        self.parts().hand_on(0, u64::MAX);
    }

    /// As [`Mapping::sync_for_device`], of `bytes` bytes from offset `at`.
    ///
    /// *Context.* Interrupt.
    ///
    /// # Errors
    /// See [`AccessError`]; nothing is synced.
    pub fn sync_part_for_device(&self, at: u64, bytes: u64) -> Result<(), AccessError> {
        if let Some(last) = self.last_of(at, bytes)? {
            self.parts().hand_on(at, last);
        }
        Ok(())
    }

    /// The last of `bytes` bytes from `at`; none if there are no bytes.
    fn last_of(&self, at: u64, bytes: u64) -> Result<Option<u64>, AccessError> {
        let length = bytes_of(&*self.parts().buffer);
        match at.checked_add(bytes) {
            Some(after) if after <= length => Ok(after.checked_sub(1).filter(|_| bytes != 0)),
            _ => Err(AccessError::OutOfBounds { at, bytes, length }),
        }
    }

    fn offset(&self, at: u64, bytes: usize) -> Result<usize, AccessError> {
        let bytes = bytes as u64;
        self.last_of(at, bytes)?;
        let length = bytes_of(&*self.parts().buffer);
        let outside = AccessError::OutOfBounds { at, bytes, length };
        usize::try_from(at).map_err(|_| outside)
    }

    /// Ends the mapping without waiting. The buffer comes back from [`Deferred`], once no device can
    /// reach it. The cheap way is to defer many and then to reclaim them.
    ///
    /// *Context.* Interrupt. Nothing is invalidated here: once
    /// [`DmaSpace::is_flush_due`](crate::dma::DmaSpace::is_flush_due) says so, a worker or a timer has to
    /// call [`DmaSpace::tick`](crate::dma::DmaSpace::tick).
    ///
    /// # Errors
    /// With the mapping, which is as it was.
    #[inline]
    pub fn defer(self) -> Result<Deferred<P, B>, Failed<Self, UnmapError>> {
        let parts = self.into_parts();
        let held = match (parts.place, &parts.context.space) {
            (MappingPlace::Space, Some(space)) => match space.defer(parts.range) {
                Ok(wait) => Some(wait),
                Err(error) => return Err(Failed { error, value: Self::of(parts) }),
            },
            (MappingPlace::Part, Some(space)) => match space.defer_share(parts.range) {
                Ok(wait) => Some(wait),
                Err(error) => return Err(Failed { error, value: Self::of(parts) }),
            },
            // Nothing of it is unmapped: the device is trusted to be done with the slots.
            _ => None,
        };
        parts.end();
        let MappingParts { context, copies, buffer, .. } = parts;
        Ok(Deferred::new(context, copies, buffer, held))
    }

    /// Ends the mapping and gives the buffer back, when no device can reach it any more; under
    /// [`Policy::Lazy`](crate::dma::Policy::Lazy) before that, within the bounds of the space; a buffer
    /// that is copied is waited for under each policy, since its slots are others' next.
    ///
    /// *Context.* Atomic. Where the calling CPU's queue is being flushed, by the code that a handler
    /// has interrupted or by another CPU, it pays for itself at once instead of waiting for that.
    ///
    /// # Errors
    /// With the rest: the mapping as it was, or the deferred buffer.
    #[inline]
    pub fn unmap(self) -> Result<B, UnmapFailed<P, B, D>> {
        let parts = self.into_parts();
        let ended = match (parts.place, &parts.context.space) {
            (MappingPlace::Space, Some(space)) => {
                let paid = match parts.copies {
                    None => UnmapPaid::ByPolicy,
                    Some(_) => UnmapPaid::BeforeReturn,
                };
                space.unmap(parts.range, paid)
            }
            (MappingPlace::Part, Some(space)) => space.take_down_share(parts.range),
            _ => return Ok(parts.into_buffer(Clearance::Untranslated)),
        };
        match ended {
            Ok(UnmapOutcome::Flushed(flushed)) => {
                Ok(parts.into_buffer(Clearance::Flushed(flushed)))
            }
            Ok(_) => Ok(parts.into_buffer(Clearance::Lazy)),
            Err((error, outcome)) => Err(Failed { error, value: parts.not_unmapped(outcome) }),
        }
    }
}

impl<P: Cpus + Clone, B: Buffer, D: DataDirection> MappingParts<P, B, D> {
    fn segments(&self) -> DmaSegments<'_> {
        let reached = Reached::new(self.buffer.pieces(), self.copies.as_deref());
        DmaSegments::new(reached, self.placing(), &self.context.constraints)
    }

    #[inline]
    fn layout(&self, space: &DmaSpace<P>) -> Layout {
        Layout::new(self.range.start(), space.granule(), &self.context.constraints)
    }

    #[inline]
    fn placing(&self) -> Placing {
        let context = &self.context;
        match (self.place, &context.space, &context.premapped) {
            (MappingPlace::Space | MappingPlace::Part, Some(space), _) => {
                Placing::From(self.layout(space))
            }
            (MappingPlace::Premapped, _, Some(pool)) => pool.placing(),
            // A mapping keeps the settings that have its space and its pool.
            _ => Placing::Identity,
        }
    }

    /// The first address.
    #[inline]
    fn first(&self) -> Iova {
        let pieces = self.buffer.pieces();
        let first = match self.copies.as_deref() {
            None => pieces.into_iter().next(),
            copies => Reached::new(pieces, copies).next(),
        };
        // A buffer without pieces is not mapped.
        let Some(piece) = first else {
            return Iova::new(0);
        };
        match (self.place, &self.context.space) {
            (MappingPlace::Space | MappingPlace::Part, Some(space)) => {
                let (start, granule) = (self.range.start(), space.granule());
                Layout::first(start, granule, &self.context.constraints, piece)
            }
            _ => Iova::new(self.placing().place(piece).0),
        }
    }

    fn traced(&self) -> Traced<'_, DmaSegments<'_>> {
        Traced {
            requester: self.context.requester,
            direction: self.direction.direction(),
            pieces: self.buffer.pieces(),
            segments: self.segments(),
        }
    }

    /// The buffer, which is unmapped; its copies go back.
    #[inline]
    fn into_buffer(self, clearance: Clearance) -> B {
        self.end();
        self.context.give_back(self.copies, &clearance);
        DeviceContext::let_go(self.context);
        ManuallyDrop::into_inner(self.buffer)
    }

    /// Unmaps it and leaves the buffer to its space, if that keeps dropped ones.
    fn retire(self) -> Option<Self> {
        let space = self.context.space.as_ref().filter(|space| space.retires());
        let Some((MappingPlace::Space, space)) = space.map(|space| (self.place, space)) else {
            return Some(self);
        };
        let Ok(wait) = space.defer(self.range) else {
            return Some(self);
        };
        if let Some(tracer) = self.context.platform.tracer() {
            self.traced().unmapped(tracer);
        }
        let Self { context, copies, buffer, .. } = self;
        drop(Deferred::new(context, copies, buffer, Some(wait)));
        None
    }

    /// The rest of an unmap that failed.
    #[cold]
    fn not_unmapped(self, outcome: UnmapOutcome) -> NotUnmapped<P, B, D> {
        match outcome {
            UnmapOutcome::Waits(wait) => {
                self.end();
                let Self { context, copies, buffer, .. } = self;
                NotUnmapped::Deferred(Deferred::new(context, copies, buffer, Some(wait)))
            }
            _ => NotUnmapped::Mapped(Mapping::of(self)),
        }
    }

    /// Brings the bytes that the device wrote to the buffer, which is unmapped. The device is done: its
    /// later writes change its copy at most.
    #[inline]
    fn end(&self) {
        self.take_in(0, u64::MAX);
        if let Some(tracer) = self.context.platform.tracer() {
            self.traced().unmapped(tracer);
        }
    }

    #[inline]
    fn copies(&self) -> Option<&Copies> {
        self.copies.as_deref()
    }

    /// Brings the bytes that the device wrote to the buffer.
    #[inline]
    fn take_in(&self, at: u64, last: u64) {
        if self.direction.direction().device_writes() {
            self.context.take_in(&*self.buffer, self.copies(), at, last);
        }
    }

    /// Brings the bytes that the CPU wrote to the device. Bytes of a copy that the device wrote must
    /// not be lost: where it writes, only bytes that are known to be the CPU's are copied.
    fn hand_on(&self, at: u64, last: u64) {
        let ours = match self.direction.direction() {
            Direction::ToDevice => true,
            Direction::FromDevice => false,
            // With a view of the driver's own they came by `Mapping::write`, and are there.
            Direction::Bidirectional => {
                self.buffer.view().is_none() || self.buffer.sharing() == Sharing::Shared
            }
        };
        if ours {
            self.context.copy_in(&*self.buffer, self.copies(), at, last);
        }
        self.context.clean(&*self.buffer, self.copies(), at, last);
    }

    /// Brings bytes that the CPU has just written to the copy that the device writes as well.
    fn write_through(&self, at: u64, last: u64) {
        if self.direction.direction().device_writes() {
            self.context.copy_in(&*self.buffer, self.copies(), at, last);
        }
    }
}

impl<P: Cpus + Clone, B: Buffer, D: DataDirection> Drop for Mapping<P, B, D> {
    fn drop(&mut self) {
        let Some(parts) = self.parts.take().and_then(MappingParts::retire) else {
            return;
        };
        let bytes = bytes_of(&*parts.buffer);
        let context = &parts.context;
        match &context.space {
            Some(space) => space.count_dropped(bytes),
            None => context.lost.count(bytes),
        }
        if let (MappingPlace::Premapped, Some(pool)) = (parts.place, &context.premapped) {
            // The device may be using the slots: the pool stays mapped.
            core::mem::forget(pool.clone());
        }
        // Its slots stay the device's as well.
        core::mem::forget(parts.copies);
        DeviceContext::let_go(parts.context);
    }
}
