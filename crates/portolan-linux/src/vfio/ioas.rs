//! Address spaces of iommufd.
//!
//! linux/iommufd.h, as of Linux 7.3. An address space (IOAS) is an object of its own: devices come and go while its
//! mappings stay. Memory of a file, and dma-bufs, are mapped by the file's descriptor. The page tables (HWPT) of an
//! address space are the kernel's to make, as devices come, unless the domain wants something of them: dirty tracking,
//! page requests in a queue of this process's, PASIDs, or a guest's tables above them (`nested`).

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use portolan::addr::{IovaRange, PageSize, PhysAddr, PhysRange};
use portolan::iommu::{AttachError, IommuError};
use portolan::table::Access;
use portolan::table::format::DirtyTracking;

use super::container::bytes;
use super::error::{Step, VfioError};
use super::faults::FaultQueue;
use super::iommufd::Iommufd;
use crate::calls::{AfterRead, Calls, Spaces, count, refused};
use crate::chain::{InfoError, ranges};
use crate::domain::{Reach, UserDomain};
use crate::files::{self, FileKind};
use crate::sys::iommufd as call;

/// Of `IOMMU_IOAS_MAP`: access of devices.
const WRITEABLE: u32 = 1 << 1;
const READABLE: u32 = 1 << 2;

/// Of `IOMMU_HWPT_ALLOC` and `IOMMU_HWPT_SET_DIRTY_TRACKING`.
const NEST_PARENT: u32 = 1;
const ALLOC_DIRTY_TRACKING: u32 = 1 << 1;
const FAULT_ID_VALID: u32 = 1 << 2;
pub(super) const ALLOC_PASID: u32 = 1 << 3;
const DIRTY_TRACKING_ENABLE: u32 = 1;
/// Of `IOMMU_HWPT_GET_DIRTY_BITMAP`.
const NO_CLEAR: u32 = 1;

/// Services of a domain beside mapping.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct DomainOptions {
    /// Tracking of the pages that devices write, for
    /// [`Domain::read_and_clear_dirty`](portolan::iommu::Domain::read_and_clear_dirty). Attaching a
    /// device whose IOMMU cannot is an error ([`IommuError::Unsupported`]). Type 1 always can: to it, all pages
    /// that devices may write are written.
    pub dirty: DirtyTracking,
    /// Queue of requests for pages that are not mapped; without it they are faults. Attaching is an error
    /// ([`IommuError::Unsupported`]) where the kernel takes no page requests for tables of its own (Linux 6.12), or the
    /// device makes none.
    pub faults: Option<Arc<FaultQueue>>,
    /// Tables that those of a guest may lie above
    /// ([`UserUnit::nested`](super::UserUnit::nested)). Attaching is an error where the hardware has one stage, and
    /// with `faults`: a guest's tables have a queue of their own.
    pub second_stage: bool,
    /// Attaching to single PASIDs ([`Attach::attach_pasid`](portolan::iommu::Attach::attach_pasid)). The domain
    /// of a stream's other requests has to allow it as well. Attaching is an error where the device has none.
    pub pasids: bool,
    /// Domains that [borrow](Self::borrows) from it.
    pub lends: bool,
    /// Domain that lends memory: what it maps is pinned once for both, and is on the process's account once. Other
    /// memory is pinned anew. A monitor's guest has many domains in the memory of one.
    pub borrows: Option<Arc<UserDomain>>,
}

impl DomainOptions {
    /// Tells if the kernel makes the tables by itself.
    fn are_plain(&self) -> bool {
        let plain = self.dirty == DirtyTracking::Off && self.faults.is_none();
        plain && !self.second_stage && !self.pasids
    }
}

/// An address space of the kernel's.
#[derive(Debug)]
pub(super) struct Ioas {
    iommufd: Arc<Iommufd>,
    id: u32,
    maker: IoasMaker,
    options: DomainOptions,
    /// Its page tables by device, where the kernel does not make them by itself. They stay when a device
    /// leaves, for the marks of its writes.
    tables: Mutex<BTreeMap<u32, u32>>,
    /// Addresses of memory that it lends.
    lent: Mutex<BTreeMap<PhysAddr, IovaRange>>,
}

/// Maker of an address space, which destroys it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IoasMaker {
    Library,
    Other,
}

/// The one address space that another process has made.
#[derive(Debug)]
pub(super) struct HandedIoas(pub(super) Arc<Ioas>);

