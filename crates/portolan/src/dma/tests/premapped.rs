//! A pool that stays mapped: its savings, its limits, and its end.

use super::buffers::unowned;
use super::copies::{Copier, POOL, POOL_BYTES, span};
use super::rig::Cpus;
use crate::addr::{PageSize, PhysAddr, PhysRange, StreamId};
use crate::bounce::{Pool, PoolMemory, PoolOptions};
use crate::dma::{
    Constraints, CopyWhen, Copying, Device, FromDevice, PremapError, ToDevice, Trust,
};
use crate::platform::promised::all_memory;
use alloc::sync::Arc;
use alloc::vec::Vec;

/// Copies of all buffers, through a pool whose memory begins at `at`.
fn copying_at(copier: &Copier, at: PhysAddr) -> Copying {
    let memory = PhysRange::from_len(at, POOL_BYTES).unwrap();
    let (cpus, options) = (copier.rig.cpus.clone(), PoolOptions::of_areas(1));
    let pool = Pool::new(cpus, unowned(memory), options).unwrap();
    Copying { pool: Arc::new(PoolMemory::new(pool, copier.bytes.clone())), when: CopyWhen::Always }
}

fn device(copier: &Copier, when: CopyWhen) -> Device<Cpus> {
    let device = copier.device(Trust::Trusted, when);
    device.with_premapped_pool().unwrap()
}

#[test]
fn small_buffers_owe_no_invalidation() {
    let copier = Copier::new();
    let device = device(&copier, CopyWhen::UpTo(0x1000));
    let before = copier.rig.syncs();
    copier.bytes.fill(0x3010, 0x20, 7);
    let buffer = copier.buffer(&[(0x3010, 0x20), (0x5000, 0x100)]);
    let mapping = device.map(buffer, ToDevice).ok().unwrap();
    assert!(mapping.is_copied());
    let segments: Vec<_> = mapping.segments().collect();
    assert_eq!(segments.len(), 2);
    let (pa, _) = copier.reach(segments[0].iova.get()).unwrap();
    assert!((POOL..POOL + POOL_BYTES).contains(&pa));
    assert_eq!(copier.bytes.at(pa, 0x20), [7; 0x20]);
    mapping.unmap().ok().unwrap();
    let buffer = copier.buffer(&[(0x3010, 0x20)]);
    let mapping = device.map(buffer, FromDevice).ok().unwrap();
    let (iova, bytes) = span(&mapping);
    let (pa, _) = copier.reach(iova).unwrap();
    copier.bytes.fill(pa, bytes as usize, 9);
    let deferred = mapping.defer().ok().unwrap();
    assert!(deferred.is_quiet());
    assert!(deferred.try_reclaim().is_ok());
    assert_eq!(copier.bytes.at(0x3010, 0x20), [9; 0x20]);
    assert_eq!(copier.rig.syncs(), before);
    assert_eq!(copier.used(), 0);
}

#[test]
fn others_are_mapped_in_place_and_so_is_what_finds_no_room() {
    let copier = Copier::new();
    let device = device(&copier, CopyWhen::UpTo(0x1000));
    let large = copier.buffer(&[(0x3000, 0x1001)]);
    let large = device.map(large, ToDevice).ok().unwrap();
    assert!(!large.is_copied());
    large.unmap().ok().unwrap();
    let mut held = Vec::new();
    let in_place = loop {
        let buffer = copier.buffer(&[(0x7000, 0x1000)]);
        let mapping = device.map(buffer, ToDevice).ok().unwrap();
        match mapping.is_copied() {
            true => held.push(mapping),
            false => break mapping,
        }
    };
    assert_eq!(held.len() as u64, POOL_BYTES / 0x1000);
    let (iova, _) = span(&in_place);
    assert_eq!(copier.reach(iova).unwrap().0, 0x7000);
    in_place.unmap().ok().unwrap();
    held.into_iter().for_each(|mapping| {
        mapping.unmap().ok().unwrap();
    });
    assert_eq!(copier.used(), 0);
}

#[test]
fn the_pool_is_mapped_as_long_as_a_device_uses_it() {
    let copier = Copier::new();
    let device = device(&copier, CopyWhen::Always);
    let buffer = copier.buffer(&[(0x3010, 0x20)]);
    let mapping = device.map(buffer, ToDevice).ok().unwrap();
    let (iova, _) = span(&mapping);
    drop(device);
    assert!(copier.reach(iova).is_some());
    mapping.unmap().ok().unwrap();
    assert_eq!(copier.reach(iova), None);
    assert_eq!(copier.rig.space.quarantine(), Default::default());
}

#[test]
fn a_mapping_that_is_dropped_keeps_its_slots() {
    let copier = Copier::new();
    let device = device(&copier, CopyWhen::Always);
    let buffer = copier.buffer(&[(0x3010, 0x20)]);
    drop(device.map(buffer, ToDevice));
    assert_eq!(copier.used(), 1);
    let lost = copier.rig.space.quarantine();
    assert_eq!((lost.dropped, lost.bytes), (1, 0x20));
}

#[test]
fn who_may_not_reach_all_of_the_pool_gets_none_of_it() {
    let copier = Copier::new();
    let refused = copier.device(Trust::Untrusted, CopyWhen::Always);
    let refused = refused.with_premapped_pool().err().unwrap();
    assert_eq!(refused, PremapError::Untrusted);
    let copier = Copier::new();
    let (unit, stream) = (copier.rig.hardware.clone(), StreamId::new(1));
    let plain = Constraints::trusted();
    let identity =
        Device::identity(copier.rig.cpus.clone(), unit.clone(), stream, plain, all_memory())
            .unwrap();
    let refused = identity.with_premapped_pool().err().unwrap();
    assert_eq!(refused, PremapError::NotTranslated);
    let space = copier.rig.space.clone();
    let without = Device::translated(space.clone(), stream, plain).unwrap();
    let refused = without.with_premapped_pool().err().unwrap();
    assert_eq!(refused, PremapError::NoPool);
    let wide = Constraints { align: PageSize::of_lg2(16), ..plain };
    let wide = Device::translated(space, StreamId::new(2), wide).unwrap();
    let wide = wide.with_copies(copier.copying(CopyWhen::Always));
    let refused = wide.with_premapped_pool().err().unwrap();
    assert!(matches!(refused, PremapError::Alignment { .. }), "{refused}");
    let device = copier.device(Trust::Trusted, CopyWhen::Always);
    let uneven = copying_at(&copier, PhysAddr::new(POOL + 0x800));
    let refused = device.with_copies(uneven).with_premapped_pool().err().unwrap();
    assert!(matches!(refused, PremapError::Uneven { .. }), "{refused}");
}

#[test]
fn a_pool_that_takes_another_s_place_does_not_stay_mapped() {
    let copier = Copier::new();
    let device = device(&copier, CopyWhen::Always);
    let buffer = || copier.buffer(&[(0x3010, 0x20)]);
    let mapping = device.map(buffer(), ToDevice).ok().unwrap();
    let (iova, _) = span(&mapping);
    mapping.unmap().ok().unwrap();
    assert!(copier.reach(iova).is_some());
    let device = device.with_copies(copying_at(&copier, PhysAddr::new(POOL / 2)));
    assert_eq!(copier.reach(iova), None);
    let mapping = device.map(buffer(), ToDevice).ok().unwrap();
    let (iova, _) = span(&mapping);
    mapping.unmap().ok().unwrap();
    assert_eq!(copier.reach(iova), None);
}
