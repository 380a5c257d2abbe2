//! The guest's memory, as a device behind a virtual IOMMU sees it.

use std::num::NonZeroUsize;
use std::sync::{Arc, Weak};
use std::time::Duration;

use portolan::addr::{Iova, IovaRange, PhysAddr};
use vm_memory::iommu::{Error as IommuError, Iommu, IotlbIterator};
use vm_memory::{GuestAddress, Permissions};

use crate::iotlb::{IotlbGuard, Replacement, Sets, StillHeld, Translation, translate};

/// A device behind a virtual IOMMU, by the number under which the guest speaks of it: that of firmware's VIOT table,
/// a VT-d source id, an AMD device id, an SMMU stream id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointId(u32);

impl EndpointId {
    /// Wraps a raw number.
    pub const fn new(raw: u32) -> Self {
        Self(raw)
    }

    /// The raw number.
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// Source of an endpoint's translations.
pub(crate) trait Source: std::fmt::Debug + Send + Sync {
    /// Takes translations of `range` from `at` on into the endpoint's IOTLB; without one that allows `access`
    /// at `at` itself, a fault is recorded. Returns if there was one.
    fn fill(&self, endpoint: &Endpoint, at: Iova, range: IovaRange, access: Permissions) -> bool;
}

/// Number of times that a look-up takes translations in, at most: they may go as soon as they have come.
const MOST_LOOKS: usize = 128;
/// Pieces of a look-up that are taken in at once.
const MOST_PIECES: usize = 64;

/// An endpoint's translations: looked up without a lock as long as they are in its IOTLB, and else in the guest's
/// mappings.
///
/// Clones share it: one of them goes below [`IommuMemory`](vm_memory::iommu::IommuMemory).
///
/// Drop a guard before the next look-up of the same thread: a guest's request may wait for it.
#[derive(Clone, Debug)]
pub struct Endpoint(Arc<EndpointInner>);

#[derive(Debug)]
struct EndpointInner {
    id: EndpointId,
    source: Weak<dyn Source>,
    sets: Sets,
}

impl Endpoint {
    pub(crate) fn new(id: EndpointId, source: Weak<dyn Source>, capacity: NonZeroUsize) -> Self {
        Self(Arc::new(EndpointInner { id, source, sets: Sets::new(capacity, Replacement::InSets) }))
    }

    /// Its number.
    pub fn id(&self) -> EndpointId {
        self.0.id
    }

    /// Tells if `other` is a clone of it.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Takes in the translations of `range` from `at` on that `find` returns, as far as they go;
    /// returns the error of `at` itself.
    ///
    /// Hold a lock across it that is also taken before translations that `find` returned are taken away with
    /// [`Endpoint::forget`]: nothing is put in after its invalidation then.
    pub(crate) fn fill<E>(
        &self,
        at: Iova,
        range: IovaRange,
        find: impl Fn(Iova) -> Result<Translation, E>,
    ) -> Result<(), E> {
        let mut from = at;
        for _ in 0..MOST_PIECES {
            let found = match find(from) {
                // It is looked at again from there.
                Err(_) if from != at => break,
                found => found?,
            };
            self.0.sets.insert(found);
            if found.iova.last() >= range.last() {
                break;
            }
            from = Iova::new(found.iova.last().get() + 1);
        }
        Ok(())
    }

    /// Forgets every translation that overlaps `range`, once no thread uses one any more.
    pub(crate) fn forget(&self, range: IovaRange, limit: Duration) -> Result<(), StillHeld> {
        self.0.sets.invalidate(range, limit).map(drop)
    }

    /// The one place in the guest's memory that `iova` leads to: for devices that access the guest's memory
    /// themselves, by its own addresses, as long as they keep what this returns.
    ///
    /// # Errors
    /// See [`NotContiguous`].
    pub fn contiguous(
        &self,
        iova: IovaRange,
        access: Permissions,
    ) -> Result<Contiguous, NotContiguous> {
        let not_mapped = |reason| NotContiguous::NotMapped { iova, reason };
        let mut pieces = self.find(iova, access).map_err(not_mapped)?;
        let first = pieces.next().ok_or(not_mapped("it is empty"))?;
        let target = PhysAddr::new(first.base.0);
        let mut end = first.base.0.wrapping_add(first.length as u64);
        for piece in pieces.by_ref() {
            if piece.base.0 != end {
                let second = PhysAddr::new(piece.base.0);
                return Err(NotContiguous::Pieces { iova, first: target, second });
            }
            end = end.wrapping_add(piece.length as u64);
        }
        Ok(Contiguous { target, _held: pieces })
    }

    fn find(
        &self,
        range: IovaRange,
        access: Permissions,
    ) -> Result<IotlbIterator<IotlbGuard>, &'static str> {
        for _ in 0..MOST_LOOKS {
            let at = match self.0.sets.find(range, access) {
                Ok(found) => return Ok(found),
                Err(missing) => missing.at()?,
            };
            let source = self.0.source.upgrade().ok_or("the IOMMU has gone")?;
            // All of it at once: new translations may push out older ones.
            let filled = source.fill(self, at, range, access);
            if !filled {
                return Err("it is not mapped");
            }
        }
        Err("translations do not stay")
    }
}

/// One place in the guest's memory; an invalidation waits until this is dropped.
#[derive(Debug)]
pub struct Contiguous {
    target: PhysAddr,
    _held: IotlbIterator<IotlbGuard>,
}

impl Contiguous {
    /// Address in the guest that the first byte leads to.
    pub fn target(&self) -> PhysAddr {
        self.target
    }
}

/// Reason why a range is not one range of the guest's memory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotContiguous {
    /// A part of it is not mapped, or not for this access.
    #[error("{iova} is not mapped: {reason}")]
    NotMapped {
        /// The range.
        iova: IovaRange,
        /// The reason, in words.
        reason: &'static str,
    },
    /// It leads to several places.
    #[error("{iova} leads to several places, to {second} after {first}")]
    Pieces {
        /// The range.
        iova: IovaRange,
        /// Address that the first byte leads to.
        first: PhysAddr,
        /// Address that the first byte behind that piece leads to.
        second: PhysAddr,
    },
}

impl Iommu for Endpoint {
    type IotlbGuard<'a> = IotlbGuard;

    fn translate(
        &self,
        iova: GuestAddress,
        length: usize,
        access: Permissions,
    ) -> Result<IotlbIterator<IotlbGuard>, IommuError> {
        translate(iova, length, |range| self.find(range, access))
    }
}
