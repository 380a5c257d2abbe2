//! Addresses that are not one buffer's: ranges into which pieces are linked later with one sync for
//! all, pages that take messages, and memory that the CPU and a device share as long as it lives.
//!
//! Where the IOMMU translates writes of messages (Arm), the page with the registers that take them
//! has to be mapped, or no interrupt of the device arrives. Where the hardware takes such writes out
//! before it translates (x86), [`Device::map_doorbell`] says that nothing has to be done.

use alloc::sync::Arc;
use core::sync::atomic::AtomicU64;

use thiserror::Error;

use super::device::{Device, DeviceTranslation};
use super::error::{MapError, UnmapError};
use super::flush_queue::{Chosen, UnmapOutcome};
use super::policy::{Coherency, Constraints, DataDirection, MayBlock, Trust};
use super::reach::DeviceContext;
use super::space::{DmaSpace, Placement};
use super::trace::coherent;
use crate::addr::{Iova, IovaRange, PageSize, PhysAddr, PhysRange, StreamId};
use crate::inval::Gather;
use crate::iommu::{DomainError, ReservedKind};
use crate::iova::Request;
use crate::platform::contract::{
    Buffer, DmaMemory, Doorbell, HostVisibility, OwnedMemory, Platform, Unowned, Wanted,
    hidden_from,
};
use crate::platform::{Cpus, Lock, TraceKind};
use crate::table::Access;

/// Error of a link of a piece. Pieces that were linked before are as they were.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LinkError {
    /// It does not fit into the rest.
    #[error("{wanted} bytes do not fit into the {left} that are left")]
    NoRoom {
        /// Bytes of whole pages that it needs.
        wanted: u64,
        /// Bytes left.
        left: u64,
    },
    /// It shares a page with memory that an untrusted device must not reach.
    #[error("{piece} does not fill its pages, and the device is not trusted")]
    SubPage {
        /// The piece.
        piece: PhysRange,
    },
    /// It is private to a confidential guest, and the devices reach shared memory alone.
    #[error("{piece} is private to the guest, and its devices reach shared memory alone")]
    Private {
        /// The piece.
        piece: PhysRange,
    },
    /// The tables.
    #[error(transparent)]
    Domain(#[from] DomainError),
}

/// A range of addresses into which pieces are linked one after the other.
///
/// ```no_run
/// # use portolan::dma::{Constraints, DmaSpace, FromDevice, Reservation, Unowned};
/// # use portolan::platform::Platform;
/// # use std::sync::Arc;
/// /// A frame buffer of pieces that come one after the other.
/// fn frame<P: Platform>(space: Arc<DmaSpace<P>>, pieces: Vec<Unowned>) -> Reservation<P> {
///     let frame = Reservation::new(space, 8 << 20, &Constraints::trusted());
///     let mut frame = frame.expect("addresses");
///     for piece in pieces {
///         frame.link(piece, FromDevice).expect("room for 8 MiB");
///     }
///     frame.sync().expect("hardware that completes");
///     frame
/// }
/// ```
///
/// Pieces can be reached once [`Reservation::sync`] has returned.
///
/// *Drop.* Task, as it may be the last to have its space. Without [`Reservation::unlink`] linked
/// pieces stay mapped, its addresses stay out of use, and
/// [`DmaSpace::quarantine`](super::DmaSpace::quarantine) counts it; one without linked pieces gives its
/// addresses back.
#[must_use = "pieces stay linked"]
pub struct Reservation<P: Cpus + Clone> {
    space: Arc<DmaSpace<P>>,
    range: Option<IovaRange>,
    chosen: Chosen,
    /// Bytes linked, from the start.
    linked: u64,
    owed: Gather,
    trust: Trust,
    reach: HostVisibility,
}

/// Message for a value that is there until it is consumed or dropped.
const PRESENT: &str = "taken only when the value is consumed";

