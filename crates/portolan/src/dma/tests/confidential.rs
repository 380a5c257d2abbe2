//! A confidential guest, whose devices reach only memory that its host reaches: memory that is
//! shared.

use crate::platform::promised::all_memory;
use alloc::sync::Arc;

use super::buffers::unowned;
use super::copies::{Copier, POOL, POOL_BYTES, span};
use super::rig::Cpus;
use crate::addr::{IovaRange, PageSize, PhysAddr, PhysRange, StreamId};
use crate::bounce::{Pool, PoolMemory, PoolOptions, TakeError};
use crate::dma::{
    Constraints, CopyWhen, Copying, Device, FromDevice, HostVisibility, LinkError, MapError,
    PremapError, Reservation, ToDevice,
};
use crate::table::Access;

const OUTSIDER: fn() -> Constraints =
    || Constraints { reach: HostVisibility::Shared, ..Constraints::trusted() };

fn memory() -> PhysRange {
    PhysRange::from_len(PhysAddr::new(POOL), POOL_BYTES).unwrap()
}

fn copying(copier: &Copier, visibility: HostVisibility) -> Copying {
    let cpus = copier.rig.cpus.clone();
    let options = PoolOptions::for_cpus(&cpus);
    let memory = match visibility {
        HostVisibility::Private => unowned(memory()),
        HostVisibility::Shared => unowned(memory()).host_visible(),
    };
    let pool = Pool::new(cpus, memory, options).unwrap();
    Copying { pool: Arc::new(PoolMemory::new(pool, copier.bytes.clone())), when: CopyWhen::Needed }
}

fn translated(copier: &Copier, stream: u32) -> Device<Cpus> {
    let space = copier.rig.space.clone();
    Device::translated(space, StreamId::new(stream), OUTSIDER()).unwrap()
}

fn passed_through(copier: &Copier, stream: u32) -> Device<Cpus> {
    let (cpus, unit) = (copier.rig.cpus.clone(), copier.rig.hardware.clone());
    Device::identity(cpus, unit, StreamId::new(stream), OUTSIDER(), all_memory()).unwrap()
}

#[test]
fn private_buffers_are_bounced_whole_through_shared_memory() {
    let copier = Copier::new();
    let shared = || copying(&copier, HostVisibility::Shared);
    let premapped = || {
        let device = translated(&copier, 3).with_copies(shared());
        device.with_premapped_pool().unwrap()
    };
    for device in [
        translated(&copier, 1).with_copies(shared()),
        passed_through(&copier, 2).with_copies(shared()),
        premapped(),
    ] {
        copier.bytes.fill(0x3000, 0x2000, 7);
        // Whole pages, which any other device of a trusted kind reaches in place.
        let buffer = copier.buffer(&[(0x3000, 0x2000)]);
        let mapping = device.try_map(buffer, FromDevice).ok().unwrap();
        assert!(mapping.is_copied());
        let (iova, bytes) = span(&mapping);
        assert_eq!(bytes, 0x2000);
        let at = match device.space() {
            Some(_) => copier.reach(iova).unwrap().0,
            None => iova,
        };
        assert!((POOL..POOL + POOL_BYTES - 0x1fff).contains(&at));
        assert_eq!(copier.bytes.at(at, 0x2000), [7; 0x2000]);
        copier.bytes.fill(at, 0x1000, 9);
        mapping.unmap().ok().unwrap();
        assert_eq!(copier.bytes.at(0x3000, 0x1000), [9; 0x1000]);
        // Memory that is shared already is not copied.
        let there = PhysRange::from_len(PhysAddr::new(0x8000), 0x1000).unwrap();
        let mapping = device.map(unowned(there).host_visible(), ToDevice).ok().unwrap();
        assert!(!mapping.is_copied());
        mapping.unmap().ok().unwrap();
    }
}

#[test]
fn a_pool_in_private_memory_is_refused_and_so_is_none() {
    let copier = Copier::new();
    let piece = PhysRange::from_len(PhysAddr::new(0x3000), 0x1000).unwrap();
    for device in [translated, passed_through] {
        let refused = |device: Device<Cpus>| {
            let buffer = copier.buffer(&[(0x3000, 0x1000), (0x7000, 0x1000)]);
            device.map(buffer, ToDevice).err().unwrap().error
        };
        assert_eq!(refused(device(&copier, 1)), MapError::Private { piece });
        let private = copying(&copier, HostVisibility::Private);
        let device = device(&copier, 1).with_copies(private.clone());
        let memory = memory();
        let error = MapError::Copy(TakeError::Private { memory });
        assert_eq!(refused(device), error);
    }
    // The host's own devices, and those of a guest that is not confidential, take such a pool.
    let device =
        Device::translated(copier.rig.space.clone(), StreamId::new(4), Constraints::trusted());
    let private = copying(&copier, HostVisibility::Private);
    let device = device.unwrap().with_copies(Copying { when: CopyWhen::Always, ..private });
    let mapping = device.map(copier.buffer(&[(0x3000, 0x1000)]), ToDevice);
    let mapping = mapping.ok().unwrap();
    assert!(mapping.is_copied());
    mapping.unmap().ok().unwrap();
}

#[test]
fn nothing_private_is_mapped_in_place_by_another_way() {
    let copier = Copier::new();
    let space = copier.rig.space.clone();
    let piece = PhysRange::from_len(PhysAddr::new(0x3000), 0x1000).unwrap();
    let refused = space.map_range(unowned(piece), Access::READ, &OUTSIDER());
    assert_eq!(refused.err(), Some(MapError::Private { piece }));
    let shared = unowned(piece).host_visible();
    let (range, _) = (space.map_range(shared, Access::READ, &OUTSIDER())).unwrap();
    assert!(space.unmap_range(range).is_ok());
    let mut frame = Reservation::new(space, 0x1000, &OUTSIDER()).unwrap();
    let refused = frame.link(unowned(piece), ToDevice).unwrap_err().error;
    assert_eq!(refused, LinkError::Private { piece });
    let device = translated(&copier, 1);
    let device = device.with_copies(copying(&copier, HostVisibility::Private));
    let refused = device.with_premapped_pool().err();
    let piece = memory();
    let error = MapError::Private { piece };
    assert_eq!(refused, Some(PremapError::Map(error)));
}

#[test]
fn rings_are_in_shared_memory() {
    let copier = Copier::new();
    let ring = translated(&copier, 1).coherent(0x1000).unwrap();
    let at = ring.memory().start();
    assert_eq!(*copier.rig.hardware.shared.lock(), [at]);
    let range = IovaRange::page(ring.iova(), PageSize::SIZE_4K);
    assert_eq!(copier.reach(range.start().get()).unwrap().0, at.get());
}
