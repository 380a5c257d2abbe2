//! Placing of pieces at addresses.
//!
//! An operation that lacks addresses or table pages, and that may wait, flushes and is done again:
//! they may be with ranges that wait in the queues. Callers that may not wait return the error.

use core::sync::atomic::Ordering;

use super::{DmaRange, DmaSpace, MapsOwe};
use crate::addr::{Iova, IovaRange, PhysRange};
use crate::dma::error::MapError;
use crate::dma::flush_queue::{Chosen, Wait};
use crate::dma::layout::{Layout, PieceList};
use crate::dma::policy::{Constraints, MayBlock, Trust};
use crate::inval::Gather;
use crate::iommu::DomainError;
use crate::iova::{FreeError, IovaError, Request};
use crate::platform::contract::{Buffer, DmaMemory, MemoryKind, Unowned, hidden_from};
use crate::platform::{Cpus, SharedWord};
use crate::table::{Access, TableMapError};

/// Error of placing pieces.
pub(in crate::dma) struct NotPlaced {
    pub error: MapError,
    /// Wait for them if a device may have reached them.
    pub held: Option<Wait>,
}

impl<E: Into<MapError>> From<E> for NotPlaced {
    #[inline]
    fn from(error: E) -> Self {
        let (error, held) = (error.into(), None);
        Self { error, held }
    }
}

/// Terms on which pieces are placed.
#[derive(Clone, Copy)]
pub(in crate::dma) struct Placement<'c> {
    pub access: Access,
    pub constraints: &'c Constraints,
    /// The page of the first piece, if the caller chose it.
    pub at: Option<Iova>,
    pub may_block: MayBlock,
}

/// Bits in which the ends of pieces differ from those of one page each.
#[derive(Clone, Copy, Default)]
struct EndBits {
    /// Those in which a piece does not begin with a page, or end with one.
    uneven: u64,
    /// Those in which the ends of a piece differ.
    spread: u64,
}

impl EndBits {
    /// Adds those of `piece`.
    #[inline]
    fn with(self, piece: PhysRange) -> Self {
        let (start, last) = (piece.start().get(), piece.last().get());
        Self { uneven: self.uneven | start | !last, spread: self.spread | (start ^ last) }
    }

    /// Tells if a device with such trust must not reach the pages: they hold more than the pieces.
    #[inline]
    fn forbid(self, inside: u64, trust: Trust) -> bool {
        self.uneven & inside != 0 && trust == Trust::Untrusted
    }
}

/// The most ranges that fill the room between pieces: of 2 MiB for each of many pages.
pub(in crate::dma) const MOST_FILLS: usize = 1 << 16;

/// An error that may be a shortage of things that wait in the queues.
pub(in crate::dma) trait MayEndByFlush {
    /// Tells if a flush may end it.
    fn may_end(&self) -> bool;

    /// Tells if table pages are short.
    fn is_of_tables(&self) -> bool {
        false
    }
}

impl MayEndByFlush for IovaError {
    fn may_end(&self) -> bool {
        matches!(self, Self::Full { .. })
    }
}

impl MayEndByFlush for FreeError {
    fn may_end(&self) -> bool {
        matches!(self, Self::InUse { .. })
    }
}

impl MayEndByFlush for DomainError {
    fn may_end(&self) -> bool {
        self.is_of_tables()
    }

    fn is_of_tables(&self) -> bool {
        matches!(self, Self::Map(TableMapError::Memory(_)))
    }
}

impl<P: Cpus + Clone> DmaSpace<P> {
    /// Maps memory for a driver that keeps its buffers itself; the first address has the offset of
    /// the memory in its page.
    ///
    /// *Context.* Atomic.
    ///
    /// # Errors
    /// See [`MapError`]. After [`MapError::Iommu`] and [`MapError::Busy`] a device may have reached
    /// the memory, and may do so until the space has been flushed.
    #[inline(always)]
    pub fn map_range(
        &self,
        memory: Unowned,
        access: Access,
        constraints: &Constraints,
    ) -> Result<(DmaRange, Iova), MapError> {
        if let Some(piece) = hidden_from(constraints.reach, &memory) {
            return Err(MapError::Private { piece });
        }
        let judged;
        let constraints = match self.trust() {
            Some(Trust::Trusted) => constraints,
            _ => {
                judged = self.judged(constraints);
                &judged
            }
        };
        let access = match memory.memory_kind() {
            MemoryKind::Registers => access.union(Access::DEVICE),
            MemoryKind::Cached | MemoryKind::Uncached => access,
        };
        let (memory, space) = (memory.memory(), self.id);
        if let Some(range) = self.place_page(memory, access, constraints, MayBlock::Yes) {
            let inside = memory.start().get() & (self.granule.bytes() - 1);
            let first = Iova::new(range.start().get() | inside);
            return Ok((DmaRange { range, space }, first));
        }
        let (range, first) = self.place_kept(memory, access, constraints)?;
        Ok((DmaRange { range, space }, first))
    }

