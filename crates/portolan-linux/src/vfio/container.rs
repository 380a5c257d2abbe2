//! A group, and the container of type 1 that it is in.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use portolan::addr::{IovaRange, PageSize, PageSizes, PhysAddr};
use portolan::iommu::IommuError;
use portolan::table::Access;
use portolan::table::format::DirtyTracking;
use rustix::io::Errno;
use vfio_bindings::bindings::vfio as sys;

use super::error::{OpenError, Step, VfioError, errno};
use super::handed::{Candidate, Origin};
use super::name::DeviceName;
use super::sysfs;
use crate::calls::{AfterRead, Calls, Counters, count, refused};
use crate::chain::{InfoError, capability, long, range_list, word};
use crate::domain::Reach;
use crate::sys as call;

/// Bytes of `vfio_iommu_type1_info`.
const INFO: usize = 24;

/// Nodes of groups and of containers.
const FOLDER: &str = "/dev/vfio";
const CONTAINER: &str = "/dev/vfio/vfio";

/// No IOMMU.
const NO_IOMMU: usize = sys::VFIO_NOIOMMU_IOMMU as usize;
/// Type 1, version 2.
const TYPE1: usize = sys::VFIO_TYPE1v2_IOMMU as usize;

/// An address space of type 1, with the one group that is in it.
#[derive(Debug)]
pub(super) struct Container {
    fd: OwnedFd,
    /// The group is in the container as long as it is open.
    _group: OwnedFd,
    counters: Arc<Counters>,
}

/// Opens a node for reading and writing.
pub(super) fn node(path: impl AsRef<Path>) -> io::Result<OwnedFd> {
    let file: io::Result<File> = OpenOptions::new().read(true).write(true).open(path);
    file.map(OwnedFd::from)
}

/// Opens a node of `group`; `None` if it is not there.
fn open(path: &Path, group: u32, step: Step) -> Result<Option<OwnedFd>, OpenError> {
    let error = match node(path) {
        Ok(fd) => return Ok(Some(fd)),
        Err(error) => error,
    };
    match errno(&error) {
        Some(Errno::NOENT | Errno::NODEV | Errno::NXIO) => Ok(None),
        Some(Errno::ACCESS | Errno::PERM) => {
            Err(OpenError::NoPermission { group: Some(group), step })
        }
        Some(Errno::BUSY) => Err(OpenError::Busy { group }),
        _ => Err(VfioError::of(step)(error).into()),
    }
}

/// An error of `group`; the kernel's own, where the number of the group is not known.
fn of_group(
    group: Option<u32>,
    step: Step,
    error: io::Error,
    named: fn(u32) -> OpenError,
) -> OpenError {
    group.map_or_else(|| VfioError::of(step)(error).into(), named)
}

/// Opens the node of `group`, which `device` is in, in `folder`: /dev/vfio.
fn open_group(folder: &Path, device: DeviceName, group: u32) -> Result<OwnedFd, OpenError> {
    let node = open(&folder.join(group.to_string()), group, Step::Group)?;
    node.ok_or_else(|| match unprotected(folder, group).exists() {
        true => OpenError::Unprotected { device, group },
        false => OpenError::NotBound { device, group },
    })
}

/// Node of a group that no IOMMU protects memory from.
fn unprotected(folder: &Path, group: u32) -> PathBuf {
    folder.join(format!("noiommu-{group}"))
}

