//! The kernel's IOMMUs as one unit: functions that were opened together.

use portolan::platform::AllMemory;
use std::sync::Arc;

use portolan::addr::{IovaRange, Pasid, PciFunction, StreamId};
use portolan::iommu::{
    Attach, AttachError, BoundDomain, FaultEvent, Iommu, IommuError, ReservedKind, ReservedRegion,
};
use portolan::table::format::DirtyTracking;

use super::bound::Tables;
use super::container;
use super::device::VfioDevice;
use super::error::{OpenError, Step, VfioError};
use super::faults::FaultQueue;
use super::handed::{Candidate, Interface, Through};
use super::ioas::{DomainOptions, HandedIoas, Ioas, NewIoas};
use super::iommufd::Iommufd;
use super::name::{BoundNumber, DeviceName, IoasId};
use super::port::{Port, RawSpace};
use crate::calls::{CallCounts, Counters, Spaces};
use crate::chain::InfoError;
use crate::domain::{Reach, UserDomain};

/// The functions of a call of [`open`]: as a unit is for a kernel.
///
/// With iommufd, a domain may have several functions. With type 1 each function is in an address space of its
/// own: a domain is in the container of the one function that is attached to it, and a second function is
/// refused ([`AttachError::Mismatch`]); mappings move along when a function is moved. The kernel reports no
/// faults to processes but page requests ([`UserUnit::fault_queue`]), and passes no function through.
///
/// *Context.* Task, all methods: they make system calls.
#[derive(Debug)]
pub struct UserUnit {
    ports: Vec<Port>,
    /// None over type 1.
    iommufd: Option<Arc<Iommufd>>,
    pub(super) reach: Arc<Reach>,
    pub(super) counters: Arc<Counters>,
}

/// Functions that were opened, and their unit.
#[derive(Debug)]
pub struct Opened {
    /// Unit by which their domains are attached.
    pub unit: Arc<UserUnit>,
    /// The functions, in the order in which they were named.
    pub devices: Vec<VfioDevice>,
}

/// Opens PCI functions that are bound to `vfio-pci`: by iommufd if the kernel has it and this process may use
/// it, by type 1 otherwise. They reach nothing until they are attached.
///
/// ```no_run
/// use portolan::dma::{Constraints, Device, DmaSpace, FromDevice, SpaceOptions};
/// use portolan_linux::memory::{Pages, Process};
/// use portolan_linux::vfio;
/// use std::sync::Arc;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let opened = vfio::open(&["0000:03:00.0".parse()?])?;
/// let space = DmaSpace::new(opened.unit.new_domain(), Process, &SpaceOptions::default())?;
/// let stream = opened.devices[0].stream();
/// let device = Device::translated(Arc::new(space), stream, Constraints::trusted())?;
/// let page = Pages::new(4096).ok_or("no memory")?;
/// let mapped = device.map(page, FromDevice).map_err(|failed| failed.error)?;
/// println!("the device writes at {}", mapped.iova());
/// # Ok(())
/// # }
/// ```
///
/// *Context.* Task.
///
/// # Errors
/// See [`OpenError`], which names the remedy. Nothing is left open.
pub fn open(functions: &[PciFunction]) -> Result<Opened, OpenError> {
    match Iommufd::is_offered(functions) {
        true => open_by(Interface::Iommufd, functions),
        false => open_by(Interface::Type1, functions),
    }
}

/// As [`open`], by one of the kernel's interfaces.
///
/// *Context.* Task.
///
/// # Errors
/// See [`OpenError`], which names the remedy. Nothing is left open.
pub fn open_by(interface: Interface, functions: &[PciFunction]) -> Result<Opened, OpenError> {
    let candidates = functions.iter().copied().map(Candidate::from);
    open_from(Through::Interface(interface), candidates.collect())
}

