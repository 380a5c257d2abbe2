//! Errors of this module, a small one per operation; what comes back with them, and what does not.
//!
//! *Context.* Interrupt: everything here is a value.

use core::error::Error as StdError;
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};

use thiserror::Error;

use crate::addr::{Iova, IovaRange, PageSize, PhysRange};
use crate::bounce::TakeError;
use crate::iommu::{AttachError, Awaited, DomainError, DomainUnmapError, IommuError, NotDisjoint};
use crate::iova::IovaError;
use crate::platform::Nanos;
use crate::table::DirtyError;

/// Error of a map. Nothing of it is reachable, and the buffer comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MapError {
    /// It has no pieces.
    #[error("the buffer is empty")]
    Empty,
    /// It is longer than any range of addresses.
    #[error("the buffer is longer than the address space")]
    TooLong,
    /// A piece shares a page with memory that an untrusted device must not reach, and the device
    /// has no pool for copies, or the map refuses them.
    #[error(
        "{piece} does not fill its pages, the device is not trusted, and it is not \
             copied"
    )]
    SubPage {
        /// The piece.
        piece: PhysRange,
    },
    /// A piece lies above the last address that an untranslated device can reach, and the device
    /// has no pool for copies, or the map refuses them.
    #[error("{piece} is above the device's limit {limit}, and it is not copied")]
    AboveLimit {
        /// The piece.
        piece: PhysRange,
        /// The device's highest address.
        limit: Iova,
    },
    /// A piece shares a cache line with other memory, the device writes there and does not snoop, and it
    /// has no pool for copies, or the map refuses them.
    #[error(
        "{piece} shares a cache line of {} bytes, the device does not snoop, and it is not copied",
        line.bytes()
    )]
    SharedLine {
        /// The piece.
        piece: PhysRange,
        /// Length of a line.
        line: PageSize,
    },
    /// The memory is private to a confidential guest, the device reaches shared memory alone, and it has
    /// no pool for copies, or is to reach the memory in place.
    #[error("{piece} is private to the guest, and the device reaches shared memory alone")]
    Private {
        /// The piece.
        piece: PhysRange,
    },
    /// The map refuses copies, and the device is one whose buffers are always copied.
    #[error("the device's buffers are always copied, and the map refuses copies")]
    AlwaysCopied,
    /// The device is blocked.
    #[error("the device is blocked")]
    Blocked,
    /// The device is in no space: it has no addresses that could be set aside.
    #[error("the device's addresses are not translated")]
    Untranslated,
    /// The device would write, and the buffer says that its memory may not be written.
    #[error("the device would write to a buffer that may not be written")]
    ReadOnly,
    /// Addresses were asked for that lie outside of the space's window, or above the device's limit.
    #[error("{range} cannot be given out")]
    Outside {
        /// The addresses.
        range: IovaRange,
    },
    /// Addresses were asked for of which a part is in use.
    #[error("{range} is in use")]
    Taken {
        /// The addresses.
        range: IovaRange,
    },
    /// The interface that the guest let in does not run any more. Nothing is copied for it: the host would see it.
    #[error("the device's interface does not run any more: stop it, and let it in again")]
    NotRunning,
    /// The guest let the device in, and its pool is in memory that the host sees.
    #[error(
        "the pool is in memory that the host sees, and the device reaches private memory: give it a private pool"
    )]
    SharedPool,
    /// No room for a copy.
    #[error(transparent)]
    Copy(#[from] TakeError),
    /// The platform has no memory for it.
    #[error("the platform has no {bytes} bytes of memory")]
    NoMemory {
        /// Number of bytes that were needed.
        bytes: u64,
    },
    /// The platform has no memory that CPUs do not cache, and the device does not snoop.
    #[error("the platform has no {bytes} bytes of memory that CPUs do not cache")]
    NoUncached {
        /// Number of bytes that were needed.
        bytes: u64,
    },
    /// The platform has no memory that a confidential guest shares with its host, and the device reaches no other.
    #[error("the platform has no {bytes} bytes of memory that is shared with the host")]
    NoShared {
        /// Number of bytes that were needed.
        bytes: u64,
    },
    /// No memory for a long list of pieces or copies, or more room between pieces than a list fills
    /// ([`Constraints::min_align_mask`](super::Constraints::min_align_mask)).
    #[error("no memory for the list of its pieces or copies")]
    Records,
    /// No addresses.
    #[error(transparent)]
    Iova(#[from] IovaError),
    /// The tables.
    #[error(transparent)]
    Domain(#[from] DomainError),
    /// The map would have to wait: see [`Device::try_map`](super::Device::try_map).
    #[error("the map would have to wait for the hardware, or for a record of copies")]
    WouldWait,
    /// The records for handlers' addresses are used up: [`DmaSpace::tick`](super::DmaSpace::tick),
    /// [`DmaSpace::flush`](super::DmaSpace::flush) and [`Device::map`](super::Device::map) make new
    /// ones.
    #[error("no records of addresses are in reserve")]
    NoReserve,
    /// The address space was broken before: nothing was done.
    #[error("the address space is broken: {0}")]
    Broken(IommuError),
    /// The hardware did not complete just now: a device may have reached the buffer.
    #[error(transparent)]
    Iommu(IommuError),
    /// Other callers had the unit's queue for so long: a device may have reached the buffer.
    #[error("the unit's queue was busy for {waited:?}")]
    Busy {
        /// Time that passed.
        waited: Nanos,
    },
}

impl MapError {
    /// Converts the error of a sync that did not get its turn in time, or failed.
    pub(super) fn of(error: IommuError) -> Self {
        match waited_for_a_turn(error) {
            Some(waited) => Self::Busy { waited },
            None => Self::Iommu(error),
        }
    }
}

/// Error of a read, write or sync of a mapped buffer's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AccessError {
    /// They are not all inside the buffer.
    #[error("{bytes} bytes from {at} are not inside a buffer of {length} bytes")]
    OutOfBounds {
        /// Offset of the first.
        at: u64,
        /// Number of bytes.
        bytes: u64,
        /// Bytes of the buffer.
        length: u64,
    },
    /// The buffer is not contiguous for the CPU, or does not say where the CPU sees it.
    #[error("the buffer has no view for the CPU")]
    NoView,
    /// The buffer says that its memory may not be written.
    #[error("the buffer may not be written")]
    ReadOnly,
}

/// Error of a pool that is to stay mapped for a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PremapError {
    /// The device's addresses are not translated: it reaches the pool anyway, or nothing.
    #[error("the device's addresses are not translated")]
    NotTranslated,
    /// It has no pool.
    #[error("the device has no pool for copies")]
    NoPool,
    /// Its pool grows: a part that comes later would not be mapped.
    #[error("the device's pool grows, and a part that comes later would not be mapped")]
    Grows,
    /// The device would reach bytes that others left in the pool.
    #[error("the device is not trusted: it may reach no slots but those of its mappings")]
    Untrusted,
    /// Its buffers want more than a page's alignment, which slots do not have.
    #[error("buffers want to be aligned to {} bytes, slots are to pages of {} at most",
        align.bytes(), granule.bytes())]
    Alignment {
        /// Alignment that the copies need.
        align: PageSize,
        /// The page.
        granule: PageSize,
    },
    /// The pool does not fill its pages.
    #[error("{memory} does not fill its pages")]
    Uneven {
        /// The pool.
        memory: PhysRange,
    },
    /// It was not mapped.
    #[error(transparent)]
    Map(#[from] MapError),
}

