//! What can go wrong, one small error per operation.

use thiserror::Error;

use crate::addr::{Iova, PageSize, PhysRange};
use crate::bounce::TakeError;
use crate::iova::IovaError;
use crate::unit::{AttachError, DomainError, UnitError, UnmapFailed};

/// Why a buffer was not mapped. Nothing of it is reachable, and the buffer comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MapError {
    /// It has no pieces.
    #[error("the buffer is empty")]
    Empty,
    /// It is longer than any range of addresses.
    #[error("the buffer is longer than the address space")]
    TooLong,
    /// A piece shares a page with memory that an untrusted device must not reach, and the device
    /// has no pool for copies.
    #[error("{start}..={last} does not fill its pages, the device is not trusted, and it has no \
             pool for copies", start = piece.start(), last = piece.last())]
    SubPage {
        /// The piece.
        piece: PhysRange,
    },
    /// A piece lies above what an untranslated device can reach, and the device has no pool for
    /// copies.
    #[error("{start}..={last} is above the device's limit {limit}, and it has no pool for copies",
        start = piece.start(), last = piece.last())]
    AboveLimit {
        /// The piece.
        piece: PhysRange,
        /// The device's highest address.
        limit: Iova,
    },
    /// The device is blocked.
    #[error("the device is blocked")]
    Blocked,
    /// The table format has no way to grant the direction.
    #[error("the direction cannot be granted")]
    Direction,
    /// No room for a copy.
    #[error(transparent)]
    Copy(#[from] TakeError),
    /// No memory to remember the copies of a long list.
    #[error("no memory to remember the copies")]
    Records,
    /// No addresses.
    #[error(transparent)]
    Iova(#[from] IovaError),
    /// The tables.
    #[error(transparent)]
    Domain(#[from] DomainError),
    /// The hardware, now or at an earlier operation of this address space.
    #[error(transparent)]
    Unit(#[from] UnitError),
}

/// Why a pool does not stay mapped for a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum StandingError {
    /// The device's addresses are not translated: it reaches the pool anyway, or nothing.
    #[error("the device's addresses are not translated")]
    NotTranslated,
    /// It has no pool.
    #[error("the device has no pool for copies")]
    NoPool,
    /// The device would reach what others left in the pool.
    #[error("the device is not trusted: it may reach no slots but those of its mappings")]
    Untrusted,
    /// Its buffers want more than a page's alignment, which slots do not have.
    #[error("buffers want to be aligned to {} bytes, slots are to pages of {} at most",
        align.bytes(), granule.bytes())]
    Alignment {
        /// What they want.
        align: PageSize,
        /// The page.
        granule: PageSize,
    },
    /// The pool does not fill its pages.
    #[error("{start}..={last} does not fill its pages", start = memory.start(), last = memory.last())]
    Uneven {
        /// The pool.
        memory: PhysRange,
    },
    /// It was not mapped.
    #[error(transparent)]
    Map(#[from] MapError),
}

/// Why a mapping was not taken away, or is not known to be quiet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RetireError {
    /// The mapping is of another address space.
    #[error("the mapping belongs to another address space")]
    OtherSpace,
    /// The tables: the mapping is as it was.
    #[error(transparent)]
    Unmap(#[from] UnmapFailed),
    /// The hardware did not complete: what was unmapped is kept out of use.
    #[error(transparent)]
    Unit(#[from] UnitError),
}

/// Why there is no address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SpaceError {
    /// No addresses that the domain can translate.
    #[error("no address of the window can be translated")]
    NoAddresses,
    /// The domain cannot let devices read and write.
    #[error("the domain grants no access")]
    NoAccess,
    /// No memory for queues.
    #[error("no memory for the address space's own records")]
    Memory,
    /// The address allocator.
    #[error(transparent)]
    Iova(#[from] IovaError),
}

/// Why a device was not attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DeviceError {
    /// The unit.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// No memory to remember the device.
    #[error("no memory to remember the device")]
    Memory,
}
