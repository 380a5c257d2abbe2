//! Errors of pools, with the values that the reader needs to put them right.
//!
//! *Context.* Interrupt: everything here is a value.

use thiserror::Error;

use crate::addr::{PageSize, PhysAddr, PhysRange};
use crate::platform::contract::Unowned;

/// Error of the set-up of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PoolError {
    /// The memory does not hold 64 slots for each area, or is not aligned to that.
    #[error("{bytes} bytes at {start} do not make {areas} areas of 64 slots of {slot} bytes: \
             set fewer areas, or a size that is a multiple of {wanted}",
        start = memory.start(), bytes = memory.len_minus_one().saturating_add(1), slot = slot.bytes())]
    Shape {
        /// The memory.
        memory: PhysRange,
        /// Areas asked for.
        areas: u32,
        /// Size of a slot.
        slot: PageSize,
        /// Number of bytes of which its size has to be a multiple.
        wanted: u64,
    },
    /// Registers are no memory to copy to.
    #[error("the registers at {memory} are no memory that a pool can be made of")]
    Registers {
        /// Range of the registers.
        memory: PhysRange,
    },
    /// No memory for the pool's own records.
    #[error("no memory for the pool's own records")]
    Memory,
}

/// Error of the set-up of a pool, and the memory that it would have been made of.
#[derive(Debug, Error)]
#[error("{error}")]
pub struct PoolRefused {
    /// The reason.
    pub error: PoolError,
    /// The memory, as it was handed in.
    pub memory: Unowned,
}

/// Error of taking slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TakeError {
    /// No bytes.
    #[error("an empty buffer was asked for")]
    Empty,
    /// More than an area holds, even an empty one.
    #[error(
        "{bytes} bytes were asked for, and an area of the pool holds {most}: set fewer areas, \
             or a larger pool"
    )]
    TooLong {
        /// Bytes, with offset and alignment.
        bytes: u64,
        /// The most that can be asked for.
        most: u64,
    },
    /// No address of the pool has the alignment.
    #[error("an alignment of {align} was asked for, and areas are aligned to {most}",
        align = align.bytes(), most = most.bytes())]
    Alignment {
        /// Alignment that was asked for.
        align: PageSize,
        /// Largest alignment of the pool.
        most: PageSize,
    },
    /// The pool lies where the device cannot reach.
    #[error(
        "the pool ends at {last}, and the device reaches up to {limit}: set aside a pool below \
             that"
    )]
    AboveLimit {
        /// Last address of the pool.
        last: PhysAddr,
        /// The device's highest.
        limit: PhysAddr,
    },
    /// The pool's memory is private to a confidential guest, and the device reaches shared memory alone.
    #[error(
        "the pool at {memory} is private to the guest, and the device reaches shared memory alone: share \
             (decrypt) its pages, and say so in its options"
    )]
    Private {
        /// The pool.
        memory: PhysRange,
    },
    /// Nothing that fits is free.
    #[error(
        "no run of {wanted} slots: of {slots} slots {used} are in use, the longest free run is \
             {longest} (looked first in area {area} of {areas}): set a larger pool"
    )]
    Full {
        /// Slots asked for.
        wanted: u32,
        /// Slots of the pool.
        slots: u32,
        /// Slots in use.
        used: u32,
        /// The longest free run in any area.
        longest: u32,
        /// The caller's own area.
        area: u32,
        /// Number of areas.
        areas: u32,
    },
    /// The pool is nearly full, and the caller may wait: see [`Throttle`](super::Throttle).
    #[error(
        "{used} of {slots} slots are in use, and the rest are for callers that can't wait: try again once no more \
             than {until} are"
    )]
    Throttled {
        /// Slots in use.
        used: u32,
        /// Slots of the pool.
        slots: u32,
        /// Slots in use at which such callers are let in again.
        until: u32,
    },
}

/// Error of giving slots back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum GiveError {
    /// They are not of this pool.
    #[error("{at} is not the beginning of a buffer of this pool")]
    Foreign {
        /// The address.
        at: PhysAddr,
    },
    /// They are free already.
    #[error("slot {slot} is free already")]
    AlreadyFree {
        /// The first slot.
        slot: u32,
    },
    /// They were taken with another size.
    #[error("slot {slot} begins a buffer of {taken} slots, not of {given}")]
    OtherSize {
        /// The first slot.
        slot: u32,
        /// As taken.
        taken: u32,
        /// As given.
        given: u32,
    },
}

/// Error of a copy to slots or from them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CopyError {
    /// They are not of this pool.
    #[error("{at} is not the beginning of a buffer of this pool")]
    Foreign {
        /// The address.
        at: PhysAddr,
    },
    /// Registers are not copied.
    #[error("there are registers at {at}, and not memory")]
    Registers {
        /// Address of the registers.
        at: PhysAddr,
    },
    /// One is longer than the other.
    #[error("the memory at {memory} is not as long as the slots at {data}")]
    Length {
        /// The memory.
        memory: PhysRange,
        /// The bytes in the pool.
        data: PhysRange,
    },
}
