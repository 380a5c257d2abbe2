//! Invalidations of each policy, and their time.

use super::buffers::unowned;
use super::rig::{Rig, Setup};
use crate::addr::{PhysAddr, PhysRange};
use crate::dma::{Constraints, DmaRange, LazyBounds, Policy};
use crate::iommu::Shadowing;
use crate::platform::Nanos;
use crate::table::Access;

fn map(rig: &Rig, page: u64, bytes: u64) -> DmaRange {
    let memory = PhysRange::from_len(PhysAddr::new(page << 12), bytes).unwrap();
    let constraints = Constraints::trusted();
    rig.space.map_range(unowned(memory), Access::READ, &constraints).unwrap().0
}

#[test]
fn strict_pays_for_each_and_deferred_for_each_that_waits() {
    for policy in [Policy::Strict, Policy::Deferred] {
        let rig = Rig::policy(policy);
        for page in 0..10 {
            let range = map(&rig, page, 0x1000);
            rig.space.unmap_range(range).unwrap();
        }
        assert_eq!((rig.syncs(), rig.space.waiting()), (10, (0, 0)));
    }
}

/// A space that was asked to be lazy pays at once where a hypervisor follows mappings, and says
/// why.
#[test]
fn lazy_is_not_accepted_where_a_hypervisor_follows_what_is_mapped() {
    let shadowings = [
        (Shadowing::None, None),
        (Shadowing::CachingMode, Some("Caching mode")),
        (Shadowing::WriteProtection, Some("write-protects")),
        (Shadowing::Requests, Some("request")),
    ];
    for (shadowing, word) in shadowings {
        let rig = Rig::new(&Setup { policy: Policy::Lazy, shadowing, ..Setup::default() });
        let refused = rig.space.lazy_refused();
        assert_eq!(refused.is_some(), word.is_some(), "{shadowing:?}");
        assert!(refused.is_none_or(|reason| reason.contains(word.unwrap_or_default())));
        let strict = shadowing != Shadowing::None;
        assert_eq!(rig.space.policy() == Policy::Strict, strict);
        let range = map(&rig, 1, 0x1000);
        rig.space.unmap_range(range).unwrap();
        assert_eq!((rig.syncs() == 1, rig.space.waiting().0 == 0), (strict, strict));
        // No space is refused a policy that it did not ask for.
        let deferred = Rig::new(&Setup { policy: Policy::Deferred, shadowing, ..Setup::default() });
        assert_eq!(deferred.space.policy(), Policy::Deferred);
        assert_eq!(deferred.space.lazy_refused(), None);
    }
}

fn lazy(bounds: LazyBounds) -> Rig {
    Rig::new(&Setup { policy: Policy::Lazy, bounds, ..Setup::default() })
}

#[test]
fn lazy_flushes_when_its_entries_are_full() {
    let rig = lazy(LazyBounds { entries: 8, ..LazyBounds::default() });
    for page in 0..80 {
        let range = map(&rig, page, 0x1000);
        let addresses = range.addresses();
        rig.space.unmap_range(range).unwrap();
        assert_eq!(rig.space.domain.translate(addresses.start()), None);
        assert!(rig.space.waiting().0 < 8);
    }
    assert_eq!(rig.syncs(), 10);
}

#[test]
fn lazy_flushes_when_its_bytes_are_full() {
    let rig = lazy(LazyBounds { bytes: 0x1_0000, ..LazyBounds::default() });
    for page in 0..16 {
        let range = map(&rig, page, 0x4000);
        rig.space.unmap_range(range).unwrap();
        assert!(rig.space.waiting().1 < 0x1_0000);
    }
    assert_eq!(rig.syncs(), 4);
}

#[test]
fn lazy_flushes_what_is_old() {
    let rig = lazy(LazyBounds { age: Nanos::new(1000), ..LazyBounds::default() });
    rig.space.unmap_range(map(&rig, 1, 0x1000)).unwrap();
    rig.pass(999);
    rig.space.tick().unwrap();
    assert_eq!(rig.syncs(), 0);
    rig.pass(1);
    rig.space.tick().unwrap();
    assert_eq!((rig.syncs(), rig.space.waiting()), (1, (0, 0)));
    rig.space.unmap_range(map(&rig, 1, 0x1000)).unwrap();
    rig.pass(1000);
    // Without a timer, the next unmap looks.
    rig.space.unmap_range(map(&rig, 2, 0x1000)).unwrap();
    assert_eq!((rig.syncs(), rig.space.waiting()), (2, (0, 0)));
}

#[test]
fn addresses_are_not_reused_before_they_are_quiet() {
    let rig = lazy(LazyBounds::default());
    let first = map(&rig, 1, 0x1000);
    let addresses = first.addresses();
    rig.space.unmap_range(first).unwrap();
    let held: alloc::vec::Vec<_> = (0..64).map(|page| map(&rig, page, 0x1000)).collect();
    assert!(held.iter().all(|range| range.addresses() != addresses));
    for range in held {
        rig.space.unmap_range(range).unwrap();
    }
}
