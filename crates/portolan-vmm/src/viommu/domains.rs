//! Domains of a virtio-iommu, and the mappings of each.
//!
//! Virtual I/O Device (VIRTIO) 1.2, sections 5.13.6.3 to 5.13.6.6.

use std::collections::{BTreeMap, BTreeSet};

use portolan::addr::{Iova, IovaRange, PhysAddr};
use portolan_spec::virtio::{MAP_READ, MAP_WRITE};
use vm_memory::Permissions;

use super::requests::status;
use crate::iotlb::Translation;

/// A mapping, behind its first address.
#[derive(Clone, Copy, Debug)]
struct Mapping {
    last: u64,
    phys: u64,
    flags: u32,
}

/// Kind of a domain.
#[derive(Debug)]
pub(super) enum DomainKind {
    /// Addresses are the guest's own.
    Bypass,
    Mapped(Mappings),
}

/// A domain, which is there as long as an endpoint is attached to it.
#[derive(Debug)]
pub(super) struct Domain {
    pub(super) kind: DomainKind,
    pub(super) endpoints: BTreeSet<u32>,
}

/// Mappings that do not overlap.
#[derive(Debug, Default)]
pub(super) struct Mappings(BTreeMap<u64, Mapping>);

impl Mappings {
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// The mapping that holds `at`, or the last one below.
    fn below(&self, at: u64) -> Option<(u64, Mapping)> {
        let found = self.0.range(..=at).next_back();
        found.map(|(start, mapping)| (*start, *mapping))
    }

    /// Adds one; its addresses have been looked at.
    pub(super) fn map(&mut self, range: IovaRange, phys: u64, flags: u32) -> Result<(), u8> {
        let (start, last) = (range.start().get(), range.last().get());
        if self.below(last).is_some_and(|(_, below)| below.last >= start) {
            return Err(status::INVAL);
        }
        self.0.insert(start, Mapping { last, phys, flags });
        Ok(())
    }

    /// Takes out all mappings in `range`; none if one is in it in part.
    pub(super) fn unmap(&mut self, range: IovaRange) -> Result<(), u8> {
        let (start, last) = (range.start().get(), range.last().get());
        let cut = |at: u64| {
            let before = at.checked_sub(1).and_then(|before| self.below(before));
            before.is_some_and(|(_, mapping)| mapping.last >= at)
        };
        if cut(start) || last.checked_add(1).is_some_and(cut) {
            return Err(status::RANGE);
        }
        while let Some((&at, _)) = self.0.range(start..=last).next() {
            self.0.remove(&at);
        }
        Ok(())
    }

    /// The mapping of `at`: its addresses, the address that they lead to, and the access.
    pub(super) fn find(&self, at: Iova) -> Option<Translation> {
        let (start, mapping) = self.below(at.get())?;
        let access = match (mapping.flags & MAP_READ != 0, mapping.flags & MAP_WRITE != 0) {
            (false, false) => Permissions::No,
            (true, false) => Permissions::Read,
            (false, true) => Permissions::Write,
            (true, true) => Permissions::ReadWrite,
        };
        let range = IovaRange::new(Iova::new(start), Iova::new(mapping.last))?;
        range.contains(at).then_some(Translation {
            iova: range,
            target: PhysAddr::new(mapping.phys),
            access,
        })
    }
}
