//! Address spaces of iommufd, and devices that are bound to it.
//!
//! linux/iommufd.h, Documentation/userspace-api/iommufd.rst, as of Linux 6.12. A device is opened by its own
//! node below /dev/vfio/devices and bound to one open file of /dev/iommu. An address space there (IOAS) is an
//! object of its own: devices come and go while its mappings stay.
//!
//! The page tables of an address space (HWPT) are the kernel's to make, as devices come, unless the domain wants
//! something of them: dirty tracking, or page requests in a queue of this process's.
//!
//! Not supported: PASIDs, page tables of the process's own (nested HWPT), files as memory.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use portolan::addr::{IovaRange, PageSize, PciFunction, PhysAddr};
use portolan::iommu::{AttachError, IommuError};
use portolan::table::Access;
use portolan::table::format::DirtyTracking;
use rustix::io::Errno;

use super::container::{bytes, errno, node};
use super::error::{OpenError, Step, VfioError};
use super::sysfs;
use crate::calls::{Calls, Counters, count, refused};
use crate::chain::{InfoError, ranges};
use crate::domain::{DomainOptions, Reach, UserDomain};
use crate::sys::iommufd as call;

/// Of `IOMMU_IOAS_MAP`: what devices may do.
const WRITEABLE: u32 = 1 << 1;
const READABLE: u32 = 1 << 2;

/// Of `IOMMU_HWPT_ALLOC` and `IOMMU_HWPT_SET_DIRTY_TRACKING`.
const ALLOC_DIRTY_TRACKING: u32 = 1 << 1;
const FAULT_ID_VALID: u32 = 1 << 2;
const DIRTY_TRACKING_ENABLE: u32 = 1;

/// An open file of /dev/iommu, which all functions of a unit are bound to.
#[derive(Debug)]
pub(super) struct Iommufd {
    fd: OwnedFd,
    counters: Arc<Counters>,
}

/// A device that is bound.
#[derive(Debug)]
pub(super) struct Bound {
    iommufd: Arc<Iommufd>,
    /// Gone once its owner has closed it, and then it is attached to nothing.
    device: Weak<OwnedFd>,
    id: u32,
}

/// An address space of the kernel's.
#[derive(Debug)]
pub(crate) struct Ioas {
    iommufd: Arc<Iommufd>,
    id: u32,
    options: DomainOptions,
    /// Its page tables by device, where the kernel does not make them by itself. They stay when a device
    /// leaves, for what it has written.
    tables: Mutex<BTreeMap<u32, u32>>,
}

impl Iommufd {
    /// Whether the kernel has it, this process may use it, and each of `functions` has a node for it.
    pub(super) fn is_offered(functions: &[PciFunction]) -> bool {
        let named = |function: &PciFunction| sysfs::node(*function).is_some();
        functions.iter().all(named) && node("/dev/iommu").is_ok()
    }

    pub(super) fn open(counters: Arc<Counters>) -> Result<Arc<Self>, OpenError> {
        let step = Step::Iommufd;
        let fd = node("/dev/iommu").map_err(|error| match errno(&error) {
            Some(Errno::NOENT | Errno::NODEV | Errno::NXIO) => OpenError::NoIommufd,
            Some(Errno::ACCESS | Errno::PERM) => OpenError::NoPermission { group: None, step },
            _ => VfioError::of(step)(error).into(),
        })?;
        Ok(Arc::new(Self { fd, counters }))
    }

    fn ioas(self: &Arc<Self>, options: &DomainOptions) -> io::Result<Ioas> {
        Ok(Ioas {
            id: call::new_ioas(self.fd.as_fd())?,
            iommufd: self.clone(),
            options: options.clone(),
            tables: Mutex::default(),
        })
    }

    /// A queue of page requests: its number, and the file that it is read by.
    pub(super) fn fault_queue(&self) -> Result<(u32, OwnedFd), IommuError> {
        call::new_fault_queue(self.fd.as_fd()).map_err(|error| refused(&error))
    }

    pub(super) fn destroy(&self, id: u32) {
        // What is still in use stays, until the device's file or /dev/iommu is closed.
        let _ = call::destroy(self.fd.as_fd(), id);
    }
}

impl Bound {
    /// Opens `function` and binds it.
    pub(super) fn open(
        function: PciFunction,
        iommufd: &Arc<Iommufd>,
    ) -> Result<(Self, Arc<OwnedFd>), OpenError> {
        let number = sysfs::group(function)?;
        let group = Some(number);
        let not_bound = OpenError::NotBound {
            function,
            group: number,
        };
        let path = match sysfs::node(function) {
            Some(path) => path,
            None if sysfs::is_vfio(function) => return Err(OpenError::NoIommufd),
            None => return Err(not_bound),
        };
        let step = Step::Device;
        let device = node(&path).map_err(|error| match errno(&error) {
            Some(Errno::NOENT | Errno::NODEV | Errno::NXIO) => not_bound,
            Some(Errno::ACCESS | Errno::PERM) => OpenError::NoPermission { group, step },
            Some(Errno::BUSY) => OpenError::Busy { group: number },
            _ => VfioError::of(step)(error).into(),
        })?;
        let id = call::bind(device.as_fd(), iommufd.fd.as_fd());
        let id = id.map_err(|error| match errno(&error) {
            Some(Errno::PERM) => OpenError::UnsafeInterrupts { group: number },
            Some(Errno::BUSY | Errno::INVAL) if !sysfs::is_viable(number) => {
                OpenError::NotViable { group: number }
            }
            Some(Errno::BUSY) => OpenError::Busy { group: number },
            _ => VfioError::of(Step::Bind)(error).into(),
        })?;
        let device = Arc::new(device);
        let bound = Self {
            iommufd: iommufd.clone(),
            device: Arc::downgrade(&device),
            id,
        };
        Ok((bound, device))
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.iommufd.fd.as_fd()
    }

