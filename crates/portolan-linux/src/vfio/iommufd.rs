//! Address spaces of iommufd, and devices that are bound to it.
//!
//! linux/iommufd.h, Documentation/userspace-api/iommufd.rst, as of Linux 6.12. A device is opened by its own
//! node below /dev/vfio/devices and bound to one open file of /dev/iommu. An address space there (IOAS) is an
//! object of its own: devices come and go while its mappings stay.
//!
//! Not supported: PASIDs, page tables of the process's own (nested HWPT), files as memory.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};

use portolan::addr::{IovaRange, PageSize, PciFunction, PhysAddr};
use portolan::iommu::{AttachError, IommuError};
use portolan::table::Access;
use rustix::io::Errno;

use super::container::{bytes, errno, node};
use super::error::{OpenError, Step, VfioError};
use super::sysfs;
use crate::calls::{Calls, Counters, count, refused};
use crate::chain::{InfoError, ranges};
use crate::domain::{Reach, UserDomain};
use crate::sys::iommufd as call;

/// Of `IOMMU_IOAS_MAP`: what devices may do.
const WRITEABLE: u32 = 1 << 1;
const READABLE: u32 = 1 << 2;

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
}

/// An address space of the kernel's.
#[derive(Debug)]
pub(crate) struct Ioas {
    iommufd: Arc<Iommufd>,
    id: u32,
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

    fn ioas(self: &Arc<Self>) -> io::Result<Ioas> {
        let id = call::new_ioas(self.fd.as_fd())?;
        let iommufd = self.clone();
        Ok(Ioas { iommufd, id })
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
        let bound = call::bind(device.as_fd(), iommufd.fd.as_fd());
        bound.map_err(|error| match errno(&error) {
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
        let ioas = self.iommufd.ioas().map_err(asked)?;
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
            let ioas = self.iommufd.ioas().map_err(|error| refused(&error))?;
            Ok(Arc::new(ioas) as Arc<dyn Calls>)
        };
        let calls = domain.placed_or(new)?;
        let id = calls.ioas().ok_or(AttachError::Mismatch)?;
        count(&self.iommufd.counters.attach);
        call::attach(device.as_fd(), id).map_err(|error| refused(&error).into())
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

impl Drop for Ioas {
    fn drop(&mut self) {
        // A device that is attached all the same keeps it, until the device's file or /dev/iommu is closed.
        let _ = call::destroy(self.iommufd.fd.as_fd(), self.id);
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

    fn ioas(&self) -> Option<u32> {
        Some(self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_comes_from_the_kernel() {
        let x86 = [(0, 0xfedf_ffff), (0xfef0_0000, 0x7f_ffff_ffff)];
        let found = reach(&x86, 4096).unwrap();
        let of = |range: &IovaRange| (range.start().get(), range.last().get());
        assert_eq!(found.ranges.iter().map(of).collect::<Vec<_>>(), x86);
        assert_eq!(found.granule, PageSize::SIZE_4K);
        assert_eq!(reach(&x86, 1).unwrap().granule, PageSize::SIZE_4K);
        assert_eq!(reach(&x86, 1 << 16).unwrap().granule.bytes(), 1 << 16);
        assert_eq!(reach(&[], 4096).unwrap_err(), InfoError::NoRanges);
        for sizes in [0, 3, 4095] {
            assert_eq!(
                reach(&x86, sizes).unwrap_err(),
                InfoError::NoPages { sizes }
            );
        }
        let back = reach(&[(8, 9), (0, 4)], 4096);
        assert!(matches!(back, Err(InfoError::Ranges { .. })));
    }
}