impl Spaces for HandedIoas {
    fn new_space(&self) -> Result<Arc<dyn Calls>, IommuError> {
        Ok(self.0.clone())
    }
}

/// Makes address spaces with options.
#[derive(Debug)]
pub(super) struct NewIoas {
    pub(super) iommufd: Arc<Iommufd>,
    pub(super) options: DomainOptions,
}

impl Spaces for NewIoas {
    fn new_space(&self) -> Result<Arc<dyn Calls>, IommuError> {
        let ioas = Ioas::new(&self.iommufd, &self.options);
        Ok(Arc::new(ioas.map_err(|error| refused(&error))?))
    }
}

fn reach(pairs: &[(u64, u64)], alignment: u64) -> Result<Reach, InfoError> {
    let ranges = ranges(pairs.iter().copied())?;
    let none = InfoError::NoPages { sizes: alignment };
    let power = alignment.is_power_of_two().then(|| alignment.trailing_zeros());
    let granule = PageSize::of_lg2(power.ok_or(none)?);
    // Pages of the process are no smaller.
    let granule = granule.max(PageSize::SIZE_4K);
    Ok(Reach { ranges, granule })
}

impl Ioas {
    pub(super) fn new(iommufd: &Arc<Iommufd>, options: &DomainOptions) -> io::Result<Self> {
        Ok(Self {
            id: call::new_ioas(iommufd.descriptor())?,
            iommufd: iommufd.clone(),
            maker: IoasMaker::Library,
            options: options.clone(),
            tables: Mutex::default(),
            lent: Mutex::default(),
        })
    }

    /// One that another process has made, and destroys.
    pub(super) fn handed(iommufd: &Arc<Iommufd>, id: u32) -> Self {
        let (maker, options) = (IoasMaker::Other, DomainOptions::default());
        let (tables, lent) = Default::default();
        Self { id, iommufd: iommufd.clone(), maker, options, tables, lent }
    }

    pub(super) fn id(&self) -> u32 {
        self.id
    }

    /// The addresses and pages that the kernel names for the devices that are in it.
    pub(super) fn ranges(&self) -> Result<Reach, VfioError> {
        let said = call::ranges(self.iommufd.descriptor(), self.id);
        let (pairs, alignment) = said.map_err(VfioError::of(Step::Info))?;
        Ok(reach(&pairs, alignment)?)
    }

    /// Page tables with the options.
    fn new_tables(&self, device: u32) -> Result<u32, IommuError> {
        let fd = self.iommufd.descriptor();
        let dirty = match self.options.dirty {
            DirtyTracking::Hardware => ALLOC_DIRTY_TRACKING,
            DirtyTracking::Off => 0,
        };
        let queue = self.options.faults.as_ref().map(|queue| queue.id());
        let flag = |wanted, flag| if wanted { flag } else { 0 };
        let flags = dirty
            | queue.map_or(0, |_| FAULT_ID_VALID)
            | flag(self.options.second_stage, NEST_PARENT)
            | flag(self.options.pasids, ALLOC_PASID);
        let id = call::new_hwpt(fd, device, self.id, flags, queue.unwrap_or(0));
        let id = id.map_err(|error| refused(&error))?;
        if self.options.dirty == DirtyTracking::Hardware {
            let enabled = call::set_dirty_tracking(fd, id, DIRTY_TRACKING_ENABLE);
            enabled.map_err(|error| {
                self.iommufd.destroy(id);
                refused(&error)
            })?;
        }
        Ok(id)
    }

    fn lending(&self) -> MutexGuard<'_, BTreeMap<PhysAddr, IovaRange>> {
        self.lent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Maps what another domain has pinned; tells if it has, and for this access.
    fn is_borrowed(&self, range: IovaRange, memory: PhysRange, flags: u32) -> bool {
        let lender = self.options.borrows.as_ref();
        let Some(from) = lender.and_then(|lender| lender.lent(memory)) else { return false };
        count(&self.iommufd.counters().copy);
        let into = call::Part { ioas: self.id, iova: range.start().get() };
        let copy = |length| call::copy(self.iommufd.descriptor(), into, from, length, flags);
        bytes(range).is_ok_and(|length| copy(length).is_ok())
    }

