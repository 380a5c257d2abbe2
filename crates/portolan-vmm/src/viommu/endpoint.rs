//! What a device behind a virtio-iommu sees of the guest's memory.

use std::num::NonZeroUsize;
use std::sync::Weak;
use std::time::Duration;

use portolan::addr::{Iova, IovaRange};
use vm_memory::iommu::{Error as IommuError, Iommu, IotlbIterator, IovaRange as VmIovaRange};
use vm_memory::{GuestAddress, Permissions};

use crate::iotlb::{IotlbGuard, Missing, Replacement, Sets, StillHeld, nothing};

/// A device behind the virtio-iommu, by the number that firmware's VIOT table gives it.
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

/// Where an endpoint's translations come from.
pub(super) trait Source: std::fmt::Debug + Send + Sync {
    /// Takes translations of `range` from `at` on into the endpoint's IOTLB; without one that allows `access`
    /// at `at` itself, a fault is recorded. Whether there was one.
    fn fill(&self, endpoint: &Endpoint, at: Iova, range: IovaRange, access: Permissions) -> bool;
}

/// How often a look-up takes translations in: they may go as soon as they have come.
const MOST_LOOKS: usize = 128;

/// An endpoint's translations: looked up without a lock as long as they are in its IOTLB, and else in its domain.
///
/// Drop a guard before the next look-up of the same thread: a guest's request may wait for it.
#[derive(Debug)]
pub struct Endpoint {
    id: EndpointId,
    device: Weak<dyn Source>,
    sets: Sets,
}

impl Endpoint {
    pub(super) fn new(id: EndpointId, device: Weak<dyn Source>, capacity: NonZeroUsize) -> Self {
        Self {
            id,
            device,
            sets: Sets::new(capacity, Replacement::InSets),
        }
    }

    /// Its number.
    pub fn id(&self) -> EndpointId {
        self.id
    }

    pub(super) fn sets(&self) -> &Sets {
        &self.sets
    }

    pub(super) fn forget(&self, range: IovaRange, limit: Duration) -> Result<(), StillHeld> {
        self.sets.invalidate(range, limit).map(drop)
    }

    fn find(
        &self,
        range: IovaRange,
        access: Permissions,
    ) -> Result<IotlbIterator<IotlbGuard>, &'static str> {
        for _ in 0..MOST_LOOKS {
            let at = match self.sets.find(range, access) {
                Ok(found) => return Ok(found),
                Err(Missing::At(at)) => at,
                Err(Missing::Pieces) => return Err("it consists of too many pieces"),
                Err(Missing::Top) => return Err("it ends with the address space"),
            };
            let device = self.device.upgrade().ok_or("the virtio-iommu has gone")?;
            // All of it at once: what is taken in may push out what was.
            let filled = device.fill(self, at, range, access);
            if !filled {
                return Err("it is not mapped");
            }
        }
        Err("translations do not stay")
    }
}

impl Iommu for Endpoint {
    type IotlbGuard<'a> = IotlbGuard;

    fn translate(
        &self,
        iova: GuestAddress,
        length: usize,
        access: Permissions,
    ) -> Result<IotlbIterator<IotlbGuard>, IommuError> {
        let refused = |reason: &str| IommuError::CannotResolve {
            iova_range: VmIovaRange { base: iova, length },
            reason: reason.to_owned(),
        };
        if length == 0 {
            return nothing().ok_or_else(|| refused("nothing is asked for"));
        }
        let range = IovaRange::from_len(Iova::new(iova.0), length as u64);
        let range = range.ok_or_else(|| refused("it goes past the top"))?;
        self.find(range, access).map_err(refused)
    }
}
