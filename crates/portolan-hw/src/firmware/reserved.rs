//! Memory of firmware's that a device's address space has to map one to one, or to leave alone: the
//! common form of all vendors' tables.
//!
//! Intel's RMRR ([`super::dmar::Dmar::reserved`]), AMD's IVMD ([`super::ivrs::Ivrs::reserved`]) and
//! Arm's RMR nodes ([`super::iort::Iort::reserved`]) give
//! [`Reserved`](crate::firmware::reservations::Reserved) regions. Empty ranges, ranges that run
//! past the top, and ranges that are wider than the machine's addresses are errors.
//! [`Reservations`](crate::firmware::reservations::Reservations) finds the other errors.
//!
//! *Context.* Interrupt: everything here is a value.

use portolan::addr::{Iova, IovaRange, PageSize, PhysAddr, PhysRange};
use portolan::iommu::{ReservedKind, ReservedRegion};

use super::TableError;

/// Memory that a device reaches at the memory's own addresses.
pub(crate) fn region(memory: PhysRange, kind: ReservedKind) -> ReservedRegion {
    // Of two bytes, since a range of memory is not empty and no conversion can fail.
    let byte = |at: PhysAddr| IovaRange::page(Iova::new(at.get()), PageSize::of_lg2(0));
    let range = byte(memory.start()).hull(byte(memory.last()));
    ReservedRegion { range, kind }
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
