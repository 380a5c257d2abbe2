//! Result of a look-up: translations that stay valid until it is dropped.

use std::ops::Deref;
use std::sync::Arc;

use vm_memory::iommu::Iotlb;

use super::set::Set;

/// Translations that a look-up has found, and of which an invalidation waits until this is gone.
///
/// Drop it before the next look-up of the same thread: a front-end may wait for an invalidation before it
/// answers a miss.
#[derive(Debug)]
pub struct IotlbGuard(FoundTranslations);

#[derive(Debug)]
enum FoundTranslations {
    /// Of one set.
    One(arc_swap::Guard<Arc<Set>>),
    /// Of several: copies, and the sets that say so.
    Several { copies: Iotlb, _sets: Vec<Arc<Set>> },
}

impl IotlbGuard {
    pub(super) fn one(set: arc_swap::Guard<Arc<Set>>) -> Self {
        Self(FoundTranslations::One(set))
    }

    pub(super) fn several(copies: Iotlb, sets: Vec<Arc<Set>>) -> Self {
        Self(FoundTranslations::Several { copies, _sets: sets })
    }
}

impl Deref for IotlbGuard {
    type Target = Iotlb;

    fn deref(&self) -> &Iotlb {
        match &self.0 {
            FoundTranslations::One(set) => set.iotlb(),
            FoundTranslations::Several { copies, .. } => copies,
        }
    }
}
