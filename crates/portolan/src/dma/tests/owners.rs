//! Counts of the mappings that keep a device's settings.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use super::buffers::unowned;
use super::rig::{Cpus, Rig};
use crate::addr::{PhysAddr, PhysRange, StreamId};
use crate::dma::{Constraints, Device, FromDevice, OldMappings, Policy};

fn device(rig: &Rig) -> Device<Cpus> {
    let (space, stream) = (rig.space.clone(), StreamId::new(7));
    Device::translated(space, stream, Constraints::trusted()).unwrap()
}

/// Owners of each CPU's settings.
fn owners(device: &Device<Cpus>) -> Vec<usize> {
    device.contexts.all().map(Arc::strong_count).collect()
}

fn page(number: u64) -> PhysRange {
    PhysRange::from_len(PhysAddr::new(number << 12), 0x1000).unwrap()
}

#[test]
fn cpus_that_map_for_one_device_count_in_words_of_their_own() {
    for policy in [Policy::Strict, Policy::Deferred, Policy::Lazy] {
        let rig = Rig::policy(policy);
        let device = device(&rig);
        assert_eq!(owners(&device), [1, 1]);
        let map = |cpu| {
            rig.hardware.cpu.store(cpu, Ordering::Relaxed);
            device.map(unowned(page(cpu + 1)), FromDevice).ok().unwrap()
        };
        let one = map(1);
        assert_eq!(owners(&device), [1, 2]);
        let other = map(0);
        assert_eq!(owners(&device), [2, 2]);
        let deferred = one.defer().ok().unwrap();
        assert_eq!(owners(&device), [2, 2]);
        deferred.reclaim().ok().unwrap();
        assert_eq!(owners(&device), [2, 1]);
        other.unmap().ok().unwrap();
        assert_eq!(owners(&device), [1, 1]);
    }
}

#[test]
fn a_mapping_of_any_cpu_keeps_a_device_in_its_space() {
    for cpu in [0, 1] {
        let rig = Rig::policy(Policy::Strict);
        let device = device(&rig);
        rig.hardware.cpu.store(cpu, Ordering::Relaxed);
        let mapping = device.map(unowned(page(1)), FromDevice).ok().unwrap();
        let there = rig.beside().space.clone();
        let failed = device.move_to(there.clone(), OldMappings::Refuse).err().unwrap();
        mapping.unmap().ok().unwrap();
        assert!(failed.value.move_to(there, OldMappings::Refuse).is_ok(), "{cpu}");
    }
}