/// Opens a device that reaches all memory, in a container that maps nothing.
pub(super) fn open_unprotected(device: DeviceName) -> Result<Arc<OwnedFd>, OpenError> {
    let group = sysfs::group(device)?;
    let fd = open(Path::new(CONTAINER), group, Step::Container)?.ok_or(OpenError::NoVfio)?;
    let protected = OpenError::Protected { device };
    let has = call::plain(fd.as_fd(), call::CHECK_EXTENSION, NO_IOMMU);
    if !has.is_ok_and(|has| has > 0) {
        return Err(protected);
    }
    let node = open(&unprotected(Path::new(FOLDER), group), group, Step::Group)?;
    let node = node.ok_or(protected)?;
    let failed = |step| move |error: io::Error| OpenError::from(VfioError::of(step)(error));
    call::set_container(node.as_fd(), fd.as_fd()).map_err(failed(Step::Join))?;
    call::plain(fd.as_fd(), call::SET_IOMMU, NO_IOMMU).map_err(failed(Step::NoIommu))?;
    let name = std::ffi::CString::new(device.to_string()).unwrap_or_default();
    // The device keeps its group, and that the container.
    let opened = call::device_of(node.as_fd(), &name).map_err(failed(Step::Device))?;
    Ok(Arc::new(opened))
}

/// Joins a viable group to a container, and gives that an address space, unless both are done.
fn join(fd: BorrowedFd<'_>, node: BorrowedFd<'_>, group: Option<u32>) -> Result<(), OpenError> {
    let flags = call::group_status(node).map_err(VfioError::of(Step::Group))?;
    if flags & sys::VFIO_GROUP_FLAGS_VIABLE == 0 {
        let busy = io::Error::from(Errno::BUSY);
        return Err(of_group(group, Step::Group, busy, |group| OpenError::NotViable { group }));
    }
    let busy = |group| OpenError::Busy { group };
    if flags & sys::VFIO_GROUP_FLAGS_CONTAINER_SET == 0 {
        call::set_container(node, fd).map_err(|error| match errno(&error) {
            Some(Errno::BUSY) => of_group(group, Step::Join, error, busy),
            _ => VfioError::of(Step::Join)(error).into(),
        })?;
    }
    if call::ask(fd, call::IOMMU_GET_INFO, INFO, &[]).is_ok() {
        return Ok(());
    }
    let set = call::plain(fd, call::SET_IOMMU, TYPE1);
    set.map(drop).map_err(|error| match errno(&error) {
        Some(Errno::PERM) => {
            let unsafe_interrupts = |group| OpenError::UnsafeInterrupts { group };
            of_group(group, Step::Type1, error, unsafe_interrupts)
        }
        Some(Errno::BUSY) => of_group(group, Step::Type1, error, busy),
        _ => VfioError::of(Step::Type1)(error).into(),
    })
}

