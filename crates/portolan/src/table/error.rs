//! Errors of page tables, a small one per operation.

use super::Access;
use crate::addr::{Iova, IovaRange, PhysAddr};
use crate::inval::WrongTable;
use crate::platform::OutOfTableMemory;
use thiserror::Error;

/// The format cannot express an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the table format cannot express access {access:?}")]
pub struct TableAccessError {
    /// Access that was asked for.
    pub access: Access,
}

/// Error of a map. The table is as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TableMapError {
    /// No bytes.
    #[error("nothing to map at {iova}")]
    Empty {
        /// The address that was to be mapped.
        iova: Iova,
    },
    /// The first address is not a multiple of the granule.
    #[error("{iova} is not aligned to the granule")]
    UnalignedIova {
        /// The address.
        iova: Iova,
    },
    /// A piece of memory does not begin or end at a multiple of the granule.
    #[error("memory at {pa} of {bytes} bytes is not aligned to the granule")]
    UnalignedMemory {
        /// Its first address.
        pa: PhysAddr,
        /// Its length.
        bytes: u64,
    },
    /// The addresses reach past those that the table can translate.
    #[error("the range from {iova} reaches past the table's input addresses")]
    IovaOutOfRange {
        /// First address.
        iova: Iova,
    },
    /// Memory past the addresses that the format has room for.
    #[error("memory at {pa} of {bytes} bytes is past the format's output addresses")]
    MemoryOutOfRange {
        /// First address.
        pa: PhysAddr,
        /// Its length.
        bytes: u64,
    },
    /// Something is mapped already.
    #[error("{iova} is mapped already")]
    AlreadyMapped {
        /// An address that is.
        iova: Iova,
    },
    /// The format cannot express the access.
    #[error(transparent)]
    Access(#[from] TableAccessError),
    /// No memory for tables.
    #[error(transparent)]
    Memory(#[from] OutOfTableMemory),
    /// The debt to add to is of another table.
    #[error(transparent)]
    WrongTable(#[from] WrongTable),
}

/// Error of an unmap. The table is as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TableUnmapError {
    /// The range does not begin and end at the granule.
    #[error("{range} is not aligned to the granule")]
    Unaligned {
        /// The range.
        range: IovaRange,
    },
    /// The range reaches past the addresses that the table can translate.
    #[error("{range} is past the table's input addresses")]
    OutOfRange {
        /// The range.
        range: IovaRange,
    },
    /// Part of the range is not mapped.
    #[error("{iova} is not mapped")]
    NotMapped {
        /// The first address that is not.
        iova: Iova,
    },
    /// The range begins or ends inside a block, which has to be split first: see
    /// [`PageTable::split`](super::PageTable::split).
    #[error("the block {block} has to be split first")]
    NeedsSplit {
        /// The block.
        block: IovaRange,
    },
    /// The range begins or ends inside a block whose split was begun and not completed.
    #[error("the block {block} is being split")]
    Splitting {
        /// The block.
        block: IovaRange,
    },
    /// The debt to add to is of another table.
    #[error(transparent)]
    WrongTable(#[from] WrongTable),
}

/// Error of a split. The table is as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SplitError {
    /// No block is mapped there.
    #[error("no block is mapped at {iova}")]
    NoBlock {
        /// The address.
        iova: Iova,
    },
    /// The entry changed meanwhile: another CPU works on the block.
    #[error("the block at {iova} is being changed by someone else")]
    Contended {
        /// The address.
        iova: Iova,
    },
    /// No memory for the table that replaces the block.
    #[error(transparent)]
    Memory(#[from] OutOfTableMemory),
    /// The debt to add to is of another table.
    #[error(transparent)]
    WrongTable(#[from] WrongTable),
}

/// Error of a read of dirty state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DirtyError {
    /// The format has none, or it is off.
    #[error("the table format keeps no dirty state")]
    NotTracked,
    /// The range reaches past the addresses that the table can translate.
    #[error("{range} is past the table's input addresses")]
    OutOfRange {
        /// The range.
        range: IovaRange,
    },
    /// Another owner keeps the tables, and refused.
    #[error("who keeps the tables refused (its own code: {code:#x})")]
    Refused {
        /// Its own code.
        code: u32,
    },
    /// The debt to add to is of another table.
    #[error(transparent)]
    WrongTable(#[from] WrongTable),
}
