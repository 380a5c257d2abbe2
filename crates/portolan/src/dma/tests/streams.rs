//! Devices that a space takes, addresses that it keeps off, and streams that it blocks when it
//! breaks.

use crate::platform::promised::all_memory;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicUsize, Ordering};

use super::buffers::Pages;
use super::rig::{Cpus, Rig, Setup, TIMED_OUT, device_of, range};
use crate::addr::{Iova, Pasid, StreamId};
use crate::dma::{Constraints, Device, DeviceError, OldMappings, Policy, ToDevice, Trust};
use crate::inval::{Caching, Command, Step};
use crate::iommu::AttachError;
use crate::iommu::{ReservedKind, ReservedRegion};
use crate::table::Access;

fn translated(
    rig: &Rig,
    stream: u32,
    constraints: Constraints,
) -> Result<Device<Cpus>, DeviceError> {
    let (stream, space) = (StreamId::new(stream), rig.space.clone());
    Device::translated(space, stream, constraints)
}

#[test]
fn a_stream_is_blocked_although_another_one_leaves_while_the_space_breaks() {
    let rig = Rig::policy(Policy::Strict);
    let plain = Constraints::trusted();
    let first = device_of(&rig, 1, plain);
    let _others = [2, 3].map(|stream| device_of(&rig, stream, plain));
    rig.hardware.during_block.set(move || drop(first));
    rig.space.fail(TIMED_OUT);
    rig.space.tick().unwrap();
    let blocked = rig.hardware.blocked.lock();
    for stream in [1, 2, 3] {
        assert!(blocked.contains(&StreamId::new(stream)), "{stream}");
    }
}

#[test]
fn a_stream_has_one_device_in_a_space() {
    let rig = Rig::policy(Policy::Strict);
    let plain = Constraints::trusted();
    let one = device_of(&rig, 1, plain);
    let again = translated(&rig, 1, plain).err();
    assert_eq!(again, Some(DeviceError::InUse));
    assert_eq!(*rig.hardware.blocked.lock(), []);
    drop(one);
    device_of(&rig, 1, plain);
}

#[test]
fn a_device_that_moves_is_not_blocked_by_the_one_that_it_was() {
    let rig = Rig::policy(Policy::Strict);
    let other = rig.beside();
    let device = device_of(&rig, 1, Constraints::trusted());
    let device = device.move_to(other.space.clone(), OldMappings::Refuse);
    let device = device.ok().unwrap();
    assert_eq!(*rig.hardware.blocked.lock(), []);
    // The space that it has left has room for it again, and does not block it any more.
    rig.space.fail(TIMED_OUT);
    rig.space.tick().unwrap();
    assert_eq!(*rig.hardware.blocked.lock(), []);
    other.space.fail(TIMED_OUT);
    other.space.tick().unwrap();
    assert_eq!(*rig.hardware.blocked.lock(), [StreamId::new(1)]);
    // Not to another unit: it stays where it was.
    let elsewhere = Rig::policy(Policy::Strict);
    let there = device.move_to(elsewhere.space.clone(), OldMappings::Keep);
    let stayed = there.err().unwrap();
    assert_eq!(stayed.error, DeviceError::InUse);
    assert_eq!(*rig.hardware.blocked.lock(), [StreamId::new(1)]);
    drop(stayed);
    assert_eq!(*rig.hardware.blocked.lock(), [StreamId::new(1); 2]);
}

#[test]
fn a_device_does_not_move_to_where_it_is() {
    let rig = Rig::policy(Policy::Strict);
    let device = device_of(&rig, 1, Constraints::trusted());
    let there = device.move_to(rig.space.clone(), OldMappings::Keep);
    assert_eq!(there.err().unwrap().error, DeviceError::InUse);
    assert_eq!(*rig.hardware.blocked.lock(), [StreamId::new(1)]);
}

#[test]
fn a_broken_space_takes_no_devices() {
    let rig = Rig::policy(Policy::Strict);
    rig.space.fail(TIMED_OUT);
    let refused = translated(&rig, 1, Constraints::trusted()).err();
    assert_eq!(refused, Some(DeviceError::Broken(TIMED_OUT)));
    assert_eq!(rig.hardware.attached.load(Ordering::Relaxed), 0);
}

