//! An address space that the kernel keeps, as the two interfaces offer one: map, unmap.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use portolan::addr::{IovaRange, PageSize, PhysAddr, PhysRange};
use portolan::iommu::{AttachError, IommuError};
use portolan::table::Access;
use rustix::io::Errno;
use thiserror::Error;

use crate::sys::iommufd::Part;

/// Marks of written pages after a read of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AfterRead {
    /// Cleared by the read.
    Cleared,
    /// As they were.
    Kept,
}

/// An address space of the kernel's. Mappings are neither cut nor joined.
pub(crate) trait Calls: Send + Sync + fmt::Debug {
    /// Maps and pins `range` to the memory of this process from `memory` on, or to the file that is known to be there:
    /// with [`Access::DEVICE`] to a dma-buf and nothing else.
    fn map(&self, range: IovaRange, memory: PhysAddr, access: Access) -> Result<(), IommuError>;

    /// Unmaps the mappings that lie in `range`, which cuts none, and of which there are some, of `bytes`
    /// bytes in all. No device reaches their memory when this returns.
    fn unmap(&self, range: IovaRange, bytes: u64) -> Result<(), IommuError>;

    /// Sets a bit in `bitmap` for each page of `page` in `range` that devices may have written since the marks
    /// were cleared. `range` is whole mappings.
    fn dirty(
        &self,
        range: IovaRange,
        page: PageSize,
        after: AfterRead,
        bitmap: &mut [u64],
    ) -> Result<(), IommuError>;

    /// Tells if page requests of its devices go to a queue.
    fn has_queue(&self) -> bool {
        false
    }

    /// Place of `memory` in an address space of iommufd's that lends what it maps.
    fn lent(&self, memory: PhysRange) -> Option<Part> {
        let _ = memory;
        None
    }

    /// Its number, if it is one of iommufd's.
    fn ioas(&self) -> Option<u32> {
        None
    }

    /// Number of the object of iommufd's that the device with this number is attached to.
    fn tables(&self, device: u32) -> Result<u32, AttachError> {
        let _ = device;
        Err(AttachError::Mismatch)
    }

    /// The same, if a guest's tables may lie above it.
    fn second_stage(&self, device: u32) -> Result<u32, AttachError> {
        let _ = device;
        Err(AttachError::Mismatch)
    }
}

/// Maker of address spaces, empty ones.
pub(crate) trait Spaces: Send + Sync + fmt::Debug {
    fn new_space(&self) -> Result<Arc<dyn Calls>, IommuError>;
}

/// System calls that were made of each kind.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) map: AtomicU64,
    pub(crate) map_file: AtomicU64,
    pub(crate) copy: AtomicU64,
    pub(crate) unmap: AtomicU64,
    pub(crate) attach: AtomicU64,
}

impl Counters {
    pub(crate) fn get(&self) -> CallCounts {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CallCounts {
            map: of(&self.map),
            map_file: of(&self.map_file),
            copy: of(&self.copy),
            unmap: of(&self.unmap),
            attach: of(&self.attach),
        }
    }
}

/// Counts one more.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// System calls that a unit's domains have made, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallCounts {
    /// Maps.
    pub map: u64,
    /// Maps of files by their descriptors, which are none of [`map`](Self::map).
    pub map_file: u64,
    /// Maps of memory that another domain has pinned, which are none of the others.
    pub copy: u64,
    /// Unmaps.
    pub unmap: u64,
    /// Attaching devices, and taking them away.
    pub attach: u64,
}

/// Error for a refusal of the kernel, for callers that know units only.
pub(crate) fn refused(error: &io::Error) -> IommuError {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NODEV | Errno::IO) => IommuError::Gone,
        Some(Errno::OPNOTSUPP | Errno::NOTTY) => IommuError::Unsupported,
        Some(errno) => IommuError::Refused { code: errno.raw_os_error().unsigned_abs() },
        None => IommuError::Refused { code: 0 },
    }
}

/// Meaning of a kernel's refusal of a map, and the remedy.
///
/// ```
/// use portolan::iommu::IommuError;
/// use portolan_linux::Refusal;
///
/// let error = IommuError::Refused { code: 12 };
/// assert!(matches!(Refusal::of(error), Some(Refusal::LockedMemory { .. })));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Refusal {
    /// More would be pinned than the process may lock.
    #[error(
        "the kernel does not pin more memory: RLIMIT_MEMLOCK is {limit} bytes. Raise it (`ulimit -l`, \
         `LimitMEMLOCK=` of a service, /etc/security/limits.conf), or give the program CAP_IPC_LOCK"
    )]
    LockedMemory {
        /// The limit, in bytes.
        limit: u64,
    },
    /// There are as many mappings as the container may have.
    #[error(
        "the container has as many mappings as it may: map larger pieces, or raise \
         /sys/module/vfio_iommu_type1/parameters/dma_entry_limit"
    )]
    Entries,
    /// The memory is not mapped in this process, or not writable.
    #[error("the memory is not this process's, or may not be written")]
    Memory,
    /// Something is mapped there of which this library does not know.
    #[error("something is mapped there already, by another owner of the container")]
    Taken,
    /// Anything else.
    #[error("{}", io::Error::from_raw_os_error(*.code))]
    Other {
        /// The system's number of the error.
        code: i32,
    },
}

impl Refusal {
    /// Returns the meaning of `error` of a map; `None` if the kernel did not refuse.
    pub fn of(error: IommuError) -> Option<Self> {
        let IommuError::Refused { code } = error else {
            return None;
        };
        let code = i32::try_from(code).ok()?;
        Some(match Errno::from_raw_os_error(code) {
            Errno::NOMEM => Self::LockedMemory { limit: locked_memory_limit() },
            Errno::NOSPC => Self::Entries,
            Errno::FAULT => Self::Memory,
            Errno::EXIST | Errno::ADDRINUSE => Self::Taken,
            _ => Self::Other { code },
        })
    }
}

/// RLIMIT_MEMLOCK in bytes; the most there is if there is none.
pub(crate) fn locked_memory_limit() -> u64 {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock);
    limit.current.unwrap_or(u64::MAX)
}
