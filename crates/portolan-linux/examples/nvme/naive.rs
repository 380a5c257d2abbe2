//! The loop that is written by hand without a library: an address for each request in flight, one
//! `VFIO_IOMMU_MAP_DMA` before it and one `VFIO_IOMMU_UNMAP_DMA` after it.

use std::os::fd::OwnedFd;

use anyhow::{Context as _, Result, ensure};
use portolan::addr::Iova;
use portolan::dma::{Constraints, Device, Reservation};
use portolan_linux::memory::Process;
use rustix::ioctl::{Updater, ioctl, opcode};
use vfio_bindings::bindings::vfio as sys;

use crate::controller::PAGE;

const MAP: u32 = opcode::none(sys::VFIO_TYPE, 113);
const UNMAP: u32 = opcode::none(sys::VFIO_TYPE, 114);

/// `vfio_iommu_type1_dma_unmap` without data behind it.
#[repr(C)]
struct Unmap {
    argsz: u32,
    flags: u32,
    iova: u64,
    size: u64,
}

pub struct Naive {
    container: OwnedFd,
    /// Addresses that nothing else in the space gets.
    addresses: Reservation<Process>,
    /// Maps and unmaps so far.
    pub calls: (u64, u64),
}

impl Naive {
    pub fn new(container: OwnedFd, device: &Device<Process>, depth: u16) -> Result<Self> {
        let space = device
            .space()
            .context("the device is not translated")?
            .clone();
        let bytes = u64::from(depth) * PAGE as u64;
        let addresses = Reservation::new(space, bytes, &Constraints::default())?;
        let calls = (0, 0);
        Ok(Self {
            container,
            addresses,
            calls,
        })
    }

    pub fn map(&mut self, number: u16, memory: u64) -> Result<Iova> {
        let iova = self.addresses.addresses().start().get() + u64::from(number) * PAGE as u64;
        let mut map = sys::vfio_iommu_type1_dma_map {
            argsz: size_of::<sys::vfio_iommu_type1_dma_map>() as u32,
            flags: sys::VFIO_DMA_MAP_FLAG_READ | sys::VFIO_DMA_MAP_FLAG_WRITE,
            vaddr: memory,
            iova,
            size: PAGE as u64,
        };
        self.calls.0 += 1;
        // SAFETY: the kernel reads this structure; the page is the caller's until it is unmapped.
        unsafe { ioctl(&self.container, Updater::<MAP, _>::new(&mut map)) }?;
        Ok(Iova::new(iova))
    }

    pub fn unmap(&mut self, iova: Iova) -> Result<()> {
        let mut unmap = Unmap {
            argsz: size_of::<Unmap>() as u32,
            flags: 0,
            iova: iova.get(),
            size: PAGE as u64,
        };
        self.calls.1 += 1;
        // SAFETY: the kernel reads and writes this structure, which has no data behind it without flags.
        unsafe { ioctl(&self.container, Updater::<UNMAP, _>::new(&mut unmap)) }?;
        ensure!(
            unmap.size == PAGE as u64,
            "{} bytes were unmapped",
            unmap.size
        );
        Ok(())
    }
}
