//! Addresses that a device's address space has to leave alone, or to map one to one: what the
//! tables of all vendors come down to.
//!
//! Intel's RMRR ([`super::dmar::Dmar::reserved`]), AMD's IVMD ([`super::ivrs::Ivrs::reserved`]) and
//! Arm's RMR nodes ([`super::iort::Iort::reserved`]) give [`ReservedRegion`]s. What firmware says is
//! not trusted: empty ranges, ranges that run past the top, and ranges that are wider than the
//! machine's addresses are errors; [`disjoint`] merges regions that overlap and refuses those that
//! contradict each other. How much memory firmware may claim at all is the embedder's decision: the
//! tables cannot tell, only its own memory map can.
//!
//! *Context.* Interrupt: everything here is a value.

use portolan::addr::{Iova, IovaRange, PageSize, PhysAddr, PhysRange};
use portolan::table::Access;
use thiserror::Error;

use super::TableError;

/// Why addresses are reserved, and with that what has to be done about them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReservedKind {
    /// The device uses this memory already and goes on using it: it is mapped one to one before the
    /// device is translated, and stays mapped in every address space of the device.
    Direct,
    /// As [`ReservedKind::Direct`], until a driver of the operating system has taken the device
    /// over. From then on the addresses are as good as any others.
    DirectUntilDriven,
    /// Firmware wants accesses to pass untranslated (AMD's exclusion ranges). A mapping one to one
    /// serves the device just as well.
    Excluded,
}

/// Addresses that are reserved for one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReservedRegion {
    /// The memory, which the device reaches at the same addresses.
    pub memory: PhysRange,
    /// Why.
    pub kind: ReservedKind,
    /// What the device may do there.
    pub access: Access,
}

impl ReservedRegion {
    /// The addresses as the device sees them, from the first byte to the last.
    pub fn addresses(&self) -> IovaRange {
        // Of two bytes, since a range of memory is not empty and no conversion can fail.
        let byte = |at: PhysAddr| IovaRange::page(Iova::new(at.get()), PageSize::of_lg2(0));
        byte(self.memory.start()).hull(byte(self.memory.last()))
    }

    /// The region with whole pages of `granule`, as a table can map it. Firmware ought to align its
    /// ranges, and does not always.
    pub fn whole_pages(self, granule: PageSize) -> Self {
        let first = PhysRange::page(self.memory.start(), granule);
        let last = PhysRange::page(self.memory.last(), granule);
        Self {
            memory: first.hull(last),
            ..self
        }
    }
}

/// Two regions that firmware reserves for one device overlap and are not of one kind and access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[error(
    "reserved regions from {} and from {} contradict each other",
    first.memory.start(), second.memory.start()
)]
pub struct Contradiction {
    /// The region that starts lower.
    pub first: ReservedRegion,
    /// The one that starts in it.
    pub second: ReservedRegion,
}

/// The regions of one device as a table with `granule` can map them: in whole pages, in the order of
/// their addresses, none overlapping another. What is given back is the beginning of `regions`.
///
/// Regions of one kind and access that overlap or touch become one.
///
/// # Errors
/// [`Contradiction`] if two overlap that differ. `regions` are then sorted, and nothing else.
pub fn disjoint(
    regions: &mut [ReservedRegion],
    granule: PageSize,
) -> Result<&mut [ReservedRegion], Contradiction> {
    regions.sort_unstable_by_key(|region| (region.memory.start(), region.memory.last()));
    let alike = |one: &ReservedRegion, other: &ReservedRegion| {
        (one.kind, one.access) == (other.kind, other.access)
    };
    // First all checks, so that an error leaves the regions as they are.
    let mut reach: Option<ReservedRegion> = None;
    for second in regions.iter().map(|region| region.whole_pages(granule)) {
        if let Some(first) = reach {
            if first.memory.overlaps(second.memory) && !alike(&first, &second) {
                return Err(Contradiction { first, second });
            }
        }
        let further = reach.is_none_or(|first| first.memory.last() < second.memory.last());
        if further {
            reach = Some(second);
        }
    }
    let mut kept = 0usize;
    for at in 0..regions.len() {
        let Some(region) = regions.get(at).map(|region| region.whole_pages(granule)) else {
            break;
        };
        let before = kept.checked_sub(1).and_then(|at| regions.get_mut(at));
        match before {
            Some(before) if alike(before, &region) && meet(before.memory, region.memory) => {
                before.memory = before.memory.hull(region.memory);
            }
            _ => {
                if let Some(place) = regions.get_mut(kept) {
                    *place = region;
                }
                kept += 1;
            }
        }
    }
    Ok(regions.get_mut(..kept).unwrap_or_default())
}

/// Whether `second`, which does not start before `first`, overlaps it or follows at once.
fn meet(first: PhysRange, second: PhysRange) -> bool {
    let behind = first.last().checked_add(1);
    behind.is_none_or(|behind| second.start() <= behind)
}

/// `memory` if the machine has so wide addresses. `offset` is where the table says it.
pub(super) fn within(
    memory: PhysRange,
    address_lg2: Option<u32>,
    offset: usize,
) -> Result<PhysRange, TableError> {
    let beyond = address_lg2.and_then(|lg2| 1u64.checked_shl(lg2));
    match beyond {
        Some(beyond) if memory.last() >= PhysAddr::new(beyond) => Err(TableError::Nonsense {
            offset,
            value: memory.last().get(),
        }),
        _ => Ok(memory),
    }
}

#[cfg(test)]
mod tests;