#[test]
fn a_device_that_is_not_trusted_is_neither_lazy_nor_passed_through() {
    let untrusted = Constraints { trust: Trust::Untrusted, ..Constraints::trusted() };
    let rig = Rig::policy(Policy::Lazy);
    let refused = translated(&rig, 1, untrusted).err();
    assert_eq!(refused, Some(DeviceError::Untrusted));
    let refused = Device::identity(
        rig.cpus.clone(),
        rig.hardware.clone(),
        StreamId::new(1),
        untrusted,
        all_memory(),
    )
    .err();
    assert_eq!(refused, Some(DeviceError::Untrusted));
    let rig = Rig::policy(Policy::Deferred);
    assert!(translated(&rig, 1, untrusted).is_ok());
}

fn reserve(rig: &Rig, start: u64, last: u64, kind: ReservedKind) {
    let range = range(start, last);
    rig.hardware.reserved.lock().push(ReservedRegion { range, kind });
}

#[test]
fn no_mapping_gets_what_the_unit_reserves() {
    let rig = Rig::new(&Setup { window: range(0x10_0000, 0x10_7fff), ..Setup::default() });
    // Pages 2 to 5 of the window, in parts that overlap, and ranges outside of it.
    reserve(&rig, 0x10_2000, 0x10_3fff, ReservedKind::Interrupts);
    reserve(&rig, 0x10_3800, 0x10_57ff, ReservedKind::Unusable);
    reserve(&rig, 0xfee0_0000, 0xfeef_ffff, ReservedKind::Interrupts);
    reserve(&rig, 0x10_0000, 0x10_0fff, ReservedKind::Doorbell);
    let plain = Constraints::trusted();
    let alive = Arc::new(AtomicUsize::new(0));
    // The second one finds all of it set aside.
    let devices = [1, 2].map(|stream| device_of(&rig, stream, plain));
    let map = |at: u64| {
        let buffer = Pages::new(&alive, &[(at, 0x1000)]);
        devices[0].map(buffer, ToDevice)
    };
    let held: alloc::vec::Vec<_> = (0..4).map(|page| map(page << 12).ok().unwrap()).collect();
    let mut at: alloc::vec::Vec<_> = held.iter().map(|one| one.iova().get()).collect();
    at.sort_unstable();
    assert_eq!(at, [0x10_0000, 0x10_1000, 0x10_6000, 0x10_7000]);
    assert!(map(0x9000).is_err());
}

#[test]
fn what_firmware_s_devices_use_is_mapped_one_to_one_before_the_stream_is_attached() {
    let rig = Rig::policy(Policy::Strict);
    let both = Access::READ | Access::WRITE;
    reserve(&rig, 0x20_0800, 0x20_1fff, ReservedKind::Direct(both));
    reserve(&rig, 0x20_1000, 0x20_2fff, ReservedKind::Direct(both));
    let plain = Constraints::trusted();
    let _devices = [1, 2].map(|stream| device_of(&rig, stream, plain));
    for at in [0x20_0000, 0x20_1234, 0x20_2fff] {
        let found = rig.space.domain.translate(Iova::new(at)).unwrap();
        assert_eq!((found.pa.get(), found.access), (at, both));
    }
    assert_eq!(rig.space.domain.translate(Iova::new(0x20_3000)), None);
}

#[test]
fn reserved_addresses_that_are_in_use_are_refused() {
    let rig = Rig::policy(Policy::Strict);
    let plain = Constraints::trusted();
    let device = device_of(&rig, 1, plain);
    let alive = Arc::new(AtomicUsize::new(0));
    let buffer = Pages::new(&alive, &[(0x5000, 0x1000)]);
    let mapping = device.map(buffer, ToDevice).ok().unwrap();
    let at = mapping.iova().get();
    reserve(&rig, at, at + 0xfff, ReservedKind::Interrupts);
    let refused = translated(&rig, 2, plain).err();
    let reserved = range(at, at + 0xfff);
    assert_eq!(refused, Some(DeviceError::Reserved { range: reserved }));
    mapping.unmap().ok().unwrap();
    assert!(translated(&rig, 2, plain).is_ok());
}