/// As [`open_by`], of devices whose descriptors others opened, of virtual functions with a token, and of devices
/// that are no PCI functions.
///
/// *Context.* Task.
///
/// # Errors
/// See [`OpenError`]. Nothing is left open, descriptors that were handed over among it.
pub fn open_from(through: Through, candidates: Vec<Candidate>) -> Result<Opened, OpenError> {
    let counters = Arc::new(Counters::default());
    let iommufd = match through {
        Through::Interface(Interface::Iommufd) => Some(Iommufd::open(counters.clone())?),
        Through::Interface(Interface::Type1) => None,
        Through::Handed(file) => Some(Iommufd::handed(file, counters.clone())),
    };
    let (mut ports, mut devices) = (Vec::<Port>::new(), Vec::new());
    let mut common: Option<Reach> = None;
    for candidate in candidates {
        let name = candidate.name;
        let stream = name.stream();
        if ports.iter().any(|port| port.stream == stream) {
            return Err(OpenError::Twice { stream });
        }
        let (port, fd) = Port::open(candidate, iommufd.as_ref(), &counters)?;
        let reach = port.reach()?;
        devices.push(VfioDevice::new(fd, name)?);
        common = Some(match common.take() {
            None => reach,
            Some(before) => both(&before, &reach),
        });
        ports.push(port);
    }
    let some = common.filter(|reach| !reach.ranges.is_empty());
    let reach = Arc::new(some.ok_or(OpenError::NoCommonAddresses)?);
    let unit = UserUnit { ports, iommufd, reach, counters };
    let unit = Arc::new(unit);
    Ok(Opened { unit, devices })
}

/// Opens a device that no IOMMU keeps from memory, where the kernel gives such devices out
/// (`enable_unsafe_noiommu_mode`). There is no unit and no map: the device is given physical addresses, which the
/// caller finds by itself, of memory that the kernel does not move. [`open`] refuses it ([`OpenError::Unprotected`]).
///
/// [`AllMemory`] is the promise that its driver hands it addresses of its own memory alone, and that the device keeps
/// to those: nothing stops it anywhere else, in this process, in others and in the kernel.
///
/// *Context.* Task.
///
/// # Errors
/// [`OpenError::Protected`] where an IOMMU is before it, or the kernel gives none out so; else as [`open`].
pub fn open_unprotected(
    device: impl Into<DeviceName>,
    _all: AllMemory,
) -> Result<VfioDevice, OpenError> {
    let device = device.into();
    Ok(VfioDevice::new(container::open_unprotected(device)?, device)?)
}

/// Reach that two functions have in common.
fn both(one: &Reach, other: &Reach) -> Reach {
    let meet = |range: &IovaRange| {
        let range = *range;
        let others = other.ranges.iter();
        others.filter_map(move |other| range.intersection(*other))
    };
    Reach {
        ranges: one.ranges.iter().flat_map(meet).collect(),
        granule: one.granule.max(other.granule),
    }
}

impl UserUnit {
    /// A unit over an iommufd, for domains without devices.
    #[cfg(test)]
    pub(super) fn without_devices(iommufd: Arc<Iommufd>, reach: Reach) -> Self {
        let (ports, counters) = (Vec::new(), Arc::new(Counters::default()));
        Self { ports, iommufd: Some(iommufd), reach: Arc::new(reach), counters }
    }

    /// An empty domain.
    pub fn domain(&self) -> Arc<UserDomain> {
        self.new_with(DomainOptions::default())
    }

    /// An empty domain with `options`.
    ///
    /// # Errors
    /// [`IommuError::Unsupported`] if page requests are to go to a queue that is not of this unit, or memory is to be
    /// borrowed of a domain that is not.
    pub fn domain_with(&self, options: DomainOptions) -> Result<Arc<UserDomain>, IommuError> {
        let own =
            |queue: &Arc<FaultQueue>| (self.iommufd.as_ref()).is_some_and(|own| queue.is_of(own));
        let borrows =
            |domain: &Arc<UserDomain>| self.iommufd.is_some() && domain.is_of(&self.reach);
        let own = options.faults.as_ref().is_none_or(own);
        match own && options.borrows.as_ref().is_none_or(borrows) {
            true => Ok(self.new_with(options)),
            false => Err(IommuError::Unsupported),
        }
    }

