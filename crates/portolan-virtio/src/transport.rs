//! A transport that accepts `VIRTIO_F_ACCESS_PLATFORM` where its device offers it.
//!
//! Virtual I/O Device (VIRTIO) 1.2, section 6 (`VIRTIO_F_ACCESS_PLATFORM`).
//!
//! *Context.* Task, as the drivers that call it.

use portolan::dma::Device;
use portolan::platform::Platform;
use thiserror::Error;
use virtio_drivers::transport::{DeviceStatus, DeviceType, InterruptStatus, Transport};
use virtio_drivers::{PhysAddr, Result};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// `VIRTIO_F_ACCESS_PLATFORM`.
const ACCESS_PLATFORM: u64 = 1 << 33;

/// A transport that accepts `VIRTIO_F_ACCESS_PLATFORM` for whichever driver uses it, if its device offers
/// it: the drivers of `virtio-drivers` do not know the feature, and a device that was not given it takes
/// addresses for those of memory.
pub struct AccessPlatform<T> {
    transport: T,
    is_offered: bool,
}

/// The device goes past the IOMMU: it does not offer `VIRTIO_F_ACCESS_PLATFORM`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the virtio device does not offer VIRTIO_F_ACCESS_PLATFORM: it goes past the IOMMU")]
pub struct NotTranslated;

impl<T: Transport> AccessPlatform<T> {
    /// The transport of `device`.
    ///
    /// # Errors
    /// [`NotTranslated`], if the device's addresses are translated and it does not offer the feature. One whose
    /// addresses are those of memory need not offer it.
    pub fn new<P: Platform>(
        mut transport: T,
        device: &Device<P>,
    ) -> core::result::Result<Self, NotTranslated> {
        let is_offered = transport.read_device_features() & ACCESS_PLATFORM != 0;
        match (is_offered, device.space()) {
            (false, Some(_)) => Err(NotTranslated),
            _ => Ok(Self { transport, is_offered }),
        }
    }

    /// Tells if the device offers the feature, which is accepted then.
    pub fn is_offered(&self) -> bool {
        self.is_offered
    }
}

impl<T: Transport> Transport for AccessPlatform<T> {
    fn write_driver_features(&mut self, features: u64) {
        let accepted = if self.is_offered { ACCESS_PLATFORM } else { 0 };
        self.transport.write_driver_features(features | accepted);
    }

    fn device_type(&self) -> DeviceType {
        self.transport.device_type()
    }

    fn read_device_features(&mut self) -> u64 {
        self.transport.read_device_features()
    }

    fn max_queue_size(&mut self, queue: u16) -> u32 {
        self.transport.max_queue_size(queue)
    }

    fn notify(&mut self, queue: u16) {
        self.transport.notify(queue);
    }

    fn get_status(&self) -> DeviceStatus {
        self.transport.get_status()
    }

    fn set_status(&mut self, status: DeviceStatus) {
        self.transport.set_status(status);
    }

    fn set_guest_page_size(&mut self, bytes: u32) {
        self.transport.set_guest_page_size(bytes);
    }

    fn requires_legacy_layout(&self) -> bool {
        self.transport.requires_legacy_layout()
    }

    fn queue_set(
        &mut self,
        queue: u16,
        size: u32,
        descriptors: PhysAddr,
        driver_area: PhysAddr,
        device_area: PhysAddr,
    ) {
        self.transport.queue_set(queue, size, descriptors, driver_area, device_area);
    }

    fn queue_unset(&mut self, queue: u16) {
        self.transport.queue_unset(queue);
    }

    fn queue_used(&mut self, queue: u16) -> bool {
        self.transport.queue_used(queue)
    }

    fn ack_interrupt(&mut self) -> InterruptStatus {
        self.transport.ack_interrupt()
    }

    fn read_config_generation(&self) -> u32 {
        self.transport.read_config_generation()
    }

    fn read_config_space<V: FromBytes + IntoBytes>(&self, offset: usize) -> Result<V> {
        self.transport.read_config_space(offset)
    }

    fn write_config_space<V: IntoBytes + Immutable>(
        &mut self,
        offset: usize,
        value: V,
    ) -> Result<()> {
        self.transport.write_config_space(offset, value)
    }
}
