//! Memory of firmware's that a device's address space has to map one to one, or to leave alone: the
//! common form of all vendors' tables.
//!
//! Intel's RMRR ([`super::dmar::Dmar::reserved`]), AMD's IVMD ([`super::ivrs::Ivrs::reserved`]) and
//! Arm's RMR nodes ([`super::iort::Iort::reserved`]) give
//! [`Reserved`] regions. Empty ranges, ranges that run
//! past the top, and ranges that are wider than the machine's addresses are errors.
//! Regions that contradict each other are for the reader to find.
//!
//! *Context.* Interrupt: everything here is a value.

use core::fmt;

use portolan::addr::{Iova, IovaRange, PageSize, PhysAddr, PhysRange, StreamId};
use portolan::iommu::{ReservedKind, ReservedRegion};

use super::TableError;

/// Memory that a device reaches at the memory's own addresses.
pub fn region(memory: PhysRange, kind: ReservedKind) -> ReservedRegion {
    // Of two bytes, since a range of memory is not empty and no conversion can fail.
    let byte = |at: PhysAddr| IovaRange::page(Iova::new(at.get()), PageSize::of_lg2(0));
    let range = byte(memory.start()).hull(byte(memory.last()));
    ReservedRegion { range, kind }
}

/// Streams from one to another, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Streams {
    first: StreamId,
    last: StreamId,
}

impl Streams {
    /// All of a unit.
    pub const ALL: Self = Self { first: StreamId::new(0), last: StreamId::new(u32::MAX) };

    /// From `first` to `last`; `None` if `last` is below `first`.
    pub const fn new(first: StreamId, last: StreamId) -> Option<Self> {
        if last.get() < first.get() { None } else { Some(Self { first, last }) }
    }

    /// One.
    pub const fn one(stream: StreamId) -> Self {
        Self { first: stream, last: stream }
    }

    /// The first.
    pub const fn first(self) -> StreamId {
        self.first
    }

    /// The last.
    pub const fn last(self) -> StreamId {
        self.last
    }

    /// Tells if `stream` is one of them.
    pub const fn contains(self, stream: StreamId) -> bool {
        self.first.get() <= stream.get() && stream.get() <= self.last.get()
    }

    /// Tells if all of `other` are among them.
    pub const fn covers(self, other: Self) -> bool {
        self.contains(other.first) && self.contains(other.last)
    }

    /// Tells if some stream is in both.
    pub const fn overlaps(self, other: Self) -> bool {
        self.first.get() <= other.last.get() && other.first.get() <= self.last.get()
    }
}

/// A region that is reserved for some streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reserved {
    /// The streams.
    pub streams: Streams,
    /// The region.
    pub region: ReservedRegion,
}

impl Reserved {
    /// The region for one stream.
    pub const fn one(stream: StreamId, region: ReservedRegion) -> Self {
        let streams = Streams::one(stream);
        Self { streams, region }
    }

    /// The region for all streams.
    pub const fn everywhere(region: ReservedRegion) -> Self {
        let streams = Streams::ALL;
        Self { streams, region }
    }

    /// Tells if a stream cannot have both, in pages of `page`
    /// ([`ReservedRegion::contradicts`]).
    pub fn contradicts(&self, other: &Self, page: PageSize) -> bool {
        self.streams.overlaps(other.streams) && self.region.contradicts(&other.region, page)
    }
}

impl fmt::Display for Reserved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, last) = (self.streams.first.get(), self.streams.last.get());
        write!(f, "{} of streams {first:#x}..={last:#x}", self.region)
    }
}

/// `memory` if the machine has so wide addresses. `offset` is where the table says it.
pub(super) fn within(
    memory: PhysRange,
    address_lg2: Option<u32>,
    offset: usize,
) -> Result<PhysRange, TableError> {
    let beyond = address_lg2.and_then(|lg2| 1u64.checked_shl(lg2));
    match beyond {
        Some(beyond) if memory.last() >= PhysAddr::new(beyond) => {
            Err(TableError::Nonsense { offset, value: memory.last().get() })
        }
        _ => Ok(memory),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_beyond_the_machine_is_nonsense() {
        let (start, last) = (PhysAddr::new(0x1000), PhysAddr::new((1 << 36) - 1));
        let memory = PhysRange::new(start, last).unwrap();
        assert_eq!(within(memory, Some(36), 8), Ok(memory));
        let (offset, value) = (8, (1 << 36) - 1);
        let refused = Err(TableError::Nonsense { offset, value });
        assert_eq!(within(memory, Some(35), 8), refused);
        for any in [None, Some(64), Some(200)] {
            assert_eq!(within(memory, any, 8), Ok(memory));
        }
    }
}