    /// Maps memory that lies in one page, where nothing but its trust has to be judged and nothing is owed: the
    /// way of most buffers. `None`: it has to go the way of lists, which says why not.
    #[inline(always)]
    pub(in crate::dma) fn place_page(
        &self,
        memory: PhysRange,
        access: Access,
        constraints: &Constraints,
        may_block: MayBlock,
    ) -> Option<IovaRange> {
        if self.maps_owe == MapsOwe::Sync {
            return None;
        }
        let (granule, inside) = (self.granule, self.granule.bytes() - 1);
        let ends = EndBits::default().with(memory);
        let plain = Layout::is_dense_for(constraints, granule) && constraints.align <= granule;
        if !plain || ends.spread > inside || ends.forbid(inside, constraints.trust) {
            return None;
        }
        if self.broken.load(Ordering::Relaxed) != 0 {
            return None;
        }
        let request =
            Request { bytes: granule.bytes(), align: granule, limit: constraints.dma_mask };
        let range = match may_block {
            MayBlock::Yes => {
                self.replenish();
                self.iova.alloc(&request).ok()?
            }
            MayBlock::No => self.allocate_sparing(&request).ok()?,
        };
        // A buffer's, a pool's, or memory that a caller has promised.
        let promised = DmaMemory::promised(memory);
        if !self.domain.map_page(range.start(), promised, self.granted(access)) {
            self.give_back_unused(range);
            return None;
        }
        self.trace_map(range.start(), core::slice::from_ref(&memory));
        Some(range)
    }

    /// Maps memory, which the caller keeps in any case.
    #[inline]
    pub(in crate::dma) fn place_kept(
        &self,
        memory: PhysRange,
        access: Access,
        constraints: &Constraints,
    ) -> Result<(IovaRange, Iova), MapError> {
        let wanted = Placement { access, constraints, at: None, may_block: MayBlock::Yes };
        match self.place(core::slice::from_ref(&memory), &wanted) {
            Ok(range) => {
                Ok((range, Layout::first(range.start(), self.granule, constraints, memory)))
            }
            Err(NotPlaced { error, held }) => {
                if let Some(wait) = held {
                    self.keep(&wait);
                }
                Err(error)
            }
        }
    }

    /// Access that a device has to be granted to have `access`.
    #[inline]
    pub(in crate::dma) fn granted(&self, access: Access) -> Access {
        if access == Access::WRITE {
            self.write_only
        } else if access == Access::READ {
            self.read_only
        } else if access.contains(Access::DEVICE) {
            self.granted_registers(access)
        } else {
            access
        }
    }

    #[cold]
    fn granted_registers(&self, access: Access) -> Access {
        // A table that knows no kinds of memory leaves them to the rest of the machine.
        let granted = self.domain.grants(access);
        granted.unwrap_or_else(|| self.granted(access - Access::DEVICE))
    }

