//! A device that is bound to iommufd.
//!
//! linux/vfio.h (`VFIO_DEVICE_BIND_IOMMUFD`, `VFIO_DEVICE_ATTACH_IOMMUFD_PT`), as of Linux 6.12. The device is opened
//! by its own node below /dev/vfio/devices, and put into an address space, or taken from one, by calls on its
//! file.
//!
//! Not supported: PASIDs.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};

use portolan::iommu::{AttachError, IommuError};
use rustix::io::Errno;

use super::container::node;
use super::error::{OpenError, Step, VfioError, errno};
use super::handed::{Candidate, Origin};
use super::ioas::{DomainOptions, Ioas};
use super::iommufd::Iommufd;
use super::name::{DeviceName, VfToken};
use super::sysfs;
use crate::calls::{count, refused};
use crate::domain::{Reach, UserDomain};
use crate::sys::iommufd as call;

/// A device that is bound.
#[derive(Debug)]
pub(super) struct Bound {
    iommufd: Arc<Iommufd>,
    /// Gone once its owner has closed it, and then it is attached to nothing.
    device: Weak<OwnedFd>,
    id: u32,
}

/// Opens the node of `device`, which is in `group`.
fn open_node(device: DeviceName, number: u32) -> Result<OwnedFd, OpenError> {
    let not_bound = OpenError::NotBound { device, group: number };
    let path = match sysfs::node(device) {
        Some(path) => path,
        None if sysfs::is_vfio(device) => return Err(OpenError::NoIommufd),
        None => return Err(not_bound),
    };
    let (step, group) = (Step::Device, Some(number));
    node(&path).map_err(|error| match errno(&error) {
        Some(Errno::NOENT | Errno::NODEV | Errno::NXIO) => not_bound,
        Some(Errno::ACCESS | Errno::PERM) => OpenError::NoPermission { group, step },
        Some(Errno::BUSY) => OpenError::Busy { group: number },
        _ => VfioError::of(step)(error).into(),
    })
}

impl Bound {
    /// Opens a device, unless that is done, and binds it.
    pub(super) fn open(
        candidate: Candidate,
        iommufd: &Arc<Iommufd>,
    ) -> Result<(Self, Arc<OwnedFd>), OpenError> {
        let Candidate { name, token, origin } = candidate;
        let (device, group) = match origin {
            Origin::Named => {
                let group = sysfs::group(name)?;
                (open_node(name, group)?, Some(group))
            }
            Origin::Node(node) => (node.into(), sysfs::group(name).ok()),
            Origin::Group(..) => return Err(OpenError::OtherInterface { device: name }),
        };
        let token = token.as_ref().map(VfToken::bytes);
        let id = call::bind(device.as_fd(), iommufd.descriptor(), token);
        let id = id.map_err(|error| match (errno(&error), group) {
            (Some(Errno::ACCESS), _) => OpenError::Token { device: name },
            (Some(Errno::INVAL), _) if token.is_some() => OpenError::Token { device: name },
            (Some(Errno::PERM), Some(group)) => OpenError::UnsafeInterrupts { group },
            (Some(Errno::BUSY | Errno::INVAL), Some(group)) if !sysfs::is_viable(group) => {
                OpenError::NotViable { group }
            }
            (Some(Errno::BUSY), Some(group)) => OpenError::Busy { group },
            _ => VfioError::of(Step::Bind)(error).into(),
        })?;
        let device = Arc::new(device);
        let bound = Self { iommufd: iommufd.clone(), device: Arc::downgrade(&device), id };
        Ok((bound, device))
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.iommufd.descriptor()
    }

    /// The addresses and pages that the kernel names, once the device is in an address space: an empty one.
    pub(super) fn reach(&self) -> Result<Reach, VfioError> {
        let asked = |error| VfioError::of(Step::Info)(error);
        let device = self.device.upgrade().ok_or(VfioError::Gone)?;
        let ioas = Ioas::new(&self.iommufd, &DomainOptions::default());
        let ioas = ioas.map_err(asked)?;
        call::attach(device.as_fd(), ioas.id()).map_err(asked)?;
        let said = ioas.ranges();
        call::detach(device.as_fd()).map_err(asked)?;
        said
    }

    /// Moves the device into the address space of `domain`, which is made if there is none yet; it leaves its
    /// former one in the same moment.
    pub(super) fn attach(&self, domain: &UserDomain) -> Result<(), AttachError> {
        let device = self.device.upgrade().ok_or(IommuError::Gone)?;
        let tables = domain.placed()?.tables(self.id)?;
        count(&self.iommufd.counters().attach);
        call::attach(device.as_fd(), tables).map_err(|error| refused(&error).into())
    }

    /// The number by which page requests name it.
    pub(super) fn id(&self) -> u32 {
        self.id
    }

    pub(super) fn detach(&self) -> Result<(), IommuError> {
        let Some(device) = self.device.upgrade() else {
            return Ok(());
        };
        count(&self.iommufd.counters().attach);
        call::detach(device.as_fd()).map_err(|error| refused(&error))
    }
}

/// Detaches the device: the memory that is still mapped is out of its reach.
impl Drop for Bound {
    fn drop(&mut self) {
        if let Some(device) = self.device.upgrade() {
            let _ = call::detach(device.as_fd());
        }
    }
}
