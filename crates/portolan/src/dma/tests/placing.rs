//! Places of buffers under the limits of a device.

use crate::platform::promised::all_memory;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::num::NonZeroU64;
use core::sync::atomic::{AtomicUsize, Ordering};

use super::buffers::{Pages, unowned};
use super::rig::{Rig, device_of, range};
use crate::addr::{Iova, PageSize, PhysAddr, PhysRange, StreamId};
use crate::dma::{Constraints, Device, MapError, NotMapped, Policy, ToDevice};
use crate::table::Access;

#[test]
fn segments_that_a_boundary_would_cut_lie_behind_it() {
    let rig = Rig::policy(Policy::Strict);
    let limits = Constraints {
        max_segment: NonZeroU64::new(0x3000).unwrap(),
        seg_boundary: Some(PageSize::SIZE_16K),
        ..Constraints::trusted()
    };
    let device = device_of(&rig, 1, limits);
    let alive = Arc::new(AtomicUsize::new(0));
    let buffer = Pages::new(&alive, &[(0x5000, 0x3000), (0x9000, 0x3000)]);
    let mapping = device.try_map(buffer, ToDevice).ok().unwrap();
    let segments: Vec<_> = mapping.segments().collect();
    let at = segments[0].iova.get();
    assert_eq!(at % 0x4000, 0);
    let placed = segments.iter().map(|one| (one.iova.get() - at, one.bytes.get()));
    assert_eq!(placed.collect::<Vec<_>>(), [(0, 0x3000), (0x4000, 0x3000)]);
    // Addresses that are left free lead to the buffer, and nowhere once it is unmapped.
    let leads = |at: u64| rig.space.domain.translate(Iova::new(at));
    for (page, pa) in [(2, 0x7000), (3, 0x9000), (4, 0x9000), (6, 0xb000)] {
        let found = leads(at + (page << 12)).unwrap();
        assert_eq!((found.pa.get(), found.access), (pa, Access::READ));
    }
    mapping.unmap().ok().unwrap();
    assert!((0..8).all(|page| leads(at + (page << 12)).is_none()));
    // A list too long for the stack is not made where no heap may be touched.
    let long = || Pages::new(&alive, &[(0x5000, 0x3000), (0x9000, 0x3000), (0x1_0000, 0x3000)]);
    let refused = device.try_map(long(), ToDevice).err().map(|failed| failed.error);
    assert_eq!(refused, Some(MapError::WouldWait));
    let mapping = device.map(long(), ToDevice).ok().unwrap();
    assert_eq!(mapping.segments().count(), 3);
    mapping.unmap().ok().unwrap();
}

#[test]
fn a_buffer_begins_at_a_multiple_of_the_callers_alignment() {
    let rig = Rig::policy(Policy::Strict);
    let device = device_of(&rig, 1, Constraints::trusted());
    let alive = Arc::new(AtomicUsize::new(0));
    let before = device.map(Pages::new(&alive, &[(0x5000, 0x1000)]), ToDevice).ok().unwrap();
    // More pages than are aligned to themselves in any case, and fewer.
    for bytes in [0x40_0000, 0x20_1000, 0x3000] {
        let memory = PhysRange::from_len(PhysAddr::new(0x4000_0000), bytes).unwrap();
        let huge = PageSize::SIZE_2M;
        let mapping = device.map_aligned(unowned(memory), ToDevice, huge).ok().unwrap();
        assert!(mapping.iova().is_aligned(huge), "{} for {bytes:#x}", mapping.iova());
        assert_eq!(rig.space.domain.translate(mapping.iova()).unwrap().pa, memory.start());
        mapping.unmap().ok().unwrap();
    }
    before.unmap().ok().unwrap();
}

#[test]
fn buffers_keep_the_low_bits_that_a_device_uses() {
    let rig = Rig::policy(Policy::Strict);
    let limits = Constraints { min_align_mask: PageSize::SIZE_64K, ..Constraints::trusted() };
    let device = device_of(&rig, 1, limits);
    let memory = PhysRange::from_len(PhysAddr::new(0x12_3450), 0x2000).unwrap();
    let mapping = device.map(unowned(memory), ToDevice).ok().unwrap();
    let at = mapping.iova();
    assert_eq!(at.get() & 0xffff, 0x3450);
    assert_eq!(rig.space.domain.translate(at).unwrap().pa, memory.start());
    mapping.unmap().ok().unwrap();
    let access = Access::READ;
    let (range, first) = rig.space.map_range(unowned(memory), access, &limits).unwrap();
    assert_eq!(first.get() & 0xffff, 0x3450);
    rig.space.unmap_range(range).unwrap();
    assert_eq!(device.coherent(0x1000).unwrap().iova().get() & 0xffff, 0);
    // More room than there are addresses.
    let limits = Constraints { min_align_mask: PageSize::of_lg2(63), ..limits };
    let refused = rig.space.map_range(unowned(memory), access, &limits);
    assert!(matches!(refused, Err(MapError::Iova(_))), "{refused:?}");
}

