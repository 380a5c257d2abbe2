//! Mappings that own their buffers.

use alloc::sync::Arc;
use core::marker::PhantomData;
use core::mem::ManuallyDrop;

use super::Constraints;
use super::buffer::{Buffer, bytes_of, read, write};
use super::copies::{Copies, Copying, Reached};
use super::direction::{Direction, Fills};
use super::error::{AccessError, RetireError};
use super::quarantine::Lost;
use super::quieting::{Left, Until};
use super::retired::{NotReclaimed, Retired};
use super::segments::{DmaSegments, Placing};
use super::space::{DmaRange, DmaSpace, Handle};
use super::standing::Standing;
use crate::addr::{Iova, PageSize};
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

/// What a device needs for its buffers, shared with their mappings.
#[derive(Clone)]
pub(super) struct Kit {
    pub constraints: Constraints,
    pub cache: Option<Arc<dyn DataCache>>,
    pub copying: Option<Copying>,
    /// What was given up of mappings that are in no space.
    pub lost: Arc<Lost>,
}

/// What comes with the device.
///
/// *Context.* Interrupt: copies and cache maintenance, as long as the buffer is.
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

    /// Brings the bytes from offset `at` to offset `last` to where the device or the CPU sees them.
    fn sync<B: Buffer>(&self, buffer: &B, way: Way, at: u64, last: u64) {
        let (cache, pool) = (self.kit.cache.as_deref(), self.pool());
        if cache.is_none() && pool.is_none() {
            return;
        }
        for stretch in self.copies.stretches(buffer.pieces(), at, last) {
            if let (Some(cache), Way::Out) = (cache, way) {
                cache.invalidate(stretch.reached);
            }
            if let Some(pool) = pool.filter(|_| stretch.reached != stretch.buffer) {
                let bytes = stretch.buffer.len_minus_one().saturating_add(1);
                let (buffer, copy) = (stretch.buffer.start(), stretch.reached.start());
                match way {
                    Way::In => pool.copy(buffer, copy, bytes),
                    Way::Out => pool.copy(copy, buffer, bytes),
                }
            }
            if let (Some(cache), Way::In) = (cache, way) {
                cache.clean(stretch.reached);
            }
        }
    }

    /// Gives the copies back, which no device reaches any more.
    pub fn give_back(&mut self) {
        let Self { kit, copies } = self;
        if let (Some(copying), false) = (&kit.copying, copies.is_empty()) {
            copies.give_back(&*copying.pool);
        }
    }
}

/// The parts of a mapping. The buffer is dropped by nobody who does not say so: whatever panics
/// in between, its memory stays.
struct Parts<H: Handle, B> {
    place: Place<H>,
    buffer: ManuallyDrop<B>,
    extras: Extras,
}

/// A buffer that a device can reach, and that nobody else has meanwhile.
///
/// The CPU looks at its bytes by copies ([`Mapping::read`], [`Mapping::write`]), between
/// [`Mapping::sync_for_cpu`] and [`Mapping::sync_for_device`]. End a mapping with
/// [`Mapping::retire`] or [`Mapping::unmap`] once the device is done.
///
/// *Drop.* Interrupt, unless it has the last reference to its space. The device may be using it: it
/// stays mapped, its memory is never freed and its addresses are never reused.
/// [`DmaSpace::quarantine`] counts it, or [`Device::quarantine`](super::Device::quarantine) where it
/// is in no space.
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

/// Why [`Mapping::unmap`] did not give the buffer back.
pub enum NotUnmapped<H: Handle, B: Buffer, Dir: Direction> {
    /// The mapping is as it was.
    Mapped(NotRetired<H, B, Dir>),
    /// It is unmapped, and not known to be quiet.
    Retired(NotReclaimed<H, B>),
}

impl<H: Handle, B: Buffer, Dir: Direction> NotUnmapped<H, B, Dir> {
    /// Why.
    ///
    /// *Context.* Interrupt.
    pub fn error(&self) -> RetireError {
        match self {
            Self::Mapped(kept) => kept.error,
            Self::Retired(kept) => kept.error,
        }
    }
}

