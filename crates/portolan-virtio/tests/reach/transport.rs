//! `Translated`.

use portolan_virtio::{NotTranslated, Translated};
use virtio_drivers::transport::{DeviceStatus, DeviceType, InterruptStatus, Transport};
use virtio_drivers::{Error, PhysAddr, Result};
use zerocopy::{FromBytes, Immutable, IntoBytes};

const ACCESS_PLATFORM: u64 = 1 << 33;

/// A device that says which features it has, and is told which are used.
struct Device {
    features: u64,
    accepted: u64,
}

impl Transport for Device {
    fn device_type(&self) -> DeviceType {
        DeviceType::Block
    }

    fn read_device_features(&mut self) -> u64 {
        self.features
    }

    fn write_driver_features(&mut self, features: u64) {
        self.accepted = features;
    }

    fn max_queue_size(&mut self, _queue: u16) -> u32 {
        // The only way to the accepted features from outside.
        (self.accepted >> 32) as u32
    }

    fn notify(&mut self, _queue: u16) {}

    fn get_status(&self) -> DeviceStatus {
        DeviceStatus::empty()
    }

    fn set_status(&mut self, _status: DeviceStatus) {}

    fn set_guest_page_size(&mut self, _bytes: u32) {}

    fn requires_legacy_layout(&self) -> bool {
        false
    }

    fn queue_set(&mut self, _: u16, _: u32, _: PhysAddr, _: PhysAddr, _: PhysAddr) {}

    fn queue_unset(&mut self, _queue: u16) {}

    fn queue_used(&mut self, _queue: u16) -> bool {
        false
    }

    fn ack_interrupt(&mut self) -> InterruptStatus {
        InterruptStatus::empty()
    }

    fn read_config_generation(&self) -> u32 {
        0
    }

    fn read_config_space<V: FromBytes + IntoBytes>(&self, _offset: usize) -> Result<V> {
        Err(Error::ConfigSpaceMissing)
    }

    fn write_config_space<V: IntoBytes + Immutable>(&mut self, _: usize, _: V) -> Result<()> {
        Err(Error::ConfigSpaceMissing)
    }
}

#[test]
fn a_driver_that_does_not_know_the_feature_accepts_it() {
    let (features, accepted) = (ACCESS_PLATFORM | 1 << 32, 0);
    let mut device = Translated::new(Device { features, accepted }).unwrap();
    assert_eq!(device.read_device_features(), features);
    device.write_driver_features(1 << 32);
    assert_eq!(device.max_queue_size(0), 0b11);
}

#[test]
fn a_device_that_goes_past_the_iommu_is_refused() {
    let (features, accepted) = (!ACCESS_PLATFORM, 0);
    let refused = Translated::new(Device { features, accepted });
    assert_eq!(refused.err(), Some(NotTranslated));
}
