//! Mapping a device's buffers.

use core::mem::ManuallyDrop;

use super::{Device, DeviceTranslation};
use crate::addr::{Iova, IovaRange, PageSize};
use crate::dma::error::{Failed, MapError};
use crate::dma::flush_queue::Clearance;
use crate::dma::layout::PieceList;
use crate::dma::mapping::{Deferred, Mapping, MappingPlace, PlacedBuffer};
use crate::dma::policy::{Constraints, DataDirection, Direction, MayBlock, Trust};
use crate::dma::reach::{
    Copies, CopyChoice, CopyFacts, CopyRecord, CopyWhen, Copying, Cut, DeviceContext, ONE_BYTE,
    Reached, Through, WantedCopies, shares,
};
use crate::dma::space::{NotPlaced, Placement};
use crate::platform::Cpus;
use crate::platform::contract::{
    Buffer, HostVisibility, MemoryKind, Pieces, bytes_of, hidden_from,
};

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

/// A map's own terms.
///
/// *Context.* Interrupt: a value.
#[derive(Clone, Copy)]
pub(in crate::dma) struct MapTerms {
    pub may_block: MayBlock,
    /// Nothing of the buffer is copied: a buffer that would have to be is refused.
    pub in_place: bool,
    /// Address of the page in which the buffer begins, if the caller chose it.
    pub at: Option<Iova>,
}

impl MapTerms {
    pub const fn of(may_block: MayBlock) -> Self {
        Self { may_block, in_place: false, at: None }
    }
}

/// Addresses of a mapping that is in no space.
const NOWHERE: IovaRange = IovaRange::page(Iova::new(0), PageSize::of_lg2(0));

