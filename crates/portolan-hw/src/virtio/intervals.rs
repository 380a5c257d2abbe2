//! What a domain has mapped: ranges that do not overlap, each with the state it is in.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use portolan::addr::{Iova, IovaRange, PhysAddr};
use portolan::table::Access;

/// Where a mapping stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The device does not know it: the domain has no endpoint.
    Recorded,
    /// The device has it.
    Live,
    /// Someone waits for a request about it.
    Busy,
    /// A request to map it was given up: the device may have it or get it.
    Doubtful,
}

/// One mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mapping {
    pub(super) range: IovaRange,
    pub(super) pa: PhysAddr,
    pub(super) access: Access,
    pub(super) state: State,
}

impl Mapping {
    /// The part of the mapping that lies in `range`.
    pub(super) fn part(self, range: IovaRange) -> Option<Self> {
        let range = self.range.intersection(range)?;
        let above = range.start().get() - self.range.start().get();
        Some(Self {
            range,
            pa: self.pa.checked_add(above)?,
            ..self
        })
    }

    /// The parts of the mapping that lie below and above `range`.
    pub(super) fn outside(self, range: IovaRange) -> [Option<Self>; 2] {
        let below = range.start().get().checked_sub(1).map(Iova::new);
        let below = below.and_then(|last| IovaRange::new(self.range.start(), last));
        let above = range.last().checked_add(1);
        let above = above.and_then(|start| IovaRange::new(start, self.range.last()));
        [below, above].map(|rest| self.part(rest?))
    }
}

/// The mappings by their first address.
#[derive(Debug, Default)]
pub(super) struct Intervals(BTreeMap<u64, Mapping>);

impl Intervals {
    /// The mapping that holds `iova`.
    pub(super) fn at(&self, iova: Iova) -> Option<&Mapping> {
        let (_, mapping) = self.0.range(..=iova.get()).next_back()?;
        mapping.range.contains(iova).then_some(mapping)
    }

    /// The first address of `range` that is mapped.
    pub(super) fn first_overlap(&self, range: IovaRange) -> Option<Iova> {
        if self.at(range.start()).is_some() {
            return Some(range.start());
        }
        let mut inside = self.0.range(range.start().get()..=range.last().get());
        inside.next().map(|(&start, _)| Iova::new(start))
    }

    /// The mappings that together hold all of `range`; the first address that none holds if there
    /// is one.
    pub(super) fn covering(&self, range: IovaRange) -> Result<Vec<Mapping>, Iova> {
        let mut found = Vec::new();
        let mut next = range.start();
        loop {
            let mapping = *self.at(next).ok_or(next)?;
            found.push(mapping);
            match mapping.range.last().checked_add(1) {
                Some(after) if after <= range.last() => next = after,
                _ => return Ok(found),
            }
        }
    }

    /// Adds a mapping, in place of one with the same first address.
    pub(super) fn put(&mut self, mapping: Mapping) {
        self.0.insert(mapping.range.start().get(), mapping);
    }

    /// Removes the mapping that begins where `mapping` does.
    pub(super) fn remove(&mut self, mapping: &Mapping) {
        self.0.remove(&mapping.range.start().get());
    }

    /// The first mapping at or above `from` that is in `state`.
    pub(super) fn next_in(&self, state: State, from: Iova) -> Option<Mapping> {
        let mut rest = self.0.range(from.get()..).map(|(_, mapping)| *mapping);
        rest.find(|mapping| mapping.state == state)
    }

    /// Turns every mapping in `from` to `to`.
    pub(super) fn turn(&mut self, from: State, to: State) {
        let all = self.0.values_mut();
        all.filter(|mapping| mapping.state == from)
            .for_each(|mapping| mapping.state = to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, last: u64) -> IovaRange {
        IovaRange::new(Iova::new(start), Iova::new(last)).unwrap()
    }

    fn mapping(start: u64, last: u64, pa: u64) -> Mapping {
        Mapping {
            range: range(start, last),
            pa: PhysAddr::new(pa),
            access: Access::READ,
            state: State::Live,
        }
    }

    #[test]
    fn overlaps_and_holes_are_found_at_their_first_address() {
        let mut map = Intervals::default();
        map.put(mapping(0x1000, 0x1fff, 0));
        map.put(mapping(0x2000, 0x4fff, 0));
        map.put(mapping(0x6000, 0x6fff, 0));
        let overlap = |start, last| map.first_overlap(range(start, last)).map(Iova::get);
        assert_eq!(overlap(0, 0xfff), None);
        assert_eq!(overlap(0, 0x1000), Some(0x1000));
        assert_eq!(overlap(0x4fff, 0x9000), Some(0x4fff));
        assert_eq!(overlap(0x5000, 0x5fff), None);
        assert_eq!(overlap(0x5000, u64::MAX), Some(0x6000));
        let covering = |start, last| map.covering(range(start, last)).map(|found| found.len());
        assert_eq!(covering(0x1800, 0x2fff), Ok(2));
        assert_eq!(covering(0x1800, 0x5000), Err(Iova::new(0x5000)));
        assert_eq!(covering(0x800, 0x1000), Err(Iova::new(0x800)));
    }

    #[test]
    fn parts_keep_their_memory() {
        let all = mapping(0x1000, 0x4fff, 0x8000);
        let [below, above] = all.outside(range(0x2000, 0x2fff));
        assert_eq!(below.unwrap().range, range(0x1000, 0x1fff));
        assert_eq!(above.unwrap().pa, PhysAddr::new(0xa000));
        let top = mapping(0, u64::MAX, 0);
        assert_eq!(top.outside(range(0, u64::MAX)), [None, None]);
    }
}
