//! What a device that is not trusted must not reach, whoever else is in its space.

use super::buffers::unowned;
use super::copies::{Copier, POOL, POOL_BYTES, span};
use crate::addr::{PhysAddr, PhysRange, StreamId};
use crate::dma::{Constraints, CopyWhen, Device, ToDevice, Trust};

const UNTRUSTED: u32 = 7;

fn untrusted() -> Constraints {
    Constraints {
        trust: Trust::Untrusted,
        ..Constraints::default()
    }
}

#[test]
fn a_device_that_is_not_trusted_does_not_join_a_space_with_a_pool_that_stays_mapped() {
    let copier = Copier::new();
    let memory = PhysRange::from_len(PhysAddr::new(POOL), POOL_BYTES).unwrap();
    let trusted = copier.device(Trust::Trusted, CopyWhen::Always);
    let trusted = trusted.with_premapped_pool(unowned(memory)).unwrap();
    let _mapping = trusted.map(copier.buffer(&[(0x3010, 0x20)]), ToDevice);
    let space = copier.rig.space.clone();
    let joined = Device::translated(space, StreamId::new(UNTRUSTED), untrusted());
    assert!(joined.is_err(), "it reaches all slots of somebody else's pool");
}

#[test]
fn a_pool_does_not_stay_mapped_where_a_device_is_not_trusted() {
    let copier = Copier::new();
    let space = copier.rig.space.clone();
    let _there = Device::translated(space, StreamId::new(UNTRUSTED), untrusted()).unwrap();
    let memory = PhysRange::from_len(PhysAddr::new(POOL), POOL_BYTES).unwrap();
    let trusted = copier.device(Trust::Trusted, CopyWhen::Always);
    let premapped = trusted.with_premapped_pool(unowned(memory));
    assert!(premapped.is_err(), "a device that is not trusted reaches the pool");
}

#[test]
fn a_device_that_is_not_trusted_reaches_nothing_beside_the_buffers_of_others() {
    let copier = Copier::new();
    let trusted = copier.device(Trust::Trusted, CopyWhen::Needed);
    let space = copier.rig.space.clone();
    let Ok(_there) = Device::translated(space, StreamId::new(UNTRUSTED), untrusted()) else {
        return;
    };
    let mapping = trusted.map(copier.buffer(&[(0x3010, 0x20)]), ToDevice);
    let (iova, _) = span(mapping.as_ref().ok().unwrap());
    let beside = copier.reach(iova & !0xfff);
    assert_eq!(beside, None, "bytes that were mapped for nobody");
}