/// The copies of a buffer, and its place if they decide it.
pub(in crate::dma) type CopiedBuffer = (Option<CopyRecord>, Option<MappingPlace>);

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
        self.map_by(buffer, direction, MapTerms::of(MayBlock::Yes))
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
        let terms = MapTerms { in_place: true, ..MapTerms::of(MayBlock::Yes) };
        self.map_by(buffer, direction, terms)
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
        let terms = MapTerms { at: Some(page), ..MapTerms::of(MayBlock::Yes) };
        self.map_by(buffer, direction, terms)
    }

    /// As [`Device::map_in_place`], with the page in which `buffer` begins at a multiple of `align`: memory in huge
    /// pages is mapped in huge pages, as far as the unit has such.
    ///
    /// ```no_run
    /// # use portolan::addr::PageSize;
    /// # use portolan::dma::{Buffer, Device, Direction, MapFailed, Mapping};
    /// # use portolan::platform::Platform;
    /// /// All memory of a packet pool, in pages of 2 MiB.
    /// fn pool<P: Platform, B: Buffer>(card: &Device<P>, huge: B) -> Result<Mapping<P, B>, MapFailed<P, B>> {
    ///     card.map_aligned(huge, Direction::Bidirectional, PageSize::SIZE_2M)
    /// }
    /// ```
    ///
    /// *Context.* Atomic, as [`Device::map`].
    ///
    /// # Errors
    /// As [`Device::map_in_place`]; [`MapError::Outside`] of a device that is passed through, if the memory itself is
    /// not aligned so.
    pub fn map_aligned<B: Buffer, D: DataDirection>(
        &self,
        buffer: B,
        direction: D,
        align: PageSize,
    ) -> Result<Mapping<P, B, D>, MapFailed<P, B>> {
        let terms = MapTerms { in_place: true, ..MapTerms::of(MayBlock::Yes) };
        let buffer = ManuallyDrop::new(buffer);
        self.map_placed(buffer, direction, &terms, |buffer, _| {
            self.place_aligned(buffer, direction.direction(), align)
        })
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
        self.map_by(buffer, direction, MapTerms::of(MayBlock::No))
    }

    #[inline]
    fn map_by<B: Buffer, D: DataDirection>(
        &self,
        buffer: B,
        direction: D,
        terms: MapTerms,
    ) -> Result<Mapping<P, B, D>, MapFailed<P, B>> {
        // A panic from here on does not drop a buffer that is mapped.
        let buffer = ManuallyDrop::new(buffer);
        let context = &**self.context();
        let to = direction.direction();
        let in_place = matches!(self.translation, DeviceTranslation::Space(_))
            && context.reaches_in_place()
            && terms.at.is_none()
            && (!to.device_writes() || buffer.device_may_write());
        if let (true, Pieces::One(piece), Some(space)) = (in_place, buffer.pieces(), &context.space)
        {
            let access = to.access_to(buffer.memory_kind());
            let placed = space.place_page(piece, access, &context.constraints, terms.may_block);
            if let Some(range) = placed {
                let placed = PlacedBuffer { place: MappingPlace::Space, range };
                // Nothing is cleaned: a buffer whose address is handed on would be moved through memory.
                return Ok(self.mapped(placed, None, buffer, direction));
            }
        }
        self.map_judged(buffer, direction, &terms)
    }

    #[inline(always)]
    fn mapped<B: Buffer, D: DataDirection>(
        &self,
        placed: PlacedBuffer,
        copies: Option<CopyRecord>,
        buffer: ManuallyDrop<B>,
        direction: D,
    ) -> Mapping<P, B, D> {
        let mapping = Mapping::new(self.own_context(), placed, copies, buffer, direction);
        mapping.trace_map();
        mapping
    }

    /// Maps a buffer of which something may have to be copied, or that is more than one page.
    #[inline(never)]
    fn map_judged<B: Buffer, D: DataDirection>(
        &self,
        buffer: ManuallyDrop<B>,
        direction: D,
        terms: &MapTerms,
    ) -> Result<Mapping<P, B, D>, MapFailed<P, B>> {
        self.map_placed(buffer, direction, terms, |buffer, copies| {
            self.place(buffer, copies, direction.direction(), terms)
        })
    }

    /// The same, with what is not copied whole placed by `place`.
    #[inline]
    fn map_placed<B: Buffer, D: DataDirection>(
        &self,
        buffer: ManuallyDrop<B>,
        direction: D,
        terms: &MapTerms,
        place: impl FnOnce(&B, Option<&Copies>) -> Result<PlacedBuffer, NotPlaced>,
    ) -> Result<Mapping<P, B, D>, MapFailed<P, B>> {
        let (copies, placed) = match self.copies(&*buffer, direction.direction(), terms) {
            Ok((copies, Some(place))) => (copies, Ok(PlacedBuffer { place, range: NOWHERE })),
            Ok((copies, None)) => {
                let placed = place(&buffer, copies.as_deref());
                (copies, placed)
            }
            Err(error) => (None, Err(error.into())),
        };
        let NotPlaced { error, held } = match placed {
            Ok(placed) => {
                self.context().clean(&*buffer, copies.as_deref(), 0, u64::MAX);
                return Ok(self.mapped(placed, copies, buffer, direction));
            }
            Err(failed) => failed,
        };
        let value = match held {
            Some(_) => {
                let context = self.own_context();
                NotMapped::Deferred(Deferred::new(context, copies, buffer, held))
            }
            None => {
                self.context().give_back(copies, &Clearance::Untranslated);
                NotMapped::Buffer(ManuallyDrop::into_inner(buffer))
            }
        };
        Err(Failed { error, value })
    }

    /// Copies those bytes of `buffer` that the device must not, or cannot, reach in place.
    #[inline]
    fn copies<B: Buffer>(
        &self,
        buffer: &B,
        direction: Direction,
        terms: &MapTerms,
    ) -> Result<CopiedBuffer, MapError> {
        if direction.device_writes() && !buffer.device_may_write() {
            return Err(MapError::ReadOnly);
        }
        let context = &**self.context();
        match (self.translation, &context.space, terms.at) {
            (DeviceTranslation::Space(_), Some(space), _) => {
                if let Some(error) = space.failure() {
                    return Err(MapError::Broken(error));
                }
            }
            (DeviceTranslation::Identity(_), _, Some(page)) => {
                let range = IovaRange::page(page, PageSize::of_lg2(0));
                return Err(MapError::Outside { range });
            }
            (DeviceTranslation::Identity(_), _, None) => {}
            _ => return Err(MapError::Blocked),
        }
        context.copies(buffer, direction, terms)
    }

    /// Places `buffer`, and the copies of it.
    #[inline]
    fn place<B: Buffer>(
        &self,
        buffer: &B,
        copies: Option<&Copies>,
        direction: Direction,
        terms: &MapTerms,
    ) -> Result<PlacedBuffer, NotPlaced> {
        let (pieces, &MapTerms { may_block, at, .. }) = (buffer.pieces(), terms);
        let Some(space) = &self.context().space else {
            return self.check_reach(Reached::new(pieces, copies));
        };
        // Copies have pages of their own, and a buffer in place fills its pages.
        let judged;
        let constraints = match copies {
            None => &self.context().constraints,
            Some(_) => {
                judged = Constraints { trust: Trust::Trusted, ..self.context().constraints };
                &judged
            }
        };
        let list = match copies {
            None => PieceList::There(pieces.as_slice()),
            copies => {
                let reached = Reached::new(pieces, copies);
                PieceList::gather(reached.clone(), reached.count(), may_block)?
            }
        };
        let access = direction.access_to(buffer.memory_kind());
        let wanted = Placement { access, constraints, at, may_block };
        let range = space.place(list.as_slice(), &wanted)?;
        Ok(PlacedBuffer { place: MappingPlace::Space, range })
    }

    /// Places `buffer` itself, from a multiple of `align` on.
    fn place_aligned<B: Buffer>(
        &self,
        buffer: &B,
        direction: Direction,
        align: PageSize,
    ) -> Result<PlacedBuffer, NotPlaced> {
        let pieces = buffer.pieces();
        let own = &self.context().constraints;
        let Some(space) = &self.context().space else {
            let first = pieces.as_slice().first().map(|piece| piece.start());
            if let Some(start) = first.filter(|start| !start.is_aligned(align)) {
                let range = IovaRange::page(Iova::new(start.get()), PageSize::of_lg2(0));
                return Err(MapError::Outside { range }.into());
            }
            return self.check_reach(Reached::new(pieces, None));
        };
        let constraints = &Constraints { align: own.align.max(align), ..*own };
        let access = direction.access_to(buffer.memory_kind());
        let may_block = MayBlock::Yes;
        let wanted = Placement { access, constraints, at: None, may_block };
        let range = space.place(pieces.as_slice(), &wanted)?;
        Ok(PlacedBuffer { place: MappingPlace::Space, range })
    }

    /// Checks that the device reaches `pieces` at their own addresses.
    fn check_reach(&self, mut pieces: Reached<'_>) -> Result<PlacedBuffer, NotPlaced> {
        let limit = self.context().constraints.dma_mask;
        if pieces.clone().next().is_none() {
            return Err(MapError::Empty.into());
        }
        match pieces.find(|piece| piece.last().get() > limit.get()) {
            Some(piece) => Err(MapError::AboveLimit { piece, limit }.into()),
            None => Ok(PlacedBuffer { place: MappingPlace::Identity, range: NOWHERE }),
        }
    }
}

