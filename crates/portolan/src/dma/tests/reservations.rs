//! Buffers that are linked into addresses that were set aside, and taken out again.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::num::NonZeroU64;
use core::sync::atomic::{AtomicUsize, Ordering};

use super::buffers::Pages;
use super::copies::{Copier, POOL, POOL_BYTES};
use super::rig::{Cpus, Rig, Setup, TIMED_OUT, device_of, range};
use crate::addr::{Iova, PageSize, StreamId};
use crate::dma::{
    Bidirectional, Constraints, CopyWhen, Device, FromDevice, LazyBounds, LinkError, MapError,
    Policy, Reservation, ToDevice, Trust, UnmapError,
};
use crate::inval::Caching;
use crate::iova::IovaError;
use crate::platform::promised::all_memory;

type Reserved = Reservation<Cpus, Pages>;

struct Scene {
    rig: Rig,
    device: Device<Cpus>,
    alive: Arc<AtomicUsize>,
}

impl Scene {
    fn new(setup: &Setup) -> Self {
        let rig = Rig::new(setup);
        Self { device: device_of(&rig, 1, Constraints::trusted()), rig, alive: Arc::default() }
    }

    fn buffer(&self, page: u64, bytes: u64) -> Pages {
        Pages::new(&self.alive, &[(page << 12, bytes)])
    }

    fn alive(&self) -> usize {
        self.alive.load(Ordering::Relaxed)
    }

    fn leads_to(&self, at: Iova) -> Option<u64> {
        self.rig.space.domain.translate(at).map(|found| found.pa.get())
    }

    fn all_free(&self) {
        self.rig.space.flush().unwrap();
        assert_eq!(self.alive(), 0);
        assert_eq!(self.rig.space.reserve(range(0x10_0000, 0xffff_ffff)), Ok(()));
    }
}

#[test]
fn a_buffer_is_taken_out_and_another_linked_at_its_addresses() {
    for policy in [Policy::Strict, Policy::Deferred, Policy::Lazy] {
        let scene = Scene::new(&Setup { policy, ..Setup::default() });
        let mut ring: Reserved = scene.device.reserve(0x4000).unwrap();
        let start = ring.addresses().start().get();
        for slot in [2, 0, 3, 1] {
            let at = ring.link_at(slot << 12, scene.buffer(slot + 8, 0x1000), FromDevice).unwrap();
            assert_eq!(at.get(), start + (slot << 12));
        }
        ring.sync().unwrap();
        let back = ring.unlink_at(0x1000).unwrap();
        assert_eq!((back.first().get(), ring.linked()), (0x9000, 3));
        let leads = |slot: u64| scene.leads_to(Iova::new(start + (slot << 12)));
        assert_eq!([0, 1, 2].map(leads), [Some(0x8000), None, Some(0xa000)], "{policy:?}");
        ring.link_at(0x1000, scene.buffer(0x40, 0x1000), FromDevice).unwrap();
        ring.sync().unwrap();
        assert_eq!(leads(1), Some(0x4_0000));
        let all = ring.unlink().unwrap();
        let firsts = all.iter().map(|buffer| buffer.first().get()).collect::<Vec<_>>();
        assert_eq!(firsts, [0x8000, 0x4_0000, 0xa000, 0xb000]);
        drop((back, all));
        scene.all_free();
    }
}

#[test]
fn what_does_not_fit_comes_back_with_the_reason() {
    let scene = Scene::new(&Setup::default());
    let mut ring: Reserved = scene.device.reserve(0x4000).unwrap();
    ring.link_at(0x1000, scene.buffer(8, 0x2000), ToDevice).unwrap();
    let start = ring.addresses().start().get();
    let mut refused = |offset, bytes| {
        let failed = ring.link_at(offset, scene.buffer(0x20, bytes), ToDevice).unwrap_err();
        assert_eq!(failed.value.first().get(), 0x2_0000);
        failed.error
    };
    for (offset, bytes) in [(0, 0x1001), (0x1000, 1), (0x2000, 0x1000)] {
        let pages = (bytes + 0xfff) & !0xfff;
        let taken = range(start + offset, start + offset + pages - 1);
        assert_eq!(refused(offset, bytes), LinkError::Taken { range: taken });
    }
    for offset in [0x10, 0x5000, u64::MAX] {
        assert_eq!(refused(offset, 0x1000), LinkError::Offset { offset });
    }
    let none = LinkError::NoRoom { wanted: 0x1000, left: 0 };
    assert_eq!(refused(0x4000, 0x1000), none);
    assert_eq!(refused(0x3000, 0x1001), LinkError::NoRoom { wanted: 0x2000, left: 0x1000 });
    let empty = ring.link(Pages::new(&scene.alive, &[]), ToDevice).unwrap_err();
    assert_eq!(empty.error, LinkError::Map(MapError::Empty));
    drop(empty);
    for offset in [0, 0x3000, 0x4000, u64::MAX] {
        let error = ring.unlink_at(offset).unwrap_err();
        assert_eq!(error, UnmapError::NotLinked { offset });
    }
    assert_eq!(ring.unlink_at(0x2fff).unwrap().first().get(), 0x8000);
    drop(ring);
    scene.all_free();
}