    /// Maps `pieces`, each in pages of its own, in one range, as [`Layout`] says.
    #[inline]
    pub(in crate::dma) fn place(
        &self,
        pieces: &[PhysRange],
        wanted: &Placement<'_>,
    ) -> Result<IovaRange, NotPlaced> {
        let &Placement { access, constraints, at, may_block } = wanted;
        if !Layout::is_dense_for(constraints, self.granule) {
            return self.place_apart(pieces, wanted);
        }
        let bytes = self.measure(pieces, constraints)?;
        if may_block == MayBlock::No && self.maps_owe == MapsOwe::Sync {
            return Err(MapError::WouldWait.into());
        }
        let align = constraints.align.max(self.granule);
        let request = Request { bytes, align, limit: constraints.dma_mask };
        let range = match at {
            None => self.allocate(&request, may_block)?,
            Some(page) => self.take_page(page, &request)?,
        };
        let mut owed = Gather::new();
        if may_block == MayBlock::Yes {
            owed.pay_before_use();
        }
        let access = self.granted(access);
        // They are a buffer's, a pool's, or memory that a caller has promised.
        let memory = DmaMemory::all_promised(pieces);
        let mut mapped = self.domain.map_sg(range.start(), memory, access, &mut owed);
        if let Err(error) = &mapped {
            if may_block == MayBlock::Yes && self.ends_by_flush(error) {
                mapped = self.domain.map_sg(range.start(), memory, access, &mut owed);
            }
        }
        if let Err(error) = mapped {
            // Tables that it took out before it failed: walk caches lead to them, and past what is mapped there next.
            match owed.is_empty() {
                true => self.give_back_unused(range),
                false => drop(self.hold_until_paid(range, owed, Chosen::Allocator)),
            }
            return Err(error.into());
        }
        self.trace_map(range.start(), pieces);
        if self.maps_owe == MapsOwe::Sync || (owed.holds_tables() && self.domain.is_due(&owed)) {
            self.after_map(range, &mut owed, may_block)?;
        }
        Ok(range)
    }

    /// As [`DmaSpace::place`], where pieces may have to lie apart: with the room between them filled,
    /// they are dense, and lie right from an aligned address.
    #[cold]
    fn place_apart(
        &self,
        pieces: &[PhysRange],
        wanted: &Placement<'_>,
    ) -> Result<IovaRange, NotPlaced> {
        let &Placement { constraints, may_block, .. } = wanted;
        let layout = Layout::new(Iova::new(0), self.granule, constraints);
        self.measure(pieces, constraints)?;
        let count = layout.count(pieces);
        if count - pieces.len() > MOST_FILLS {
            return Err(MapError::Records.into());
        }
        let list = PieceList::gather(layout.filled(pieces), count, may_block)?;
        let bytes = self.measure(list.as_slice(), constraints)?;
        let constraints = &Constraints {
            align: constraints.align.max(layout.alignment(bytes)),
            min_align_mask: self.granule,
            seg_boundary: None,
            ..*constraints
        };
        self.place(list.as_slice(), &Placement { constraints, ..*wanted })
    }

    /// Takes addresses for `request` from the page at `page` on, which the caller chose.
    fn take_page(&self, page: Iova, request: &Request) -> Result<IovaRange, MapError> {
        let aligned = page.is_aligned(request.align);
        let range = IovaRange::from_len(page, request.bytes).filter(|_| aligned);
        let range =
            range.ok_or(MapError::Outside { range: IovaRange::page(page, self.granule) })?;
        self.take_chosen(range, request.limit, || self.iova.alloc_at(range))?;
        Ok(range)
    }

    /// Takes addresses that the caller chose; those that wait for an invalidation are waited for.
    pub(in crate::dma) fn take_chosen(
        &self,
        range: IovaRange,
        limit: Iova,
        take: impl Fn() -> Result<(), FreeError>,
    ) -> Result<(), MapError> {
        if !self.iova.window().covers(range) || range.last() > limit {
            return Err(MapError::Outside { range });
        }
        let taken = self.or_flushed(take);
        taken.map_err(|error| match error {
            FreeError::Memory => MapError::Iova(IovaError::Memory),
            _ => MapError::Taken { range },
        })
    }

    /// Pays the debt of a map of `range`; if that fails, takes the mapping away again.
    fn after_map(
        &self,
        range: IovaRange,
        owed: &mut Gather,
        may_block: MayBlock,
    ) -> Result<(), NotPlaced> {
        let error = match may_block {
            MayBlock::No => MapError::WouldWait,
            MayBlock::Yes => match self.domain.sync(owed) {
                Ok(_) => return Ok(()),
                Err(error) => MapError::of(error.into()),
            },
        };
        // It was mapped just now, and no other caller knows of it.
        let unmapped = self.domain.unmap(range, owed);
        let owed = core::mem::take(owed);
        let held = match unmapped {
            Ok(()) => {
                self.trace_unmap(range);
                self.hold(range, owed)
            }
            Err(_) => self.hold_mapped(owed),
        };
        if let MapError::Iommu(error) = error {
            self.fail(error);
        }
        let held = Some(held);
        Err(NotPlaced { error, held })
    }