impl<P: Cpus + Clone> Reservation<P> {
    /// Sets aside addresses for pieces of `bytes` bytes in all, each rounded up to whole pages.
    ///
    /// *Context.* Atomic.
    ///
    /// # Errors
    /// See [`MapError`].
    pub fn new(
        space: Arc<DmaSpace<P>>,
        bytes: u64,
        constraints: &Constraints,
    ) -> Result<Self, MapError> {
        if let Some(error) = space.failure() {
            return Err(MapError::Broken(error));
        }
        let granule = space.granule().bytes();
        let bytes = bytes.checked_next_multiple_of(granule).ok_or(MapError::TooLong)?;
        let align = constraints.align.max(space.granule());
        let request = Request { bytes, align, limit: constraints.dma_mask };
        let range = space.allocate(&request, MayBlock::Yes)?;
        Ok(Self::of(space, range, Chosen::Allocator, constraints))
    }

    /// Sets aside the addresses `range`, rounded outwards to whole pages: where a device's firmware has
    /// its frame buffer, or a guest its memory. No mapping gets them meanwhile.
    ///
    /// ```no_run
    /// # use portolan::addr::{IovaRange, PhysRange};
    /// # use portolan::dma::{Bidirectional, Constraints, DmaSpace, Reservation, Unowned};
    /// # use portolan::platform::Platform;
    /// # use std::sync::Arc;
    /// /// Guest memory at the guest's own addresses.
    /// fn guest<P: Platform>(space: Arc<DmaSpace<P>>, guest: IovaRange, host: PhysRange) {
    ///     let memory = Reservation::at(space, guest, &Constraints::trusted());
    ///     let mut memory = memory.expect("addresses that nobody uses");
    ///     // SAFETY: the memory is pinned until it has been unlinked; this program has atomics of it at most.
    ///     let host = unsafe { Unowned::shared(host, None) };
    ///     memory.link(host, Bidirectional).expect("as long as the addresses");
    ///     memory.sync().expect("hardware that completes");
    ///     // ... the guest runs ...
    ///     assert!(memory.unlink().is_ok());
    /// }
    /// ```
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// See [`MapError`]: [`MapError::Outside`] and [`MapError::Taken`].
    pub fn at(
        space: Arc<DmaSpace<P>>,
        range: IovaRange,
        constraints: &Constraints,
    ) -> Result<Self, MapError> {
        if let Some(error) = space.failure() {
            return Err(MapError::Broken(error));
        }
        let range = space.granules(range);
        space.take_chosen(range, constraints.dma_mask, || space.iova.reserve_free(range))?;
        Ok(Self::of(space, range, Chosen::Caller, constraints))
    }

    fn of(
        space: Arc<DmaSpace<P>>,
        range: IovaRange,
        chosen: Chosen,
        constraints: &Constraints,
    ) -> Self {
        let trust = space.judged(constraints).trust;
        Self {
            space,
            range: Some(range),
            chosen,
            linked: 0,
            owed: Gather::paid_before_use(),
            trust,
            reach: constraints.reach,
        }
    }

    /// All its addresses.
    ///
    /// *Context.* Interrupt.
    pub fn addresses(&self) -> IovaRange {
        self.range.expect(PRESENT)
    }

    /// Links `memory` behind the pieces that are linked already, and returns the address of its
    /// first byte. It can be reached after the next [`Reservation::sync`].
    ///
    /// *Context.* Atomic: where table pages are short, it waits for those that an invalidation brings back.
    ///
    /// # Errors
    /// See [`LinkError`].
    pub fn link(
        &mut self,
        memory: Unowned,
        direction: impl DataDirection,
    ) -> Result<Iova, LinkError> {
        let access = direction.direction().access_to(memory.memory_kind());
        if let Some(piece) = hidden_from(self.reach, &memory) {
            return Err(LinkError::Private { piece });
        }
        let memory = memory.memory();
        let granule = self.space.granule();
        let inside = memory.start().get() & (granule.bytes() - 1);
        let after = memory.last().get().wrapping_add(1) & (granule.bytes() - 1);
        if self.trust == Trust::Untrusted && (inside | after) != 0 {
            return Err(LinkError::SubPage { piece: memory });
        }
        let range = self.addresses();
        // A range is never the whole of 64 bits: the allocator hands out none of that size.
        let left = range.len_minus_one().saturating_add(1) - self.linked;
        let wanted = memory.pages(granule).saturating_mul(granule.bytes());
        if wanted > left {
            return Err(LinkError::NoRoom { wanted, left });
        }
        let at = Iova::new(range.start().get() + self.linked);
        let access = self.space.granted(access);
        // `Unowned` promises more than this.
        let pieces = DmaMemory::all_promised(core::slice::from_ref(&memory));
        let (space, owed) = (&self.space, &mut self.owed);
        space.or_flushed(|| space.domain.map_sg(at, pieces, access, owed))?;
        self.space.trace_map(at, &[memory]);
        self.linked += wanted;
        Ok(Iova::new(at.get() + inside))
    }

