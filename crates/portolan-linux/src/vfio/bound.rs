//! A device that is bound to iommufd.
//!
//! linux/vfio.h (`VFIO_DEVICE_BIND_IOMMUFD`, `VFIO_DEVICE_ATTACH_IOMMUFD_PT`), as of Linux 7.3. The device is opened
//! by its own node below /dev/vfio/devices, and put into an address space, or taken from one, by calls on its
//! file: all of its requests, or those with one PASID.

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use portolan::addr::Pasid;
use portolan::iommu::{AttachError, IommuError};
use rustix::io::Errno;

use super::container::node;
use super::error::{OpenError, Step, VfioError, errno};
use super::handed::{Candidate, Origin};
use super::ioas::{DomainOptions, Ioas};
use super::iommufd::Iommufd;
use super::name::{DeviceName, VfToken};
use super::nested::{Site, Table};
use super::sysfs;
use crate::calls::{count, refused};
use crate::domain::{Reach, UserDomain};
use crate::sys::iommufd as call;
use crate::sys::iommufd::nested::describe;

/// A device that is bound.
#[derive(Debug)]
pub(super) struct Bound {
    iommufd: Arc<Iommufd>,
    /// Gone once its owner has closed it, and then it is attached to nothing.
    device: Weak<OwnedFd>,
    id: u32,
    /// Address space that it was in when it was handed over.
    handed_in: Option<Arc<Ioas>>,
    /// Where requests with a PASID are.
    pasids: Mutex<BTreeMap<u32, Tables>>,
}

/// Place of a device's requests.
#[derive(Clone, Debug)]
pub(super) enum Tables {
    Domain(Arc<UserDomain>),
    Nested(Arc<Table>),
    /// An address space of the process that bound the device.
    Former(Arc<Ioas>),
}

