//! Memory that the CPU and a device share, of a driver's types and of each kind.

use core::alloc::Layout;
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use super::machine::device_byte;
use super::rig::{Rig, device_of};
use crate::dma::{Coherency, Coherent, Constraints, HostVisibility, MapError, Policy, SharedData};
use crate::platform::Platform;

#[repr(C)]
struct Descriptor {
    address: AtomicU64,
    bytes: AtomicU32,
    flags: AtomicU16,
    status: [AtomicU8; 2],
}

#[allow(unsafe_code)]
// SAFETY: its fields are atomics.
unsafe impl SharedData for Descriptor {}

fn limits(coherency: Coherency, reach: HostVisibility) -> Constraints {
    Constraints { coherency, reach, ..Constraints::trusted() }
}

#[test]
fn fields_of_8_to_64_bits_are_where_the_device_expects_them() {
    let rig = Rig::policy(Policy::Strict);
    let device = device_of(&rig, 1, Constraints::trusted());
    let ring: Coherent<_, Descriptor> = device.coherent_of(300).unwrap();
    assert_eq!((ring.items().len(), ring.bytes()), (300, 0x2000));
    let entry = &ring.items()[299];
    assert_eq!(entry.address.load(Ordering::Relaxed), 0);
    entry.address.store(0x1122_3344_5566_7788, Ordering::Relaxed);
    entry.bytes.store(0x99aa_bbcc, Ordering::Relaxed);
    entry.flags.store(0xddee, Ordering::Relaxed);
    entry.status[1].store(0xff, Ordering::Release);
    let iova = ring.iova_of(299).unwrap();
    assert_eq!(iova.get() - ring.iova().get(), 299 * 16);
    let at = rig.space.domain.translate(iova).unwrap().pa;
    let seen = (0..16).map(|byte| {
        let byte = device_byte(&rig.cpus, at.checked_add(byte).unwrap());
        byte.load(Ordering::Relaxed)
    });
    let low = [0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0xcc, 0xbb, 0xaa, 0x99];
    assert!(seen.eq(low.into_iter().chain([0xee, 0xdd, 0, 0xff])));
    // The device writes a byte.
    device_byte(&rig.cpus, at.checked_add(14).unwrap()).store(7, Ordering::Relaxed);
    assert_eq!(entry.status[0].load(Ordering::Acquire), 7);
}

#[test]
fn what_lies_outside_is_not_there() {
    let rig = Rig::policy(Policy::Strict);
    let device = device_of(&rig, 1, Constraints::trusted());
    let ring = device.coherent_of::<Descriptor>(3).unwrap();
    assert!(ring.items().get(3).is_none());
    assert_eq!([3, usize::MAX].map(|number| ring.iova_of(number)), [None; 2]);
    assert_eq!(ring.view().len() as u64, ring.bytes());
    let refused = |count| device.coherent_of::<Descriptor>(count).unwrap_err();
    assert_eq!(refused(0), MapError::Empty);
    assert_eq!(refused(usize::MAX), MapError::TooLong);
    assert_eq!(device.coherent_of::<[AtomicU64; 0]>(1).unwrap_err(), MapError::Empty);
}

#[repr(align(8192))]
struct Wide([AtomicU64; 1024]);

#[allow(unsafe_code)]
// SAFETY: its field is of atomics.
unsafe impl SharedData for Wide {}

#[test]
fn a_type_that_pages_are_not_aligned_for_is_refused() {
    let rig = Rig::policy(Policy::Strict);
    let device = device_of(&rig, 1, Constraints::trusted());
    assert_eq!(device.coherent_of::<Wide>(1).unwrap_err(), MapError::TooLong);
    let wide = Wide([const { AtomicU64::new(0) }; 1024]);
    assert_eq!(wide.0[0].load(Ordering::Relaxed), 0);
}

#[test]
fn memory_of_another_kind_has_an_address_of_its_own_and_goes_back_there() {
    let rig = Rig::policy(Policy::Strict);
    rig.hardware.has_uncached.store(true, Ordering::Relaxed);
    let freed = || rig.hardware.aliases_freed.load(Ordering::Relaxed);
    let kinds = [
        limits(Coherency::NotCoherent, HostVisibility::Private),
        limits(Coherency::Coherent, HostVisibility::Shared),
    ];
    for (stream, kind) in (1..).zip(kinds) {
        let device = device_of(&rig, stream, kind);
        let ring = device.coherent(64).unwrap();
        ring.words()[1].store(5, Ordering::Relaxed);
        let byte = ring.memory().start().checked_add(8).unwrap();
        assert_eq!(device_byte(&rig.cpus, byte).load(Ordering::Relaxed), 5);
        drop(ring);
        assert_eq!((freed(), rig.frames()), (u64::from(stream), 0));
    }
    drop(device_of(&rig, 9, Constraints::trusted()).coherent(64).unwrap());
    assert_eq!((freed(), rig.frames()), (2, 0));
}

#[test]
fn a_platform_without_the_kind_is_told_which() {
    let rig = Rig::policy(Policy::Strict);
    let limits = limits(Coherency::NotCoherent, HostVisibility::Private);
    let device = device_of(&rig, 1, limits);
    assert_eq!(rig.cpus.alloc_uncached(Layout::new::<u64>()), None);
    assert_eq!(device.coherent(64).unwrap_err(), MapError::NoUncached { bytes: 64 });
    let refused = device.coherent_of::<AtomicU32>(16).unwrap_err();
    assert_eq!(refused, MapError::NoUncached { bytes: 64 });
}