    /// Makes everything linked so far reachable.
    ///
    /// *Context.* Atomic.
    ///
    /// # Errors
    /// If the hardware did not complete, or its queue was busy; the debt stays.
    pub fn sync(&mut self) -> Result<(), UnmapError> {
        let synced = self.space.domain.sync(&mut self.owed).map(drop);
        let synced = synced.map_err(|error| UnmapError::of(error.into()));
        synced.inspect_err(|&error| self.space.fail_by(error))
    }

    /// Unmaps everything that is linked and gives the addresses back, with one invalidation for all of
    /// it; under [`Policy::Lazy`](super::Policy::Lazy) that is paid later, unless the addresses were
    /// the caller's choice.
    ///
    /// *Context.* Atomic; memory is taken for records of addresses that the caller chose.
    ///
    /// # Errors
    /// With the reservation, as it was, if nothing was unmapped. Without, it is unmapped, and its
    /// addresses stay out of use until it is quiet.
    pub fn unlink(mut self) -> Result<(), (UnmapError, Option<Self>)> {
        let range = self.addresses();
        let Some(mapped) = IovaRange::from_len(range.start(), self.linked) else {
            return Ok(());
        };
        if self.chosen == Chosen::Caller {
            if let Err(error) = self.space.domain.unmap(mapped, &mut self.owed) {
                return Err((error.into(), Some(self)));
            }
            self.space.trace_unmap(mapped);
            self.range = None;
            return match self.space.pay_now(&mut self.owed) {
                Ok(flushed) => {
                    self.space.give_back_chosen(range, &flushed);
                    Ok(())
                }
                Err(error) => {
                    self.space.keep_chosen(range, core::mem::take(&mut self.owed));
                    self.space.fail_by(error);
                    Err((error, None))
                }
            };
        }
        let owed = core::mem::take(&mut self.owed);
        if !owed.is_empty() {
            self.space.owe(owed);
        }
        match self.space.defer_part(mapped, range) {
            Err(error) => Err((error, Some(self))),
            Ok(wait) => {
                self.range = None;
                self.space.finish(&wait).map_err(|error| (error, None))
            }
        }
    }
}

impl<P: Cpus + Clone> Drop for Reservation<P> {
    fn drop(&mut self) {
        let Some(range) = self.range.take() else {
            return;
        };
        if self.linked == 0 {
            match self.chosen {
                Chosen::Allocator => self.space.give_back_unused(range),
                Chosen::Caller => self.space.give_back_chosen_unused(range),
            }
            return;
        }
        let owed = core::mem::take(&mut self.owed);
        self.space.owe(owed);
        self.space.count_dropped(self.linked);
    }
}