    /// An empty domain in an address space of the iommufd that another process has made and destroys: the addresses of
    /// `window` are this domain's alone, all others stay as they are. Devices that are attached reach both.
    ///
    /// # Errors
    /// [`IommuError::Unsupported`] over type 1; [`InfoError::NoRanges`] if the window has no address that the unit's
    /// devices and the address space have; otherwise the kernel's error, for a number of something else among others.
    pub fn domain_in(&self, ioas: IoasId, window: IovaRange) -> Result<Arc<UserDomain>, VfioError> {
        let iommufd = self.iommufd.as_ref().ok_or(IommuError::Unsupported)?;
        let ioas = Ioas::handed(iommufd, ioas.get());
        let window = Reach { ranges: vec![window], granule: self.reach.granule };
        let reach = both(&both(&self.reach, &ioas.ranges()?), &window);
        if reach.ranges.is_empty() {
            return Err(InfoError::NoRanges.into());
        }
        let spaces: Box<dyn Spaces> = Box::new(HandedIoas(Arc::new(ioas)));
        let domain = UserDomain::new(self.reach.clone(), DirtyTracking::Off, Some(spaces));
        Ok(Arc::new(domain.within(reach)))
    }

    /// Destroys an address space that another process has made, with all that it has mapped: it is the duty of one that
    /// goes on with the devices ([`Candidate::bound`]) and has moved them from there.
    ///
    /// *Context.* Task: a system call.
    ///
    /// # Errors
    /// [`IommuError::Unsupported`] over type 1; otherwise the kernel's: a device is in it, or the number is of nothing.
    pub fn destroy_space(&self, ioas: IoasId) -> Result<(), VfioError> {
        let iommufd = self.iommufd.as_ref().ok_or(IommuError::Unsupported)?;
        iommufd.remove(ioas.get()).map_err(VfioError::of(Step::Space))
    }

    fn new_with(&self, options: DomainOptions) -> Arc<UserDomain> {
        let dirty = options.dirty;
        let spaces = self.iommufd.as_ref().map(|iommufd| -> Box<dyn Spaces> {
            let iommufd = iommufd.clone();
            Box::new(NewIoas { iommufd, options })
        });
        Arc::new(UserDomain::new(self.reach.clone(), dirty, spaces))
    }

    /// A queue for page requests of its functions.
    ///
    /// # Errors
    /// [`IommuError::Unsupported`] over type 1, or if iommufd has none (before Linux 6.11); otherwise the
    /// kernel's error.
    pub fn fault_queue(&self) -> Result<Arc<FaultQueue>, IommuError> {
        let iommufd = self.iommufd.clone().ok_or(IommuError::Unsupported)?;
        let numbers = self.ports.iter().filter_map(|port| Some((port.number()?, port.stream)));
        Ok(Arc::new(FaultQueue::new(iommufd, numbers.collect())?))
    }

    /// An empty domain of the unit, for a space.
    pub fn new_domain(self: &Arc<Self>) -> BoundDomain {
        self.bind(self.domain())
    }

    /// A domain of this unit, for a space.
    pub fn bind(self: &Arc<Self>, domain: Arc<UserDomain>) -> BoundDomain {
        BoundDomain::new(self.clone(), domain, crate::sys::kernel())
    }

    /// Number of `stream` in the iommufd, for the process that goes on ([`Candidate::bound`]); none over type 1.
    pub fn bound_number(&self, stream: StreamId) -> Option<BoundNumber> {
        let port = self.ports.iter().find(|port| port.stream == stream)?;
        Some(BoundNumber::new(port.number()?))
    }

    /// The interface that was chosen.
    pub fn interface(&self) -> Interface {
        match self.iommufd {
            Some(_) => Interface::Iommufd,
            None => Interface::Type1,
        }
    }

    /// System calls that were made for its domains.
    pub fn counts(&self) -> CallCounts {
        self.counters.get()
    }

