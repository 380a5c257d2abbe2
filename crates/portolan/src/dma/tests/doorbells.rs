//! Addresses to which a device writes its messages.

use crate::platform::promised::all_memory;
use alloc::sync::Arc;
use core::sync::atomic::AtomicUsize;

use super::buffers::{Pages, doorbell};
use super::rig::{Rig, Setup, TIMED_OUT, device_of, range};
use crate::addr::{Iova, StreamId};
use crate::dma::{Constraints, Device, MapError, Policy, ToDevice, Trust};
use crate::iommu::{ReservedKind, ReservedRegion};
use crate::table::Access;

/// GITS_TRANSLATER of a service at 0x808_0000.
const RING: u64 = 0x0809_0040;

#[test]
fn a_doorbell_is_mapped_once_for_all_devices_of_a_space_and_stays() {
    let rig = Rig::policy(Policy::Strict);
    let untrusted = Constraints { trust: Trust::Untrusted, ..Constraints::trusted() };
    let devices = [1, 2].map(|stream| device_of(&rig, stream, untrusted));
    let rung = devices[0].map_doorbell(doorbell(RING)).unwrap();
    assert_eq!(rung.get() & 0xfff, RING & 0xfff);
    let found = rig.space.domain.translate(rung).unwrap();
    assert_eq!(found.pa.get(), RING);
    assert!(found.access.contains(Access::WRITE) && !found.access.contains(Access::READ));
    // Another register of the page, and another device.
    let beside = devices[1].map_doorbell(doorbell(RING + 4)).unwrap();
    assert_eq!(beside.get(), rung.get() + 4);
    let other = devices[1].map_doorbell(doorbell(RING + 0x1000)).unwrap();
    assert_ne!(other.get() & !0xfff, rung.get() & !0xfff);
    drop(devices);
    rig.space.flush().unwrap();
    assert!(rig.space.domain.translate(rung).is_some());
    let next = device_of(&rig, 3, untrusted);
    assert_eq!(next.map_doorbell(doorbell(RING)), Ok(rung));
}

#[test]
fn a_device_gets_a_doorbell_that_it_can_reach() {
    let rig = Rig::new(&Setup { window: range(0x10_0000, 0xff_ffff_ffff), ..Setup::default() });
    let wide = device_of(&rig, 1, Constraints::trusted());
    let high = wide.map_doorbell(doorbell(RING)).unwrap();
    assert!(high.get() >> 28 != 0);
    let narrow = device_of(&rig, 2, Constraints::trusted().address_bits(28));
    let low = narrow.map_doorbell(doorbell(RING)).unwrap();
    assert_eq!(low.get() >> 28, 0);
    assert_eq!(rig.space.domain.translate(low).unwrap().pa.get(), RING);
}

/// The address of a doorbell is no other mapping's.
#[test]
fn a_mapping_does_not_get_a_doorbell_s_address() {
    let rig = Rig::new(&Setup { window: range(0x10_0000, 0x10_3fff), ..Setup::default() });
    let device = device_of(&rig, 1, Constraints::trusted());
    let rung = device.map_doorbell(doorbell(RING)).unwrap();
    let alive = Arc::new(AtomicUsize::new(0));
    for round in 0..3 {
        let map = |at: u64| {
            let buffer = Pages::new(&alive, &[(at << 12, 0x1000)]);
            device.map(buffer, ToDevice).map_err(|failed| failed.error)
        };
        let held = [1, 2, 3].map(|at| map(at).unwrap());
        let page = rung.get() & !0xfff;
        assert!(held.iter().all(|one| one.iova().get() != page), "{round}");
        assert!(matches!(map(4), Err(MapError::Iova(_))), "{round}");
        for one in held {
            one.unmap().unwrap();
        }
    }
}

#[test]
fn where_messages_pass_untranslated_the_physical_address_serves() {
    let rig = Rig::policy(Policy::Strict);
    rig.hardware.reserved.lock().push(ReservedRegion {
        range: range(0xfee0_0000, 0xfeef_ffff),
        kind: ReservedKind::Interrupts,
    });
    let device = device_of(&rig, 1, Constraints::trusted());
    let ring = doorbell(0xfee0_1004);
    assert_eq!(device.map_doorbell(ring), Ok(Iova::new(0xfee0_1004)));
    assert_eq!(rig.space.domain.translate(Iova::new(0xfee0_1004)), None);
    // Devices that are not translated.
    let (unit, stream) = (|| rig.hardware.clone(), StreamId::new(2));
    let narrow = Constraints::trusted().address_bits(28);
    let passed = Device::identity(rig.cpus.clone(), unit(), stream, narrow, all_memory()).unwrap();
    let rung = passed.map_doorbell(doorbell(RING));
    assert_eq!(rung, Ok(Iova::new(RING)));
    let above = passed.map_doorbell(ring);
    assert!(matches!(above, Err(MapError::AboveLimit { .. })), "{above:?}");
    let blocked = Device::blocked(rig.cpus.clone(), unit(), stream, narrow).unwrap();
    assert_eq!(blocked.map_doorbell(ring), Err(MapError::Blocked));
}

#[test]
fn a_doorbell_is_not_mapped_in_a_broken_space() {
    let rig = Rig::policy(Policy::Strict);
    let device = device_of(&rig, 1, Constraints::trusted());
    rig.space.fail(TIMED_OUT);
    let refused = device.map_doorbell(doorbell(RING));
    assert_eq!(refused, Err(MapError::Broken(TIMED_OUT)));
}

#[test]
fn a_doorbell_needs_a_page_whatever_a_device_s_buffers_are_aligned_to() {
    let rig = Rig::new(&Setup { window: range(0x10_0000, 0x4f_ffff), ..Setup::default() });
    let aligned =
        Constraints { align: crate::addr::PageSize::of_lg2(24), ..Constraints::trusted() };
    let device = device_of(&rig, 1, aligned);
    let rung = device.map_doorbell(doorbell(RING)).unwrap();
    assert_eq!(rig.space.domain.translate(rung).unwrap().pa.get(), RING);
}
