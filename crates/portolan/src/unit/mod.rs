//! What every IOMMU driver offers, whatever its registers: domains, attachments and faults.
//!
//! * [`Domain`]: one I/O address space. [`PagedDomain`] is the one that most hardware has: page
//!   tables of this library, an identifier and the unit's invalidation queue.
//! * [`Unit`]: one IOMMU, with its streams blocked, passed through, or ([`Attach`]) attached.
//! * [`FaultRecord`]: what it says of an access that it refused.
//!
//! Not here: addresses for the mappings, ownership of buffers, and when to pay a debt.

mod error;
mod fault;
mod paged;

pub use error::{AttachError, Awaited, DomainError, UnitError, UnmapFailed};
pub use fault::{FaultAccess, FaultEvent, FaultReason, FaultRecord};
pub use paged::{ContextHome, PagedDomain};

use crate::addr::{Iova, IovaRange, PageSize, PhysAddr, StreamId};
use crate::inval::{Gather, SyncFailed};
use crate::table::{Access, Segment, Translation};
use alloc::sync::Arc;

/// One I/O address space.
///
/// *Locking.* None that the caller sees. Callers on several CPUs work on disjoint ranges.
pub trait Domain {
    /// The addresses that can be mapped.
    fn input_range(&self) -> IovaRange;

    /// The smallest page: what ranges are aligned to.
    fn granule(&self) -> PageSize;

    /// The least access that can be granted and includes `access`; `None` if there is none.
    fn grants(&self, access: Access) -> Option<Access>;

    /// Maps a scatter list, each piece whole granules, at contiguous addresses from `iova`.
    ///
    /// # Errors
    /// See [`DomainError`]; nothing is mapped.
    fn map_sg<I>(
        &self,
        iova: Iova,
        segments: I,
        access: Access,
        owed: &mut Gather,
    ) -> Result<IovaRange, DomainError>
    where
        I: Iterator<Item = Segment> + Clone,
        Self: Sized;

    /// Moves the debt `from` into the debt `into`.
    fn absorb(&self, into: &mut Gather, from: Gather);

    /// Maps `bytes` from `pa` at `iova`. What has to happen before a device uses the mapping is
    /// added to `owed`.
    ///
    /// # Errors
    /// See [`DomainError`]; nothing is mapped.
    fn map(
        &self,
        iova: Iova,
        pa: PhysAddr,
        bytes: u64,
        access: Access,
        owed: &mut Gather,
    ) -> Result<IovaRange, DomainError>;

    /// Unmaps all of `range`. Devices may go on using the old translations until `owed` is paid.
    ///
    /// # Errors
    /// See [`UnmapFailed`].
    fn unmap(&self, range: IovaRange, owed: &mut Gather) -> Result<(), UnmapFailed>;

    /// Pays a debt of this domain and takes back what it held. When this returns `Ok`, no device
    /// reaches anything through what was unmapped.
    ///
    /// # Errors
    /// With the debt, which is still owed: nothing of it may be reused.
    #[allow(clippy::result_large_err)] // The debt travels back whole, without a heap.
    fn sync(&self, owed: Gather) -> Result<(), SyncFailed<UnitError>>;

    /// Whether anything has to be done to pay `owed`. If not, dropping it loses nothing: what a map
    /// owes is mostly nothing, and then a debt need not be handed around.
    #[inline]
    fn is_due(&self, owed: &Gather) -> bool {
        !owed.is_empty()
    }

    /// Leaves tables that small unmaps empty in place while there are at most `pages` table pages in
    /// all: then the next map there allocates nothing, and walk caches need not be invalidated.
    /// Domains without tables have nothing to keep.
    fn keep_empty_tables(&self, pages: usize) {
        let _ = pages;
    }

    /// What an address translates to now.
    fn translate(&self, iova: Iova) -> Option<Translation>;
}

/// One IOMMU.
///
/// A stream that was never named is blocked. Methods may be called from any CPU.
pub trait Unit {
    /// Blocks `stream`: its accesses fault. Returns once none is under way through what it was
    /// attached to before, which may then be dropped.
    ///
    /// # Errors
    /// If the stream is not the unit's, or the hardware did not complete. The stream is then
    /// blocked as far as the hardware looks, and keeps what it was attached to alive.
    fn block(&self, stream: StreamId) -> Result<(), AttachError>;

    /// Passes `stream` through untranslated. Guarantees as [`Unit::block`].
    ///
    /// # Errors
    /// As [`Unit::block`], or if the unit cannot pass through.
    fn pass_through(&self, stream: StreamId) -> Result<(), AttachError>;

    /// The oldest thing that the unit has to say of refused accesses, if any.
    ///
    /// # Errors
    /// If the unit is gone or its fault queue is beyond repair.
    fn next_fault(&self) -> Result<Option<FaultEvent>, UnitError>;
}

/// A unit that streams can be attached to domains of type `D` on.
pub trait Attach<D: Domain>: Unit {
    /// Lets `stream` reach memory through `domain`, which the unit keeps alive until the stream is
    /// moved away. Moving from one domain to another does not pass through a state in which more
    /// than one of the two is reachable from one access. Guarantees of completion as
    /// [`Unit::block`].
    ///
    /// # Errors
    /// See [`AttachError`]. The stream is then where it was, or blocked if the hardware failed.
    fn attach(&self, stream: StreamId, domain: &Arc<D>) -> Result<(), AttachError>;
}