impl<P: Cpus + Clone> Device<P> {
    /// Maps `doorbell`, and returns the address to which the device has to write to ring it: it
    /// goes into the address of its messages instead of the physical one.
    ///
    /// For a translated device, the page around the doorbell is mapped for writes as a device's
    /// registers; where the table format has no way to withhold reads, for reads too. All devices
    /// of the space share it, and it stays mapped until the space is gone. A doorbell that lies
    /// where the unit takes messages untranslated
    /// ([`ReservedKind::Interrupts`]) is not mapped, nor is
    /// one for a device that is passed through: the physical address serves.
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// See [`MapError`].
    pub fn map_doorbell(&self, doorbell: Doorbell) -> Result<Iova, MapError> {
        let (at, limit) = (doorbell.at(), self.constraints().dma_mask);
        match (self.translation, self.space()) {
            (DeviceTranslation::Space(_), Some(space)) => {
                space.map_doorbell(self.stream(), at, self.constraints())
            }
            (DeviceTranslation::Identity(_), _) if at.get() <= limit.get() => {
                Ok(Iova::new(at.get()))
            }
            (DeviceTranslation::Identity(_), _) => {
                let piece = PhysRange::page(at, PageSize::of_lg2(0));
                Err(MapError::AboveLimit { piece, limit })
            }
            (DeviceTranslation::Blocked | DeviceTranslation::Space(_), _) => Err(MapError::Blocked),
        }
    }
}

impl<P: Cpus + Clone> DmaSpace<P> {
    fn map_doorbell(
        &self,
        stream: StreamId,
        at: PhysAddr,
        constraints: &Constraints,
    ) -> Result<Iova, MapError> {
        if let Some(error) = self.failure() {
            return Err(MapError::Broken(error));
        }
        if self.takes_messages(stream, Iova::new(at.get())) {
            return Ok(Iova::new(at.get()));
        }
        let page = PhysRange::page(at, self.granule());
        let inside = at.get() - page.start().get();
        let limit = constraints.dma_mask;
        let there = self.regions.with(|known| {
            let mut doorbells = known.doorbells.iter();
            doorbells
                .find(|(of, mapped)| *of == page && mapped.last() <= limit)
                .map(|(_, mapped)| *mapped)
        });
        // Two callers at once may map it twice, and each has a page of its own then.
        let mapped = match there {
            Some(mapped) => mapped,
            None => self.map_registers(page, constraints)?,
        };
        Ok(Iova::new(mapped.start().get() + inside))
    }

    /// Tells if the unit takes writes of `stream` to `at` for messages, untranslated.
    fn takes_messages(&self, stream: StreamId, at: Iova) -> bool {
        let mut takes = false;
        self.bound.unit().reserved(stream, &mut |region| {
            takes |= region.kind == ReservedKind::Interrupts && region.range.contains(at);
        });
        takes
    }

    fn map_registers(
        &self,
        page: PhysRange,
        constraints: &Constraints,
    ) -> Result<IovaRange, MapError> {
        let constraints = Constraints { align: self.granule(), ..*constraints };
        let (mapped, _) =
            self.place_kept(page, Access::WRITE.union(Access::DEVICE), &constraints)?;
        // Without memory to remember it, it is not shared.
        let _ = self.note((page, mapped), |known| &mut known.doorbells);
        Ok(mapped)
    }
}

/// Memory for descriptor rings and the like, mapped for reading and writing.
///
/// ```no_run
/// # use core::sync::atomic::Ordering;
/// # use portolan::dma::{Coherent, Device, MapError};
/// # use portolan::platform::Platform;
/// /// A ring of 256 descriptors, all of them the driver's.
/// fn ring<P: Platform>(card: &Device<P>) -> Result<Coherent<P>, MapError> {
///     let ring = card.coherent(256 * 16)?;
///     ring.words()[0].store(1, Ordering::Release);
///     // ... ring.iova() goes into the card's register ...
///     Ok(ring)
/// }
/// ```
///
/// *Context.* Interrupt, but for [`Device::coherent`] and dropping it.
///
/// *Drop.* Task. It is unmapped, waited for under every policy, and freed; if the hardware does not
/// complete, the memory is never freed and [`Device::quarantine`] counts it.
pub struct Coherent<P: Platform> {
    context: Arc<DeviceContext<P>>,
    memory: OwnedMemory<P>,
    /// There if it is mapped in the device's space.
    range: Option<IovaRange>,
}

