//! Addresses that are not free to be used for mappings, and regions of one stream put together.
//!
//! *Context.* Interrupt, but [`disjoint`]: the others are values.

use alloc::collections::BinaryHeap;
use alloc::vec::Vec;
use core::fmt;

use thiserror::Error;

use crate::addr::{Iova, IovaRange, PageSize};
use crate::table::Access;

/// Addresses that are not free to be used for mappings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReservedRegion {
    /// The addresses.
    pub range: IovaRange,
    /// Reason for which they are reserved.
    pub kind: ReservedKind,
}

/// Reason for which addresses are reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ReservedKind {
    /// Writes there become interrupt messages and are not translated: nothing is mapped there.
    Interrupts,
    /// Nothing may be mapped there: the IOMMU or a bridge before it takes such addresses.
    Unusable,
    /// Firmware's device uses this memory at its physical addresses, with this access: it is
    /// mapped one to one before the stream is attached, and stays mapped.
    Direct(Access),
    /// As [`ReservedKind::Direct`], until a driver has taken the device over. From then on the
    /// addresses are as good as any others: they may be given to a guest with the device.
    DirectUntilDriven(Access),
    /// Writes to this physical page are messages, and the IOMMU translates them: the code that sets
    /// up the device's messages maps it, anywhere it likes
    /// ([`Device::map_doorbell`](crate::dma::Device::map_doorbell)).
    Doorbell,
}

impl ReservedKind {
    /// The access with which the region is mapped one to one, if it is.
    pub const fn direct(self) -> Option<Access> {
        match self {
            Self::Direct(access) | Self::DirectUntilDriven(access) => Some(access),
            Self::Interrupts | Self::Unusable | Self::Doorbell => None,
        }
    }

    /// Tells if nothing can be mapped there.
    pub const fn is_closed(self) -> bool {
        matches!(self, Self::Interrupts | Self::Unusable)
    }
}

impl ReservedRegion {
    /// The region with whole pages of `granule`, as a table can map it. Firmware ought to align its
    /// ranges, and does not always.
    #[must_use]
    pub fn whole_pages(self, granule: PageSize) -> Self {
        let (first, last) = (self.range.start(), self.range.last());
        let first = IovaRange::page(first, granule);
        Self { range: first.hull(IovaRange::page(last, granule)), ..self }
    }

    /// Tells if pages of `granule` cannot serve both regions: one is to be mapped where the other
    /// says that nothing can be, or one as memory and the other as a device's registers.
    pub fn contradicts(&self, other: &Self, granule: PageSize) -> bool {
        let (one, two) = (self.whole_pages(granule), other.whole_pages(granule));
        let (closed, open) = (self.kind.is_closed(), other.kind.is_closed());
        match (self.kind.direct(), other.kind.direct()) {
            (Some(access), Some(others)) => {
                (access ^ others).contains(Access::DEVICE) && one.range.overlaps(two.range)
            }
            (Some(_), None) => open && one.range.overlaps(other.range),
            (None, Some(_)) => closed && two.range.overlaps(self.range),
            (None, None) => false,
        }
    }
}

impl fmt::Display for ReservedRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:?})", self.range, self.kind)
    }
}

/// Error of putting the regions of a stream together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[non_exhaustive]
pub enum NotDisjoint {
    /// Two of them cannot both be as they want ([`ReservedRegion::contradicts`]).
    #[error("{first} and {second}, reserved for one device, contradict each other")]
    Contradiction {
        /// One.
        first: ReservedRegion,
        /// The other.
        second: ReservedRegion,
    },
    /// No memory.
    #[error("no memory for the reserved regions of a device")]
    Memory,
}

/// Demands on an address, counted over the regions that have it.
#[derive(Default)]
struct HeldRegion {
    /// Those where nothing can be mapped.
    closed: u32,
    /// Those that are mapped one to one.
    direct: u32,
    /// Of these, those that stay when a driver has taken over.
    lasting: u32,
    /// Of these, those that have each bit of an access.
    bits: [u32; 8],
}

type Change = fn(u32, u32) -> u32;

impl HeldRegion {
    fn change(&mut self, kind: ReservedKind, by: Change) {
        let Some(access) = kind.direct() else {
            self.closed = by(self.closed, 1);
            return;
        };
        self.direct = by(self.direct, 1);
        let lasts = matches!(kind, ReservedKind::Direct(_));
        self.lasting = by(self.lasting, lasts.into());
        for (bit, count) in self.bits.iter_mut().enumerate() {
            *count = by(*count, (access.bits() >> bit & 1).into());
        }
    }

