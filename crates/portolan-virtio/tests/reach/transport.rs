//! `AccessPlatform`.

use portolan::dma::Trust;
use portolan_virtio::{AccessPlatform, NotTranslated};
use virtio_drivers::transport::{DeviceStatus, DeviceType, InterruptStatus, Transport};
use virtio_drivers::{Error, PhysAddr, Result};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::Bench;
use super::space_hal::direct;

pub(super) const ACCESS_PLATFORM: u64 = 1 << 33;

/// A device that says which features it has, and is told which are used.
pub(super) struct Device {
    pub features: u64,
    pub accepted: u64,
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

fn offering(features: u64) -> Device {
    Device { features, accepted: 0 }
}

#[test]
fn a_driver_that_does_not_know_the_feature_accepts_it() {
    let features = ACCESS_PLATFORM | 1 << 32;
    for device in [Bench::new().plain(Trust::Trusted), direct(&Bench::new())] {
        let mut transport = AccessPlatform::new(offering(features), &device).unwrap();
        assert!(transport.is_offered());
        assert_eq!(transport.read_device_features(), features);
        transport.write_driver_features(1 << 32);
        assert_eq!(transport.max_queue_size(0), 0b11);
    }
}

#[test]
fn a_device_that_goes_past_the_iommu_is_refused() {
    let device = Bench::new().plain(Trust::Trusted);
    let refused = AccessPlatform::new(offering(!ACCESS_PLATFORM), &device);
    assert_eq!(refused.err(), Some(NotTranslated));
}

#[test]
fn a_device_whose_addresses_are_memory_s_need_not_offer_it() {
    let device = direct(&Bench::new());
    let mut transport = AccessPlatform::new(offering(1 << 32), &device).unwrap();
    assert!(!transport.is_offered());
    transport.write_driver_features(1 << 32);
    assert_eq!(transport.max_queue_size(0), 0b01);
}
