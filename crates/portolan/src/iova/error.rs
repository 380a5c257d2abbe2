//! Errors of requests, and of ranges that come back.
//!
//! *Context.* Interrupt: everything here is a value.

use crate::addr::{Iova, IovaRange};
use thiserror::Error;

/// Error of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum IovaError {
    /// No bytes.
    #[error("an empty range was asked for")]
    Empty,
    /// No free range is large enough, aligned and low enough.
    #[error("no free range of {bytes} bytes below {limit}")]
    Full {
        /// Number of bytes that were asked for.
        bytes: u64,
        /// The device's limit.
        limit: Iova,
    },
    /// No memory for the allocator's own records.
    #[error("no memory to record a range")]
    Memory,
}

/// Error of taking a range back or setting it aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FreeError {
    /// Its ends are not at granules, or beyond the space.
    #[error("{range} is not of this space")]
    Foreign {
        /// The range.
        range: IovaRange,
    },
    /// A part of it is free already.
    #[error("a part of {range} is free already")]
    Free {
        /// The range.
        range: IovaRange,
    },
    /// A part of the range to be set aside is given out.
    #[error("a part of {range} is in use")]
    InUse {
        /// The range.
        range: IovaRange,
    },
    /// No memory for the allocator's own records: the range stays out of use.
    #[error("no memory to record a range")]
    Memory,
}
