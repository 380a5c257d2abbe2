//! Where buffers lie under the limits of a device.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::num::NonZeroU64;
use core::sync::atomic::AtomicUsize;

use super::buffers::{Pages, unowned};
use super::rig::{Rig, device_of};
use crate::addr::{Iova, PageSize, PhysAddr, PhysRange};
use crate::dma::{Constraints, MapError, Policy, ToDevice};
use crate::table::Access;

#[test]
fn segments_that_a_boundary_would_cut_lie_behind_it() {
    let rig = Rig::policy(Policy::Strict);
    let limits = Constraints {
        max_segment: NonZeroU64::new(0x3000).unwrap(),
        seg_boundary: Some(PageSize::SIZE_16K),
        ..Constraints::default()
    };
    let device = device_of(&rig, 1, limits);
    let alive = Arc::new(AtomicUsize::new(0));
    let buffer = Pages::new(&alive, &[(0x5000, 0x3000), (0x9000, 0x3000)]);
    let mapping = device.try_map(buffer, ToDevice).ok().unwrap();
    let segments: Vec<_> = mapping.segments().collect();
    let at = segments[0].iova.get();
    assert_eq!(at % 0x4000, 0);
    let placed = segments
        .iter()
        .map(|one| (one.iova.get() - at, one.bytes.get()));
    assert_eq!(placed.collect::<Vec<_>>(), [(0, 0x3000), (0x4000, 0x3000)]);
    // What is left free leads to the buffer, and nowhere once it is unmapped.
    let leads = |at: u64| rig.space.domain.translate(Iova::new(at));
    for (page, pa) in [(2, 0x7000), (3, 0x9000), (4, 0x9000), (6, 0xb000)] {
        let found = leads(at + (page << 12)).unwrap();
        assert_eq!((found.pa.get(), found.access), (pa, Access::READ));
    }
    mapping.unmap().ok().unwrap();
    assert!((0..8).all(|page| leads(at + (page << 12)).is_none()));
    // A list too long for the stack is not made where no heap may be touched.
    let long = || {
        Pages::new(
            &alive,
            &[(0x5000, 0x3000), (0x9000, 0x3000), (0x1_0000, 0x3000)],
        )
    };
    let refused = device
        .try_map(long(), ToDevice)
        .err()
        .map(|failed| failed.error);
    assert_eq!(refused, Some(MapError::WouldWait));
    let mapping = device.map(long(), ToDevice).ok().unwrap();
    assert_eq!(mapping.segments().count(), 3);
    mapping.unmap().ok().unwrap();
}

#[test]
fn buffers_keep_the_low_bits_that_a_device_uses() {
    let rig = Rig::policy(Policy::Strict);
    let limits = Constraints {
        min_align_mask: PageSize::SIZE_64K,
        ..Constraints::default()
    };
    let device = device_of(&rig, 1, limits);
    let memory = PhysRange::from_len(PhysAddr::new(0x12_3450), 0x2000).unwrap();
    let mapping = device.map(unowned(memory), ToDevice).ok().unwrap();
    let at = mapping.iova();
    assert_eq!(at.get() & 0xffff, 0x3450);
    assert_eq!(rig.space.domain.translate(at).unwrap().pa, memory.start());
    mapping.unmap().ok().unwrap();
    let access = Access::READ;
    let (range, first) = rig
        .space
        .map_range(unowned(memory), access, &limits)
        .unwrap();
    assert_eq!(first.get() & 0xffff, 0x3450);
    rig.space.unmap_range(range).unwrap();
    assert_eq!(device.coherent(0x1000).unwrap().iova().get() & 0xffff, 0);
    // More room than there are addresses.
    let limits = Constraints {
        min_align_mask: PageSize::of_lg2(63),
        ..limits
    };
    let refused = rig.space.map_range(unowned(memory), access, &limits);
    assert!(matches!(refused, Err(MapError::Iova(_))), "{refused:?}");
}
