//! Two spaces for the addresses of one domain, or a space and a container of regions.

use alloc::sync::Arc;

use super::buffers::{nothing, unowned};
use super::rig::{Cpus, Rig, Space};
use crate::addr::{Iova, IovaRange, PhysAddr, PhysRange};
use crate::demand::{Frames, Ioas, IoasOptions, Pager, PopulateError, Unreached};
use crate::dma::{Constraints, DmaSpace, Policy, SpaceError, SpaceOptions};
use crate::iommu::BoundDomain;
use crate::table::Access;

fn make(cpus: &Cpus, bound: BoundDomain, options: &SpaceOptions) -> Result<Space, SpaceError> {
    DmaSpace::with_cpus(bound, cpus.clone(), options, nothing())
}

#[test]
fn a_second_space_of_a_domain_is_refused_until_the_first_is_gone() {
    let rig = Rig::policy(Policy::Deferred);
    let options = SpaceOptions::default();
    let second = make(&rig.cpus, rig.bound(), &options).err();
    assert_eq!(second, Some(SpaceError::Claimed));
    let bounds = [rig.bound(), rig.bound(), rig.bound()];
    let Rig { cpus, space, .. } = rig;
    drop(space);
    let [nowhere, next, last] = bounds;
    // One that cannot be made leaves the domain to others.
    let top = Iova::new(u64::MAX);
    let outside = SpaceOptions { window: IovaRange::new(top, top).unwrap(), ..options };
    let refused = make(&cpus, nowhere, &outside).err();
    assert_eq!(refused, Some(SpaceError::NoAddresses));
    let next = make(&cpus, next, &options).unwrap();
    let refused = make(&cpus, last, &options).err();
    assert_eq!(refused, Some(SpaceError::Claimed));
    assert!(next.domain.claim().is_taken());
}

/// An owner without memory.
#[derive(Debug)]
struct NoMemory;

impl Pager for NoMemory {
    fn populate(&self, at: IovaRange, _: Access, _: &mut Frames) -> Result<(), PopulateError> {
        Err(PopulateError::Absent { iova: at.start() })
    }

    fn pin(&self, at: IovaRange, access: Access, frames: &mut Frames) -> Result<(), PopulateError> {
        self.populate(at, access, frames)
    }

    fn unpin(&self, _: &Unreached) {}
}

#[test]
fn a_domain_has_a_space_or_a_container_and_never_both() {
    let rig = Rig::policy(Policy::Deferred);
    let domain = rig.domain.upgrade().unwrap();
    let options = SpaceOptions::default();
    let container = |cpus: &Cpus| {
        Ioas::<_, NoMemory, _>::new(domain.clone(), cpus.clone(), IoasOptions::default(), nothing())
    };
    let refused = container(&rig.cpus).unwrap_err();
    assert!(Arc::ptr_eq(&refused.domain, &domain));
    drop(refused);
    let [other, last] = [rig.bound(), rig.bound()];
    let Rig { cpus, space, .. } = rig;
    drop(space);
    let first = container(&cpus).unwrap();
    assert!(container(&cpus).is_err());
    assert_eq!(make(&cpus, other, &options).err(), Some(SpaceError::Claimed));
    drop(first);
    make(&cpus, last, &options).unwrap();
}

#[test]
fn a_domain_whose_space_went_without_being_quiet_gets_no_other() {
    let rig = Rig::policy(Policy::Lazy);
    let memory = PhysRange::from_len(PhysAddr::new(0x1000), 0x1000).unwrap();
    let plain = Constraints::trusted();
    let mapped = rig.space.map_range(unowned(memory), Access::READ, &plain);
    rig.space.unmap_range(mapped.unwrap().0).unwrap();
    rig.set_broken(1);
    let bound = rig.bound();
    let Rig { cpus, space, .. } = rig;
    drop(space);
    let next = make(&cpus, bound, &SpaceOptions::default());
    assert_eq!(next.err(), Some(SpaceError::Claimed));
}
