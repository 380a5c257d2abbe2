//! Errors of a unit, a small one per operation.

use crate::addr::StreamId;
use crate::inval::SyncError;
use crate::platform::{Nanos, OutOfTableMemory};
use crate::table::{SplitError, TableMapError, TableUnmapError};
use core::fmt;
use thiserror::Error;

/// Event for which a driver waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Awaited {
    /// A control register to take effect.
    Control,
    /// Room in a command queue.
    QueueRoom,
    /// A queued wait, or the completion of a request.
    Completion,
    /// An invalidation through registers.
    Invalidation,
    /// The drain of a write buffer.
    WriteBuffer,
    /// Another caller's turn on the queue.
    Turn,
}

/// Failure of the hardware.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum IommuError {
    /// It did not answer in time.
    #[error("the unit did not answer in {waited:?} (waited for {awaited:?})")]
    TimedOut {
        /// Event for which the driver waited.
        awaited: Awaited,
        /// Time for which it waited.
        waited: Nanos,
    },
    /// It refused a command.
    #[error("the unit refused a command (its own code: {code:#x})")]
    Refused {
        /// The unit's own code.
        code: u32,
    },
    /// It did not carry out a command that it was given through a register.
    #[error("the unit did not carry out the command in register {offset:#x}")]
    RefusedByRegister {
        /// Offset of the register.
        offset: usize,
    },
    /// A device did not answer an invalidation of its TLB.
    #[error("a device{} did not answer an invalidation of its TLB", OfStream(*stream))]
    DeviceSilent {
        /// Stream of the device, if the unit names it.
        stream: Option<StreamId>,
    },
    /// Refused commands or silent devices of other callers interrupted it each time.
    #[error("errors of other callers interrupted the unit {attempts} times")]
    Interrupted {
        /// Number of times that it was tried.
        attempts: u32,
    },
    /// It reads as all ones: removed, or without power.
    #[error("the unit is gone")]
    Gone,
    /// It was disabled or suspended, or stopped because of an error of its own.
    #[error("the unit has stopped")]
    Stopped,
    /// A register has an impossible value.
    #[error("register {offset:#x} holds {value:#x}, which makes no sense")]
    Nonsense {
        /// Offset of the register.
        offset: usize,
        /// Value of the register.
        value: u64,
    },
    /// It lacks a feature that was asked for.
    #[error("the unit does not have what was asked for")]
    Unsupported,
    /// No memory for queues and tables.
    #[error(transparent)]
    Memory(#[from] OutOfTableMemory),
    /// No identifier is free.
    #[error("all identifiers are in use")]
    OutOfContexts,
}

/// Stream of a device in a message, if it is known.
struct OfStream(Option<StreamId>);

impl fmt::Display for OfStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(stream) => write!(f, " of stream {:#x}", stream.get()),
            None => Ok(()),
        }
    }
}

impl From<SyncError<Self>> for IommuError {
    /// For a caller whose debts are of its own domain, so that only the hardware can fail.
    fn from(error: SyncError<Self>) -> Self {
        match error {
            SyncError::Queue(error) => error,
            SyncError::WrongTable(_) => Self::Unsupported,
        }
    }
}

/// Error of moving a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AttachError {
    /// Not a stream of this unit.
    #[error("{stream:?} is not of this unit")]
    NoSuchStream {
        /// The stream.
        stream: StreamId,
    },
    /// The unit cannot attach single PASIDs of a stream.
    #[error("the unit attaches whole streams only")]
    NoPasids,
    /// The domain belongs to another unit, or needs a feature that this one lacks.
    #[error("the domain does not fit the unit")]
    Mismatch,
    /// The hardware failed.
    #[error(transparent)]
    Iommu(#[from] IommuError),
}

/// Error of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DomainError {
    /// The request.
    #[error(transparent)]
    Map(#[from] TableMapError),
    /// The hardware.
    #[error(transparent)]
    Iommu(#[from] IommuError),
}

/// Error of an unmap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DomainUnmapError {
    /// The request.
    #[error(transparent)]
    Unmap(#[from] TableUnmapError),
    /// The hardware.
    #[error(transparent)]
    Iommu(#[from] IommuError),
}

/// Error of splitting a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DomainSplitError {
    /// The request: the block is as it was.
    #[error(transparent)]
    Split(#[from] SplitError),
    /// The hardware did not complete the invalidation, or the debt is of another domain.
    #[error(transparent)]
    Sync(#[from] SyncError<IommuError>),
}

/// Error of unmapping a part of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum UnmapPartError {
    /// The request.
    #[error(transparent)]
    Unmap(#[from] DomainUnmapError),
    /// A block had to be split and was not.
    #[error(transparent)]
    Split(#[from] DomainSplitError),
}

/// Error of switching marks of written pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TrackDirtyError {
    /// The domain was not made for marks, or its unit sets none.
    #[error("the domain keeps no marks of written pages")]
    NotTracked,
    /// The hardware did not complete.
    #[error(transparent)]
    Iommu(#[from] IommuError),
}
