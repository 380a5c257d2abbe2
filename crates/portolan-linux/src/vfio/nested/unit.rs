//! Tables of guests for a unit's functions.

use std::sync::Arc;

use portolan::addr::{Pasid, StreamId};
use portolan::iommu::AttachError;

use super::kinds::{AboveTables, FirstStage, QueueKind, VirtualKind};
use super::viommu::{GuestStream, VirtualDevice, VirtualIommu};
use super::{NestedOptions, NestedTables, Site};
use crate::calls::refused;
use crate::domain::UserDomain;
use crate::sys::iommufd::nested as call;
use crate::vfio::bound::Tables;
use crate::vfio::hardware::Hardware;
use crate::vfio::unit::UserUnit;

/// Over type 1, all are [`IommuError::Unsupported`](portolan::iommu::IommuError).
impl UserUnit {
    fn site(&self, stream: StreamId) -> Result<Site, AttachError> {
        Ok(self.port(stream)?.site()?)
    }

    /// The IOMMU between `stream` and memory.
    ///
    /// *Context.* Task: a system call.
    ///
    /// # Errors
    /// A stream of another unit, or the kernel's error.
    pub fn hardware(&self, stream: StreamId) -> Result<Hardware, AttachError> {
        self.described(stream, None)
    }

    /// The queues of the IOMMU between `stream` and memory that guests may own, of one kind.
    ///
    /// *Context.* Task: a system call.
    ///
    /// # Errors
    /// As [`UserUnit::hardware`]; `Unsupported` if it has none, or if the kernel does not say (before Linux 6.19).
    pub fn queue_hardware<K: QueueKind>(&self, stream: StreamId) -> Result<Hardware, AttachError> {
        self.described(stream, Some(K::HARDWARE))
    }

    fn described(&self, stream: StreamId, kind: Option<u32>) -> Result<Hardware, AttachError> {
        let Site { iommufd, device } = self.site(stream)?;
        let said = call::describe(iommufd.descriptor(), device, kind);
        Ok(Hardware::read(&said.map_err(|error| refused(&error))?))
    }

    /// Tables of a guest for `stream`, above the tables of `domain`, whose options allow that.
    ///
    /// ```no_run
    /// # use portolan::addr::Iova;
    /// # use portolan::inval::Depth;
    /// # use portolan_linux::vfio::{self, DomainOptions, NestedOptions, VtdFirstStage, VtdInvalidation};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let opened = vfio::open(&["0000:03:00.0".parse()?])?;
    /// let (unit, stream) = (opened.unit, opened.devices[0].stream());
    /// let mut options = DomainOptions::default();
    /// options.second_stage = true;
    /// let memory = unit.domain_with(options)?; // the guest's memory is mapped here, once
    ///
    /// // Of the guest's PASID entry.
    /// let stage = VtdFirstStage { root: Iova::new(0x10_0000), address_bits: 48, supervisor: false,
    ///     extended_accessed: false, write_protect: false };
    /// let tables = unit.nested(stream, &memory, &stage, NestedOptions::default())?;
    /// unit.attach_nested(stream, None, &tables)?;
    ///
    /// // Of the guest's invalidation queue.
    /// let (start, count, depth) = (Iova::new(0x1000), 1, Depth::LeafOnly);
    /// tables.invalidate(&[VtdInvalidation::Pages { start, count, depth }])?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// *Context.* Task: system calls.
    ///
    /// # Errors
    /// A stream, a domain or a queue of another unit, or the kernel's error.
    pub fn nested<S: AboveTables>(
        &self,
        stream: StreamId,
        domain: &Arc<UserDomain>,
        stage: &S,
        options: NestedOptions,
    ) -> Result<NestedTables<S>, AttachError> {
        let site = self.site(stream)?;
        match domain.is_of(&self.reach) {
            true => NestedTables::above(&site, domain, stage, options),
            false => Err(AttachError::Mismatch),
        }
    }

    /// Moves the requests of `stream`, or those with `pasid`, to the tables of a guest.
    /// [`Iommu::block`](portolan::iommu::Iommu::block), or
    /// [`Iommu::block_pasid`](portolan::iommu::Iommu::block_pasid), takes them from there.
    ///
    /// *Context.* Task: a system call.
    ///
    /// # Errors
    /// As [`Attach::attach`](portolan::iommu::Attach::attach); the requests are where they were.
    pub fn attach_nested<S: FirstStage>(
        &self,
        stream: StreamId,
        pasid: Option<Pasid>,
        tables: &NestedTables<S>,
    ) -> Result<(), AttachError> {
        let port = self.port(stream)?;
        let tables = Tables::Nested(tables.table().clone());
        match pasid {
            Some(pasid) => port.attach_pasid(pasid, tables),
            None => port.attach(tables, &self.counters),
        }
    }

    /// A virtual IOMMU for `stream` and those behind the same unit of the host's, above the tables of `domain`, whose
    /// options allow that.
    ///
    /// *Context.* Task: system calls.
    ///
    /// # Errors
    /// A stream or a domain of another unit, or the kernel's error: `Unsupported` if the hardware is of
    /// another kind.
    pub fn virtual_iommu<K: VirtualKind>(
        &self,
        stream: StreamId,
        domain: &Arc<UserDomain>,
    ) -> Result<VirtualIommu<K>, AttachError> {
        let site = self.site(stream)?;
        match domain.is_of(&self.reach) {
            true => VirtualIommu::above(&site, domain),
            false => Err(AttachError::Mismatch),
        }
    }

    /// The device `stream` as a guest names it behind `viommu`.
    ///
    /// *Context.* Task: a system call.
    ///
    /// # Errors
    /// A stream or a virtual IOMMU of another unit, or the kernel's error: a device has one name, and a name one
    /// device.
    pub fn virtual_device<K: VirtualKind>(
        &self,
        stream: StreamId,
        viommu: &VirtualIommu<K>,
        name: GuestStream,
    ) -> Result<VirtualDevice, AttachError> {
        viommu.device(self.inside(stream, viommu)?, name)
    }

    /// Tables of a guest for `stream`, whose virtual device names it, behind `viommu`.
    ///
    /// *Context.* Task: a system call.
    ///
    /// # Errors
    /// A stream, a virtual IOMMU or a queue of another unit, or the kernel's error.
    pub fn nested_behind<K: VirtualKind>(
        &self,
        stream: StreamId,
        viommu: &VirtualIommu<K>,
        stage: &K::Stage,
        options: NestedOptions,
    ) -> Result<NestedTables<K::Stage>, AttachError> {
        viommu.tables(self.inside(stream, viommu)?, stage, options)
    }

    /// The number of `stream`, if `viommu` is of the same unit.
    fn inside<K: VirtualKind>(
        &self,
        stream: StreamId,
        viommu: &VirtualIommu<K>,
    ) -> Result<u32, AttachError> {
        let site = self.site(stream)?;
        match viommu.is_of(&site.iommufd) {
            true => Ok(site.device),
            false => Err(AttachError::Mismatch),
        }
    }
}
