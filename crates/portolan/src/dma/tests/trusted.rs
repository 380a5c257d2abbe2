//! Memory that a device that is not trusted must not reach, with any other devices in its space.

use super::buffers::{Pages, unowned};
use super::copies::{Copier, span};
use super::rig::{Rig, Setup, device_of, range};
use crate::addr::{PhysAddr, PhysRange, StreamId};
use crate::dma::{
    Constraints, CopyWhen, Device, DeviceError, LinkError, MapError, OldMappings, Policy,
    Reservation, ToDevice, Trust,
};
use crate::iommu::{ReservedKind, ReservedRegion};
use crate::table::Access;

const UNTRUSTED: u32 = 7;

fn untrusted() -> Constraints {
    Constraints { trust: Trust::Untrusted, ..Constraints::trusted() }
}

#[test]
fn a_device_that_is_not_trusted_does_not_join_a_space_with_a_pool_that_stays_mapped() {
    let copier = Copier::new();
    let trusted = copier.device(Trust::Trusted, CopyWhen::Always);
    let trusted = trusted.with_premapped_pool().unwrap();
    let _mapping = trusted.map(copier.buffer(&[(0x3010, 0x20)]), ToDevice);
    let space = copier.rig.space.clone();
    let joined = Device::translated(space, StreamId::new(UNTRUSTED), untrusted());
    assert!(joined.is_err(), "it reaches all slots of another owner's pool");
}

#[test]
fn a_pool_does_not_stay_mapped_where_a_device_is_not_trusted() {
    let copier = Copier::new();
    let space = copier.rig.space.clone();
    let _there = Device::translated(space, StreamId::new(UNTRUSTED), untrusted()).unwrap();
    let trusted = copier.device(Trust::Trusted, CopyWhen::Always);
    let premapped = trusted.with_premapped_pool();
    assert!(premapped.is_err(), "a device that is not trusted reaches the pool");
}

#[test]
fn a_device_that_is_not_trusted_reaches_nothing_beside_the_buffers_of_others() {
    let copier = Copier::new();
    let trusted = copier.device(Trust::Trusted, CopyWhen::Needed);
    let space = copier.rig.space.clone();
    let Ok(_there) = Device::translated(space, StreamId::new(UNTRUSTED), untrusted()) else {
        return;
    };
    let mapping = trusted.map(copier.buffer(&[(0x3010, 0x20)]), ToDevice);
    let (iova, _) = span(mapping.as_ref().ok().unwrap());
    let beside = copier.reach(iova & !0xfff);
    assert_eq!(beside, None, "bytes that were mapped for no device");
}

/// The device that is not trusted reaches the page, whichever device maps it.
#[test]
fn what_does_not_fill_its_pages_is_not_mapped_where_a_device_is_not_trusted() {
    let rig = Rig::policy(Policy::Strict);
    let there = device_of(&rig, UNTRUSTED, untrusted());
    let trusted = device_of(&rig, 1, Constraints::trusted());
    assert_eq!(trusted.constraints().trust, Trust::Untrusted);
    let alive = alloc::sync::Arc::default();
    let mapped = trusted.map(Pages::new(&alive, &[(0x3010, 0x20)]), ToDevice);
    let error = mapped.err().map(|failed| failed.error);
    assert!(matches!(error, Some(MapError::SubPage { .. })), "{error:?}");
    let piece = || PhysRange::from_len(PhysAddr::new(0x3010), 0x20).unwrap();
    let plain = Constraints::trusted();
    let (read, own) = (Access::READ, unowned(piece()));
    let error = rig.space.map_range(own, read, &plain).err();
    assert_eq!(error, Some(MapError::SubPage { piece: piece() }));
    let space = rig.space.clone();
    let mut reserved = Reservation::new(space, 0x1000, &plain).unwrap();
    let error = reserved.link(unowned(piece()), ToDevice).unwrap_err().error;
    assert_eq!(error, LinkError::SubPage { piece: piece() });
    // It stays so when that device has gone: the space is as it was made.
    drop(there);
    assert_eq!(rig.space.trust(), Some(Trust::Untrusted));
}

/// A mapping that was made before there was a device is reached by the first one.
#[test]
fn memory_that_is_mapped_before_there_is_a_device_is_for_devices_that_are_trusted_as_far() {
    let rig = Rig::policy(Policy::Strict);
    let piece = PhysRange::from_len(PhysAddr::new(0x3010), 0x20).unwrap();
    let mapped = rig.space.map_range(unowned(piece), Access::READ, &Constraints::trusted());
    assert!(mapped.is_ok());
    let (space, stream) = (rig.space.clone(), StreamId::new(UNTRUSTED));
    let refused = Device::translated(space, stream, untrusted()).err();
    assert_eq!(refused, Some(DeviceError::LessTrusted));
}

#[test]
fn beside_a_trusted_device_none_is_that_is_not() {
    let rig = Rig::policy(Policy::Strict);
    let owner = alloc::sync::Arc::new(device_of(&rig, 1, Constraints::trusted()));
    let refused = Device::beside(owner, untrusted()).err();
    assert_eq!(refused, Some(DeviceError::LessTrusted));
}

#[test]
fn a_device_that_leaves_is_trusted_as_it_was() {
    let rig = Rig::policy(Policy::Strict);
    let other = rig.beside();
    let _there = device_of(&rig, UNTRUSTED, untrusted());
    let _trusting = device_of(&other, 2, Constraints::trusted());
    let trusted = device_of(&rig, 1, Constraints::trusted());
    let moved = trusted.move_to(other.space.clone(), OldMappings::Refuse);
    assert_eq!(moved.ok().unwrap().constraints().trust, Trust::Trusted);
}

#[test]
fn a_space_for_devices_that_are_not_trusted_is_not_lazy() {
    let rig = Rig::new(&Setup {
        policy: Policy::Lazy,
        trust: Some(Trust::Untrusted),
        ..Setup::default()
    });
    assert_eq!(rig.space.policy(), Policy::Strict);
    assert!(rig.space.lazy_refused().is_some());
    device_of(&rig, UNTRUSTED, untrusted());
}

/// Memory of firmware's devices is for their streams alone.
#[test]
fn a_device_that_is_not_trusted_does_not_reach_what_firmware_s_devices_use() {
    let direct = ReservedRegion {
        range: range(0x20_0000, 0x20_0fff),
        kind: ReservedKind::Direct(Access::READ_WRITE),
    };
    for with_others in [false, true] {
        let rig = Rig::policy(Policy::Strict);
        rig.hardware.reserved.lock().push(direct);
        let _first = device_of(&rig, UNTRUSTED, untrusted());
        if with_others {
            // One that has the same region reaches nothing new.
            device_of(&rig, 1, untrusted());
        }
        rig.hardware.reserved.lock().clear();
        let (space, stream) = (rig.space.clone(), StreamId::new(2));
        let refused = Device::translated(space, stream, untrusted()).err();
        assert_eq!(refused, Some(DeviceError::LessTrusted), "it has none");
        // And the other way round.
        let rig = Rig::policy(Policy::Strict);
        let _first = device_of(&rig, UNTRUSTED, untrusted());
        rig.hardware.reserved.lock().push(direct);
        let (space, stream) = (rig.space.clone(), StreamId::new(2));
        let refused = Device::translated(space, stream, Constraints::trusted()).err();
        assert_eq!(refused, Some(DeviceError::LessTrusted), "others reach it");
    }
}