/// Error of a pool of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BufferPoolError {
    /// The buffer has no slot of such a length.
    #[error("no slot of {bytes} bytes in a buffer of {length} bytes")]
    Length {
        /// Length of a slot.
        bytes: usize,
        /// Bytes of the buffer.
        length: u64,
    },
    /// The buffer is not contiguous for the CPU, or does not say where the CPU sees it.
    #[error("the buffer has no view for the CPU")]
    NoView,
    /// The buffer says that its memory may not be written.
    #[error("the buffer may not be written")]
    ReadOnly,
    /// Others reach the buffer's memory at any time: its bytes are never lent.
    #[error("the buffer's memory is shared with others")]
    Shared,
    /// The device is not trusted, and would reach the slots that the CPU has, since they are not copied.
    #[error("the device is not trusted, and would reach the slots that the CPU has")]
    Untrusted,
    /// The slot at this offset is not one segment: a piece or a copy of the buffer ends inside, or the device's
    /// limits cut it.
    #[error("the slot at offset {at} is not one segment")]
    Cut {
        /// Offset in the buffer.
        at: u64,
    },
    /// The device writes and does not snoop, and the slot at this offset shares a cache line with others.
    #[error("the slot at offset {at} shares a cache line of {} bytes", line.bytes())]
    SharedLine {
        /// Offset in the buffer.
        at: u64,
        /// Length of a line.
        line: PageSize,
    },
    /// No memory for the list of slots.
    #[error("no memory for the list of slots")]
    Memory,
    /// So many slots are out.
    #[error("{slots} slots are out")]
    InUse {
        /// Number of slots.
        slots: usize,
    },
}