    /// Tells if the demands contradict each other, of which at least one is to map the address.
    fn is_torn(&self) -> bool {
        let registers = self.bits[Access::DEVICE.bits().trailing_zeros() as usize];
        self.closed > 0 || (registers > 0 && registers < self.direct)
    }

    /// Common demand of all regions that are mapped one to one.
    fn kind(&self) -> Option<ReservedKind> {
        let set = self.bits.iter().zip(0..).filter(|(count, _)| **count > 0);
        let bits = set.fold(0, |bits, (_, bit)| bits | 1 << bit);
        let access = Access::from_bits_truncate(bits);
        match (self.direct, self.lasting) {
            (0, _) => None,
            (_, 0) => Some(ReservedKind::DirectUntilDriven(access)),
            _ => Some(ReservedKind::Direct(access)),
        }
    }
}

/// The regions of one stream as a table with `granule` can map them: those that are not mapped as
/// they are, and behind them those that are mapped one to one, in whole pages, in the order of
/// their addresses, none overlapping another. Where several overlap, every access that one of them
/// allows is allowed.
///
/// *Context.* Task: takes memory.
///
/// # Errors
/// See [`NotDisjoint`].
pub fn disjoint(
    regions: &[ReservedRegion],
    granule: PageSize,
) -> Result<Vec<ReservedRegion>, NotDisjoint> {
    let memory = |_| NotDisjoint::Memory;
    let (mut apart, mut edges) = (Vec::<ReservedRegion>::new(), Vec::new());
    // Each region begins one piece at most, and ends one.
    let most = regions.len().saturating_mul(2);
    apart.try_reserve_exact(most).map_err(memory)?;
    edges.try_reserve_exact(most).map_err(memory)?;
    apart.extend(regions.iter().filter(|one| one.kind.direct().is_none()));
    for (number, region) in regions.iter().enumerate() {
        let range = match region.kind.direct() {
            Some(_) => region.whole_pages(granule).range,
            None if region.kind.is_closed() => region.range,
            None => continue,
        };
        edges.push((range.start(), number, true));
        if let Some(after) = range.last().checked_add(1) {
            edges.push((after, number, false));
        }
    }
    // A heap sorts in place, in a tenth of the code of a list's own sort.
    let edges = BinaryHeap::from(edges).into_sorted_vec();
    let mut held = HeldRegion::default();
    let mut rest = edges.iter().peekable();
    while let Some(&(at, number, begins)) = rest.next() {
        if let Some(region) = regions.get(number) {
            held.change(
                region.kind,
                if begins { u32::saturating_add } else { u32::saturating_sub },
            );
        }
        let last = match rest.peek() {
            Some((next, ..)) => next.get().checked_sub(1),
            None => Some(u64::MAX),
        };
        let range = last.and_then(|last| IovaRange::new(at, Iova::new(last)));
        let (Some(range), Some(kind)) = (range, held.kind()) else {
            continue;
        };
        if held.is_torn() {
            return Err(contradiction(regions, granule));
        }
        match apart.last_mut() {
            Some(before) if before.kind == kind && follows(before.range, range) => {
                before.range = before.range.hull(range);
            }
            _ => apart.push(ReservedRegion { range, kind }),
        }
    }
    Ok(apart)
}

/// Tells if `next` begins right behind `first`.
fn follows(first: IovaRange, next: IovaRange) -> bool {
    first.last().checked_add(1) == Some(next.start())
}

/// Names two that contradict each other, of which there are some.
fn contradiction(regions: &[ReservedRegion], granule: PageSize) -> NotDisjoint {
    let pairs = regions.iter().enumerate().flat_map(|(at, second)| {
        let before = regions.iter().take(at);
        before.map(move |first| (*first, *second))
    });
    let mut torn = pairs.filter(|(first, second)| first.contradicts(second, granule));
    match torn.next() {
        Some((first, second)) => NotDisjoint::Contradiction { first, second },
        // Never: an address at which not all have the access that they want has two that differ.
        None => NotDisjoint::Memory,
    }
}

#[cfg(test)]
mod tests;
