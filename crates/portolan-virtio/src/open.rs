//! PCI functions opened as their drivers in `virtio-drivers` need them.
//!
//! Not supported: devices that are not trusted, or that want options of their own. A kernel opens these itself, and
//! adds them by [`VirtioMemory::add`].
//!
//! *Context.* Task.

use alloc::sync::Arc;

use portolan::addr::PciFunction;
use portolan::dma::{Buffers, Device};
use portolan::platform::Platform;
use portolan_hw::topology::{DeviceOptions, Iommus, OpenError, SpaceScope};
use thiserror::Error;
use virtio_drivers::transport::Transport;

use crate::hal::{AddError, VirtioMemory};
use crate::transport::AccessPlatform;

/// Reason why a function was not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum VirtioOpenError {
    /// Its IOMMU did not open it.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The memory did not take it.
    #[error(transparent)]
    Add(#[from] AddError),
}

/// A device that reaches a [`VirtioMemory`].
pub struct OpenedDevice<P: Platform, T> {
    /// The device, by which it is [removed](VirtioMemory::remove).
    pub device: Arc<Device<P>>,
    /// The transport for its driver.
    pub transport: AccessPlatform<T>,
}

impl<P: Platform> VirtioMemory<P> {
    /// Opens `function`, which is trusted and whose driver is to use `transport`, and adds it. Its options are those
    /// that the drivers of several devices need: they keep their buffers (`Buffers::Kept`), and all devices of a unit
    /// are in one address space ([`SpaceScope::Unit`]).
    ///
    /// # Errors
    /// See [`VirtioOpenError`]. The function is blocked then.
    pub fn open<T: Transport>(
        &self,
        iommus: &Iommus<P>,
        function: PciFunction,
        transport: T,
    ) -> Result<OpenedDevice<P, T>, VirtioOpenError> {
        let mut options = DeviceOptions::trusted();
        (options.buffers, options.scope) = (Buffers::Kept, SpaceScope::Unit);
        let device = Arc::new(iommus.device_with(function, &options)?);
        let transport = self.add(device.clone(), transport)?;
        Ok(OpenedDevice { device, transport })
    }
}