/// Error of a cut of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DivideError {
    /// A part of the buffer is reached as a copy.
    #[error("a part of the buffer is copied")]
    Copied,
    /// The device's limits may leave addresses free between pieces.
    #[error("pieces may lie apart in the addresses")]
    Apart,
    /// There is no byte at this offset before which it can be cut, or none on one side.
    #[error("the mapping cannot be cut at offset {at}")]
    NotThere {
        /// Offset in the buffer.
        at: u64,
    },
}

/// Error of an unmap, or of a wait until a mapping is quiet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum UnmapError {
    /// The mapping is of another address space.
    #[error("the mapping belongs to another address space")]
    OtherSpace,
    /// The tables: the mapping is as it was.
    #[error(transparent)]
    Unmap(#[from] DomainUnmapError),
    /// The hardware did not complete, now or before: the unmapped range is kept out of use.
    #[error(transparent)]
    Iommu(IommuError),
    /// Another caller pays for it, or has had the unit's queue, for so long. It is kept, and may be
    /// asked for again; the hardware is not known to have failed.
    #[error("another caller's flush took {waited:?} and is not done")]
    Busy {
        /// Time for which the caller waited.
        waited: Nanos,
    },
    /// It could not be unmapped, and is kept for good.
    #[error("it could not be unmapped: it is kept for good")]
    StillMapped,
    /// No buffer is linked at this offset of a reservation.
    #[error("no buffer is linked at offset {offset:#x}")]
    NotLinked {
        /// The offset.
        offset: u64,
    },
}

/// Error of reading the marks of written pages of a space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SpaceDirtyError {
    /// The domain keeps no marks there.
    #[error(transparent)]
    Domain(#[from] DirtyError),
    /// It was not paid for: pages that were handed over may be written again without a mark, until the next read
    /// succeeds.
    #[error(transparent)]
    NotPaid(UnmapError),
}

impl UnmapError {
    /// Converts the error of a sync that did not get its turn in time, or failed.
    pub(super) fn of(error: IommuError) -> Self {
        match waited_for_a_turn(error) {
            Some(waited) => Self::Busy { waited },
            None => Self::Iommu(error),
        }
    }
}

/// Time for which other callers had the unit's queue, if `error` says that this was too long: the
/// hardware itself is not known to have failed then.
pub(super) fn waited_for_a_turn(error: IommuError) -> Option<Nanos> {
    match error {
        IommuError::TimedOut { awaited: Awaited::Turn, waited } => Some(waited),
        _ => None,
    }
}

/// Error of the set-up of an address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SpaceError {
    /// No addresses that the domain can translate.
    #[error("no address of the window can be translated")]
    NoAddresses,
    /// The domain cannot let devices read and write.
    #[error("the domain grants no access")]
    NoAccess,
    /// Another space has the domain.
    #[error("another address space has the domain")]
    Claimed,
    /// No memory for queues.
    #[error("no memory for the address space's own records")]
    Memory,
    /// The address allocator.
    #[error(transparent)]
    Iova(#[from] IovaError),
}

/// Error of an attachment of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The unit.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// No memory to remember the device.
    #[error("no memory to remember the device")]
    Memory,
    /// The address space is broken.
    #[error("the address space is broken: {0}")]
    Broken(IommuError),
    /// Another [`Device`](super::Device) is the stream, or its PASID, in the same address space; or the
    /// space is another unit's.
    #[error(
        "the stream has a device in this address space already, or the space is another unit's"
    )]
    InUse,
    /// The device has mappings, deferred buffers or coherent memory in the space that it would leave.
    #[error("the device has mappings in the address space that it would leave")]
    Mapped,
    /// Accesses of the device carry streams that other devices have as well: it does not move alone.
    #[error("the device shares streams with others, and does not leave their address space alone")]
    Shared,
    /// No unit serves the device: nothing translates or blocks its accesses.
    #[error("no IOMMU serves the device, so nothing translates or blocks its accesses")]
    NoUnit,
    /// The device is not trusted: it would reach memory that is its driver's again, or all of it.
    #[error("the device is not trusted: it must not be passed through, nor be in a lazy space")]
    Untrusted,
    /// The device is trusted less than those of the address space, or firmware's devices use memory
    /// there that it must not reach: it would reach mappings of others.
    #[error(
        "the device is trusted less than those of the address space, and would reach what is theirs"
    )]
    LessTrusted,
    /// Addresses that are reserved for the device are mapped already.
    #[error("{range}, reserved for the device, is in use")]
    Reserved {
        /// The addresses.
        range: IovaRange,
    },
    /// Regions that the unit reserves for the device contradict each other.
    #[error(transparent)]
    Contradiction(NotDisjoint),
    /// A region that firmware's devices use was not mapped one to one.
    #[error(transparent)]
    Map(#[from] MapError),
}

