//! Placing of pieces at addresses.
//!
//! An operation that lacks addresses or table pages, and that may wait, flushes and is done again:
//! they may be with ranges that wait in the queues. Callers that may not wait return the error.

use super::{DmaRange, DmaSpace, MapsOwe};
use crate::addr::{Iova, IovaRange, PhysRange};
use crate::dma::error::MapError;
use crate::dma::flush_queue::Wait;
use crate::dma::layout::{Layout, PieceList};
use crate::dma::policy::{Constraints, MayBlock, Trust};
use crate::inval::Gather;
use crate::iommu::DomainError;
use crate::iova::{FreeError, IovaError, Request};
use crate::platform::Cpus;
use crate::platform::contract::{Buffer, DmaMemory, MemoryKind, Unowned, hidden_from};
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

/// The most ranges that fill the room between pieces: of 2 MiB for each of many pages.
const MOST_FILLS: usize = 1 << 16;

/// An error that may be a shortage of things that wait in the queues.
pub(in crate::dma) trait MayEndByFlush {
    /// Tells if a flush may end it.
    fn may_end(&self) -> bool;
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
    #[inline]
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
        let (range, first) = self.place_kept(memory.memory(), access, constraints)?;
        let space = self.id;
        Ok((DmaRange { range, space }, first))
    }

    /// The same, for a caller that keeps the memory in any case.
    #[inline]
    pub(in crate::dma) fn place_kept(
        &self,
        memory: PhysRange,
        access: Access,
        constraints: &Constraints,
    ) -> Result<(IovaRange, Iova), MapError> {
        self.place_one(memory, access, constraints).map_err(|failed| {
            if let Some(wait) = failed.held {
                self.keep(&wait);
            }
            failed.error
        })
    }

    /// The same of memory that the library keeps.
    #[inline]
    pub(in crate::dma) fn place_one(
        &self,
        memory: PhysRange,
        access: Access,
        constraints: &Constraints,
    ) -> Result<(IovaRange, Iova), NotPlaced> {
        let wanted = Placement { access, constraints, at: None, may_block: MayBlock::Yes };
        let range = self.place(core::slice::from_ref(&memory), &wanted)?;
        let mut layout = Layout::new(range.start(), self.granule, constraints);
        Ok((range, Iova::new(layout.place(memory).first)))
    }

    /// Access that a device has to be granted to have `access`.
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
        let layout = Layout::new(Iova::new(0), self.granule, wanted.constraints);
        match layout.is_dense() {
            true => self.place_dense(pieces, wanted),
            false => self.place_apart(pieces, wanted, layout),
        }
    }

    /// Takes `bytes` from the page at `page` on, which the caller chose.
    fn take_page(
        &self,
        page: Iova,
        bytes: u64,
        constraints: &Constraints,
    ) -> Result<IovaRange, MapError> {
        let aligned = page.is_aligned(constraints.align.max(self.granule));
        let range = IovaRange::from_len(page, bytes).filter(|_| aligned);
        let range =
            range.ok_or(MapError::Outside { range: IovaRange::page(page, self.granule) })?;
        self.take_chosen(range, constraints, || self.iova.alloc_at(range))?;
        Ok(range)
    }

    /// Takes addresses that the caller chose; those that wait for an invalidation are waited for.
    pub(in crate::dma) fn take_chosen(
        &self,
        range: IovaRange,
        constraints: &Constraints,
        take: impl Fn() -> Result<(), FreeError>,
    ) -> Result<(), MapError> {
        if !self.iova.window().covers(range) || range.last() > constraints.dma_mask {
            return Err(MapError::Outside { range });
        }
        let taken = self.or_flushed(take);
        taken.map_err(|error| match error {
            FreeError::Memory => MapError::Iova(IovaError::Memory),
            _ => MapError::Taken { range },
        })
    }

    /// As [`DmaSpace::place`], where pieces may have to lie apart.
    #[cold]
    fn place_apart(
        &self,
        pieces: &[PhysRange],
        wanted: &Placement<'_>,
        layout: Layout,
    ) -> Result<IovaRange, NotPlaced> {
        let &Placement { constraints, may_block, .. } = wanted;
        self.measure(pieces, constraints)?;
        let count = layout.count(pieces);
        if count - pieces.len() > MOST_FILLS {
            return Err(MapError::Records.into());
        }
        let list = PieceList::gather(layout.filled(pieces), count, may_block)?;
        let bytes = self.measure(list.as_slice(), constraints)?;
        let constraints =
            &Constraints { align: constraints.align.max(layout.alignment(bytes)), ..*constraints };
        self.place_dense(list.as_slice(), &Placement { constraints, ..*wanted })
    }

    /// Maps `pieces`, each in pages of its own, at contiguous addresses.
    #[inline]
    fn place_dense(
        &self,
        pieces: &[PhysRange],
        wanted: &Placement<'_>,
    ) -> Result<IovaRange, NotPlaced> {
        let &Placement { access, constraints, at, may_block } = wanted;
        let bytes = self.measure(pieces, constraints)?;
        if may_block == MayBlock::No && self.maps_owe == MapsOwe::Sync {
            return Err(MapError::WouldWait.into());
        }
        let range = match at {
            None => self.allocate(bytes, constraints, may_block)?,
            Some(page) => self.take_page(page, bytes, constraints)?,
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
            if !owed.is_empty() {
                self.owe(owed);
            }
            self.give_back_unused(range);
            return Err(error.into());
        }
        self.trace_map(range.start(), pieces);
        let owes = self.maps_owe == MapsOwe::Sync || owed.holds_tables();
        if owes && self.domain.is_due(&owed) {
            self.after_map(range, &mut owed, may_block)?;
        }
        Ok(range)
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
        let mut pages = pieces.len() as u64;
        let inside = self.granule.bytes() - 1;
        for &piece in pieces {
            let uneven = (piece.start().get() | piece.last().get().wrapping_add(1)) & inside != 0;
            if uneven && constraints.trust == Trust::Untrusted {
                return Err(MapError::SubPage { piece });
            }
            pages = pages.saturating_add(piece.pages_minus_one(self.granule));
        }
        match pages.checked_mul(self.granule.bytes()) {
            Some(0) => Err(MapError::Empty),
            Some(bytes) => Ok(bytes),
            None => Err(MapError::TooLong),
        }
    }

    /// Addresses for `bytes`.
    #[inline]
    pub(in crate::dma) fn allocate(
        &self,
        bytes: u64,
        constraints: &Constraints,
        may_block: MayBlock,
    ) -> Result<IovaRange, MapError> {
        let align = constraints.align.max(self.granule);
        let request = Request { bytes, align, limit: constraints.dma_mask };
        if may_block == MayBlock::No {
            return self.allocate_sparing(&request);
        }
        self.replenish();
        match self.iova.alloc(&request) {
            Ok(range) => Ok(range),
            Err(error) if self.ends_by_flush(&error) => Ok(self.iova.alloc(&request)?),
            Err(error) => Err(error.into()),
        }
    }

    /// Flushes if that may end `shortage`, and tells if the operation that failed is to be done
    /// again then. Ranges that cannot be made quiet do not come back, and another CPU may have made
    /// them quiet meanwhile: so it is, after a flush that failed as well.
    ///
    /// *Context.* Atomic.
    #[cold]
    pub(in crate::dma) fn ends_by_flush(&self, shortage: &impl MayEndByFlush) -> bool {
        let may_end = shortage.may_end();
        if may_end {
            let _ = self.flush();
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

    /// Fills the reserve for handlers.
    #[inline]
    pub(in crate::dma) fn replenish(&self) {
        if self.iova.is_short() {
            // Without memory, they are told that there is none in reserve.
            let _ = self.iova.replenish();
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
