//! Errors of this module, a small one per operation.
//!
//! *Context.* Interrupt: everything here is a value.

use alloc::sync::Arc;
use core::fmt;

use thiserror::Error;

use super::account::LimitReached;
use super::debt::UnpaidReason;
use super::owner::PopulateError;
use crate::addr::{Iova, IovaRange};
use crate::iommu::{DomainError, DomainUnmapError, IommuError};
use crate::platform::Nanos;
use crate::table::Access;

/// Error of making a container: another one, or a [`DmaSpace`](crate::dma::DmaSpace), has the addresses of the
/// domain ([`Domain::claim`](crate::iommu::Domain::claim)).
#[derive(Error)]
#[error("another space has the addresses of the domain")]
pub struct DomainClaimed<D, P> {
    /// The domain that was handed in.
    pub domain: Arc<D>,
    /// The CPUs that were handed in.
    pub cpus: P,
}

impl<D, P> fmt::Debug for DomainClaimed<D, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DomainClaimed").finish_non_exhaustive()
    }
}

/// Error of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FaultError {
    /// No region has that address.
    #[error("no memory is registered at {iova}")]
    NoRegion {
        /// The address that faulted.
        iova: Iova,
    },
    /// The region does not allow it.
    #[error("{wanted:?} at {iova} where {allowed:?} is allowed")]
    Denied {
        /// The address that faulted.
        iova: Iova,
        /// Access that the device asked for.
        wanted: Access,
        /// Access that is allowed.
        allowed: Access,
    },
    /// No such address space.
    #[error("no address space is registered for {pasid:?}", pasid = pasid.map(crate::addr::Pasid::get))]
    NoSpace {
        /// The PASID that no address space has.
        pasid: Option<crate::addr::Pasid>,
    },
    /// The owner could not.
    #[error(transparent)]
    Populate(#[from] PopulateError),
    /// The owner handed over no memory, or less than a granule.
    #[error("the owner of {iova} handed over {bytes} bytes")]
    Short {
        /// The address that faulted.
        iova: Iova,
        /// The bytes that the pager handed over.
        bytes: u64,
    },
    /// More may not be mapped.
    #[error(transparent)]
    Limit(#[from] LimitReached),
    /// Memory was taken back again and again before it could be mapped.
    #[error("{iova} was taken back {times} times before it could be mapped")]
    Contended {
        /// The address that faulted.
        iova: Iova,
        /// Number of times that the memory was taken back meanwhile.
        times: u32,
    },
    /// Another CPU took memory back around it, or paid a debt that the fault needs paid, for too
    /// long.
    #[error("another CPU was at work around {iova} for too long")]
    Busy {
        /// The address that faulted.
        iova: Iova,
    },
    /// The previous mapping may still be reached, since the hardware did not complete.
    #[error("{iova} is not quiet")]
    NotQuiet {
        /// The address that faulted.
        iova: Iova,
    },
    /// The domain refused.
    #[error(transparent)]
    Map(#[from] DomainError),
    /// It was mapped, and the hardware did not complete the sync after that.
    #[error(transparent)]
    Iommu(#[from] IommuError),
}

/// Error of taking a range back: devices may still reach it, and its memory must not be reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum InvalidateError {
    /// Part of it is pinned. Nothing was done.
    #[error("{pinned} is pinned")]
    Pinned {
        /// The part of the range that is pinned.
        pinned: IovaRange,
    },
    /// The domain did not unmap.
    #[error("{range} was not unmapped: {error}")]
    Unmap {
        /// The part of the range that is still mapped.
        range: IovaRange,
        /// The reason that the domain gave.
        error: DomainUnmapError,
    },
    /// Another CPU takes memory back there, or maps, or pays a debt that comes before, and did not
    /// finish in time. Nothing is wrong with the hardware.
    #[error("another CPU was at work in {range} for {waited} ns", waited = waited.get())]
    Busy {
        /// The range that is to be taken back.
        range: IovaRange,
        /// Time for which the caller waited.
        waited: Nanos,
    },
    /// The hardware did not complete the invalidation.
    #[error("unmapped, and not quiet: {0}")]
    Iommu(#[from] IommuError),
}

/// Error of paying earlier debts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RecoverError {
    /// Another CPU pays it and did not finish in time.
    #[error("another CPU paid what is owed for {waited} ns", waited = waited.get())]
    Busy {
        /// Time for which the caller waited.
        waited: Nanos,
    },
    /// The hardware did not complete.
    #[error(transparent)]
    Iommu(#[from] IommuError),
}

impl From<UnpaidReason> for RecoverError {
    fn from(cause: UnpaidReason) -> Self {
        match cause {
            UnpaidReason::Iommu(error) => Self::Iommu(error),
            UnpaidReason::Turn { waited } => Self::Busy { waited },
        }
    }
}

/// Error of adding a region. Nothing of it is mapped or pinned, but for [`RegionError::NotQuiet`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RegionError {
    /// It does not begin and end at the granule, or a part to be pinned does not.
    #[error("{range} is not whole granules")]
    Unaligned {
        /// The range that was asked for.
        range: IovaRange,
    },
    /// The domain cannot map these addresses.
    #[error("{range} is not an address range of the domain")]
    OutOfRange {
        /// The range that was asked for.
        range: IovaRange,
    },
    /// A region lies there, or a part to be pinned overlaps another or lies outside.
    #[error("{range} overlaps, or is outside")]
    Overlaps {
        /// The range that was asked for.
        range: IovaRange,
    },
    /// The domain cannot grant the access.
    #[error("the domain cannot grant {access:?}")]
    Access {
        /// The access that was asked for.
        access: Access,
    },
    /// No memory for the region's own records.
    #[error("no memory for the records of a region of {slots} slots")]
    NoMemory {
        /// The slots that the region would have.
        slots: u64,
    },
    /// The owner could not pin.
    #[error(transparent)]
    Populate(#[from] PopulateError),
    /// The owner handed over no memory, or less than a granule.
    #[error("the owner of {iova} handed over {bytes} bytes")]
    Short {
        /// The address that faulted.
        iova: Iova,
        /// The bytes that the pager handed over.
        bytes: u64,
    },
    /// More may not be pinned or mapped.
    #[error(transparent)]
    Limit(#[from] LimitReached),
    /// The domain refused.
    #[error(transparent)]
    Map(#[from] DomainError),
    /// The debt of its mapping was not paid.
    #[error(transparent)]
    NotPaid(#[from] RecoverError),
    /// It was not added, for any of the other reasons, and devices may still reach memory that was
    /// pinned for it. The region stays, closed to faults, until [`Ioas::remove_region`] succeeds.
    ///
    /// [`Ioas::remove_region`]: super::Ioas::remove_region
    #[error("the region is closed and not quiet: {0}")]
    NotQuiet(InvalidateError),
}

/// Error of removing a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RemoveError {
    /// There is none that begins there.
    #[error("no region begins at {start}")]
    NoRegion {
        /// The first address that was asked for.
        start: Iova,
    },
    /// Devices may still reach it. It serves no fault any more, and can be removed again later.
    #[error(transparent)]
    NotQuiet(#[from] InvalidateError),
}

/// Error of reading dirty state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ReadDirtyError {
    /// The table refused.
    #[error(transparent)]
    Table(#[from] crate::table::DirtyError),
    /// It was not paid for: granules that were handed over may be written again without a mark,
    /// until the next dirty read succeeds.
    #[error(transparent)]
    NotPaid(#[from] RecoverError),
}
