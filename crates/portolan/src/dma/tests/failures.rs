//! Hardware that does not complete, and memory and addresses that run out.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};

use super::buffers::{Pages, unowned};
use super::rig::{BUSY, Rig, Setup, TIMED_OUT, device_of, range};
use crate::addr::{PhysAddr, PhysRange, StreamId};
use crate::dma::{Constraints, Device, MapError, Policy, ToDevice, UnmapError, Unowned};
use crate::inval::Caching;
use crate::iommu::DomainError;
use crate::iova::IovaError;
use crate::table::Access;

fn page(number: u64) -> Unowned {
    unowned(PhysRange::from_len(PhysAddr::new(number << 12), 0x1000).unwrap())
}

#[test]
fn a_buffer_whose_invalidation_never_completes_stays_deferred() {
    let rig = Rig::policy(Policy::Deferred);
    let stream = StreamId::new(3);
    let space = rig.space.clone();
    let device = Device::translated(space, stream, Constraints::trusted()).unwrap();
    let alive = Arc::new(AtomicUsize::new(0));
    let map = |at| device.map(Pages::new(&alive, &[(at, 0x1000)]), ToDevice);
    let deferred = map(0x1000).ok().unwrap().defer().ok().unwrap();
    rig.set_broken(1);
    let failed = deferred.reclaim().err().unwrap();
    assert_eq!(failed.error, UnmapError::Iommu(TIMED_OUT));
    assert_eq!(rig.space.failure(), Some(TIMED_OUT));
    assert_eq!(rig.space.tick(), Ok(()));
    assert_eq!(*rig.hardware.blocked.lock(), [stream]);
    let refused = map(0x2000).err().unwrap();
    assert_eq!(refused.error, MapError::Broken(TIMED_OUT));
    drop(refused);
    assert_eq!(alive.load(Ordering::Relaxed), 1);
    assert_eq!(rig.space.recover(), Err(UnmapError::Iommu(TIMED_OUT)));
    let syncs = rig.syncs();
    // A space that is known to be broken does not wait for the hardware again.
    let failed = failed.value.reclaim().err().unwrap();
    assert_eq!(rig.syncs(), syncs);
    rig.set_broken(0);
    rig.space.recover().unwrap();
    assert_eq!(rig.space.failure(), None);
    assert!(failed.value.reclaim().is_ok());
    assert_eq!(rig.space.waiting(), (0, 0));
    assert!(map(0x2000).ok().unwrap().unmap().is_ok());
}

#[test]
fn strict_unmaps_that_fail_keep_their_addresses() {
    let rig = Rig::policy(Policy::Strict);
    let constraints = Constraints::trusted();
    let map = |number| {
        let mapped = rig.space.map_range(page(number), Access::READ, &constraints);
        mapped.unwrap().0
    };
    let (one, two) = (map(1), map(2));
    rig.set_broken(1);
    let failed = rig.space.unmap_range(one).unwrap_err();
    assert_eq!((failed.error, failed.value), (UnmapError::Iommu(TIMED_OUT), None));
    assert_eq!(rig.space.waiting().0, 1);
    rig.set_broken(0);
    rig.space.recover().unwrap();
    assert_eq!(rig.space.waiting().0, 0);
    rig.space.unmap_range(two).unwrap();
}

#[test]
fn a_map_whose_sync_fails_is_taken_away_again() {
    let rig = Rig::new(&Setup { caching: Caching::NotPresentToo, ..Setup::default() });
    rig.set_broken(1);
    let constraints = Constraints::trusted();
    let mapped = rig.space.map_range(page(1), Access::READ, &constraints);
    assert_eq!(mapped.unwrap_err(), MapError::Iommu(TIMED_OUT));
    assert_eq!(rig.space.waiting().0, 1);
    rig.set_broken(0);
    rig.space.recover().unwrap();
    assert_eq!(rig.space.waiting().0, 0);
    let mapped = rig.space.map_range(page(1), Access::READ, &constraints);
    assert!(mapped.is_ok());
}

#[test]
fn addresses_that_wait_are_made_quiet_before_a_map_fails_for_want_of_them() {
    let rig = Rig::new(&Setup {
        policy: Policy::Lazy,
        window: range(0x10_0000, 0x10_3fff),
        ..Setup::default()
    });
    let constraints = Constraints::trusted();
    let map = |number| rig.space.map_range(page(number), Access::READ, &constraints);
    for round in 0..10 {
        let held: Vec<_> = (0..4).map(|number| map(round * 4 + number).unwrap()).collect();
        let full = map(99).unwrap_err();
        assert!(matches!(full, MapError::Iova(IovaError::Full { .. })), "{full}");
        for (range, _) in held {
            rig.space.unmap_range(range).unwrap();
        }
    }
    assert_eq!(rig.syncs(), 9);
}