/// What the compiler knows to be there until the value is consumed or dropped.
const PRESENT: &str = "taken only when the value is consumed";

impl<H: Handle, B: Buffer, Dir: Direction> Mapping<H, B, Dir> {
    pub(super) fn new(place: Place<H>, buffer: ManuallyDrop<B>, extras: Extras) -> Self {
        let mapping = Self::of(Parts {
            place,
            buffer,
            extras,
        });
        mapping.clean();
        mapping
    }

    fn of(parts: Parts<H, B>) -> Self {
        Self {
            parts: Some(parts),
            direction: PhantomData,
        }
    }

    fn parts(&self) -> &Parts<H, B> {
        self.parts.as_ref().expect(PRESENT)
    }

    /// What the device takes into its descriptors.
    ///
    /// *Context.* Interrupt.
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
    ///
    /// *Context.* Interrupt.
    pub fn iova(&self) -> Iova {
        // A buffer without pieces is not mapped.
        let first = self.segments().next();
        first.map_or(Iova::new(0), |segment| segment.iova)
    }

    /// Whether a part of the buffer is reached as a copy.
    ///
    /// *Context.* Interrupt.
    pub fn is_copied(&self) -> bool {
        !self.parts().extras.copies.is_empty()
    }

    /// Copies bytes of the buffer, from offset `at`, as the CPU sees them. What the device wrote is
    /// there after [`Mapping::sync_for_cpu`].
    ///
    /// *Context.* Interrupt.
    ///
    /// # Errors
    /// See [`AccessError`]; nothing is copied.
    pub fn read(&self, at: u64, to: &mut [u8]) -> Result<(), AccessError> {
        let buffer = &*self.parts().buffer;
        let offset = self.offset(at, to.len())?;
        read(buffer, offset, to).ok_or(AccessError::NoView)
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
        let buffer = &mut *self.parts.as_mut().expect(PRESENT).buffer;
        if !buffer.device_may_write() {
            return Err(AccessError::ReadOnly);
        }
        write(buffer, offset, from).ok_or(AccessError::NoView)
    }

    /// Makes all that the device wrote visible to the CPU. The device must not be writing; it may
    /// go on afterwards, once [`Mapping::sync_for_device`] was called.
    ///
    /// *Context.* Interrupt.
    pub fn sync_for_cpu(&mut self) {
        let parts = self.parts();
        take_in::<B, Dir>(&parts.extras, &parts.buffer, 0, u64::MAX);
    }

    /// As [`Mapping::sync_for_cpu`], of `bytes` bytes from offset `at`.
    ///
    /// *Context.* Interrupt.
    ///
    /// # Errors
    /// See [`AccessError`]; nothing is synced.
    pub fn sync_part_for_cpu(&mut self, at: u64, bytes: u64) -> Result<(), AccessError> {
        if let Some(last) = self.last_of(at, bytes)? {
            let parts = self.parts();
            take_in::<B, Dir>(&parts.extras, &parts.buffer, at, last);
        }
        Ok(())
    }

    /// Makes all that the CPU wrote visible to the device.
    ///
    /// *Context.* Interrupt.
    pub fn sync_for_device(&self) {
        let parts = self.parts();
        parts.extras.sync(&*parts.buffer, Way::In, 0, u64::MAX);
    }