    /// The addresses and pages that the kernel names, once the device is in an address space: an empty one.
    pub(super) fn reach(&self) -> Result<Reach, VfioError> {
        let asked = |error| VfioError::of(Step::Info)(error);
        let device = self.device.upgrade().ok_or(VfioError::Gone)?;
        let ioas = self.iommufd.ioas(&DomainOptions::default());
        let ioas = ioas.map_err(asked)?;
        call::attach(device.as_fd(), ioas.id).map_err(asked)?;
        let said = call::ranges(self.iommufd.fd.as_fd(), ioas.id);
        call::detach(device.as_fd()).map_err(asked)?;
        let (pairs, alignment) = said.map_err(asked)?;
        Ok(reach(&pairs, alignment)?)
    }

    /// Moves the device into the address space of `domain`, which is made if there is none yet; what it was in
    /// before it leaves in the same moment.
    pub(super) fn attach(&self, domain: &UserDomain) -> Result<(), AttachError> {
        let device = self.device.upgrade().ok_or(IommuError::Gone)?;
        let new = || {
            let ioas = self.iommufd.ioas(domain.options());
            Ok(Arc::new(ioas.map_err(|error| refused(&error))?) as Arc<dyn Calls>)
        };
        let tables = domain.placed_or(new)?.tables(self.id)?;
        count(&self.iommufd.counters.attach);
        call::attach(device.as_fd(), tables).map_err(|error| refused(&error).into())
    }

    pub(super) fn iommufd(&self) -> &Arc<Iommufd> {
        &self.iommufd
    }

    /// The number by which page requests name it.
    pub(super) fn id(&self) -> u32 {
        self.id
    }

    pub(super) fn detach(&self) -> Result<(), IommuError> {
        let Some(device) = self.device.upgrade() else {
            return Ok(());
        };
        count(&self.iommufd.counters.attach);
        call::detach(device.as_fd()).map_err(|error| refused(&error))
    }
}

/// What its owner still has reaches nothing any more.
impl Drop for Bound {
    fn drop(&mut self) {
        if let Some(device) = self.device.upgrade() {
            let _ = call::detach(device.as_fd());
        }
    }
}

fn reach(pairs: &[(u64, u64)], alignment: u64) -> Result<Reach, InfoError> {
    let ranges = ranges(pairs.iter().copied())?;
    let none = InfoError::NoPages { sizes: alignment };
    let power = alignment
        .is_power_of_two()
        .then(|| alignment.trailing_zeros());
    let granule = PageSize::of_lg2(power.ok_or(none)?);
    // Pages of the process are no smaller.
    let granule = granule.max(PageSize::SIZE_4K);
    Ok(Reach { ranges, granule })
}

impl Ioas {
    /// Page tables that do what the options say.
    fn new_tables(&self, device: u32) -> Result<u32, IommuError> {
        let fd = self.iommufd.fd.as_fd();
        let dirty = match self.options.dirty {
            DirtyTracking::Hardware => ALLOC_DIRTY_TRACKING,
            DirtyTracking::Off => 0,
        };
        let queue = self.options.faults.as_ref().map(|queue| queue.id());
        let flags = dirty | queue.map_or(0, |_| FAULT_ID_VALID);
        let id = call::new_hwpt(fd, (device, self.id), flags, queue.unwrap_or(0));
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

    fn by_device(&self) -> MutexGuard<'_, BTreeMap<u32, u32>> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Ioas {
    fn drop(&mut self) {
        self.by_device()
            .values()
            .for_each(|id| self.iommufd.destroy(*id));
        self.iommufd.destroy(self.id);
    }
}

impl Calls for Ioas {
    fn map(&self, range: IovaRange, memory: PhysAddr, access: Access) -> Result<(), IommuError> {
        count(&self.iommufd.counters.map);
        let flag = |of, flag| if access.contains(of) { flag } else { 0 };
        let flags = flag(Access::READ, READABLE) | flag(Access::WRITE, WRITEABLE);
        let what = (range.start().get(), memory.get(), bytes(range)?);
        call::map(self.iommufd.fd.as_fd(), self.id, what, flags).map_err(|error| refused(&error))
    }

    fn unmap(&self, range: IovaRange, bytes_there: u64) -> Result<(), IommuError> {
        count(&self.iommufd.counters.unmap);
        let fd = self.iommufd.fd.as_fd();
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
        bitmap: &mut [u64],
    ) -> Result<(), IommuError> {
        let (fd, what) = (
            self.iommufd.fd.as_fd(),
            (range.start().get(), bytes(range)?),
        );
        // What any of the devices wrote.
        for id in self.by_device().values() {
            let read = call::dirty(fd, *id, what, page.bytes(), bitmap);
            read.map_err(|error| refused(&error))?;
        }
        Ok(())
    }

    fn ioas(&self) -> Option<u32> {
        Some(self.id)
    }

    fn tables(&self, device: u32) -> Result<u32, AttachError> {
        if self.options.dirty == DirtyTracking::Off && self.options.faults.is_none() {
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
}

#[cfg(test)]
mod tests;