impl<P: Cpus + Clone> DeviceContext<P> {
    /// Tells if no byte of a buffer has to be copied or kept coherent, whatever its length and its memory.
    #[inline]
    fn reaches_in_place(&self) -> bool {
        let shared = self.constraints.reach == HostVisibility::Shared;
        // A device that was let in has the reach of one that was not, so that its flag is looked at.
        !shared && self.copying.is_none() && self.cache.is_none()
    }

    /// Copies those bytes of `buffer` that the device must not, or cannot, reach in place. It may write there, if it
    /// is to.
    #[inline]
    pub(in crate::dma) fn copies<B: Buffer>(
        &self,
        buffer: &B,
        direction: Direction,
        terms: &MapTerms,
    ) -> Result<CopiedBuffer, MapError> {
        // The device does not snoop, and writes there.
        let line = match &self.cache {
            Some(cache) if direction.device_writes() && is_cached(buffer) => cache.line(),
            _ => ONE_BYTE,
        };
        match &self.copying {
            Some(copying) if terms.in_place && copying.when == CopyWhen::Always => {
                Err(MapError::AlwaysCopied)
            }
            Some(copying) if !terms.in_place && buffer.memory_kind() != MemoryKind::Registers => {
                self.copied(copying, buffer, line, terms)
            }
            _ => {
                if let Some(piece) = hidden_from(self.reach()?, buffer) {
                    return Err(MapError::Private { piece });
                }
                match line == ONE_BYTE {
                    true => Ok((None, None)),
                    false => refuse_shared(buffer, line),
                }
            }
        }
    }

    /// The same of a device with a pool, for a buffer that may be copied.
    fn copied<B: Buffer>(
        &self,
        copying: &Copying,
        buffer: &B,
        line: PageSize,
        terms: &MapTerms,
    ) -> Result<CopiedBuffer, MapError> {
        let (pieces, may_block) = (buffer.pieces(), terms.may_block);
        let constraints = &self.constraints;
        let reach = self.reach()?;
        let premapped = self.premapped.is_some();
        let length_decides = premapped || matches!(copying.when, CopyWhen::UpTo(_));
        let facts = CopyFacts {
            when: copying.when,
            hidden: hidden_from(reach, buffer).is_some(),
            bytes: if length_decides { bytes_of(buffer) } else { 0 },
            premapped,
            trust: constraints.trust,
            page: self.space.as_ref().map(|space| space.granule()),
            limit: constraints.dma_mask,
            line,
        };
        let CopyChoice { premapped, cut } = facts.choose();
        let is_let_in = self.admission.is_some();
        let copies = premapped || cut != Cut::InPlace;
        if is_let_in && copies && copying.pool.visibility() == HostVisibility::Shared {
            return Err(MapError::SharedPool);
        }
        let make = |cut, through| {
            let wanted = WantedCopies { constraints, reach, through, sharing: buffer.sharing() };
            Copies::make(&self.spares, copying, pieces, cut, &wanted, may_block)
        };
        if premapped && terms.at.is_none() {
            if let Ok(Some(copies)) = make(Cut::Whole, Through::Premapped) {
                return Ok((Some(copies), Some(MappingPlace::Premapped)));
            }
        }
        let copies = match cut {
            Cut::InPlace => None,
            _ => make(cut, facts.page.map_or(Through::Nothing, Through::Pages))?,
        };
        Ok((copies, None))
    }
}

/// Tells if CPUs keep lines of `buffer` in their caches.
fn is_cached(buffer: &impl Buffer) -> bool {
    buffer.memory_kind() == MemoryKind::Cached
}

/// Refuses a buffer that would have to be copied.
#[cold]
fn refuse_shared<B: Buffer>(buffer: &B, line: PageSize) -> Result<CopiedBuffer, MapError> {
    let mut pieces = buffer.pieces().into_iter();
    match pieces.find(|piece| shares(*piece, line)) {
        Some(piece) => Err(MapError::SharedLine { piece, line }),
        None => Ok((None, None)),
    }
}
