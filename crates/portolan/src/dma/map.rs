//! Mapping a device's buffers.

use core::mem::ManuallyDrop;

use super::constraints::{Constraints, Trust};
use super::copies::{
    Copies, CopyWhen, Copying, Cut, ONE_BYTE, Reached, Record, Through, Wanted, cut, shares,
};
use super::deferred::Deferred;
use super::device::{Device, Translation};
use super::direction::{DataDirection, Direction};
use super::error::MapError;
use super::failed::Failed;
use super::list::List;
use super::mapping::{Mapping, Place};
use super::policy::MayBlock;
use super::space::DmaSpace;
use super::waiting::{Clearance, Wait};
use crate::addr::{Iova, IovaRange, PageSize};
use crate::platform::Cpus;
use crate::platform::contract::{Buffer, MemoryKind, bytes_of, hidden_from};

/// A buffer that was not mapped.
pub enum NotMapped<P: Cpus + Clone, B: Buffer> {
    /// No device has reached it.
    Buffer(B),
    /// The hardware failed while it was mapped, so that a device may have reached it: it comes back
    /// once the space has recovered.
    Deferred(Deferred<P, B>),
}

impl<P: Cpus + Clone, B: Buffer> core::fmt::Debug for NotMapped<P, B> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Buffer(_) => "Buffer(..)",
            Self::Deferred(_) => "Deferred(..)",
        })
    }
}

/// The error of [`Device::map`], with the buffer.
pub type MapFailed<P, B> = Failed<NotMapped<P, B>, MapError>;

impl<P: Cpus + Clone, B: Buffer> NotMapped<P, B> {
    /// The buffer, if no device has reached it.
    ///
    /// *Context.* Interrupt.
    ///
    /// # Errors
    /// With the deferred buffer, if a device may have.
    pub fn into_buffer(self) -> Result<B, Deferred<P, B>> {
        match self {
            Self::Buffer(buffer) => Ok(buffer),
            Self::Deferred(deferred) => Err(deferred),
        }
    }
}

/// Reason why a buffer was not placed, with its copies, and the debt that they wait for, if a
/// device may have reached it.
struct NotPlaced {
    error: MapError,
    held: Option<(Option<Record>, Wait)>,
}

impl From<MapError> for NotPlaced {
    fn from(error: MapError) -> Self {
        Self { error, held: None }
    }
}

/// A map's own terms; two bytes, so that calls take them in registers.
#[derive(Clone, Copy)]
struct Terms {
    may_block: MayBlock,
    /// Nothing of the buffer is copied: a buffer that would have to be is refused.
    in_place: bool,
}

impl Terms {
    const fn of(may_block: MayBlock) -> Self {
        let in_place = false;
        Self { may_block, in_place }
    }
}

impl<P: Cpus + Clone> Device<P> {
    /// Lets the device reach `buffer` in `direction`, pieces at contiguous addresses as far as they
    /// fill their pages. [`Mapping::segments`] says where.
    ///
    /// *Context.* Atomic; memory is taken for table pages and for the records of addresses.
    ///
    /// # Errors
    /// With the buffer; see [`MapError`].
    #[inline]
    pub fn map<B: Buffer, D: DataDirection>(
        &self,
        buffer: B,
        direction: D,
    ) -> Result<Mapping<P, B, D>, MapFailed<P, B>> {
        self.map_by(buffer, direction, Terms::of(MayBlock::Yes), None)
    }

