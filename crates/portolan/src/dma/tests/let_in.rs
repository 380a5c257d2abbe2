//! Buffers of a device that a confidential guest lets in.

use alloc::sync::Arc;

use super::buffers::unowned;
use super::copies::{Copier, POOL, POOL_BYTES};
use super::rig::Cpus;
use crate::addr::{PhysAddr, PhysRange, StreamId};
use crate::bounce::{Pool, PoolMemory, PoolOptions};
use crate::dma::{
    Constraints, CopyWhen, Copying, Device, FromDevice, HostVisibility, MapError, ToDevice,
};
use crate::platform::promised::all_memory;
use crate::tdisp::tests::{Manager, let_in};

const OUTSIDER: fn() -> Constraints =
    || Constraints { reach: HostVisibility::Shared, ..Constraints::trusted() };

fn range(start: u64, bytes: u64) -> PhysRange {
    PhysRange::from_len(PhysAddr::new(start), bytes).unwrap()
}

fn devices(copier: &Copier) -> [Device<Cpus>; 2] {
    let space = copier.rig.space.clone();
    let translated = Device::translated(space, StreamId::new(1), OUTSIDER()).unwrap();
    let (cpus, unit) = (copier.rig.cpus.clone(), copier.rig.hardware.clone());
    let direct = Device::identity(cpus, unit, StreamId::new(2), OUTSIDER(), all_memory());
    [translated, direct.unwrap()]
}

fn copying(copier: &Copier, visibility: HostVisibility, when: CopyWhen) -> Copying {
    let cpus = copier.rig.cpus.clone();
    let options = PoolOptions::for_cpus(&cpus);
    let memory = match visibility {
        HostVisibility::Private => unowned(range(POOL, POOL_BYTES)),
        HostVisibility::Shared => unowned(range(POOL, POOL_BYTES)).host_visible(),
    };
    let pool = Pool::new(cpus, memory, options).unwrap();
    Copying { pool: Arc::new(PoolMemory::new(pool, copier.bytes.clone())), when }
}

#[test]
fn private_and_shared_buffers_are_reached_in_place_while_the_interface_runs() {
    let copier = Copier::new();
    for device in devices(&copier) {
        let manager = Manager::new();
        let device = device.with_copies(copying(&copier, HostVisibility::Shared, CopyWhen::Needed));
        let private = || copier.buffer(&[(0x3000, 0x1000)]);
        let before = device.map(private(), ToDevice).ok().unwrap();
        assert!(before.is_copied());
        before.unmap().ok().unwrap();
        let running = let_in(&manager).unwrap();
        let device = device.let_in(&running);
        let secret = device.map(private(), FromDevice).ok().unwrap();
        let open = device.map(unowned(range(0x8000, 0x1000)).host_visible(), FromDevice);
        let open = open.ok().unwrap();
        assert!(!secret.is_copied() && !open.is_copied() && manager.passes_private());
        for (mapping, at) in [(secret.iova(), 0x3000), (open.iova(), 0x8000)] {
            let reached = match device.space() {
                Some(_) => copier.reach(mapping.get()).unwrap().0,
                None => mapping.get(),
            };
            assert_eq!(reached, at);
        }
        secret.unmap().ok().unwrap();
        open.unmap().ok().unwrap();
    }
}

#[test]
fn nothing_is_shown_to_the_host_for_a_device_whose_interface_left_its_state() {
    let copier = Copier::new();
    for device in devices(&copier) {
        let manager = Manager::new();
        let device = device.with_copies(copying(&copier, HostVisibility::Shared, CopyWhen::Needed));
        let running = let_in(&manager).unwrap();
        let device = device.let_in(&running);
        let mapped = device.map(copier.buffer(&[(0x3000, 0x1000)]), FromDevice).ok().unwrap();
        manager.reset();
        assert!(running.check().is_err());
        copier.bytes.fill(0x4000, 0x1000, 0x5a);
        let pool = copier.bytes.at(POOL, POOL_BYTES as usize);
        let refused = device.map(copier.buffer(&[(0x4000, 0x1000)]), ToDevice);
        assert_eq!(refused.err().unwrap().error, MapError::NotRunning);
        let open = unowned(range(0x8000, 0x1000)).host_visible();
        assert_eq!(device.map(open, ToDevice).err().unwrap().error, MapError::NotRunning);
        assert_eq!(copier.bytes.at(POOL, POOL_BYTES as usize), pool);
        // Those that were mapped come back.
        mapped.unmap().ok().unwrap();
        assert!(matches!(device.coherent(0x1000).err(), Some(MapError::NotRunning)));
        running.stop().unwrap();
    }
}

#[test]
fn copies_of_a_device_that_was_let_in_lie_in_private_memory() {
    let copier = Copier::new();
    for device in devices(&copier) {
        let manager = Manager::new();
        let running = let_in(&manager).unwrap();
        let shared = copying(&copier, HostVisibility::Shared, CopyWhen::Always);
        let device = device.let_in(&running).with_copies(shared);
        let refused = device.map(copier.buffer(&[(0x3000, 0x1000)]), ToDevice);
        assert_eq!(refused.err().unwrap().error, MapError::SharedPool);
        let private = copying(&copier, HostVisibility::Private, CopyWhen::Always);
        let device = device.with_copies(private);
        let mapping = device.map(copier.buffer(&[(0x3000, 0x1000)]), ToDevice).ok().unwrap();
        assert!(mapping.is_copied());
        mapping.unmap().ok().unwrap();
    }
}

#[test]
fn rings_of_a_device_that_was_let_in_are_private() {
    let copier = Copier::new();
    let [device, _] = devices(&copier);
    let manager = Manager::new();
    let running = let_in(&manager).unwrap();
    let ring = device.let_in(&running).coherent(0x1000).unwrap();
    assert!(copier.rig.hardware.shared.lock().is_empty());
    assert!(copier.reach(ring.iova().get()).is_some());
}
