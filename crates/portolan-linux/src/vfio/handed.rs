//! Descriptors that others opened: a broker, a container manager, another process.
//!
//! linux/vfio.h, linux/iommufd.h. The kind of a descriptor is asked of the kernel before anything is done with it, by
//! calls that change nothing; one of another kind comes back with the error.
//!
//! A device that another process has bound to an iommufd stays where it is: a monitor that executes itself anew keeps
//! its devices at work.
//!
//! Not supported: the kernel's word on the iommufd that a device is bound to; the caller has to know.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use portolan::addr::PciFunction;
use portolan::dma::Failed;
use rustix::fs::{FileType, fstat};
use rustix::io::Errno;
use thiserror::Error;

use super::error::errno;
use super::name::{BoundNumber, DeviceName, IoasId, VfToken};
use crate::sys as call;

/// Kind of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DescriptorKind {
    /// /dev/iommu.
    Iommufd,
    /// /dev/vfio/vfio.
    Container,
    /// A group's node below /dev/vfio.
    Group,
    /// A device's node below /dev/vfio/devices, which is bound to nothing.
    DeviceNode,
    /// A device that its group gave, or that is bound to an iommufd.
    OpenDevice,
    /// None of these.
    Other,
}

impl DescriptorKind {
    /// The kind of `fd`, as the kernel says.
    pub fn of(fd: BorrowedFd<'_>) -> Self {
        let mode = fstat(fd).map(|status| status.st_mode);
        // An open device has no type of file; no other type is any of the kernel's for VFIO.
        let may_be = mode.is_ok_and(|mode| {
            mode & 0o170_000 == 0 || FileType::from_raw_mode(mode) == FileType::CharacterDevice
        });
        if !may_be {
            return Self::Other;
        }
        // Of iommufd first: it may answer a container's calls as well.
        if call::iommufd::answers(fd) {
            return Self::Iommufd;
        }
        if call::plain(fd, call::GET_API_VERSION, 0).is_ok_and(|version| version == 0) {
            return Self::Container;
        }
        if call::group_status(fd).is_ok() {
            return Self::Group;
        }
        // `vfio_device_info` as far as each kernel has it.
        let info = call::ask(fd, call::DEVICE_GET_INFO, 16, &[]);
        match info.map_err(|error| errno(&error)) {
            Ok(_) => Self::OpenDevice,
            // A node that is not bound refuses all calls but the one that binds it.
            Err(Some(Errno::INVAL)) if call::iommufd::can_bind(fd) => Self::DeviceNode,
            Err(_) => Self::Other,
        }
    }
}

/// A descriptor of another kind than its use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the descriptor is {found:?}, not {wanted:?}")]
pub struct WrongDescriptor {
    /// Kind that its use needs.
    pub wanted: DescriptorKind,
    /// Kind that it has.
    pub found: DescriptorKind,
}

