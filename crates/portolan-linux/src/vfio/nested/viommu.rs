//! Virtual IOMMUs: a part of the hardware's that a guest names things in, and its devices by the guest's names.

use std::marker::PhantomData;
use std::num::NonZeroU32;
use std::sync::Arc;

use portolan::iommu::{AttachError, IommuError};

use super::events::EventQueue;
use super::kinds::{EventKind, SmmuFirstStage, VirtualKind};
use super::{Below, InvalidateError, Kept, NestedOptions, NestedTables, Site, invalidate};
use crate::calls::refused;
use crate::domain::UserDomain;
use crate::sys::iommufd::nested as call;
use crate::vfio::iommufd::{Iommufd, Object};

/// Number by which a guest names a device: the stream of its virtual SMMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GuestStream(u64);

impl GuestStream {
    /// Names a device.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Its number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

#[derive(Debug)]
pub(super) struct Inner {
    // Destroyed before the tables below it.
    pub(super) object: Object,
    /// Answer of the kernel's of its kind.
    pub(super) data: Vec<u64>,
    domain: Arc<UserDomain>,
}

/// A guest's IOMMU in the hardware: above one domain, for devices behind one unit of the host's.
#[derive(Debug)]
pub struct VirtualIommu<K> {
    pub(super) inner: Arc<Inner>,
    kind: PhantomData<fn(K)>,
}

impl<K> Clone for VirtualIommu<K> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), kind: PhantomData }
    }
}

/// A device as the guest names it; the name goes with it.
#[derive(Debug)]
pub struct VirtualDevice {
    _object: Object,
    _viommu: Arc<Inner>,
}

impl<K: VirtualKind> VirtualIommu<K> {
    /// Above the tables that the device has in `domain`.
    pub(in crate::vfio) fn above(
        site: &Site,
        domain: &Arc<UserDomain>,
    ) -> Result<Self, AttachError> {
        let tables = domain.placed()?.second_stage(site.device)?;
        let (fd, mut data) = (site.iommufd.descriptor(), K::DATA.to_vec());
        let id = call::new_viommu(fd, site.device, tables, K::KIND, &mut data);
        let id = id.map_err(|error| refused(&error))?;
        let object = Object { iommufd: site.iommufd.clone(), id };
        let inner = Arc::new(Inner { object, data, domain: domain.clone() });
        Ok(Self { inner, kind: PhantomData })
    }

    /// The guest's memory.
    pub(super) fn memory(&self) -> &Arc<UserDomain> {
        &self.inner.domain
    }

    #[cfg(test)]
    pub(super) fn id(&self) -> u32 {
        self.inner.object.id
    }

    /// Tells if it is one of `iommufd`'s objects.
    pub(in crate::vfio) fn is_of(&self, iommufd: &Arc<Iommufd>) -> bool {
        Arc::ptr_eq(&self.inner.object.iommufd, iommufd)
    }

    pub(in crate::vfio) fn device(
        &self,
        device: u32,
        name: GuestStream,
    ) -> Result<VirtualDevice, AttachError> {
        let Object { iommufd, id } = &self.inner.object;
        let id = call::new_vdevice(iommufd.descriptor(), *id, device, name.get());
        let id = id.map_err(|error| refused(&error))?;
        let object = Object { iommufd: iommufd.clone(), id };
        Ok(VirtualDevice { _object: object, _viommu: self.inner.clone() })
    }

    pub(in crate::vfio) fn tables(
        &self,
        device: u32,
        stage: &K::Stage,
        options: NestedOptions,
    ) -> Result<NestedTables<K::Stage>, AttachError> {
        let Object { iommufd, id } = &self.inner.object;
        let site = Site { iommufd: iommufd.clone(), device };
        let below = Below { id: *id, _kept: Kept::Viommu { _viommu: self.inner.clone() } };
        NestedTables::new(&site, below, stage, options)
    }

    /// A queue for events of its devices, of at most `depth` at a time.
    ///
    /// *Context.* Task: a system call.
    ///
    /// # Errors
    /// The kernel's; a virtual IOMMU has one queue.
    pub fn events(&self, depth: NonZeroU32) -> Result<EventQueue<K>, IommuError> {
        self.events_of(depth)
    }

    /// A queue for events of one kind.
    pub(super) fn events_of<E: EventKind>(
        &self,
        depth: NonZeroU32,
    ) -> Result<EventQueue<E>, IommuError> {
        let Object { iommufd, id } = &self.inner.object;
        let new = call::new_event_queue(iommufd.descriptor(), *id, E::EVENTS, depth.get());
        let (id, file) = new.map_err(|error| refused(&error))?;
        let object = Object { iommufd: iommufd.clone(), id };
        Ok(EventQueue::new(object, file, self.inner.clone()))
    }

    pub(super) fn requests<const N: usize>(
        &self,
        requests: &[[u64; N]],
    ) -> Result<(), InvalidateError> {
        invalidate(&self.inner.object, K::INVALIDATION, requests)
    }
}

impl<K: VirtualKind<Stage = SmmuFirstStage>> VirtualIommu<K> {
    /// Carries out commands of the guest's, in their order. Linux takes those that invalidate: TLBI_NSNH_ALL,
    /// TLBI_NH_ALL, TLBI_NH_ASID, TLBI_NH_VA, TLBI_NH_VAA, ATC_INV, CFGI_CD, CFGI_CD_ALL, with the guest's number of
    /// the stream.
    ///
    /// *Context.* Task: a system call that waits for the hardware.
    ///
    /// # Errors
    /// The first command that was refused; those before it are carried out.
    pub fn invalidate(&self, commands: &[[u64; 2]]) -> Result<(), InvalidateError> {
        self.requests(commands)
    }
}