    /// Number of mappings that `stream` may add, if the kernel reports it.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn mappings_left(&self, stream: StreamId) -> Result<Option<u32>, VfioError> {
        let port = self.ports.iter().find(|port| port.stream == stream);
        port.map_or(Ok(None), Port::available)
    }

    /// The address space of `stream`, for calls that the library does not make. It does not learn of
    /// mappings that are made and removed there. With iommufd there is none until a domain is attached.
    pub fn raw(&self, stream: StreamId) -> Option<RawSpace<'_>> {
        let port = self.ports.iter().find(|port| port.stream == stream);
        port.and_then(Port::raw)
    }

    /// None over type 1.
    pub(super) fn iommufd(&self) -> Option<&Arc<Iommufd>> {
        self.iommufd.as_ref()
    }

    pub(super) fn port(&self, stream: StreamId) -> Result<&Port, AttachError> {
        let port = self.ports.iter().find(|port| port.stream == stream);
        port.ok_or(AttachError::NoSuchStream { stream })
    }
}

impl Iommu for UserUnit {
    fn block(&self, stream: StreamId) -> Result<(), AttachError> {
        Ok(self.port(stream)?.detach(&self.counters)?)
    }

    fn block_pasid(&self, stream: StreamId, pasid: Pasid) -> Result<(), AttachError> {
        self.port(stream)?.detach_pasid(pasid)
    }

    /// The kernel passes no function of a process through.
    fn pass_through(&self, stream: StreamId, _all: AllMemory) -> Result<(), AttachError> {
        self.port(stream)?;
        Err(IommuError::Unsupported.into())
    }

    fn reserved(&self, _: StreamId, each: &mut dyn FnMut(ReservedRegion)) {
        let kind = ReservedKind::Unusable;
        let holes = self.reach.holes();
        holes.for_each(|range| each(ReservedRegion { range, kind }));
    }

    /// The kernel logs faults, and tells processes of none.
    fn next_fault(&self) -> Result<Option<FaultEvent>, IommuError> {
        Ok(None)
    }
}

impl Attach<UserDomain> for UserUnit {
    fn attach(&self, stream: StreamId, domain: &Arc<UserDomain>) -> Result<(), AttachError> {
        let port = self.port(stream)?;
        if !domain.is_of(&self.reach) {
            return Err(AttachError::Mismatch);
        }
        port.attach(Tables::Domain(domain.clone()), &self.counters)
    }

    fn attach_pasid(
        &self,
        stream: StreamId,
        pasid: Pasid,
        domain: &Arc<UserDomain>,
    ) -> Result<(), AttachError> {
        let port = self.port(stream)?;
        if !domain.is_of(&self.reach) {
            return Err(AttachError::Mismatch);
        }
        port.attach_pasid(pasid, Tables::Domain(domain.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portolan::addr::{Iova, PageSize};

    #[test]
    fn two_functions_reach_what_both_reach() {
        let reach = |pairs: &[(u64, u64)]| Reach {
            ranges: pairs
                .iter()
                .map(|&(a, b)| IovaRange::new(Iova::new(a), Iova::new(b)).unwrap())
                .collect(),
            granule: PageSize::SIZE_4K,
        };
        let one = reach(&[(0, 0xfedf_ffff), (0xfef0_0000, 0xff_ffff_ffff)]);
        let other = reach(&[(0x1000, 0x8fff), (0xfe00_0000, 0xffff_ffff)]);
        let wanted = [(0x1000, 0x8fff), (0xfe00_0000, 0xfedf_ffff), (0xfef0_0000, 0xffff_ffff)];
        assert_eq!(both(&one, &other).ranges, reach(&wanted).ranges);
        assert!(both(&one, &reach(&[(1 << 50, 1 << 51)])).ranges.is_empty());
    }

    #[test]
    fn what_is_not_there_is_said_before_anything_is_opened() {
        let function: PciFunction = "ffff:ff:1f.7".parse().unwrap();
        let error = open(&[function]).unwrap_err();
        assert_eq!(error, OpenError::NoSuchDevice { device: function.into() });
        assert!(error.to_string().contains("lspci"));
        assert_eq!(open(&[]).unwrap_err(), OpenError::NoCommonAddresses);
        if std::path::Path::new("/dev/iommu").exists() {
            println!("SKIP: this kernel has iommufd, so nothing says that it has none");
            return;
        }
        let error = open_by(Interface::Iommufd, &[function]).unwrap_err();
        assert_eq!(error, OpenError::NoIommufd);
        assert!(error.to_string().contains("CONFIG_IOMMUFD"));
    }
}
