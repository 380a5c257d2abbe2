//! One set of translations, which never changes.

use portolan::addr::{Iova, IovaRange, PhysAddr};
use vm_memory::iommu::Iotlb;
use vm_memory::{GuestAddress, Permissions};

/// All addresses.
pub(crate) const EVERYTHING: IovaRange = match IovaRange::new(Iova::new(0), Iova::new(u64::MAX)) {
    Some(all) => all,
    None => panic!(),
};

/// One translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Translation {
    pub(crate) iova: IovaRange,
    /// Address in the guest's memory that the first of them leads to.
    pub(crate) target: PhysAddr,
    pub(crate) access: Permissions,
}

impl Translation {
    /// Every address leads to itself.
    pub(crate) const SAME: Self =
        Self { iova: EVERYTHING, target: PhysAddr::new(0), access: Permissions::ReadWrite };
}

/// Translations of some regions, the oldest first, and the map that look-ups take them from.
#[derive(Debug, Default)]
pub(super) struct Set {
    entries: Vec<Translation>,
    iotlb: Iotlb,
}

impl Set {
    pub(super) fn of(entries: Vec<Translation>) -> Self {
        let mut iotlb = Iotlb::new();
        for entry in &entries {
            put(&mut iotlb, *entry);
        }
        Self { entries, iotlb }
    }

    pub(super) fn entries(&self) -> &[Translation] {
        &self.entries
    }

    pub(super) fn iotlb(&self) -> &Iotlb {
        &self.iotlb
    }

    /// The translation of `at` that allows `access`.
    pub(super) fn find(&self, at: Iova, access: Permissions) -> Option<Translation> {
        let mut entries = self.entries.iter();
        let found = entries.find(|entry| entry.iova.contains(at));
        found.copied().filter(|entry| entry.access.allow(access))
    }

    pub(super) fn overlaps(&self, range: IovaRange) -> bool {
        self.entries.iter().any(|entry| entry.iova.overlaps(range))
    }
}

/// `vm_memory` counts to the end of a range, so the last byte of all cannot be in one: it is left out.
pub(super) fn put(iotlb: &mut Iotlb, entry: Translation) {
    let (start, last) = (entry.iova.start().get(), entry.iova.last().get());
    let length = last.min(u64::MAX - 1).saturating_sub(start) as usize + 1;
    if start == u64::MAX {
        return;
    }
    let target = GuestAddress(entry.target.get());
    // It cannot fail as of `vm-memory` 0.18; a translation that is not there is a miss.
    let _ = iotlb.set_mapping(GuestAddress(start), target, length, entry.access);
}
