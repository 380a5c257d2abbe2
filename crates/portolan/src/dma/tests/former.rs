//! Mappings of a former kernel: their memory comes back once no device reaches it, and each goes to one driver.

use alloc::vec::Vec;

use super::buffers::unowned;
use super::rig::{Cpus, Rig, Setup, TIMED_OUT, device_of, range};
use crate::addr::{IovaRange, PhysAddr, PhysRange};
use crate::dma::{Constraints, Device, FormerError, FormerMapping, IovaUse, Policy, UnmapError};
use crate::inval::Gather;
use crate::platform::contract::DmaMemory;
use crate::table::Access;

/// Addresses that the former kernel has mapped: four pages, of which the last leads elsewhere.
const LEFT: u64 = 0x40_0000;
const MEMORY: u64 = 0x1234_0000;
const APART: u64 = 0x2000_0000;

fn pages(first: u64, count: u64) -> IovaRange {
    range(LEFT + (first << 12), LEFT + ((first + count) << 12) - 1)
}

fn memory(at: u64, bytes: u64) -> PhysRange {
    PhysRange::from_len(PhysAddr::new(at), bytes).unwrap()
}

/// A space in whose tables a former kernel has left mappings.
struct Scene {
    rig: Rig,
    device: Device<Cpus>,
}

impl Scene {
    fn new(policy: Policy) -> Self {
        let rig = Rig::new(&Setup { policy, ..Setup::default() });
        let mut owed = Gather::new();
        for (at, to) in
            [(pages(0, 3), memory(MEMORY, 0x3000)), (pages(3, 1), memory(APART, 0x1000))]
        {
            let domain = &rig.space.domain;
            domain.map(at.start(), DmaMemory::promised(to), Access::READ_WRITE, &mut owed).unwrap();
        }
        rig.space.domain.sync(&mut owed).unwrap();
        rig.space.keep_former(pages(0, 4)).unwrap();
        Self { device: device_of(&rig, 1, Constraints::trusted()), rig }
    }

    fn take(&self, first: u64, count: u64) -> FormerMapping<Cpus> {
        self.device.former_mapping(pages(first, count)).unwrap()
    }

    fn leads_to(&self, page: u64) -> Option<u64> {
        let found = self.rig.space.domain.translate(pages(page, 1).start());
        found.map(|found| found.pa.get())
    }

    /// Tells if the addresses can be given out.
    fn is_free(&self, range: IovaRange) -> bool {
        let free = self.rig.space.iova.reserve_free(range).is_ok();
        if free {
            self.rig.space.iova.release(range).unwrap();
        }
        free
    }
}

#[test]
fn memory_comes_back_after_its_invalidation_under_each_policy() {
    for policy in [Policy::Strict, Policy::Deferred, Policy::Lazy] {
        let scene = Scene::new(policy);
        let middle = scene.take(1, 1);
        assert_eq!(middle.memory(), [memory(MEMORY + 0x1000, 0x1000)]);
        let before = scene.rig.syncs();
        assert_eq!(middle.unmap().unwrap(), [memory(MEMORY + 0x1000, 0x1000)]);
        assert_eq!(scene.rig.syncs(), before + 1, "{policy:?}");
        let left = [0, 1, 2, 3].map(|page| scene.leads_to(page));
        assert_eq!(left, [Some(MEMORY), None, Some(MEMORY + 0x2000), Some(APART)]);
        assert!(scene.is_free(pages(1, 1)) && !scene.is_free(pages(0, 1)));
        assert_eq!(scene.rig.space.find(pages(1, 1).start()), IovaUse::Unused);
        // Pieces that lie apart are named apart.
        let rest = scene.take(2, 2).unmap().unwrap();
        assert_eq!(rest, [memory(MEMORY + 0x2000, 0x1000), memory(APART, 0x1000)]);
        assert_eq!(scene.take(0, 1).unmap().unwrap(), [memory(MEMORY, 0x1000)]);
        assert!(scene.is_free(pages(0, 4)));
    }
}

#[test]
fn memory_stays_until_the_hardware_has_completed() {
    let scene = Scene::new(Policy::Strict);
    let former = scene.take(0, 4);
    scene.rig.set_broken(1);
    let failed = former.unmap().unwrap_err();
    assert_eq!(failed.error, UnmapError::Iommu(TIMED_OUT));
    // No mapping gets its addresses meanwhile.
    assert!(!scene.is_free(pages(0, 1)));
    scene.rig.set_broken(0);
    scene.rig.space.recover().unwrap();
    let before = scene.rig.syncs();
    let all = failed.value.unmap().unwrap();
    assert_eq!(all, [memory(MEMORY, 0x3000), memory(APART, 0x1000)]);
    assert_eq!(scene.rig.syncs(), before + 1);
    assert!(scene.is_free(pages(0, 4)));
}

#[test]
fn one_that_is_dropped_halfway_gives_its_addresses_back_once_they_are_quiet() {
    let scene = Scene::new(Policy::Strict);
    let former = scene.take(0, 4);
    scene.rig.set_broken(1);
    drop(former.unmap().unwrap_err());
    assert!(!scene.is_free(pages(0, 4)));
    scene.rig.set_broken(0);
    scene.rig.space.recover().unwrap();
    assert!(scene.is_free(pages(0, 4)));
}

#[test]
fn each_page_goes_to_one_driver() {
    let scene = Scene::new(Policy::Strict);
    let not_left = |of: IovaRange| {
        let error = scene.device.former_mapping(of).unwrap_err();
        assert_eq!(error, FormerError::NotLeft { range: of });
    };
    let one = scene.take(1, 2);
    for (first, count) in [(1, 1), (2, 1), (0, 4), (2, 2), (4, 1)] {
        not_left(pages(first, count));
    }
    // One that is dropped stays mapped.
    drop(one);
    not_left(pages(1, 1));
    assert_eq!(scene.leads_to(1), Some(MEMORY + 0x1000));
    assert!(!scene.is_free(pages(1, 1)));
    // This kernel's own mappings are none.
    let own = memory(0x7000_0000, 0x1000);
    let own = unowned(own);
    let mapped = scene.rig.space.map_range(own, Access::READ, &Constraints::trusted());
    let (own, _) = mapped.unwrap();
    not_left(own.addresses());
    scene.rig.space.unmap_range(own).unwrap();
}

#[test]
fn what_is_not_mapped_or_is_firmware_s_is_not_taken_over() {
    let scene = Scene::new(Policy::Strict);
    let beyond = pages(4, 2);
    scene.rig.space.keep_former(beyond).unwrap();
    let error = scene.device.former_mapping(beyond).unwrap_err();
    assert_eq!(error, FormerError::NotMapped { iova: beyond.start() });
    let direct = pages(0, 1);
    scene.rig.space.note((direct, Access::READ), |known| &mut known.direct).unwrap();
    let error = scene.device.former_mapping(pages(0, 2)).unwrap_err();
    assert_eq!(error, FormerError::Reserved { range: pages(0, 2) });
    let all: Vec<_> = (1..4).map(|page| scene.take(page, 1)).collect();
    assert_eq!(all.len(), 3);
    assert_eq!(scene.leads_to(0), Some(MEMORY));
}
