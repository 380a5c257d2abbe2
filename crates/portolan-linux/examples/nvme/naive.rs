//! Work of a driver without the library: a page of addresses for each request in flight, one system call
//! that maps before it and one that unmaps after it.

use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use iommufd_bindings::iommufd;
use portolan::addr::{Iova, StreamId};
use portolan::dma::{Constraints, Device, Reservation};
use portolan_linux::memory::Process;
use portolan_linux::vfio::{RawSpace, UserUnit};
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};
use vfio_bindings::bindings::vfio;

use crate::controller::PAGE;

const MAP: Opcode = opcode::none(vfio::VFIO_TYPE, 113);
const UNMAP: Opcode = opcode::none(vfio::VFIO_TYPE, 114);
const IOAS_MAP: Opcode = opcode::none(iommufd::IOMMUFD_TYPE, iommufd::IOMMUFD_CMD_IOAS_MAP as u8);
const IOAS_UNMAP: Opcode =
    opcode::none(iommufd::IOMMUFD_TYPE, iommufd::IOMMUFD_CMD_IOAS_UNMAP as u8);

/// `vfio_iommu_type1_dma_unmap` without data behind it.
#[repr(C)]
struct Unmap {
    argsz: u32,
    flags: u32,
    iova: u64,
    size: u64,
}

enum Space {
    Container(OwnedFd),
    Ioas(OwnedFd, u32),
}

impl Space {
    fn of(unit: &Arc<UserUnit>, stream: StreamId) -> Result<Self> {
        Ok(match unit.raw(stream).context("no address space")? {
            RawSpace::Container(container) => {
                Self::Container(container.as_fd().try_clone_to_owned()?)
            }
            RawSpace::Ioas { iommufd, ioas } => {
                Self::Ioas(iommufd.as_fd().try_clone_to_owned()?, ioas)
            }
            other => anyhow::bail!("{other:?} is not known"),
        })
    }

    fn map(&self, iova: u64, memory: u64) -> Result<()> {
        match self {
            Self::Container(container) => {
                let mut map = vfio::vfio_iommu_type1_dma_map {
                    argsz: size_of::<vfio::vfio_iommu_type1_dma_map>() as u32,
                    flags: vfio::VFIO_DMA_MAP_FLAG_READ | vfio::VFIO_DMA_MAP_FLAG_WRITE,
                    vaddr: memory,
                    iova,
                    size: PAGE as u64,
                };
                // SAFETY: the kernel reads this structure; the page is the caller's until it is unmapped.
                unsafe { ioctl(container, Updater::<MAP, _>::new(&mut map)) }?;
            }
            Self::Ioas(iommufd, ioas) => {
                let mut map = iommufd::iommu_ioas_map {
                    size: size_of::<iommufd::iommu_ioas_map>() as u32,
                    flags: iommufd::iommufd_ioas_map_flags_IOMMU_IOAS_MAP_FIXED_IOVA
                        | iommufd::iommufd_ioas_map_flags_IOMMU_IOAS_MAP_READABLE
                        | iommufd::iommufd_ioas_map_flags_IOMMU_IOAS_MAP_WRITEABLE,
                    ioas_id: *ioas,
                    user_va: memory,
                    length: PAGE as u64,
                    iova,
                    ..Default::default()
                };
                // SAFETY: as above.
                unsafe { ioctl(iommufd, Updater::<IOAS_MAP, _>::new(&mut map)) }?;
            }
        }
        Ok(())
    }

    /// The bytes that there were.
    fn unmap(&self, iova: u64) -> Result<u64> {
        Ok(match self {
            Self::Container(container) => {
                let mut unmap =
                    Unmap { argsz: size_of::<Unmap>() as u32, flags: 0, iova, size: PAGE as u64 };
                // SAFETY: the kernel reads and writes this structure, which has no data behind it without
                // flags.
                unsafe { ioctl(container, Updater::<UNMAP, _>::new(&mut unmap)) }?;
                unmap.size
            }
            Self::Ioas(iommufd, ioas) => {
                let mut unmap = iommufd::iommu_ioas_unmap {
                    size: size_of::<iommufd::iommu_ioas_unmap>() as u32,
                    ioas_id: *ioas,
                    iova,
                    length: PAGE as u64,
                };
                // SAFETY: the kernel reads and writes this structure.
                unsafe { ioctl(iommufd, Updater::<IOAS_UNMAP, _>::new(&mut unmap)) }?;
                unmap.length
            }
        })
    }
}

pub struct Naive {
    space: Space,
    /// Addresses that nothing else in the space gets.
    addresses: Reservation<Process>,
    /// Maps and unmaps so far.
    pub calls: (u64, u64),
}

impl Naive {
    pub fn new(
        unit: &Arc<UserUnit>,
        stream: StreamId,
        device: &Device<Process>,
        depth: u16,
    ) -> Result<Self> {
        let space = device.space().context("the device is not translated")?.clone();
        let bytes = u64::from(depth) * PAGE as u64;
        Ok(Self {
            space: Space::of(unit, stream)?,
            addresses: Reservation::new(space, bytes, &Constraints::trusted())?,
            calls: (0, 0),
        })
    }

    pub fn map(&mut self, number: u16, memory: u64) -> Result<Iova> {
        let iova = self.addresses.addresses().start().get() + u64::from(number) * PAGE as u64;
        self.calls.0 += 1;
        self.space.map(iova, memory)?;
        Ok(Iova::new(iova))
    }

    pub fn unmap(&mut self, iova: Iova) -> Result<()> {
        self.calls.1 += 1;
        let unmapped = self.space.unmap(iova.get())?;
        ensure!(unmapped == PAGE as u64, "{unmapped} bytes were unmapped");
        Ok(())
    }
}
