//! Addresses first, buffers later: a range into which buffers are linked, one behind the other or where the caller
//! wants them, with one sync for all.
//!
//! Each buffer is unlinked by itself, or all with one invalidation, and its addresses can be linked again.
//!
//! Not supported: devices that are passed through, whose addresses are those of memory; syncs of a copied buffer while
//! it is linked.

mod unlink;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::mem::ManuallyDrop;

use thiserror::Error;

use super::device::{Device, MapTerms};
use super::error::{Failed, MapError, UnmapError};
use super::flush_queue::{Chosen, Clearance, Wait};
use super::layout::{Layout, PieceList};
use super::policy::{Constraints, DataDirection, Direction, MayBlock, Trust};
use super::reach::{Copies, CopyRecord, DeviceContext, DmaSegments, Placing, Reached};
use super::space::{DmaSpace, MOST_FILLS};
use crate::addr::{Iova, IovaRange, PhysRange};
use crate::inval::Gather;
use crate::iommu::DomainError;
use crate::iova::Request;
use crate::platform::Cpus;
use crate::platform::contract::{Buffer, DmaMemory, Unowned, hidden_from};
pub use unlink::NotLinked;

/// Error of a link of a buffer. Those that were linked before are as they were.
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
    /// Another buffer has some of the addresses.
    #[error("{range} is in use")]
    Taken {
        /// The addresses that it needs.
        range: IovaRange,
    },
    /// No page begins at this offset, or none that is aligned as the device's limits want it.
    #[error("no buffer can be linked at offset {offset:#x}")]
    Offset {
        /// Offset in the reservation.
        offset: u64,
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
    /// It cannot be mapped, or not be copied.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The tables.
    #[error(transparent)]
    Domain(#[from] DomainError),
}

/// A range of addresses into which buffers are linked.
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
/// Buffers can be reached once [`Reservation::sync`] has returned.
///
/// *Drop.* Task, as it may be the last to have its space. Without [`Reservation::unlink`] linked
/// buffers stay mapped, its addresses stay out of use, and
/// [`DmaSpace::quarantine`](super::DmaSpace::quarantine) counts it; one without linked buffers gives its
/// addresses back.
#[must_use = "buffers stay linked"]
pub struct Reservation<P: Cpus + Clone, B: Buffer = Unowned> {
    space: Arc<DmaSpace<P>>,
    /// Settings of its device, if it was made for one.
    context: Option<Arc<DeviceContext<P>>>,
    constraints: Constraints,
    range: Option<IovaRange>,
    chosen: Chosen,
    /// By their addresses, which are disjoint.
    linked: Vec<LinkedBuffer<B>>,
    /// Debt of links, and of buffers that were unmapped and did not come back.
    owed: Gather,
    /// Wait for such a debt, if it went to a queue.
    queued: Option<Wait>,
}

/// A buffer in a reservation. It is dropped by explicit code alone.
struct LinkedBuffer<B> {
    pages: IovaRange,
    direction: Direction,
    copies: Option<CopyRecord>,
    buffer: ManuallyDrop<B>,
    state: LinkState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LinkState {
    Mapped,
    /// It is unmapped, and its debt is not paid.
    Unmapped,
}

/// Message for a value that is there until it is consumed or dropped.
const PRESENT: &str = "taken only when the value is consumed";

impl<P: Cpus + Clone> Reservation<P> {
    /// Sets aside addresses for buffers of `bytes` bytes in all, each rounded up to whole pages.
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
        let range = set_aside(&space, bytes, constraints)?;
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
    ///     let mut memory = memory.expect("addresses that are free");
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
}

/// Addresses for `bytes` bytes, rounded up to whole pages.
fn set_aside<P: Cpus + Clone>(
    space: &DmaSpace<P>,
    bytes: u64,
    constraints: &Constraints,
) -> Result<IovaRange, MapError> {
    if let Some(error) = space.failure() {
        return Err(MapError::Broken(error));
    }
    let granule = space.granule().bytes();
    let bytes = bytes.checked_next_multiple_of(granule).ok_or(MapError::TooLong)?;
    let align = constraints.align.max(space.granule());
    let request = Request { bytes, align, limit: constraints.dma_mask };
    space.allocate(&request, MayBlock::Yes)
}

impl<P: Cpus + Clone> Device<P> {
    /// Sets aside addresses for buffers of `bytes` bytes in all, which are linked as [`Device::map`] maps: with copies
    /// of bytes that the device must not, or cannot, reach in place, with cache lines maintained, and within its
    /// limits.
    ///
    /// ```no_run
    /// # use portolan::dma::{Buffer, Device, Direction, LinkError, Reservation};
    /// # use portolan::platform::Platform;
    /// /// A ring of 64 pages: the page that is done makes room for the next one, at the same address.
    /// fn next<P: Platform, B: Buffer>(ring: &mut Reservation<P, B>, at: u64, page: B) -> Option<B> {
    ///     let done = ring.unlink_at(at).ok()?;
    ///     ring.link_at(at, page, Direction::FromDevice).ok()?;
    ///     ring.sync().ok()?;
    ///     Some(done)
    /// }
    /// ```
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// See [`MapError`]; [`MapError::Untranslated`] for a device that is not in a space.
    pub fn reserve<B: Buffer>(&self, bytes: u64) -> Result<Reservation<P, B>, MapError> {
        let space = self.space().ok_or(MapError::Untranslated)?.clone();
        let range = set_aside(&space, bytes, self.constraints())?;
        let mut made = Reservation::of(space, range, Chosen::Allocator, self.constraints());
        made.context = Some(self.own_context());
        Ok(made)
    }
}

impl<P: Cpus + Clone, B: Buffer> Reservation<P, B> {
    fn of(
        space: Arc<DmaSpace<P>>,
        range: IovaRange,
        chosen: Chosen,
        constraints: &Constraints,
    ) -> Self {
        Self {
            context: None,
            constraints: space.judged(constraints),
            space,
            range: Some(range),
            chosen,
            linked: Vec::new(),
            owed: Gather::paid_before_use(),
            queued: None,
        }
    }

    /// All its addresses.
    ///
    /// *Context.* Interrupt.
    pub fn addresses(&self) -> IovaRange {
        self.range.expect(PRESENT)
    }

    /// Number of buffers that are linked.
    ///
    /// *Context.* Interrupt.
    pub fn linked(&self) -> usize {
        self.linked.len()
    }

    /// Links `buffer` behind those that are linked already, and returns the address of its
    /// first byte. It can be reached after the next [`Reservation::sync`].
    ///
    /// *Context.* Task: memory is taken for a record, and where table pages are short, it waits for those that an
    /// invalidation brings back.
    ///
    /// # Errors
    /// With the buffer; see [`LinkError`].
    pub fn link(
        &mut self,
        buffer: B,
        direction: impl DataDirection,
    ) -> Result<Iova, Failed<B, LinkError>> {
        let start = self.addresses().start();
        let after = self.linked.last().map_or(0, |last| last.pages.last().get() - start.get() + 1);
        let align = self.constraints.align.max(self.space.granule()).bytes();
        // Its own alignment is that of the start.
        let offset = after.next_multiple_of(align);
        self.link_at(offset, buffer, direction)
    }

    /// Links `buffer` with the page in which it begins at `offset` from the first address.
    ///
    /// *Context.* Task, as [`Reservation::link`].
    ///
    /// # Errors
    /// With the buffer; see [`LinkError`]: [`LinkError::Offset`] and [`LinkError::Taken`].
    pub fn link_at(
        &mut self,
        offset: u64,
        buffer: B,
        direction: impl DataDirection,
    ) -> Result<Iova, Failed<B, LinkError>> {
        let direction = direction.direction();
        // A panic from here on does not drop a buffer that is mapped.
        let buffer = ManuallyDrop::new(buffer);
        match self.map(offset, &*buffer, direction) {
            Ok(LinkPlace { first, pages, copies, number }) => {
                let state = LinkState::Mapped;
                let linked = LinkedBuffer { pages, direction, copies, buffer, state };
                // There is room: see `map`.
                self.linked.insert(number, linked);
                Ok(first)
            }
            Err(error) => Err(Failed { error, value: ManuallyDrop::into_inner(buffer) }),
        }
    }

    fn map(
        &mut self,
        offset: u64,
        buffer: &B,
        direction: Direction,
    ) -> Result<LinkPlace, LinkError> {
        self.linked.try_reserve(1).map_err(|_| MapError::Records)?;
        let align = self.constraints.align.max(self.space.granule()).bytes();
        let range = self.addresses();
        // A range is never the whole of 64 bits: the allocator hands out none of that size.
        let length = range.len_minus_one().saturating_add(1);
        if offset % align != 0 || offset > length {
            return Err(LinkError::Offset { offset });
        }
        let copies = self.copies(buffer, range.start(), direction)?;
        let placed = self.map_copied(offset, buffer, copies.as_deref(), direction);
        match placed {
            Ok(place) => {
                if let Some(context) = &self.context {
                    context.clean(buffer, copies.as_deref(), 0, u64::MAX);
                }
                Ok(LinkPlace { copies, ..place })
            }
            Err(error) => {
                if let Some(context) = &self.context {
                    context.give_back(copies, &Clearance::Untranslated);
                }
                Err(error)
            }
        }
    }

    /// Copies those bytes of `buffer` that the device must not, or cannot, reach in place.
    fn copies(
        &self,
        buffer: &B,
        at: Iova,
        direction: Direction,
    ) -> Result<Option<CopyRecord>, LinkError> {
        if direction.device_writes() && !buffer.device_may_write() {
            return Err(MapError::ReadOnly.into());
        }
        match &self.context {
            Some(context) => {
                // Where the caller chose the address nothing goes to a pool that stays mapped.
                let terms = MapTerms { at: Some(at), ..MapTerms::of(MayBlock::Yes) };
                Ok(context.copies(buffer, direction, &terms)?.0)
            }
            None => match hidden_from(self.constraints.reach, buffer) {
                Some(piece) => Err(LinkError::Private { piece }),
                None => Ok(None),
            },
        }
    }

    /// Maps `buffer`, and the copies of it.
    fn map_copied(
        &mut self,
        offset: u64,
        buffer: &B,
        copies: Option<&Copies>,
        direction: Direction,
    ) -> Result<LinkPlace, LinkError> {
        let (range, granule) = (self.addresses(), self.space.granule());
        let at = Iova::new(range.start().get().saturating_add(offset));
        let mut layout = Layout::new(at, granule, &self.constraints);
        let reached = Reached::new(buffer.pieces(), copies);
        let list = PieceList::gather(reached.clone(), reached.count(), MayBlock::Yes)?;
        if copies.is_none() && self.constraints.trust == Trust::Untrusted {
            let uneven = |piece: &&PhysRange| {
                let ends = piece.start().get() | piece.last().get().wrapping_add(1);
                ends & (granule.bytes() - 1) != 0
            };
            if let Some(&piece) = list.as_slice().iter().find(uneven) {
                return Err(LinkError::SubPage { piece });
            }
        }
        // Pieces that have to lie apart follow as much of their own pages.
        let count = layout.count(list.as_slice());
        if count - list.as_slice().len() > MOST_FILLS {
            return Err(MapError::Records.into());
        }
        let list = PieceList::gather(layout.filled(list.as_slice()), count, MayBlock::Yes)?;
        let pieces = list.as_slice().iter();
        let pages = pieces.fold(0u64, |sum, piece| sum.saturating_add(piece.pages(granule)));
        let wanted = pages.saturating_mul(granule.bytes());
        let left = range.len_minus_one().saturating_add(1) - offset;
        if wanted > left {
            return Err(LinkError::NoRoom { wanted, left });
        }
        let first = Reached::new(buffer.pieces(), copies).next();
        let first = first.map(|piece| Iova::new(layout.place(piece).first));
        let first = first.zip(IovaRange::from_len(at, wanted));
        let (first, pages) = first.ok_or(MapError::Empty)?;
        let number = self.linked.partition_point(|other| other.pages.start() < at);
        let before = number.checked_sub(1).and_then(|number| self.linked.get(number));
        let meets_before = before.is_some_and(|other| other.pages.last() >= at);
        let behind = self.linked.get(number);
        if meets_before || behind.is_some_and(|other| other.pages.start() <= pages.last()) {
            return Err(LinkError::Taken { range: pages });
        }
        let access = self.space.granted(direction.access_to(buffer.memory_kind()));
        // They are a buffer's, or a pool's.
        let memory = DmaMemory::all_promised(list.as_slice());
        let (space, owed) = (&self.space, &mut self.owed);
        space.or_flushed(|| space.domain.map_sg(at, memory, access, owed))?;
        self.space.trace_map(at, list.as_slice());
        Ok(LinkPlace { first, pages, number, copies: None })
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

    /// Segments of the buffer that has the page at `offset`, for the device's descriptors.
    ///
    /// *Context.* Interrupt.
    pub fn segments(&self, offset: u64) -> Option<DmaSegments<'_>> {
        let linked = self.linked.get(self.number_at(offset)?)?;
        let reached = Reached::new(linked.buffer.pieces(), linked.copies.as_deref());
        let granule = self.space.granule();
        let layout = Layout::new(linked.pages.start(), granule, &self.constraints);
        Some(DmaSegments::new(reached, Placing::From(layout), &self.constraints))
    }

    /// Number of the buffer that has the page at `offset`.
    fn number_at(&self, offset: u64) -> Option<usize> {
        let at = self.addresses().start().checked_add(offset)?;
        let number = self.linked.partition_point(|linked| linked.pages.last() < at);
        self.linked.get(number).filter(|linked| linked.pages.contains(at)).map(|_| number)
    }
}

/// Place of a buffer that is mapped.
struct LinkPlace {
    first: Iova,
    pages: IovaRange,
    copies: Option<CopyRecord>,
    /// Its number among the linked ones.
    number: usize,
}

impl<P: Cpus + Clone, B: Buffer> fmt::Debug for Reservation<P, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Reservation");
        shown.field("range", &self.range).field("linked", &self.linked()).finish_non_exhaustive()
    }
}