    /// As [`Device::map`], and copies nothing: for memory that the CPU or another device reads while it
    /// stays mapped and that is never synced, as a frame that two devices share (Linux's
    /// `DMA_ATTR_REQUIRE_COHERENT`).
    ///
    /// ```no_run
    /// # use portolan::dma::{Buffer, Device, Direction, MapFailed, Mapping};
    /// # use portolan::platform::Platform;
    /// /// A frame that the display reads while the camera fills it.
    /// fn shown<P: Platform, B: Buffer>(display: &Device<P>, frame: B) -> Result<Mapping<P, B>, MapFailed<P, B>> {
    ///     display.map_in_place(frame, Direction::ToDevice)
    /// }
    /// ```
    ///
    /// *Context.* Atomic, as [`Device::map`].
    ///
    /// # Errors
    /// With the buffer; see [`MapError`]. Where [`Device::map`] would copy, it is the error of a device
    /// without a pool: [`MapError::SubPage`], [`MapError::AboveLimit`], [`MapError::SharedLine`],
    /// [`MapError::Private`]. [`MapError::AlwaysCopied`] of a device with
    /// [`CopyWhen::Always`].
    pub fn map_in_place<B: Buffer, D: DataDirection>(
        &self,
        buffer: B,
        direction: D,
    ) -> Result<Mapping<P, B, D>, MapFailed<P, B>> {
        let terms = Terms { in_place: true, ..Terms::of(MayBlock::Yes) };
        self.map_by(buffer, direction, terms, None)
    }

    /// As [`Device::map`], with the page in which `buffer` begins at the address `page`: where a guest,
    /// a device's firmware or a process that shares its addresses expects it. Pieces follow it as
    /// everywhere. It is never put in the pool that stays mapped.
    ///
    /// Up to 512 pages take as many as the next power of two where `page` is aligned to that number, as
    /// they do elsewhere: nothing else can be mapped right behind them.
    ///
    /// ```no_run
    /// # use portolan::addr::Iova;
    /// # use portolan::dma::{Buffer, Device, Direction, MapFailed, Mapping};
    /// # use portolan::platform::Platform;
    /// /// The boot image, where the card's firmware looks for it.
    /// fn boot<P: Platform, B: Buffer>(card: &Device<P>, image: B) -> Result<Mapping<P, B>, MapFailed<P, B>> {
    ///     card.map_at(image, Direction::ToDevice, Iova::new(0x100_0000))
    /// }
    /// ```
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// With the buffer; see [`MapError`]: [`MapError::Outside`], also for an address where no page, or
    /// none that is aligned as the device's limits want it, begins; [`MapError::Taken`].
    pub fn map_at<B: Buffer, D: DataDirection>(
        &self,
        buffer: B,
        direction: D,
        page: Iova,
    ) -> Result<Mapping<P, B, D>, MapFailed<P, B>> {
        let terms = Terms::of(MayBlock::Yes);
        self.map_by(buffer, direction, terms, Some(page))
    }

    /// As [`Device::map`], and never waits or touches the heap: for handlers that refill their
    /// rings. Records of addresses come from a reserve
    /// ([`IovaOptions::reserve`](crate::iova::IovaOptions::reserve)).
    ///
    /// *Context.* Interrupt, as far as the memory for table pages can be taken there.
    ///
    /// # Errors
    /// With the buffer; see [`MapError`]. [`MapError::WouldWait`] where the hardware has to be told
    /// of a new mapping, where addresses have to become quiet first, and for copies of more than two
    /// pieces; [`MapError::NoReserve`] if the reserve is used up.
    #[inline]
    pub fn try_map<B: Buffer, D: DataDirection>(
        &self,
        buffer: B,
        direction: D,
    ) -> Result<Mapping<P, B, D>, MapFailed<P, B>> {
        self.map_by(buffer, direction, Terms::of(MayBlock::No), None)
    }

    /// Maps `buffer`, with the page in which it begins at the address `page` if there is one.
    #[inline]
    fn map_by<B: Buffer, D: DataDirection>(
        &self,
        buffer: B,
        direction: D,
        terms: Terms,
        page: Option<Iova>,
    ) -> Result<Mapping<P, B, D>, MapFailed<P, B>> {
        // A panic from here on does not drop a buffer that is mapped.
        let buffer = ManuallyDrop::new(buffer);
        let settings = || self.settings.clone();
        let NotPlaced { error, held } =
            match self.find_place(&*buffer, direction.direction(), terms, page) {
                Ok((place, copies)) => {
                    let mapping = Mapping::new(settings(), place, copies, buffer, direction);
                    mapping.trace_map();
                    return Ok(mapping);
                }
                Err(failed) => failed,
            };
        let value = match held {
            Some((copies, wait)) => {
                NotMapped::Deferred(Deferred::new(settings(), copies, buffer, Some(wait)))
            }
            None => NotMapped::Buffer(ManuallyDrop::into_inner(buffer)),
        };
        Err(Failed { error, value })
    }

