//! Directions: as values, and as types.
//!
//! *Context.* Interrupt: everything here is a value.

use crate::platform::contract::MemoryKind;
use crate::table::Access;

/// Direction of the bytes.
///
/// ```
/// use portolan::dma::{DataDirection, Direction, ToDevice};
/// assert_eq!(ToDevice.direction(), Direction::ToDevice);
/// assert!(Direction::Bidirectional.device_writes());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// The device reads.
    ToDevice,
    /// The device writes.
    FromDevice,
    /// The device reads and writes.
    Bidirectional,
}

impl Direction {
    /// Access that the device gets.
    #[inline]
    pub const fn access(self) -> Access {
        match self {
            Self::ToDevice => Access::READ,
            Self::FromDevice => Access::WRITE,
            Self::Bidirectional => Access::READ_WRITE,
        }
    }

    /// The same, of memory of `kind`.
    #[inline]
    pub(super) fn access_to(self, kind: MemoryKind) -> Access {
        match kind {
            MemoryKind::Registers => self.access().union(Access::DEVICE),
            MemoryKind::Cached | MemoryKind::Uncached => self.access(),
        }
    }

    /// Tells if the device writes into the buffer.
    #[inline]
    pub const fn device_writes(self) -> bool {
        !matches!(self, Self::ToDevice)
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A direction that is known when the program runs ([`Direction`]), or when it is compiled
/// ([`ToDevice`], [`FromDevice`], [`Bidirectional`]): then it is part of a mapping's type.
pub trait DataDirection: sealed::Sealed + Copy + Send + 'static {
    /// The direction.
    fn direction(self) -> Direction;
}

impl sealed::Sealed for Direction {}

impl DataDirection for Direction {
    #[inline]
    fn direction(self) -> Direction {
        self
    }
}

macro_rules! direction {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name;

        impl sealed::Sealed for $name {}

        impl DataDirection for $name {
            #[inline]
            fn direction(self) -> Direction {
                Direction::$name
            }
        }
    };
}

direction! {
    /// The device reads.
    ToDevice
}
direction! {
    /// The device writes.
    FromDevice
}
direction! {
    /// The device reads and writes.
    Bidirectional
}
