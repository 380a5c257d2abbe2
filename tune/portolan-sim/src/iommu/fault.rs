//! Faults: accesses that did not go through, with the reason.

use portolan::addr::{Iova, PhysAddr, StreamId};
use thiserror::Error;

use crate::decode::{AccessKind, WalkFault};

/// An access that did not go through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[error("{access:?} of {iova} by stream {}: {kind}", stream.get())]
pub struct Fault {
    /// Stream of the access.
    pub stream: StreamId,
    /// Device address of the access.
    pub iova: Iova,
    /// Read or write.
    pub access: AccessKind,
    /// The reason for the fault.
    pub kind: FaultKind,
}

/// Reason why an access was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum FaultKind {
    /// The entry of this level is not present.
    #[error("nothing is mapped (level {level})")]
    NoTranslation {
        /// Level of the entry; 0 is the leaf.
        level: u8,
    },
    /// There is a translation, and it does not allow this.
    #[error("not permitted")]
    Permission,
    /// The walk came to where no memory is.
    #[error("no memory at {entry}, where an entry of level {level} should be")]
    Unreadable {
        /// Address of the entry.
        entry: PhysAddr,
        /// Its level.
        level: u8,
    },
    /// The walk came to an entry that the architecture reserves or forbids.
    #[error("{raw:#x} is no entry of level {level}")]
    BadEntry {
        /// Its level.
        level: u8,
        /// Its value.
        raw: u64,
    },
    /// The stream is not configured.
    #[error("the stream is not configured")]
    NoContext,
    /// The stream is configured to be blocked.
    #[error("the stream is blocked")]
    Blocked,
    /// The transfer reaches past the top of the address space.
    #[error("the transfer reaches past the top of the address space")]
    PastTheTop,
}

impl From<WalkFault> for FaultKind {
    fn from(fault: WalkFault) -> Self {
        match fault {
            WalkFault::NoTranslation { level } => Self::NoTranslation { level },
            WalkFault::Unreadable { entry, level } => Self::Unreadable { entry, level },
            WalkFault::BadEntry { level, raw } => Self::BadEntry { level, raw },
        }
    }
}