#[test]
fn uneven_ends_are_copied_for_a_device_that_is_not_trusted() {
    let copier = Copier::new();
    let device = copier.device(Trust::Untrusted, CopyWhen::Needed);
    copier.bytes.fill(0x1f00, 0x1200, 7);
    let mut window: Reserved = device.reserve(0x8000).unwrap();
    let first = window.link(copier.buffer(&[(0x1f00, 0x1200)]), Bidirectional).unwrap();
    window.sync().unwrap();
    let segments: Vec<_> = window.segments(0).unwrap().collect();
    assert_eq!((segments.len(), segments[0].iova, segments[0].bytes.get()), (1, first, 0x1200));
    let (copy, _) = copier.reach(first.get()).unwrap();
    assert!((POOL..POOL + POOL_BYTES).contains(&copy));
    assert_eq!(copier.bytes.at(copy, 0x100), [7; 0x100]);
    assert_eq!(copier.reach(first.get() + 0x100).unwrap().0, 0x2000);
    copier.bytes.fill(copy, 0x100, 9);
    drop(window.unlink_at(0).unwrap());
    assert_eq!(copier.bytes.at(0x1f00, 0x100), [9; 0x100]);
    assert_eq!((copier.used(), window.linked()), (0, 0));
    // Without a pool it is refused.
    let plain = Constraints::untrusted();
    let rig = Rig::new(&Setup { trust: Some(Trust::Untrusted), ..Setup::default() });
    let mut window: Reserved = device_of(&rig, 1, plain).reserve(0x8000).unwrap();
    let failed = window.link(copier.buffer(&[(0x1f00, 0x1200)]), Bidirectional).unwrap_err();
    assert!(matches!(failed.error, LinkError::SubPage { .. }));
}

#[test]
fn each_buffer_keeps_the_limits_of_the_device() {
    let scene = Scene::new(&Setup::default());
    let limits = Constraints {
        align: PageSize::of_lg2(14),
        max_segment: NonZeroU64::new(0x1800).unwrap(),
        seg_boundary: Some(PageSize::of_lg2(14)),
        ..Constraints::trusted()
    };
    let device = device_of(&scene.rig, 2, limits);
    let mut window: Reserved = device.reserve(0x1_0000).unwrap();
    let one = window.link(scene.buffer(0x11, 0x2000), ToDevice).unwrap();
    let two = window.link(scene.buffer(0x21, 0x2000), ToDevice).unwrap();
    assert_eq!((one.get() & 0x3fff, two.get() - one.get()), (0, 0x4000));
    let failed = window.link_at(0x9000, scene.buffer(0x31, 0x1000), ToDevice).unwrap_err();
    assert_eq!(failed.error, LinkError::Offset { offset: 0x9000 });
    let segments = window.segments(0x4000).unwrap().map(|one| one.bytes.get());
    assert_eq!(segments.collect::<Vec<_>>(), [0x1800, 0x800]);
    drop((failed, window.unlink().unwrap()));
    scene.all_free();
}

#[test]
fn many_buffers_are_mapped_by_one_sync_and_taken_back_by_another() {
    let setup = Setup { caching: Caching::NotPresentToo, ..Setup::default() };
    let scene = Scene::new(&setup);
    let buffers = (0..20).map(|page| scene.buffer(2 * page, 0x800 + 8 * page)).collect();
    let list = scene.device.map_list(buffers, FromDevice).unwrap();
    assert_eq!((scene.rig.syncs(), list.linked()), (1, 20));
    let start = list.addresses().start().get();
    for page in 0..20 {
        let segment = list.segments(page << 12).unwrap().next().unwrap();
        assert_eq!(
            (segment.iova.get(), segment.bytes.get()),
            (start + (page << 12), 0x800 + 8 * page)
        );
        assert_eq!(scene.leads_to(segment.iova), Some(page << 13));
    }
    assert_eq!(list.unlink().unwrap().len(), 20);
    assert_eq!(scene.rig.syncs(), 2);
    scene.all_free();
}