    #[inline]
    fn find_place<B: Buffer>(
        &self,
        buffer: &B,
        direction: Direction,
        terms: Terms,
        page: Option<Iova>,
    ) -> Result<(Place, Option<Record>), NotPlaced> {
        if direction.device_writes() && !buffer.device_may_write() {
            return Err(MapError::ReadOnly.into());
        }
        match (self.translation, self.space()) {
            (Translation::Space(_), Some(space)) => {
                self.place_in(space, buffer, direction, terms, page)
            }
            (Translation::Identity(_), _) => match page {
                None => self.place_as_is(buffer, direction, terms),
                Some(page) => {
                    let range = IovaRange::page(page, PageSize::of_lg2(0));
                    Err(MapError::Outside { range }.into())
                }
            },
            (Translation::Blocked | Translation::Space(_), _) => Err(MapError::Blocked.into()),
        }
    }

    #[inline]
    fn place_in<B: Buffer>(
        &self,
        space: &DmaSpace<P>,
        buffer: &B,
        direction: Direction,
        terms: Terms,
        page: Option<Iova>,
    ) -> Result<(Place, Option<Record>), NotPlaced> {
        if let Some(error) = space.failure() {
            return Err(MapError::Broken(error).into());
        }
        let Terms { may_block, in_place } = terms;
        let access = direction.access_to(buffer.memory_kind());
        if let (Some(_), None, false) = (&self.settings.premapped, page, in_place) {
            if let Some(copies) = self.premapped_copies(buffer, may_block) {
                return Ok((Place::Premapped, Some(copies)));
            }
        }
        let through = Through::Pages(space.granule());
        let copies = self.copies(buffer, through, direction, terms)?;
        let pieces = buffer.pieces();
        // Copies have pages of their own, and a buffer in place fills its pages.
        let trusted;
        let constraints = match copies {
            None => &self.settings.constraints,
            Some(_) => {
                trusted = Constraints { trust: Trust::Trusted, ..self.settings.constraints };
                &trusted
            }
        };
        let list = match copies.as_deref() {
            None => Ok(List::There(pieces.as_slice())),
            copies => {
                let reached = Reached::new(pieces, copies);
                List::gather(reached.clone(), reached.count(), may_block)
            }
        };
        let placed = match &list {
            Ok(list) => match page {
                None => space.place(list.as_slice(), access, constraints, may_block),
                Some(page) => space.place_at(page, list.as_slice(), access, constraints),
            },
            Err(error) => Err((*error).into()),
        };
        match placed {
            Ok(range) => Ok((Place::Space(range), copies)),
            Err(failed) => {
                let error = failed.error;
                let held = match failed.held {
                    Some(wait) => Some((copies, wait)),
                    None => {
                        self.settings.give_back(copies, Clearance::Untranslated);
                        None
                    }
                };
                Err(NotPlaced { error, held })
            }
        }
    }

    fn place_as_is<B: Buffer>(
        &self,
        buffer: &B,
        direction: Direction,
        terms: Terms,
    ) -> Result<(Place, Option<Record>), NotPlaced> {
        let copies = self.copies(buffer, Through::Nothing, direction, terms)?;
        let limit = self.settings.constraints.dma_mask;
        let mut reached = Reached::new(buffer.pieces(), copies.as_deref());
        let error = if reached.clone().next().is_none() {
            Some(MapError::Empty)
        } else {
            let above = reached.find(|piece| piece.last().get() > limit.get());
            above.map(|piece| MapError::AboveLimit { piece, limit })
        };
        match error {
            None => Ok((Place::Identity, copies)),
            Some(error) => {
                self.settings.give_back(copies, Clearance::Untranslated);
                Err(error.into())
            }
        }
    }