#[test]
fn a_device_comes_back_to_the_mappings_that_it_left() {
    let rig = Rig::policy(Policy::Deferred);
    let other = rig.beside();
    let device = device_of(&rig, 1, Constraints::trusted());
    let alive = Arc::new(AtomicUsize::new(0));
    let buffer = Pages::new(&alive, &[(0x5000, 0x1000)]);
    let mapping = device.map(buffer, ToDevice).ok().unwrap();
    let refused = device.move_to(other.space.clone(), OldMappings::Refuse);
    let stayed = refused.err().unwrap();
    assert_eq!(stayed.error, DeviceError::Mapped);
    let away = stayed.value.move_to(other.space.clone(), OldMappings::Keep);
    let away = away.ok().unwrap();
    assert!(rig.space.domain.translate(mapping.iova()).is_some());
    assert!(other.space.domain.translate(mapping.iova()).is_none());
    // Its old mappings do not keep it from leaving its new place.
    let back = away.move_to(rig.space.clone(), OldMappings::Refuse);
    let back = back.ok().unwrap();
    let (more, deferred) = (Pages::new(&alive, &[(0x9000, 0x1000)]), mapping.defer());
    back.map(more, ToDevice).ok().unwrap().unmap().ok().unwrap();
    deferred.ok().unwrap().reclaim().ok().unwrap();
    assert_eq!(alive.load(Ordering::Relaxed), 0);
    assert_eq!(rig.space.quarantine(), other.space.quarantine());
}

#[test]
fn a_device_is_attached_again_once_its_space_has_recovered() {
    let rig = Rig::policy(Policy::Strict);
    let device = device_of(&rig, 1, Constraints::trusted());
    let attached = || rig.hardware.attached.load(Ordering::Relaxed);
    rig.space.fail(TIMED_OUT);
    assert_eq!(device.attach_again(), Err(DeviceError::Broken(TIMED_OUT)));
    assert_eq!(attached(), 1);
    rig.space.recover().unwrap();
    assert_eq!(device.attach_again(), Ok(()));
    assert_eq!(attached(), 2);
}

#[test]
fn one_pasid_of_a_stream_is_a_device_of_its_own() {
    let rig = Rig::policy(Policy::Strict);
    let plain = Constraints::trusted();
    let of = |pasid| {
        let (space, stream) = (rig.space.clone(), StreamId::new(1));
        Device::translated_pasid(space, stream, Pasid::new(pasid), plain)
    };
    let whole = device_of(&rig, 1, plain);
    let [one, two] = [1, 2].map(|pasid| of(pasid).unwrap());
    assert_eq!((one.stream(), one.pasid()), (whole.stream(), Some(Pasid::new(1))));
    assert_eq!(of(2).err(), Some(DeviceError::InUse));
    drop(two);
    assert_eq!(*rig.hardware.blocked_pasids.lock(), [Pasid::new(2)]);
    assert_eq!(*rig.hardware.blocked.lock(), []);
    rig.space.fail(TIMED_OUT);
    rig.space.tick().unwrap();
    assert_eq!(*rig.hardware.blocked_pasids.lock(), [2, 1].map(Pasid::new));
    assert_eq!(*rig.hardware.blocked.lock(), [StreamId::new(1)]);
    rig.space.recover().unwrap();
    // 0 is that of requests without one.
    let refused = DeviceError::Attach(AttachError::Mismatch);
    assert_eq!(of(0).err(), Some(refused));
}

/// A device that shares its stream is not blocked as long as the other one is there.
#[test]
fn a_device_that_says_that_it_is_detached_is_blocked() {
    let rig = Rig::policy(Policy::Strict);
    let limits = Constraints::trusted();
    let bridge = StreamId::new(0x200);
    let owner = Arc::new(device_of(&rig, 0x200, limits));
    let one = Device::beside(owner.clone(), limits).unwrap();
    let other = Device::beside(owner, limits).unwrap();
    let blocked = || rig.hardware.blocked.lock().contains(&bridge);
    assert_eq!(one.detach(), Err(DeviceError::Shared));
    assert!(!blocked());
    assert_eq!(other.detach(), Ok(()));
    assert!(blocked());
}

#[test]
fn what_a_region_of_firmware_s_owes_is_kept_when_its_sync_fails() {
    let rig = Rig::new(&Setup { caching: Caching::NotPresentToo, ..Setup::default() });
    let firmware = range(0x7000_0000, 0x7000_0fff);
    rig.hardware
        .reserved
        .lock()
        .push(ReservedRegion { range: firmware, kind: ReservedKind::Direct(Access::READ_WRITE) });
    rig.set_broken(1);
    let (space, stream) = (rig.space.clone(), StreamId::new(3));
    assert!(Device::translated(space, stream, Constraints::trusted()).is_err());
    assert_eq!(rig.space.failure(), Some(TIMED_OUT));
    rig.hardware.steps.lock().clear();
    rig.set_broken(0);
    rig.space.recover().unwrap();
    let steps = rig.hardware.steps.lock();
    let named = |step: &Step| match step {
        Step::Invalidate(Command::Page { iova, .. }) => *iova == firmware.start(),
        Step::Invalidate(_) => true,
        _ => false,
    };
    assert!(steps.iter().any(named), "{steps:?}");
}