impl Container {
    /// A container with the group of a device, and the device.
    pub(super) fn open(
        candidate: Candidate,
        counters: Arc<Counters>,
    ) -> Result<(Self, Arc<OwnedFd>), OpenError> {
        let name = std::ffi::CString::new(candidate.in_group()).unwrap_or_default();
        let Candidate { name: device, token, origin } = candidate;
        let (fd, node, group) = match origin {
            Origin::Node(_) | Origin::Bound(..) => {
                return Err(OpenError::OtherInterface { device });
            }
            Origin::Group(container, node) => {
                (container.into(), Some(node.into()), sysfs::group(device).ok())
            }
            Origin::Named => {
                let group = sysfs::group(device)?;
                let fd = open(Path::new(CONTAINER), group, Step::Container)?;
                (fd.ok_or(OpenError::NoVfio)?, None, Some(group))
            }
        };
        let fd: OwnedFd = fd;
        let version = call::plain(fd.as_fd(), call::GET_API_VERSION, 0);
        let version = version.map_err(VfioError::of(Step::Container))?;
        let has = call::plain(fd.as_fd(), call::CHECK_EXTENSION, TYPE1);
        if version != 0 || !has.is_ok_and(|has| has > 0) {
            return Err(OpenError::NoType1);
        }
        let node = match (node, group) {
            (Some(node), _) => node,
            (None, Some(group)) => open_group(Path::new(FOLDER), device, group)?,
            (None, None) => return Err(OpenError::NoIommu { device }),
        };
        join(fd.as_fd(), node.as_fd(), group)?;
        let opened = call::device_of(node.as_fd(), &name);
        let opened = opened.map_err(|error| match errno(&error) {
            Some(Errno::ACCESS) => OpenError::Token { device },
            Some(Errno::INVAL) if token.is_some() => OpenError::Token { device },
            Some(Errno::NODEV | Errno::INVAL) => match group {
                Some(group) => OpenError::NotBound { device, group },
                None => VfioError::of(Step::Device)(error).into(),
            },
            Some(Errno::BUSY) => {
                of_group(group, Step::Device, error, |group| OpenError::Busy { group })
            }
            _ => VfioError::of(Step::Device)(error).into(),
        })?;
        Ok((Self { fd, _group: node, counters }, Arc::new(opened)))
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn info(&self) -> Result<Vec<u8>, VfioError> {
        let info = call::ask(self.fd.as_fd(), call::IOMMU_GET_INFO, INFO, &[]);
        info.map_err(VfioError::of(Step::Info))
    }

    /// The addresses and pages that the kernel names.
    pub(super) fn reach(&self) -> Result<Reach, VfioError> {
        Ok(reach(&self.info()?)?)
    }

    /// Number of mappings that may be added, if the kernel reports it.
    pub(super) fn available(&self) -> Result<Option<u32>, VfioError> {
        Ok(available(&self.info()?)?)
    }
}

impl Container {
    /// Tracks the pages that devices write from now on, or no more.
    pub(super) fn track(&self, dirty: DirtyTracking) -> Result<(), IommuError> {
        let flags = match dirty {
            DirtyTracking::Hardware => sys::VFIO_IOMMU_DIRTY_PAGES_FLAG_START,
            DirtyTracking::Off => sys::VFIO_IOMMU_DIRTY_PAGES_FLAG_STOP,
        };
        call::track_dirty(self.fd.as_fd(), flags).map_err(|error| refused(&error))
    }
}

/// The first capability of an answer; 0 if there are none.
fn first(info: &[u8]) -> Result<u32, InfoError> {
    match word(info, 4)? & sys::VFIO_IOMMU_INFO_CAPS {
        0 => Ok(0),
        _ => word(info, 16),
    }
}

pub(super) fn reach(info: &[u8]) -> Result<Reach, InfoError> {
    let sizes = match word(info, 4)? & sys::VFIO_IOMMU_INFO_PGSIZES {
        0 => 0,
        _ => long(info, 8)?,
    };
    let none = InfoError::NoPages { sizes };
    let granule = PageSizes::from_bits(sizes).smallest().ok_or(none)?;
    // Pages of the process are no smaller.
    let granule = granule.max(PageSize::SIZE_4K);
    let wanted = sys::VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE;
    let body = capability(info, first(info)?, wanted)?.ok_or(InfoError::NoRanges)?;
    let ranges = range_list(body)?;
    Ok(Reach { ranges, granule })
}

pub(super) fn available(info: &[u8]) -> Result<Option<u32>, InfoError> {
    let body = capability(info, first(info)?, sys::VFIO_IOMMU_TYPE1_INFO_DMA_AVAIL)?;
    body.map(|body| word(body, 0)).transpose()
}

impl Calls for Container {
    fn map(&self, range: IovaRange, memory: PhysAddr, access: Access) -> Result<(), IommuError> {
        if access.contains(Access::DEVICE) {
            return Err(IommuError::Unsupported);
        }
        count(&self.counters.map);
        let flag = |of, flag| if access.contains(of) { flag } else { 0 };
        let read = flag(Access::READ, sys::VFIO_DMA_MAP_FLAG_READ);
        let write = flag(Access::WRITE, sys::VFIO_DMA_MAP_FLAG_WRITE);
        let mut map = sys::vfio_iommu_type1_dma_map {
            argsz: size_of::<sys::vfio_iommu_type1_dma_map>() as u32,
            flags: read | write,
            vaddr: memory.get(),
            iova: range.start().get(),
            size: bytes(range)?,
        };
        let mapped = call::with(self.fd.as_fd(), &call::MAP_DMA, &mut map);
        mapped.map(drop).map_err(|error| refused(&error))
    }

