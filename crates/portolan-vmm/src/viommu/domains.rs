//! Domains of a virtio-iommu, and the mappings of each.
//!
//! Virtual I/O Device (VIRTIO) 1.2, sections 5.13.6.3 to 5.13.6.6.

use std::collections::{BTreeMap, BTreeSet};

use portolan::addr::{Iova, IovaRange};
use vm_memory::Permissions;

use super::listener::{Grant, Mapping};
use super::requests::status;
use crate::iotlb::Translation;

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

impl Domain {
    /// An empty domain.
    pub(super) fn new(bypass: bool) -> Self {
        let kind = match bypass {
            true => DomainKind::Bypass,
            false => DomainKind::Mapped(Mappings::default()),
        };
        Self { kind, endpoints: BTreeSet::new() }
    }

    pub(super) fn is_bypass(&self) -> bool {
        matches!(self.kind, DomainKind::Bypass)
    }

    /// Memory that its endpoints may access.
    pub(super) fn grants(&self) -> Vec<Grant> {
        match &self.kind {
            DomainKind::Bypass => vec![Grant::PassThrough],
            DomainKind::Mapped(mappings) => grants(mappings.iter()),
        }
    }
}

/// Mappings that do not overlap, each behind its first address.
#[derive(Debug, Default)]
pub(super) struct Mappings(BTreeMap<u64, Mapping>);

impl Mappings {
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Mapping> {
        self.0.values()
    }

    /// The mapping that holds `at`, or the last one below.
    fn below(&self, at: u64) -> Option<&Mapping> {
        self.0.range(..=at).next_back().map(|(_, mapping)| mapping)
    }

    /// Tells if a mapping has an address of `range`.
    pub(super) fn overlaps(&self, range: IovaRange) -> bool {
        self.below(range.last().get()).is_some_and(|below| below.iova.overlaps(range))
    }

    /// Adds one, which overlaps no other.
    pub(super) fn insert(&mut self, mapping: Mapping) {
        self.0.insert(mapping.iova.start().get(), mapping);
    }

    /// All mappings in `range`; an error if one is in it in part.
    pub(super) fn whole_in(&self, range: IovaRange) -> Result<impl Iterator<Item = &Mapping>, u8> {
        let (start, last) = (range.start().get(), range.last().get());
        let cut = |at: u64| {
            let before = at.checked_sub(1).and_then(|before| self.below(before));
            before.is_some_and(|mapping| mapping.iova.last().get() >= at)
        };
        if cut(start) || last.checked_add(1).is_some_and(cut) {
            return Err(status::RANGE);
        }
        Ok(self.0.range(start..=last).map(|(_, mapping)| mapping))
    }

    /// Takes out all mappings that begin in `range`.
    pub(super) fn remove(&mut self, range: IovaRange) {
        let (start, last) = (range.start().get(), range.last().get());
        while let Some((&at, _)) = self.0.range(start..=last).next() {
            self.0.remove(&at);
        }
    }

    /// The mapping of `at`: its addresses, the address that they lead to, and the access.
    pub(super) fn find(&self, at: Iova) -> Option<Translation> {
        let Mapping { iova, target, access, .. } = *self.below(at.get())?;
        iova.contains(at).then_some(Translation { iova, target, access })
    }
}

/// The grants of `mappings`; one without access grants nothing.
pub(super) fn grants<'m>(mappings: impl Iterator<Item = &'m Mapping>) -> Vec<Grant> {
    let useful = mappings.filter(|mapping| mapping.access != Permissions::No);
    useful.map(|mapping| Grant::Mapping(*mapping)).collect()
}