#[test]
fn table_memory_that_runs_out_at_any_page_leaves_nothing_behind() {
    let mut enough = 0;
    for table_pages in 1..8 {
        let rig = Rig::new(&Setup { table_pages, ..Setup::default() });
        let constraints = Constraints::trusted();
        let mapped = rig.space.map_range(page(1), Access::READ, &constraints);
        match mapped {
            Ok((range, _)) => {
                enough += 1;
                rig.space.unmap_range(range).unwrap();
            }
            Err(error) => {
                assert_eq!(enough, 0);
                assert!(matches!(
                    error,
                    MapError::Domain(DomainError::Map(crate::table::TableMapError::Memory(_)))
                ));
                assert_eq!(rig.memory.live(), 1);
            }
        }
        // The addresses are free after any of these failures.
        let whole = range(0x10_0000, 0xffff_ffff);
        assert_eq!(rig.space.reserve(whole), Ok(()), "{table_pages} pages");
        let at = rig.space.domain.translate(whole.start());
        assert_eq!(at, None);
    }
    assert!(enough > 0);
}

#[test]
fn a_buffer_whose_map_fails_in_the_hardware_is_kept_until_it_is_quiet() {
    let rig = Rig::new(&Setup { caching: Caching::NotPresentToo, ..Setup::default() });
    let device = device_of(&rig, 7, Constraints::trusted());
    let alive = Arc::new(AtomicUsize::new(0));
    rig.set_broken(1);
    let buffer = Pages::new(&alive, &[(0x5000, 0x1000)]);
    let refused = device.map(buffer, ToDevice).err().unwrap();
    assert_eq!(refused.error, MapError::Iommu(TIMED_OUT));
    assert_eq!(rig.space.waiting().0, 1);
    let Err(held) = refused.value.into_buffer() else {
        panic!("a device may have reached it");
    };
    let held = held.try_reclaim().err().unwrap();
    rig.set_broken(0);
    rig.space.recover().unwrap();
    drop(held.try_reclaim().ok().unwrap());
    assert_eq!(alive.load(Ordering::Relaxed), 0);
}

#[test]
fn a_map_that_is_not_told_in_time_keeps_the_buffer_and_breaks_nothing() {
    let rig = Rig::new(&Setup { caching: Caching::NotPresentToo, ..Setup::default() });
    let device = device_of(&rig, 7, Constraints::trusted());
    let alive = Arc::new(AtomicUsize::new(0));
    rig.set_broken(BUSY);
    let buffer = Pages::new(&alive, &[(0x5000, 0x1000)]);
    let refused = device.map(buffer, ToDevice).err().unwrap();
    assert!(matches!(refused.error, MapError::Busy { .. }));
    assert_eq!(rig.space.failure(), None);
    rig.set_broken(0);
    let held = refused.value.into_buffer().err().unwrap();
    assert!(held.reclaim().is_ok());
}

#[test]
fn a_broken_space_leaves_coherent_memory_where_it_was() {
    let rig = Rig::policy(Policy::Strict);
    let device = device_of(&rig, 7, Constraints::trusted());
    rig.space.fail(TIMED_OUT);
    for _ in 0..4 {
        let made = device.coherent(0x1000);
        assert_eq!(made.err(), Some(MapError::Broken(TIMED_OUT)));
    }
    assert_eq!(rig.frames(), 0);
    assert_eq!(rig.space.quarantine(), Default::default());
}

#[test]
fn unmaps_in_a_broken_space_do_not_wait_for_the_hardware_again() {
    let rig = Rig::policy(Policy::Strict);
    let constraints = Constraints::trusted();
    let map = |number| {
        let mapped = rig.space.map_range(page(number), Access::READ, &constraints);
        mapped.unwrap().0
    };
    let held: Vec<_> = (0..4).map(map).collect();
    rig.set_broken(1);
    for range in held {
        let failed = rig.space.unmap_range(range).unwrap_err();
        assert_eq!((failed.error, failed.value), (UnmapError::Iommu(TIMED_OUT), None));
    }
    assert_eq!((rig.syncs(), rig.space.waiting().0), (1, 4));
    rig.set_broken(0);
    rig.space.recover().unwrap();
    assert_eq!(rig.space.waiting(), (0, 0));
}