impl Tables {
    /// Tells if both are the same.
    pub(super) fn are(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Domain(one), Self::Domain(other)) => Arc::ptr_eq(one, other),
            (Self::Nested(one), Self::Nested(other)) => Arc::ptr_eq(one, other),
            (Self::Former(one), Self::Former(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }

    /// The domain that maps memory, unless a guest's tables are above it.
    pub(super) fn domain(&self) -> Option<&Arc<UserDomain>> {
        match self {
            Self::Domain(domain) => Some(domain),
            Self::Nested(_) | Self::Former(_) => None,
        }
    }

    /// The number of the address space, unless a guest's tables are above it.
    pub(super) fn ioas(&self) -> Option<u32> {
        match self {
            Self::Domain(domain) => domain.ioas(),
            Self::Nested(_) => None,
            Self::Former(ioas) => Some(ioas.id()),
        }
    }
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
        if let Origin::Bound(device, number, ioas) = origin {
            // A number of nothing, or of something else than a device, is an error here and not in the first attach.
            let there = describe(iommufd.descriptor(), number.get(), None);
            there.map_err(VfioError::of(Step::Bind))?;
            let handed_in = Some(Arc::new(Ioas::handed(iommufd, ioas.get())));
            return Ok(Self::of(iommufd, device.into(), number.get(), handed_in));
        }
        let (device, group) = match origin {
            Origin::Named => {
                let group = sysfs::group(name)?;
                (open_node(name, group)?, Some(group))
            }
            Origin::Node(node) => (node.into(), sysfs::group(name).ok()),
            Origin::Group(..) | Origin::Bound(..) => {
                return Err(OpenError::OtherInterface { device: name });
            }
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
        Ok(Self::of(iommufd, device, id, None))
    }

    pub(super) fn of(
        iommufd: &Arc<Iommufd>,
        device: OwnedFd,
        id: u32,
        handed_in: Option<Arc<Ioas>>,
    ) -> (Self, Arc<OwnedFd>) {
        let device = Arc::new(device);
        let (iommufd, weak) = (iommufd.clone(), Arc::downgrade(&device));
        (Self { iommufd, device: weak, id, handed_in, pasids: Mutex::default() }, device)
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.iommufd.descriptor()
    }

    /// The addresses and pages that the kernel names, once the device is in an address space: an empty one, unless it
    /// is at work in one.
    pub(super) fn reach(&self) -> Result<Reach, VfioError> {
        if let Some(ioas) = &self.handed_in {
            return ioas.ranges();
        }
        let asked = |error| VfioError::of(Step::Info)(error);
        let device = self.device.upgrade().ok_or(VfioError::Gone)?;
        let ioas = Ioas::new(&self.iommufd, &DomainOptions::default());
        let ioas = ioas.map_err(asked)?;
        call::attach(device.as_fd(), ioas.id(), None).map_err(asked)?;
        let said = ioas.ranges();
        call::detach(device.as_fd(), None).map_err(asked)?;
        said
    }

    /// Place of the device's requests when it was handed over.
    pub(super) fn former(&self) -> Option<Tables> {
        self.handed_in.clone().map(Tables::Former)
    }

    /// Moves the requests of the device, or those with `pasid`, to `tables`. The address space of a domain is made if
    /// there is none yet. They leave their former one in the same moment.
    fn enter(&self, tables: &Tables, pasid: Option<u32>) -> Result<(), AttachError> {
        let device = self.device.upgrade().ok_or(IommuError::Gone)?;
        let (tables, has_queue) = match tables {
            Tables::Domain(domain) => {
                let ioas = domain.placed()?;
                (ioas.tables(self.id)?, ioas.has_queue())
            }
            Tables::Nested(table) if table.is_of(&self.iommufd) => (table.id(), table.has_queue()),
            Tables::Nested(_) => return Err(AttachError::Mismatch),
            Tables::Former(ioas) => (ioas.id(), false),
        };
        count(&self.iommufd.counters().attach);
        call::attach(device.as_fd(), tables, pasid).map_err(|error| match errno(&error) {
            // The kernel's word for a device that makes no page requests.
            Some(Errno::NODEV) if has_queue => IommuError::Unsupported.into(),
            _ => refused(&error).into(),
        })
    }

    fn leave(&self, pasid: Option<u32>) -> Result<(), IommuError> {
        let Some(device) = self.device.upgrade() else {
            return Ok(());
        };
        count(&self.iommufd.counters().attach);
        call::detach(device.as_fd(), pasid).map_err(|error| refused(&error))
    }

    /// Moves the requests without a PASID.
    pub(super) fn attach(&self, tables: &Tables) -> Result<(), AttachError> {
        self.enter(tables, None)
    }

    fn pasids(&self) -> MutexGuard<'_, BTreeMap<u32, Tables>> {
        self.pasids.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves the requests with `pasid`.
    pub(super) fn attach_pasid(&self, pasid: Pasid, tables: Tables) -> Result<(), AttachError> {
        let number = single(pasid)?;
        let mut pasids = self.pasids();
        if !pasids.get(&number).is_some_and(|old| old.are(&tables)) {
            self.enter(&tables, Some(number))?;
            pasids.insert(number, tables);
        }
        Ok(())
    }

    /// Takes the requests with `pasid` from where they are.
    pub(super) fn detach_pasid(&self, pasid: Pasid) -> Result<(), AttachError> {
        let number = single(pasid)?;
        let mut pasids = self.pasids();
        if pasids.contains_key(&number) {
            self.leave(Some(number))?;
            pasids.remove(&number);
        }
        Ok(())
    }

    /// The device, for the objects that are made for it.
    pub(super) fn site(&self) -> Site {
        Site { iommufd: self.iommufd.clone(), device: self.id }
    }

    /// The number by which page requests name it.
    pub(super) fn id(&self) -> u32 {
        self.id
    }

    pub(super) fn detach(&self) -> Result<(), IommuError> {
        self.leave(None)
    }
}

/// The number of a PASID that requests have: 0 is that of those without one.
fn single(pasid: Pasid) -> Result<u32, AttachError> {
    match pasid.get() {
        number @ 1..=0xf_ffff => Ok(number),
        _ => Err(AttachError::Mismatch),
    }
}

/// Detaches the device: the memory that is still mapped is out of its reach.
impl Drop for Bound {
    fn drop(&mut self) {
        if let Some(device) = self.device.upgrade() {
            for pasid in self.pasids().keys() {
                let _ = call::detach(device.as_fd(), Some(*pasid));
            }
            let _ = call::detach(device.as_fd(), None);
        }
    }
}