    /// Copies of all of `buffer` in the pool that stays mapped, if they are wanted and fit.
    fn premapped_copies<B: Buffer>(&self, buffer: &B, may_block: MayBlock) -> Option<Record> {
        let settings = &*self.settings;
        let copying = settings.copying.as_ref()?;
        let bytes = bytes_of(buffer);
        let wanted = match copying.when {
            _ if hidden_from(settings.constraints.reach, buffer).is_some() => true,
            CopyWhen::Needed => false,
            CopyWhen::UpTo(most) => bytes <= most,
            CopyWhen::Always => true,
        };
        if !wanted || bytes == 0 || buffer.memory_kind() == MemoryKind::Registers {
            return None;
        }
        let wanted = Wanted {
            constraints: &settings.constraints,
            through: Through::Premapped,
            sharing: buffer.sharing(),
        };
        let pieces = buffer.pieces();
        let made = Copies::make(&settings.spares, copying, pieces, Cut::Whole, &wanted, may_block);
        made.ok()?
    }

    #[inline]
    fn copies<B: Buffer>(
        &self,
        buffer: &B,
        through: Through,
        direction: Direction,
        terms: Terms,
    ) -> Result<Option<Record>, MapError> {
        let line = self.line(buffer, direction);
        match &self.settings.copying {
            Some(copying) if terms.in_place && copying.when == CopyWhen::Always => {
                Err(MapError::AlwaysCopied)
            }
            Some(copying) if !terms.in_place && buffer.memory_kind() != MemoryKind::Registers => {
                self.copies_by(copying, buffer, through, line, terms.may_block)
            }
            _ => match hidden_from(self.settings.constraints.reach, buffer) {
                Some(piece) => Err(MapError::Private { piece }),
                None if line == ONE_BYTE => Ok(None),
                None => refuse_shared(buffer, line),
            },
        }
    }

    /// Size of the lines that `buffer` must not share with others, since the device does not snoop
    /// and writes there.
    #[inline]
    fn line<B: Buffer>(&self, buffer: &B, direction: Direction) -> PageSize {
        match &self.settings.cache {
            Some(cache)
                if direction.device_writes() && buffer.memory_kind() == MemoryKind::Cached =>
            {
                cache.line()
            }
            _ => ONE_BYTE,
        }
    }

    fn copies_by<B: Buffer>(
        &self,
        copying: &Copying,
        buffer: &B,
        through: Through,
        line: PageSize,
        may_block: MayBlock,
    ) -> Result<Option<Record>, MapError> {
        let settings = &*self.settings;
        let constraints = &settings.constraints;
        let page = match through {
            Through::Pages(page) => Some(page),
            Through::Nothing | Through::Premapped => None,
        };
        let when = match (copying.when, &settings.premapped) {
            _ if hidden_from(constraints.reach, buffer).is_some() => CopyWhen::Always,
            // It was tried, or is not worth it.
            (CopyWhen::UpTo(_), Some(_)) => CopyWhen::Needed,
            (when, _) => when,
        };
        let bytes = match when {
            CopyWhen::UpTo(_) => bytes_of(buffer),
            CopyWhen::Needed | CopyWhen::Always => 0,
        };
        let cut = cut(when, constraints, bytes, page, line);
        if cut == Cut::InPlace {
            return Ok(None);
        }
        let wanted = Wanted { constraints, through, sharing: buffer.sharing() };
        let pieces = buffer.pieces();
        Copies::make(&settings.spares, copying, pieces, cut, &wanted, may_block)
    }
}

/// Refuses a buffer that would have to be copied.
#[cold]
fn refuse_shared<B: Buffer>(buffer: &B, line: PageSize) -> Result<Option<Record>, MapError> {
    let mut pieces = buffer.pieces().into_iter();
    match pieces.find(|piece| shares(*piece, line)) {
        Some(piece) => Err(MapError::SharedLine { piece, line }),
        None => Ok(None),
    }
}