    fn unmap(&self, range: IovaRange, bytes_there: u64) -> Result<(), IommuError> {
        count(&self.counters.unmap);
        let mut unmap = call::Unmap::new(range.start().get(), bytes(range)?);
        let unmapped = call::with(self.fd.as_fd(), &call::UNMAP_DMA, &mut unmap);
        unmapped.map_err(|error| refused(&error))?;
        match unmap.unmapped() {
            all if all == bytes_there => Ok(()),
            value => Err(IommuError::Nonsense { offset: 0, value }),
        }
    }

    fn dirty(
        &self,
        range: IovaRange,
        page: PageSize,
        _: AfterRead,
        bitmap: &mut [u64],
    ) -> Result<(), IommuError> {
        // A read clears no marks: all pages that a device may write are marked again.
        let (iova, size) = (range.start().get(), bytes(range)?);
        let read = call::dirty(self.fd.as_fd(), iova, size, page.bytes(), bitmap);
        read.map_err(|error| refused(&error))
    }
}

/// The bytes of a range; it is never all of 64 bits, where memory of a process is to lie in it.
pub(super) fn bytes(range: IovaRange) -> Result<u64, IommuError> {
    range.len_minus_one().checked_add(1).ok_or(IommuError::Unsupported)
}

#[cfg(test)]
mod tests {
    use super::*;
    use portolan::addr::PciFunction;

    #[test]
    fn a_group_without_an_iommu_is_refused_and_says_so() {
        let folder = std::env::temp_dir().join(format!("portolan-vfio-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("noiommu-7"), "").unwrap();
        let function: PciFunction = "0000:03:00.0".parse().unwrap();
        let device = DeviceName::from(function);
        let error = |group| open_group(&folder, device, group).unwrap_err();
        assert_eq!(error(7), OpenError::Unprotected { device, group: 7 });
        assert!(error(7).to_string().contains("reaches all memory"));
        assert_eq!(error(8), OpenError::NotBound { device, group: 8 });
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn registers_are_refused_before_any_call() {
        let null = || node("/dev/null").unwrap();
        let counters = Arc::new(Counters::default());
        let container = Container { fd: null(), _group: null(), counters: counters.clone() };
        let range = IovaRange::page(portolan::addr::Iova::new(0), PageSize::SIZE_4K);
        let map = |access| container.map(range, PhysAddr::new(0x1000), access);
        let device = Access::READ_WRITE | Access::DEVICE;
        assert_eq!(map(device), Err(IommuError::Unsupported));
        assert_eq!(counters.get().map, 0);
        assert!(map(Access::READ_WRITE).is_err());
        assert_eq!(counters.get().map, 1);
    }

    #[test]
    fn the_window_and_the_room_come_from_the_kernel() {
        // A structure of 24 bytes, the ranges behind it, and the room.
        let mut info = [72u32, 3, 0x4020_1000, 0, 24, 0].to_vec();
        info.extend([1 | 1 << 16, 56, 1, 0, 0x1000, 0, 0xffff_ffff, 0x7f]);
        info.extend([3 | 1 << 16, 0, 65535, 0]);
        let bytes =
            |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|w| w.to_ne_bytes()).collect() };
        let found = reach(&bytes(&info)).unwrap();
        assert_eq!(found.granule, PageSize::SIZE_4K);
        assert_eq!(found.window().start().get(), 0x1000);
        assert_eq!(found.window().last().get(), 0x7f_ffff_ffff);
        assert_eq!(available(&bytes(&info)), Ok(Some(65535)));
        // No capabilities: a kernel that names no ranges is not guessed at.
        info[1] = 1;
        assert_eq!(reach(&bytes(&info)).unwrap_err(), InfoError::NoRanges);
        assert_eq!(available(&bytes(&info)), Ok(None));
        info[1] = 2;
        assert_eq!(reach(&bytes(&info)).unwrap_err(), InfoError::NoPages { sizes: 0 });
        assert!(reach(&bytes(&info[..3])).is_err() && reach(&[]).is_err());
    }
}