impl<P: Platform> Device<P> {
    /// Zeroed memory of at least `bytes` bytes, whole pages, that the device and the CPU share.
    /// It does not need to be synced: for a device that does not snoop it comes from
    /// [`Platform::alloc_uncached`], and for one that reaches shared memory alone from
    /// [`Platform::alloc_shared`].
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// See [`MapError`]; [`MapError::NoMemory`] if the platform has none.
    pub fn coherent(&self, bytes: u64) -> Result<Coherent<P>, MapError> {
        let context = self.context.clone();
        let constraints = context.constraints;
        let (space, page) = match (self.translation, &context.space) {
            (DeviceTranslation::Space(_), Some(space)) => (Some(space), space.granule()),
            (DeviceTranslation::Identity(_), _) => (None, PageSize::SIZE_4K),
            (DeviceTranslation::Blocked | DeviceTranslation::Space(_), _) => {
                return Err(MapError::Blocked);
            }
        };
        let wanted = match (constraints.reach, constraints.coherency) {
            (HostVisibility::Shared, _) => Wanted::Shared,
            (HostVisibility::Private, Coherency::Coherent) => Wanted::Any,
            (HostVisibility::Private, Coherency::NotCoherent) => Wanted::Uncached,
        };
        let pages = bytes.div_ceil(page.bytes());
        if pages == 0 {
            return Err(MapError::Empty);
        }
        let memory = OwnedMemory::new(context.platform.clone(), pages, page, wanted);
        let mut memory = memory.ok_or(MapError::NoMemory { bytes })?;
        let piece = memory.range();
        let Some(space) = space else {
            let limit = constraints.dma_mask;
            if piece.last().get() > limit.get() {
                return Err(MapError::AboveLimit { piece, limit });
            }
            let range = None;
            return Ok(Coherent::new(context, memory, range));
        };
        // The memory fills its pages.
        let limits = Constraints {
            align: constraints.align.max(constraints.min_align_mask),
            min_align_mask: page,
            ..constraints
        };
        let access = Access::READ_WRITE;
        let wanted = Placement { access, constraints: &limits, at: None, may_block: MayBlock::Yes };
        match space.place(core::slice::from_ref(&piece), &wanted) {
            Ok(range) => Ok(Coherent::new(context.clone(), memory, Some(range))),
            Err(failed) => {
                if let Some(wait) = failed.held {
                    // A device may have reached it.
                    space.keep(&wait);
                    space.count_dropped(piece.len_minus_one().saturating_add(1));
                    memory.keep();
                }
                Err(failed.error)
            }
        }
    }
}

impl<P: Platform> Coherent<P> {
    fn new(
        context: Arc<DeviceContext<P>>,
        memory: OwnedMemory<P>,
        range: Option<IovaRange>,
    ) -> Self {
        let made = Self { context, memory, range };
        made.trace(TraceKind::Alloc);
        made
    }

    #[inline]
    fn trace(&self, kind: TraceKind) {
        let DeviceContext { platform, requester, .. } = &*self.context;
        coherent(platform, kind, *requester, (self.iova(), self.memory()));
    }

    /// Address of the memory for the device.
    pub fn iova(&self) -> Iova {
        match self.range {
            Some(range) => range.start(),
            None => Iova::new(self.memory.range().start().get()),
        }
    }

    /// The memory as the CPU sees it: words that the device may change at any time.
    pub fn words(&self) -> &[AtomicU64] {
        self.memory.words()
    }

    /// The memory.
    pub fn memory(&self) -> PhysRange {
        self.memory.range()
    }

    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        self.memory().len_minus_one().saturating_add(1)
    }
}

impl<P: Platform> Drop for Coherent<P> {
    fn drop(&mut self) {
        self.trace(TraceKind::Free);
        if let (Some(range), Some(space)) = (self.range.take(), &self.context.space) {
            if let Err((_, left)) = space.take_down(range) {
                if let UnmapOutcome::Waits(wait) = left {
                    space.keep(&wait);
                }
                space.count_dropped(self.bytes());
                self.memory.keep();
            }
        }
    }
}