#[test]
fn a_buffer_begins_in_the_page_that_was_chosen_and_its_addresses_come_back() {
    for policy in [Policy::Strict, Policy::Deferred, Policy::Lazy] {
        let rig = Rig::policy(policy);
        let device = device_of(&rig, 1, Constraints::trusted());
        let alive = Arc::new(AtomicUsize::new(0));
        let map = |page: u64, bytes| {
            let buffer = Pages::new(&alive, &[(0x5010, bytes)]);
            let mapped = device.map_at(buffer, ToDevice, Iova::new(page));
            mapped.map_err(|failed| failed.error)
        };
        let taken = |start, last| {
            let range = range(start, last);
            Some(MapError::Taken { range })
        };
        // One page; three, with the fourth to which they are rounded; and three that are not aligned.
        for _ in 0..3 {
            let one = map(0x20_0000, 0x10).unwrap();
            assert_eq!(one.iova(), Iova::new(0x20_0010));
            let three = map(0x30_0000, 0x2800).unwrap();
            let found = rig.space.domain.translate(Iova::new(0x30_2000)).unwrap();
            assert_eq!(found.pa.get(), 0x7000);
            assert_eq!(map(0x30_3000, 1).err(), taken(0x30_3000, 0x30_3fff));
            assert_eq!(map(0x2f_e000, 0x2800).err(), taken(0x2f_e000, 0x30_0fff));
            three.unmap().ok().unwrap();
            let odd = map(0x30_1000, 0x2800).unwrap();
            odd.unmap().ok().unwrap();
            // A mapping waits for addresses that wait for their invalidation.
            let deferred = one.defer().ok().unwrap();
            let again = map(0x20_0000, 0x10).unwrap();
            assert!(deferred.try_reclaim().is_ok());
            again.unmap().ok().unwrap();
        }
        rig.space.flush().unwrap();
        assert_eq!(alive.load(Ordering::Relaxed), 0);
        assert_eq!(rig.space.quarantine(), Default::default());
        // Everything is free again.
        let all = map(0x10_0000, 0x80_0000 - 0x10).unwrap();
        all.unmap().ok().unwrap();
    }
}

#[test]
fn a_buffer_comes_back_that_cannot_lie_where_it_was_to() {
    let rig = Rig::policy(Policy::Strict);
    let limits = Constraints { align: PageSize::SIZE_64K, ..Constraints::trusted() };
    let device = device_of(&rig, 1, limits.address_bits(24));
    let alive = Arc::new(AtomicUsize::new(0));
    let refused = |device: &Device<_>, page: u64| {
        let buffer = Pages::new(&alive, &[(0x5000, 0x2000)]);
        let failed = device.map_at(buffer, ToDevice, Iova::new(page)).err().unwrap();
        assert!(matches!(failed.value, NotMapped::Buffer(_)));
        failed.error
    };
    let outside = |start, last| MapError::Outside { range: range(start, last) };
    // Below the window, above the device's reach, within a page, and within 64 KiB.
    assert_eq!(refused(&device, 0xf_0000), outside(0xf_0000, 0xf_1fff));
    assert_eq!(refused(&device, 0xff_f000), outside(0xff_f000, 0xff_ffff));
    assert_eq!(refused(&device, 0x100_0000), outside(0x100_0000, 0x100_1fff));
    assert!(matches!(refused(&device, 0x20_0001), MapError::Outside { .. }));
    assert_eq!(refused(&device, 0x20_1000), outside(0x20_1000, 0x20_1fff));
    assert!(matches!(refused(&device, u64::MAX), MapError::Outside { .. }));
    let unit = rig.hardware.clone();
    let plain = Constraints::trusted();
    let identity =
        Device::identity(rig.cpus.clone(), unit, StreamId::new(2), plain, all_memory()).unwrap();
    assert_eq!(refused(&identity, 0x5000), outside(0x5000, 0x5000));
    assert_eq!(alive.load(Ordering::Relaxed), 0);
    // Nothing was taken.
    let all = Pages::new(&alive, &[(0, 0xf0_0000)]);
    let all = device.map_at(all, ToDevice, Iova::new(0x10_0000)).ok();
    all.unwrap().unmap().ok().unwrap();
}
