//! Pinned memory.

use core::sync::atomic::Ordering;

use super::rig::{BASE, PAGE, Rig, TIMED_OUT, pages_at};
use crate::addr::{Iova, IovaRange};
use crate::demand::{
    Already, FaultError, InvalidateError, IoasOptions, LimitReached, Limited, Limits,
    PopulateError, RegionError, RegionOptions, RemoveError, Residency,
};
use crate::iommu::Domain as _;
use crate::table::Access;

fn options(range: IovaRange, hold: Residency<'_>) -> RegionOptions<'_> {
    RegionOptions { range, access: Access::READ | Access::WRITE, hold }
}

fn add(rig: &Rig, options: &RegionOptions<'_>) -> Result<(), RegionError> {
    rig.container.add_region(options, rig.memory.clone())
}

#[test]
fn a_pinned_region_is_mapped_at_once() {
    let rig = Rig::new(IoasOptions::default(), 64);
    // In pieces, more of them than one call hands over.
    rig.memory.gap.store(1, Ordering::Relaxed);
    add(&rig, &options(pages_at(3, 700), Residency::Pinned)).unwrap();
    assert_eq!(rig.memory.pinned.lock().len(), 700);
    let usage = rig.container.usage();
    assert_eq!((usage.pinned_bytes, usage.mapped_bytes), (700 * PAGE, 700 * PAGE));
    assert_eq!(rig.fault(3).unwrap().already, Already::Yes);
    let pinned = pages_at(700, 3);
    let refused = rig.container.invalidate(pages_at(700, 50));
    assert_eq!(refused, Err(InvalidateError::Pinned { pinned }));
    rig.audit(800);
    rig.container.remove_region(pages_at(3, 1).start()).unwrap();
    assert!(rig.memory.pinned.lock().is_empty());
    assert_eq!(rig.container.usage().pinned_bytes, 0);
    rig.audit(800);
}

#[test]
fn parts_may_be_pinned() {
    let rig = Rig::new(IoasOptions::default(), 64);
    let parts = [pages_at(500, 30), pages_at(0, 2)];
    add(&rig, &options(pages_at(0, 1024), Residency::Selective(&parts))).unwrap();
    assert_eq!(rig.memory.pinned.lock().len(), 32);
    rig.fault(499).unwrap();
    rig.fault(530).unwrap();
    assert_eq!(rig.container.invalidate(pages_at(2, 498)), Ok(1));
    assert!(rig.container.invalidate(pages_at(2, 499)).is_err());
    assert!(rig.leads(500).is_some() && rig.leads(529).is_some() && rig.leads(530).is_some());
    rig.audit(1024);
    drop(rig.container);
    assert!(rig.memory.pinned.lock().is_empty());
}

#[test]
fn what_cannot_be_pinned_leaves_nothing() {
    let limits = |pinned| IoasOptions {
        limits: Limits { pinned, ..Limits::default() },
        ..IoasOptions::default()
    };
    let rig = Rig::new(limits(100 * PAGE), 64);
    rig.memory.gap.store(1, Ordering::Relaxed);
    let reached = RegionError::Limit(LimitReached {
        what: Limited::Pinned,
        wanted: 32 * PAGE,
        used: 96 * PAGE,
        limit: 100 * PAGE,
    });
    assert_eq!(add(&rig, &options(pages_at(0, 200), Residency::Pinned)), Err(reached));
    rig.memory.absent.lock().insert(BASE / PAGE + 70);
    let iova = Iova::new(BASE + 70 * PAGE);
    let absent = RegionError::Populate(PopulateError::Absent { iova });
    assert_eq!(add(&rig, &options(pages_at(0, 90), Residency::Pinned)), Err(absent));
    assert!(rig.memory.pinned.lock().is_empty());
    assert_eq!(rig.container.usage().pinned_bytes, 0);
    rig.audit(200);
    rig.region(200);
    rig.fault(3).unwrap();
}

#[test]
fn every_shortage_of_table_memory_leaves_nothing() {
    let mut enough = None;
    for tables in 1..12 {
        let rig = Rig::new(IoasOptions::default(), tables);
        rig.memory.gap.store(1, Ordering::Relaxed);
        let added = add(&rig, &options(pages_at(0, 1200), Residency::Pinned));
        if added.is_ok() {
            enough.get_or_insert(tables);
            continue;
        }
        assert!(matches!(added, Err(RegionError::Map(_))), "{added:?}");
        assert!(enough.is_none());
        assert!(rig.memory.pinned.lock().is_empty());
        assert_eq!(rig.container.usage().mapped_bytes, 0);
        rig.audit(1200);
    }
    // A root, two tables on the way down, and three leaf tables.
    assert_eq!(enough, Some(6));
}

#[test]
fn memory_that_devices_may_reach_stays_pinned() {
    let rig = Rig::caching(IoasOptions::default(), 64, crate::inval::Caching::NotPresentToo);
    rig.hardware.broken.store(1, Ordering::Relaxed);
    let added = add(&rig, &options(pages_at(0, 9), Residency::Pinned));
    let not_quiet = InvalidateError::Iommu(TIMED_OUT);
    assert_eq!(added, Err(RegionError::NotQuiet(not_quiet)));
    assert_eq!(rig.memory.pinned.lock().len(), 9);
    assert_eq!(rig.container.usage().pinned_bytes, 9 * PAGE);
    let iova = Iova::new(BASE + 3 * PAGE);
    assert_eq!(rig.fault(3), Err(FaultError::NotQuiet { iova }));
    let start = Iova::new(BASE);
    let again = rig.container.remove_region(start);
    assert_eq!(again, Err(RemoveError::NotQuiet(not_quiet)));
    // It comes back as soon as the hardware does.
    rig.hardware.broken.store(0, Ordering::Relaxed);
    rig.container.remove_region(start).unwrap();
    assert!(rig.memory.pinned.lock().is_empty());
    assert_eq!(rig.container.usage().pinned_bytes, 0);
    rig.audit(16);
    rig.region(9);
}

/// Some parts are pinned when the next cannot be, and the hardware fails: the pinned parts are
/// known.
#[test]
fn what_was_pinned_before_an_error_is_let_go_of_when_the_hardware_is_back() {
    let rig = Rig::caching(IoasOptions::default(), 64, crate::inval::Caching::NotPresentToo);
    rig.memory.gap.store(1, Ordering::Relaxed);
    rig.memory.absent.lock().insert(BASE / PAGE + 140);
    rig.hardware.broken.store(1, Ordering::Relaxed);
    let parts = [pages_at(0, 5), pages_at(100, 60), pages_at(200, 5)];
    let added = add(&rig, &options(pages_at(0, 1024), Residency::Selective(&parts)));
    assert!(matches!(added, Err(RegionError::NotQuiet(_))), "{added:?}");
    assert_eq!(rig.memory.pinned.lock().len(), 45);
    rig.hardware.broken.store(0, Ordering::Relaxed);
    rig.container.remove_region(Iova::new(BASE)).unwrap();
    assert!(rig.memory.pinned.lock().is_empty());
    assert_eq!(rig.container.usage().pinned_bytes, 0);
}

/// A root and one table are all there is: no block can be split.
#[test]
fn a_pinned_region_of_large_blocks_is_removed_without_memory_for_tables() {
    let rig = Rig::new(IoasOptions::default(), 2);
    let range = IovaRange::from_len(Iova::new(BASE), 1 << 30).unwrap();
    add(&rig, &options(range, Residency::Pinned)).unwrap();
    let start = Iova::new(BASE);
    let found = rig.domain.translate(start).unwrap();
    assert_eq!(found.size, crate::addr::PageSize::SIZE_1G);
    rig.container.remove_region(start).unwrap();
    assert!(rig.memory.pinned.lock().is_empty());
    assert_eq!(rig.domain.translate(start), None);
    let usage = rig.container.usage();
    assert_eq!((usage.pinned_bytes, usage.mapped_bytes, usage.leaving_bytes), (0, 0, 0));
}

#[test]
fn regions_that_make_no_sense_are_refused() {
    let rig = Rig::new(IoasOptions::default(), 64);
    rig.region(8);
    let bytes = IovaRange::from_len(Iova::new(BASE + 8 * PAGE), 100).unwrap();
    let high = IovaRange::from_len(Iova::new(1 << 60), PAGE).unwrap();
    let outside = [pages_at(15, 2)];
    let cases = [
        (options(bytes, Residency::OnDemand), RegionError::Unaligned { range: bytes }),
        (options(high, Residency::OnDemand), RegionError::OutOfRange { range: high }),
        (
            options(pages_at(7, 2), Residency::OnDemand),
            RegionError::Overlaps { range: pages_at(7, 2) },
        ),
        (
            options(pages_at(8, 8), Residency::Selective(&outside)),
            RegionError::Overlaps { range: pages_at(15, 2) },
        ),
    ];
    for (options, error) in cases {
        assert_eq!(add(&rig, &options), Err(error));
    }
}