macro_rules! file {
    ($(#[$doc:meta])* $name:ident, $kind:ident) => {
        $(#[$doc])*
        ///
        /// ```
        #[doc = concat!("use portolan_linux::vfio::{DescriptorKind, ", stringify!($name), "};")]
        /// use std::os::fd::OwnedFd;
        ///
        /// # fn main() -> std::io::Result<()> {
        /// let (socket, _) = std::os::unix::net::UnixStream::pair()?;
        #[doc = concat!("let refused = ", stringify!($name), "::try_from(OwnedFd::from(socket));")]
        /// let refused = refused.expect_err("a socket is none");
        /// assert_eq!(refused.error.found, DescriptorKind::Other);
        /// drop(refused.value); // the socket
        /// # Ok(())
        /// # }
        /// ```
        #[derive(Debug)]
        pub struct $name(OwnedFd);

        impl TryFrom<OwnedFd> for $name {
            type Error = Failed<OwnedFd, WrongDescriptor>;

            fn try_from(fd: OwnedFd) -> Result<Self, Self::Error> {
                let wanted = DescriptorKind::$kind;
                match DescriptorKind::of(fd.as_fd()) {
                    found if found == wanted => Ok(Self(fd)),
                    found => Err(Failed { error: WrongDescriptor { wanted, found }, value: fd }),
                }
            }
        }

        impl From<$name> for OwnedFd {
            fn from(file: $name) -> Self {
                file.0
            }
        }

        impl AsFd for $name {
            fn as_fd(&self) -> BorrowedFd<'_> {
                self.0.as_fd()
            }
        }
    };
}

file! {
    /// An open /dev/iommu.
    IommufdFile, Iommufd
}
file! {
    /// An open /dev/vfio/vfio, of whose addresses no other code maps any.
    ContainerFile, Container
}
file! {
    /// An open node of a group.
    GroupFile, Group
}
file! {
    /// An open node of a device, below /dev/vfio/devices, that is bound to nothing yet.
    DeviceFile, DeviceNode
}

file! {
    /// A device that is open: bound to an iommufd, by another process or before this one was executed anew.
    BoundDeviceFile, OpenDevice
}

/// Descriptors of a device that is to be opened.
#[derive(Debug)]
pub(super) enum Origin {
    /// None: its nodes are opened by their names.
    Named,
    Node(DeviceFile),
    Group(ContainerFile, GroupFile),
    Bound(BoundDeviceFile, BoundNumber, IoasId),
}

/// A device that is to be opened by [`open_from`](super::open_from).
///
/// ```no_run
/// use portolan_linux::vfio::{self, Candidate, DeviceFile, IommufdFile, Through};
/// use std::os::fd::OwnedFd;
///
/// # fn open(received: impl Fn() -> OwnedFd) -> Result<(), Box<dyn std::error::Error>> {
/// // From a socket by which a broker sends them.
/// let iommufd = IommufdFile::try_from(received()).map_err(|failed| failed.error)?;
/// let node = DeviceFile::try_from(received()).map_err(|failed| failed.error)?;
/// let disk = Candidate::node("0000:03:00.0".parse()?, node);
/// let opened = vfio::open_from(Through::Handed(iommufd), vec![disk])?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Candidate {
    pub(super) name: DeviceName,
    pub(super) token: Option<VfToken>,
    pub(super) origin: Origin,
}

impl From<PciFunction> for Candidate {
    fn from(function: PciFunction) -> Self {
        Self::from(DeviceName::from(function))
    }
}

/// A device whose nodes this process opens.
impl From<DeviceName> for Candidate {
    fn from(name: DeviceName) -> Self {
        Self { name, token: None, origin: Origin::Named }
    }
}

impl Candidate {
    /// A PCI function whose node below /dev/vfio/devices was opened already. The name is that by which its unit is to
    /// know it.
    pub fn node(function: PciFunction, node: DeviceFile) -> Self {
        Self { origin: Origin::Node(node), ..Self::from(function) }
    }

    /// A PCI function in a group whose node was opened already, and the container that it is in or is to join. A
    /// container that has an address space already is of type 1, version 2.
    pub fn group(function: PciFunction, container: ContainerFile, group: GroupFile) -> Self {
        Self { origin: Origin::Group(container, group), ..Self::from(function) }
    }

    /// A PCI function that is bound already to the iommufd that it is opened through. Its number there
    /// ([`UserUnit::bound_number`](super::UserUnit::bound_number)) and the address space that it is in are from the
    /// process that bound it. It stays there until it is attached to a domain, and keeps reaching its mappings.
    pub fn bound(
        function: PciFunction,
        device: BoundDeviceFile,
        number: BoundNumber,
        ioas: IoasId,
    ) -> Self {
        Self { origin: Origin::Bound(device, number, ioas), ..Self::from(function) }
    }

    /// The same of another device than a PCI function.
    #[must_use]
    pub fn named(self, name: DeviceName) -> Self {
        Self { name, ..self }
    }

    /// The same with the token of the physical function that it is a virtual one of, or that it is itself.
    #[must_use]
    pub fn with_token(self, token: VfToken) -> Self {
        Self { token: Some(token), ..self }
    }

    /// Name by which a group gives it: with the token behind it, as the kernel parses it.
    pub(super) fn in_group(&self) -> String {
        match &self.token {
            None => self.name.to_string(),
            Some(token) => format!("{} vf_token={token}", self.name),
        }
    }
}

/// Interface by which the kernel keeps address spaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Interface {
    /// Containers of VFIO, type 1, version 2.
    Type1,
    /// /dev/iommu.
    Iommufd,
}

impl fmt::Display for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Type1 => "type 1",
            Self::Iommufd => "iommufd",
        })
    }
}

/// Interface of the kernel's that devices are opened through.
#[derive(Debug)]
#[non_exhaustive]
pub enum Through {
    /// By this process.
    Interface(Interface),
    /// An iommufd that another process opened.
    Handed(IommufdFile),
}

#[cfg(test)]
mod tests;
