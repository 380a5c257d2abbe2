//! Addresses first, pieces later, one sync for all of them.

use alloc::sync::Arc;

use thiserror::Error;

use super::error::{MapError, UnmapError};
use super::policy::MayBlock;
use super::space::DmaSpace;
use super::waiting::Chosen;
use super::{Constraints, DataDirection, HostVisibility, Trust};
use crate::addr::{Iova, IovaRange, PhysRange};
use crate::inval::Gather;
use crate::iommu::DomainError;
use crate::platform::Cpus;
use crate::platform::contract::{Buffer, DmaMemory, Unowned, hidden_from};

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
        let range = space.allocate(bytes, constraints, MayBlock::Yes)?;
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
        space.take_chosen(range, constraints, || space.iova.reserve_free(range))?;
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