impl From<NotDisjoint> for DeviceError {
    fn from(error: NotDisjoint) -> Self {
        match error {
            NotDisjoint::Memory => Self::Memory,
            other @ NotDisjoint::Contradiction { .. } => Self::Contradiction(other),
        }
    }
}

/// Error of an operation, with the value that was handed in for it.
///
/// ```
/// use portolan::dma::{Failed, MapError};
///
/// fn refused(packet: Vec<u8>) -> Result<(), Failed<Vec<u8>, MapError>> {
///     Err(Failed { error: MapError::Empty, value: packet })
/// }
/// let failed = refused(vec![1, 2]).expect_err("an example of a failure");
/// assert_eq!(failed.value, [1, 2]);
///
/// // With `?`, what comes back goes where it can be found again.
/// fn retried(packet: Vec<u8>, spare: &mut Vec<Vec<u8>>) -> Result<(), MapError> {
///     refused(packet).map_err(|failed| failed.keep(|packet| spare.push(packet)))?;
///     Ok(())
/// }
/// let mut spare = Vec::new();
/// assert_eq!(retried(vec![3], &mut spare), Err(MapError::Empty));
/// assert_eq!(spare, [[3]]);
/// ```
#[must_use = "it holds what was handed in"]
pub struct Failed<T, E> {
    /// The reason for the failure.
    pub error: E,
    /// Value that was handed in, as it is now.
    pub value: T,
}

impl<T, E> Failed<T, E> {
    /// Hands the value to `keep`, and returns the error: for `map_err` before a `?`.
    pub fn keep(self, keep: impl FnOnce(T)) -> E {
        keep(self.value);
        self.error
    }
}

impl<T, E: fmt::Debug> fmt::Debug for Failed<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Failed");
        shown.field("error", &self.error).finish_non_exhaustive()
    }
}

impl<T, E: fmt::Display> fmt::Display for Failed<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<T, E: StdError> StdError for Failed<T, E> {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.error.source()
    }
}

/// Numbers of buffers and addresses that were given up instead of being reused too early.
///
/// *Context.* Interrupt: a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Quarantine {
    /// Mappings and deferred buffers that were dropped instead of being unmapped or reclaimed; their
    /// memory is never freed.
    pub dropped: u64,
    /// The bytes of those.
    pub bytes: u64,
    /// Addresses that were not given back: those of which a deferred buffer was dropped that kept
    /// them itself, and those for which the allocator had no memory. Ranges.
    pub addresses: u64,
}

/// The counters behind [`Quarantine`].
///
/// *Context.* Interrupt: counters.
#[derive(Debug, Default)]
pub(super) struct Lost {
    dropped: AtomicU64,
    bytes: AtomicU64,
    addresses: AtomicU64,
}

impl Lost {
    /// One mapping or buffer of so many bytes.
    pub fn count(&self, bytes: u64) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// So many ranges of addresses.
    pub fn count_addresses(&self, ranges: u64) {
        self.addresses.fetch_add(ranges, Ordering::Relaxed);
    }

    pub fn get(&self) -> Quarantine {
        Quarantine {
            dropped: self.dropped.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            addresses: self.addresses.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::error::Error;

    #[derive(Debug)]
    struct Outer(MapError);

    impl fmt::Display for Outer {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("outside")
        }
    }

    impl Error for Outer {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    fn it_says_what_its_error_says() {
        let error = Outer(MapError::Empty);
        let failed = Failed { error, value: () };
        let [shown, printed] = [alloc::format!("{failed}"), alloc::format!("{failed:?}")];
        assert_eq!(shown, "outside");
        assert!(printed.contains("Outer(Empty)"), "{printed}");
        assert!(failed.source().is_some_and(|source| source.is::<MapError>()));
    }
}
