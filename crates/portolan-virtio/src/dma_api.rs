//! The operations of the crate `dma-api` on a device of ours.
//!
//! Written for `dma-api` 0.10. Its interface cannot express these: that a buffer is not taken back,
//! since the unit did not complete (the space breaks then, which blocks the device), and memory that a
//! device reaches by several stretches of addresses (refused).
//!
//! *Context.* Task: it takes heap memory, and unmapping waits for hardware. A buffer is synced under a lock of
//! the platform's.
#![allow(unsafe_code)]

use alloc::sync::Arc;
use core::alloc::Layout;
use core::num::{NonZeroU64, NonZeroUsize};
use core::ptr::NonNull;

use dma_api::{
    DmaAddr, DmaAllocHandle, DmaCoherency, DmaConstraints, DmaDeviceInfo, DmaDirection,
    DmaDomainId, DmaError, DmaMapHandle, DmaOp,
};
use portolan::addr::TableId;
use portolan::dma::{Coherency, Device, Direction};
use portolan::platform::Platform;

use crate::hal::Addresses;
use crate::lent::{Lent, PAGE};
use crate::shared::Shares;

/// Operations that a driver of `dma-api` calls, for one device.
///
/// ```
/// use std::sync::Arc;
///
/// use dma_api::DeviceDma;
/// use portolan::dma::Device;
/// use portolan::platform::Platform;
/// use portolan_virtio::{Addresses, DmaApi};
///
/// /// A device for a driver that was written for `dma-api`. It is its driver's for good.
/// fn hand_over<P: Platform>(
///     device: Device<P>,
///     addresses: &'static dyn Addresses,
/// ) -> DeviceDma {
///     let operations = Box::leak(Box::new(DmaApi::new(device.into(), addresses)));
///     DeviceDma::new(operations.info(), operations)
/// }
/// ```
pub struct DmaApi<P: Platform> {
    device: Arc<Device<P>>,
    shares: Shares<P>,
    addresses: &'static dyn Addresses,
    domain: DmaDomainId,
}

impl<P: Platform> DmaApi<P> {
    /// Operations on `device`.
    pub fn new(device: Arc<Device<P>>, addresses: &'static dyn Addresses) -> Self {
        let number = NonZeroU64::new(TableId::fresh().get()).unwrap_or(NonZeroU64::MIN);
        let domain = match device.space() {
            Some(_) => DmaDomainId::Translated(number),
            None => DmaDomainId::Direct,
        };
        Self { device, shares: Shares::new(), addresses, domain }
    }

    /// Description of the device for `dma-api`: its limits, and a number that no other device has.
    pub fn info(&self) -> DmaDeviceInfo {
        let ours = self.device.constraints();
        let small = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let mut theirs = DmaConstraints::new(ours.dma_mask.get())
            .with_max_segment_size(small(ours.max_segment.get()));
        if let Some(boundary) = ours.seg_boundary {
            theirs = theirs.with_boundary(small(boundary.bytes()));
        }
        let coherency = match ours.coherency {
            Coherency::Coherent => DmaCoherency::Coherent,
            Coherency::NotCoherent => DmaCoherency::NonCoherent,
        };
        DmaDeviceInfo::new(self.domain, coherency, theirs)
    }

    /// Memory that never has to be synced, for any device.
    fn alloc(&self, layout: Layout) -> Option<DmaAllocHandle> {
        let pages = layout.size().div_ceil(PAGE as usize);
        let (at, first) = self.shares.alloc(&self.device, pages)?;
        if !first.addr().get().is_multiple_of(layout.align()) {
            self.shares.free(at);
            return None;
        }
        // SAFETY: it was allocated for this device, is as long as the layout says, aligned, and stays until it is
        // freed.
        Some(unsafe { DmaAllocHandle::new(first, first, at.into(), layout) })
    }
}

const fn direction(of: DmaDirection) -> Direction {
    match of {
        DmaDirection::ToDevice => Direction::ToDevice,
        DmaDirection::FromDevice => Direction::FromDevice,
        DmaDirection::Bidirectional => Direction::Bidirectional,
    }
}

impl<P: Platform> DmaOp for DmaApi<P> {
    fn page_size(&self) -> usize {
        PAGE as usize
    }

    unsafe fn alloc_contiguous(
        &self,
        _limits: DmaConstraints,
        layout: Layout,
    ) -> Option<DmaAllocHandle> {
        // `dma-api` compares the address with the limits.
        self.alloc(layout)
    }

    unsafe fn dealloc_contiguous(&self, handle: DmaAllocHandle) {
        self.shares.free(handle.dma_addr().as_u64());
    }

    unsafe fn alloc_coherent(
        &self,
        _limits: DmaConstraints,
        layout: Layout,
    ) -> Option<DmaAllocHandle> {
        self.alloc(layout)
    }

    unsafe fn dealloc_coherent(&self, handle: DmaAllocHandle) -> Result<(), DmaError> {
        self.shares.free(handle.dma_addr().as_u64());
        Ok(())
    }

    unsafe fn map_streaming(
        &self,
        limits: DmaConstraints,
        first: NonNull<u8>,
        bytes: NonZeroUsize,
        way: DmaDirection,
    ) -> Result<DmaMapHandle, DmaError> {
        let layout = Layout::from_size_align(bytes.get(), limits.align)?;
        let lent = Lent::new(|at| self.addresses.phys(at), first, bytes.get());
        let lent = lent.ok_or(DmaError::NullPointer)?;
        let shared = self.shares.share(&self.device, lent, direction(way));
        let at = DmaAddr::from(shared.ok_or(DmaError::NoMemory)?);
        // SAFETY: it is the caller's buffer. The library makes all copies.
        Ok(unsafe { DmaMapHandle::new(first, at, layout, None) })
    }

    unsafe fn unmap_streaming(&self, handle: DmaMapHandle) {
        // A debt that the unit does not complete breaks the space, which blocks the device.
        let _ = self.shares.unshare(handle.dma_addr().as_u64());
    }

    fn sync_alloc_for_device(&self, _: &DmaAllocHandle, _: usize, _: usize, _: DmaDirection) {}

    fn sync_alloc_for_cpu(&self, _: &DmaAllocHandle, _: usize, _: usize, _: DmaDirection) {}

    fn sync_map_for_device(
        &self,
        handle: &DmaMapHandle,
        at: usize,
        bytes: usize,
        _way: DmaDirection,
        _coherency: DmaCoherency,
    ) {
        // `dma-api` panics before this if the bytes are not all of the buffer.
        self.shares.with(handle.dma_addr().as_u64(), |mapping| {
            let _ = mapping.sync_part_for_device(at as u64, bytes as u64);
        });
    }

    fn sync_map_for_cpu(
        &self,
        handle: &DmaMapHandle,
        at: usize,
        bytes: usize,
        _way: DmaDirection,
        _coherency: DmaCoherency,
    ) {
        self.shares.with(handle.dma_addr().as_u64(), |mapping| {
            let _ = mapping.sync_part_for_cpu(at as u64, bytes as u64);
        });
    }
}
