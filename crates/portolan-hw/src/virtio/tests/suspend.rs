//! A unit that is suspended, whose device forgets everything meanwhile.

use portolan::iommu::{Attach as _, AttachError, Iommu as _, IommuError};
use portolan_spec::virtio::{F_BYPASS_CONFIG, Request, config};

use super::kit::*;

const ATTACH: Request = Request::Attach { domain: DOMAIN, endpoint: FIRST.get(), flags: 0 };
const DETACH: Request = Request::Detach { domain: DOMAIN, endpoint: FIRST.get() };

/// VIRTIO_IOMMU_S_INVAL.
const INVAL: u8 = 4;

#[test]
fn endpoints_leave_and_come_back_with_the_mappings_that_their_domain_has_by_then() {
    let device = Scripted::new();
    let (unit, domain) = device.attached();
    mapped(&device, &domain, 0x1000, 0x1000);
    mapped(&device, &domain, 0x4000, 0x1000);
    unit.suspend().unwrap();
    assert_eq!(device.take(), [DETACH]);
    sync(&domain, &mut unmap(&domain, 0x1000, 0x1000)).unwrap();
    sync(&domain, &mut map(&domain, 0x8000, 0x2000)).unwrap();
    let stopped = Err(AttachError::Iommu(IommuError::Stopped));
    assert_eq!(unit.attach(SECOND, &domain), stopped);
    assert_eq!(device.take(), [], "a device that may be reset");
    unit.resume().unwrap();
    assert_eq!(device.take(), [ATTACH, told(0x4000, 0x1000), told(0x8000, 0x2000)]);
    unit.resume().unwrap();
    assert_eq!(device.take(), []);
}

#[test]
fn a_device_that_forgot_its_endpoints_too_early_gets_them_again() {
    let device = Scripted::new();
    let (unit, domain) = device.attached();
    mapped(&device, &domain, 0x1000, 0x1000);
    device.answer(&[Answer::Lost]);
    assert!(matches!(unit.suspend(), Err(IommuError::TimedOut { .. })));
    device.take();
    // It was reset, and returned what it had.
    device.state().returned = true;
    device.answer(&[Answer::Status(INVAL)]);
    unit.resume().unwrap();
    assert_eq!(device.take(), [DETACH, ATTACH, told(0x1000, 0x1000)]);
}

#[test]
fn endpoints_without_a_domain_are_blocked_before_one_is_attached_again() {
    let device = Scripted::with(F_BYPASS_CONFIG);
    let (unit, _domain) = device.attached();
    unit.suspend().unwrap();
    device.take();
    device.set(config::BYPASS, 1);
    assert!(matches!(unit.resume(), Err(IommuError::Nonsense { .. })));
    assert_eq!(device.take(), []);
    device.set(config::BYPASS, 0);
    unit.resume().unwrap();
    assert_eq!(device.take().len(), 1);
}