    /// The bytes of the pages that `pieces` need: one page for each, added once, and those behind it.
    #[inline]
    fn measure(&self, pieces: &[PhysRange], constraints: &Constraints) -> Result<u64, MapError> {
        if let Some(error) = self.failure() {
            return Err(MapError::Broken(error));
        }
        let inside = self.granule.bytes() - 1;
        let ends = pieces.iter().fold(EndBits::default(), |ends, &piece| ends.with(piece));
        if ends.forbid(inside, constraints.trust) {
            return Err(self.sub_page(pieces));
        }
        let mut pages = pieces.len() as u64;
        // Pieces of one page each need no sum.
        if ends.spread > inside {
            let more = pieces.iter().map(|piece| piece.pages_minus_one(self.granule));
            pages = more.fold(pages, u64::saturating_add);
        }
        match pages.checked_mul(self.granule.bytes()) {
            Some(0) => Err(MapError::Empty),
            Some(bytes) => Ok(bytes),
            None => Err(MapError::TooLong),
        }
    }

    /// The error of `pieces` that do not all fill their pages.
    #[cold]
    fn sub_page(&self, pieces: &[PhysRange]) -> MapError {
        let inside = self.granule.bytes() - 1;
        let uneven = |piece: &&PhysRange| (piece.start().get() | !piece.last().get()) & inside != 0;
        pieces.iter().find(uneven).map_or(MapError::Empty, |&piece| MapError::SubPage { piece })
    }

    /// Addresses for `request`.
    #[inline]
    pub(in crate::dma) fn allocate(
        &self,
        request: &Request,
        may_block: MayBlock,
    ) -> Result<IovaRange, MapError> {
        if may_block == MayBlock::No {
            return self.allocate_sparing(request);
        }
        self.replenish();
        match self.iova.alloc(request) {
            Ok(range) => Ok(range),
            Err(error) if self.ends_by_flush(&error) => self.allocate_again(request),
            Err(error) => Err(error.into()),
        }
    }

    #[cold]
    fn allocate_again(&self, request: &Request) -> Result<IovaRange, MapError> {
        Ok(self.iova.alloc(request)?)
    }

    /// Flushes if that may end `shortage`, and takes empty tables out if it is one of table pages; tells
    /// if the operation that failed is to be done again then. Ranges that cannot be made quiet do not
    /// come back, and another CPU may have made them quiet meanwhile: so it is, after a flush that
    /// failed as well.
    ///
    /// *Context.* Atomic.
    #[cold]
    pub(in crate::dma) fn ends_by_flush(&self, shortage: &impl MayEndByFlush) -> bool {
        let may_end = shortage.may_end();
        if may_end {
            let _ = self.flush();
            if shortage.is_of_tables() {
                let _ = self.give_back_tables(0);
            }
        }
        may_end
    }

    /// Does `act`, and once more after a flush if it lacks something that the flush may bring back.
    ///
    /// *Context.* Atomic.
    pub(in crate::dma) fn or_flushed<T, E: MayEndByFlush>(
        &self,
        mut act: impl FnMut() -> Result<T, E>,
    ) -> Result<T, E> {
        match act() {
            Err(error) if self.ends_by_flush(&error) => act(),
            done => done,
        }
    }

    /// Fills the reserve for handlers, and makes memory of CPUs that use the space for the first time.
    #[inline(always)]
    pub(in crate::dma) fn replenish(&self) {
        if self.iova.is_short() {
            // Without memory, they are told that there is none in reserve.
            let _ = self.iova.replenish();
        }
        if self.pending.wants_queues() {
            self.pending.make_wanted();
        }
    }

    /// Addresses for handlers, which touch no heap.
    #[inline]
    pub(in crate::dma) fn allocate_sparing(
        &self,
        request: &Request,
    ) -> Result<IovaRange, MapError> {
        let found = self.iova.try_alloc(request);
        if self.iova.is_short() {
            // The worker that calls `tick` fills the reserve as well.
            self.cpus.flush_wanted();
        }
        found.map_err(|error| match error {
            IovaError::Full { .. } => MapError::WouldWait,
            IovaError::Memory => MapError::NoReserve,
            other => other.into(),
        })
    }
}