    fn map_memory(
        &self,
        range: IovaRange,
        memory: PhysRange,
        access: Access,
    ) -> Result<(), IommuError> {
        let flag = |of, flag| if access.contains(of) { flag } else { 0 };
        let flags = flag(Access::READ, READABLE) | flag(Access::WRITE, WRITEABLE);
        let wanted = match access.contains(Access::DEVICE) {
            true => FileKind::DmaBuf,
            false => FileKind::Memory,
        };
        if self.is_borrowed(range, memory, flags) {
            return Ok(());
        }
        let behind = files::behind(memory);
        let behind = behind.filter(|behind| behind.kind == wanted);
        let by_file = |behind| self.iommufd.map_file(self.id, range, &behind, flags);
        match (behind.and_then(by_file), wanted) {
            (Some(mapped), _) => return mapped,
            (None, FileKind::DmaBuf) => return Err(IommuError::Unsupported),
            (None, FileKind::Memory) => count(&self.iommufd.counters().map),
        }
        let (fd, iova) = (self.iommufd.descriptor(), range.start().get());
        let mapped = call::map(fd, self.id, iova, memory.start().get(), bytes(range)?, flags);
        mapped.map_err(|error| refused(&error))
    }

    fn by_device(&self) -> MutexGuard<'_, BTreeMap<u32, u32>> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Ioas {
    fn drop(&mut self) {
        self.by_device().values().for_each(|id| self.iommufd.destroy(*id));
        if self.maker == IoasMaker::Library {
            self.iommufd.destroy(self.id);
        }
    }
}

impl Calls for Ioas {
    fn has_queue(&self) -> bool {
        self.options.faults.is_some()
    }

    fn map(&self, range: IovaRange, memory: PhysAddr, access: Access) -> Result<(), IommuError> {
        let beyond = IommuError::Nonsense { offset: 0, value: memory.get() };
        let memory = PhysRange::from_len(memory, bytes(range)?).ok_or(beyond)?;
        self.map_memory(range, memory, access)?;
        if self.options.lends {
            self.lending().insert(memory.start(), range);
        }
        Ok(())
    }

    fn lent(&self, memory: PhysRange) -> Option<call::Part> {
        let lending = self.lending();
        let (start, range) = lending.range(..=memory.start()).next_back()?;
        let offset = memory.start().get() - start.get();
        let last = offset.checked_add(memory.len_minus_one())?;
        let iova = range.start().get().checked_add(offset)?;
        (last <= range.len_minus_one()).then_some(call::Part { ioas: self.id, iova })
    }

    fn unmap(&self, range: IovaRange, bytes_there: u64) -> Result<(), IommuError> {
        count(&self.iommufd.counters().unmap);
        let fd = self.iommufd.descriptor();
        if self.options.lends {
            self.lending().retain(|_, lent| !lent.overlaps(range));
        }
        let unmapped = call::unmap(fd, self.id, range.start().get(), bytes(range)?);
        match unmapped.map_err(|error| refused(&error))? {
            all if all == bytes_there => Ok(()),
            value => Err(IommuError::Nonsense { offset: 0, value }),
        }
    }

    fn dirty(
        &self,
        range: IovaRange,
        page: PageSize,
        after: AfterRead,
        bitmap: &mut [u64],
    ) -> Result<(), IommuError> {
        let (fd, iova, length) = (self.iommufd.descriptor(), range.start().get(), bytes(range)?);
        let flags = match after {
            AfterRead::Cleared => 0,
            AfterRead::Kept => NO_CLEAR,
        };
        // Marks of any of the devices.
        for id in self.by_device().values() {
            let read = call::dirty(fd, *id, flags, iova, length, page.bytes(), bitmap);
            read.map_err(|error| refused(&error))?;
        }
        Ok(())
    }

    fn ioas(&self) -> Option<u32> {
        Some(self.id)
    }

    fn tables(&self, device: u32) -> Result<u32, AttachError> {
        if self.options.are_plain() {
            return Ok(self.id);
        }
        let mut tables = self.by_device();
        if let Some(id) = tables.get(&device) {
            return Ok(*id);
        }
        let id = self.new_tables(device)?;
        tables.insert(device, id);
        Ok(id)
    }

    fn second_stage(&self, device: u32) -> Result<u32, AttachError> {
        match self.options.second_stage {
            true => self.tables(device),
            false => Err(AttachError::Mismatch),
        }
    }
}

#[cfg(test)]
mod tests;