    /// As [`Mapping::sync_for_device`], of `bytes` bytes from offset `at`.
    ///
    /// *Context.* Interrupt.
    ///
    /// # Errors
    /// See [`AccessError`]; nothing is synced.
    pub fn sync_part_for_device(&self, at: u64, bytes: u64) -> Result<(), AccessError> {
        if let Some(last) = self.last_of(at, bytes)? {
            let parts = self.parts();
            parts.extras.sync(&*parts.buffer, Way::In, at, last);
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

    /// Writes lines back that the device is to see; also before it writes, since a line written
    /// back later would overwrite that.
    fn clean(&self) {
        let parts = self.parts();
        if let Some(cache) = &parts.extras.kit.cache {
            let reached = parts.extras.copies.reached(parts.buffer.pieces());
            reached.for_each(|lines| cache.clean(lines));
        }
    }

    /// Ends the mapping. The buffer is given back by [`Retired`], once no device can reach it. The
    /// cheap way is to retire many and then to reclaim them.
    ///
    /// *Context.* Interrupt. Nothing is paid here: once [`DmaSpace::is_flush_due`] says so, a worker
    /// or a timer has to call [`DmaSpace::tick`].
    ///
    /// # Errors
    /// With the mapping, which is as it was.
    pub fn retire(mut self) -> Result<Retired<H, B>, NotRetired<H, B, Dir>> {
        let Parts {
            place,
            buffer,
            extras,
        } = self.parts.take().expect(PRESENT);
        let held = match place {
            Place::Space(space, range) => match space.retire(range) {
                Ok(wait) => Some((space, wait)),
                Err((error, range)) => {
                    let place = Place::Space(space, range);
                    return Err(Self::kept(error, place, buffer, extras));
                }
            },
            // Nothing of it is unmapped: the device is trusted to be done with the slots.
            Place::Standing(_) | Place::Identity => None,
        };
        // The device is done; what it writes from now on changes its copy at most.
        take_in::<B, Dir>(&extras, &buffer, 0, u64::MAX);
        Ok(Retired::new(buffer, extras, held))
    }

    fn kept(
        error: RetireError,
        place: Place<H>,
        buffer: ManuallyDrop<B>,
        extras: Extras,
    ) -> NotRetired<H, B, Dir> {
        let mapping = Self::of(Parts {
            place,
            buffer,
            extras,
        });
        NotRetired { error, mapping }
    }

    /// Ends the mapping and gives the buffer back, when no device can reach it any more; under
    /// [`Policy::Lazy`](super::Policy::Lazy) before that, within the bounds of the space; a buffer
    /// that is copied is waited for under each policy, since its slots are others' next.
    ///
    /// *Context.* Atomic. Where the calling CPU's queue is being flushed, by the code that a handler
    /// has interrupted or by another CPU, it pays for itself at once instead of waiting for that.
    ///
    /// # Errors
    /// With what is left: the mapping as it was, or the retired buffer.
    pub fn unmap(mut self) -> Result<B, NotUnmapped<H, B, Dir>> {
        let Parts {
            place,
            buffer,
            mut extras,
        } = self.parts.take().expect(PRESENT);
        if let Place::Space(space, range) = place {
            let until = match extras.copies.is_empty() {
                true => Until::Policy,
                false => Until::Quiet,
            };
            match space.unmap(range, until) {
                Ok(()) => {}
                Err((error, Left::Mapped(range))) => {
                    let place = Place::Space(space, range);
                    let kept = Self::kept(error, place, buffer, extras);
                    return Err(NotUnmapped::Mapped(kept));
                }
                Err((error, Left::Held(wait))) => {
                    take_in::<B, Dir>(&extras, &buffer, 0, u64::MAX);
                    let retired = Retired::new(buffer, extras, Some((space, wait)));
                    return Err(NotUnmapped::Retired(NotReclaimed { error, retired }));
                }
            }
        }
        take_in::<B, Dir>(&extras, &buffer, 0, u64::MAX);
        extras.give_back();
        Ok(ManuallyDrop::into_inner(buffer))
    }
}

/// Brings what the device wrote to the buffer.
fn take_in<B: Buffer, Dir: Direction>(extras: &Extras, buffer: &B, at: u64, last: u64) {
    if Dir::FILLS != Fills::Nothing {
        extras.sync(buffer, Way::Out, at, last);
    }
}

impl<H: Handle, B: Buffer, Dir: Direction> Drop for Mapping<H, B, Dir> {
    fn drop(&mut self) {
        let Some(parts) = self.parts.take() else {
            return;
        };
        let bytes = bytes_of(&*parts.buffer);
        match &parts.place {
            Place::Space(space, _) => space.count_dropped(bytes),
            Place::Standing(pool) => pool.space().count_dropped(bytes),
            Place::Identity => parts.extras.kit.lost.count(bytes),
        }
        if let Place::Standing(pool) = parts.place {
            // The device may be using the slots: the pool stays mapped.
            core::mem::forget(pool);
        }
    }
}