#[test]
fn a_list_that_is_not_mapped_comes_back_whole() {
    let scene = Scene::new(&Setup::default());
    let mut buffers: Vec<_> = (1..4).map(|page| scene.buffer(page, 0x1000)).collect();
    buffers.insert(2, Pages::new(&scene.alive, &[]));
    let failed = scene.device.map_list(buffers, ToDevice).unwrap_err();
    assert_eq!(failed.error, LinkError::Map(MapError::Empty));
    assert!(failed.value.linked.is_none());
    assert_eq!((failed.value.buffers.len(), scene.alive()), (4, 4));
    drop(failed);
    let none = scene.device.map_list(Vec::<Pages>::new(), ToDevice).unwrap_err();
    assert_eq!(none.error, LinkError::Map(MapError::Iova(IovaError::Empty)));
    drop(none);
    scene.all_free();
}

#[test]
fn buffers_that_a_failing_unit_may_reach_stay_until_it_has_recovered() {
    let setup = Setup { caching: Caching::NotPresentToo, ..Setup::default() };
    let scene = Scene::new(&setup);
    scene.rig.set_broken(1);
    let buffers = (1..4).map(|page| scene.buffer(page, 0x1000)).collect();
    let failed = scene.device.map_list(buffers, ToDevice).unwrap_err();
    assert_eq!(failed.error, LinkError::Map(MapError::Iommu(TIMED_OUT)));
    let Some(linked) = failed.value.linked else { panic!("a device may have reached them") };
    assert!(linked.unlink().is_err_and(|failed| failed.value.linked() == 3));
    // Dropped, the addresses come back when the unit is well; the buffers are counted.
    assert_eq!((scene.rig.space.quarantine().dropped, scene.alive()), (3, 3));
    scene.rig.set_broken(0);
    scene.rig.space.recover().unwrap();
    assert_eq!(scene.rig.space.reserve(range(0x10_0000, 0xffff_ffff)), Ok(()));
}

#[test]
fn a_buffer_whose_invalidation_failed_is_asked_for_again() {
    let scene = Scene::new(&Setup::default());
    let mut ring: Reserved = scene.device.reserve(0x2000).unwrap();
    ring.link(scene.buffer(1, 0x1000), ToDevice).unwrap();
    ring.link(scene.buffer(2, 0x1000), ToDevice).unwrap();
    ring.sync().unwrap();
    scene.rig.set_broken(1);
    assert_eq!(ring.unlink_at(0).unwrap_err(), UnmapError::Iommu(TIMED_OUT));
    assert_eq!(scene.leads_to(ring.addresses().start()), None);
    let failed = ring.link_at(0, scene.buffer(3, 0x1000), ToDevice).unwrap_err();
    assert!(matches!(failed.error, LinkError::Taken { .. } | LinkError::Map(MapError::Broken(_))));
    let mut ring = ring.unlink().unwrap_err().value;
    assert_eq!(ring.linked(), 2);
    scene.rig.set_broken(0);
    scene.rig.space.recover().unwrap();
    assert_eq!(ring.unlink_at(0).unwrap().first().get(), 0x1000);
    assert_eq!(ring.unlink().unwrap().len(), 1);
    drop(failed);
    scene.all_free();
}

#[test]
fn a_dropped_reservation_leaves_what_is_unmapped_to_a_space_with_room() {
    let scene = Scene::new(&Setup { dropped_buffers: 2, ..Setup::default() });
    let mut ring: Reserved = scene.device.reserve(0x2000).unwrap();
    ring.link(scene.buffer(1, 0x1000), ToDevice).unwrap();
    ring.sync().unwrap();
    scene.rig.set_broken(1);
    assert!(ring.unlink().is_err());
    assert_eq!(scene.alive(), 1);
    scene.rig.set_broken(0);
    scene.rig.space.recover().unwrap();
    assert_eq!(scene.rig.space.quarantine(), Default::default());
    scene.all_free();
}

#[test]
fn a_lazy_space_gives_a_list_back_at_once_as_far_as_its_queue_has_room() {
    let bounds = LazyBounds { entries: 2, ..LazyBounds::default() };
    let scene = Scene::new(&Setup { policy: Policy::Lazy, bounds, ..Setup::default() });
    for round in 0..6 {
        let buffers = (1..3).map(|page| scene.buffer(page, 0x1000)).collect();
        let list = scene.device.map_list(buffers, ToDevice).unwrap();
        assert_eq!(list.unlink().unwrap().len(), 2, "{round}");
        assert_eq!(scene.rig.syncs() != 0, round >= 4, "{round}");
    }
    scene.all_free();
}

#[test]
fn a_device_without_a_space_has_no_addresses_to_set_aside() {
    let rig = Rig::policy(Policy::Strict);
    let limits = Constraints::trusted();
    let unit = rig.hardware.clone();
    let device = Device::identity(rig.cpus.clone(), unit, StreamId::new(2), limits, all_memory());
    let refused = device.unwrap().reserve::<Pages>(0x1000).unwrap_err();
    assert_eq!(refused, MapError::Untranslated);
}
