//! Granules that a fault maps.

use core::num::NonZeroU32;

use super::rig::{BASE, PAGE, Rig, pages_at, request};
use crate::addr::{Iova, PageSize};
use crate::demand::{
    Already, FaultError, FaultRequest, IoasOptions, Limits, PIECES, PopulateError, RegionOptions,
    Residency, Window,
};
use crate::inval::Caching;
use crate::iommu::Domain as _;
use crate::table::Access;
use core::sync::atomic::Ordering;

fn windowed(window: Window) -> Rig {
    let options = IoasOptions { window, ..IoasOptions::default() };
    Rig::new(options, 64)
}

fn fixed(pages: u32) -> Window {
    Window::Fixed(NonZeroU32::new(pages).unwrap())
}

#[test]
fn a_page_is_mapped_once() {
    let rig = windowed(Window::Page);
    rig.region(2048);
    assert_eq!(rig.fault(7).unwrap().granules, 1);
    let again = rig.fault(7).unwrap();
    assert_eq!((again.already, again.granules), (Already::Yes, 0));
    assert!(rig.leads(6).is_none() && rig.leads(8).is_none());
    rig.audit(2048);
    let usage = rig.container.usage();
    assert_eq!((usage.faults, usage.spurious, usage.failed), (2, 1, 0));
    // Nothing is owed after a map by this hardware, and something by hardware that caches nothing.
    assert_eq!(rig.hardware.syncs.load(Ordering::Relaxed), 0);
    let rig = Rig::caching(IoasOptions::default(), 64, Caching::NotPresentToo);
    rig.region(8);
    rig.fault(0).unwrap();
    assert_eq!(rig.hardware.syncs.load(Ordering::Relaxed), 1);
}

#[test]
fn a_block_is_as_large_as_it_can_be() {
    let rig = windowed(Window::Block);
    rig.region(2048);
    // The memory of a slot is contiguous and aligned if it is populated first.
    assert_eq!(rig.fault(700).unwrap().granules, 512);
    let found = rig.domain.translate(Iova::new(BASE + 700 * PAGE)).unwrap();
    assert_eq!(found.size, PageSize::SIZE_2M);
    rig.audit(2048);
    // In pieces, all of them still.
    let rig = windowed(Window::Block);
    rig.memory.gap.store(1, Ordering::Relaxed);
    rig.region(2048);
    assert_eq!(rig.fault(0).unwrap().granules, 512);
    rig.audit(2048);
    // And the one that is wanted, where it comes late in the slot.
    assert_eq!(rig.fault(1000).unwrap().granules, PIECES as u64 + 1);
    assert!(rig.leads(1000).is_some());
    rig.audit(2048);
    // Where the first pieces just reach it, all of them again.
    let last = 1024 + PIECES as u64 - 1;
    assert_eq!(rig.fault(last).unwrap().granules, 512);
    rig.audit(2048);
}

#[test]
fn what_no_device_asked_for_is_counted() {
    for (window, mapped) in [(Window::Page, 1), (fixed(2), 2), (fixed(512), 512)] {
        let rig = windowed(window);
        rig.region(2048);
        rig.fault(600).unwrap();
        let usage = rig.container.usage();
        let counted = (usage.granules_mapped, usage.granules_premapped);
        assert_eq!(counted, (mapped, mapped - 1));
    }
}

#[test]
fn a_region_has_the_least_access_that_can_be_granted() {
    let rig = windowed(Window::Page);
    // These tables have no leaf without any.
    let options =
        RegionOptions { range: pages_at(0, 8), access: Access::empty(), hold: Residency::OnDemand };
    let memory = rig.memory.clone();
    rig.container.add_region(&options, memory).unwrap();
    let read = FaultRequest { access: Access::READ, ..request(1) };
    assert_eq!(rig.container.fault(&read).unwrap().granules, 1);
    let refused = rig.fault(2);
    assert!(matches!(refused, Err(FaultError::Denied { .. })));
}

#[test]
fn a_fixed_window_ends_where_something_is_mapped() {
    let rig = windowed(fixed(512));
    rig.region(2000);
    assert_eq!(rig.fault(600).unwrap().granules, 512);
    assert_eq!(rig.fault(300).unwrap().granules, 300);
    assert_eq!(rig.fault(1900).unwrap().granules, 100);
    assert!(rig.leads(299).is_none() && rig.leads(1112).is_none());
    rig.audit(2000);
}

#[test]
fn what_no_device_asked_for_may_be_missing() {
    for window in [Window::Block, fixed(64)] {
        let rig = windowed(window);
        rig.region(512);
        for page in [3, 9, 40] {
            rig.memory.absent.lock().insert(BASE / PAGE + page);
        }
        rig.fault(5).unwrap();
        assert!(rig.leads(5).is_some());
        rig.fault(20).unwrap();
        assert!(rig.leads(20).is_some());
        let iova = Iova::new(BASE + 9 * PAGE);
        let absent = FaultError::Populate(PopulateError::Absent { iova });
        assert_eq!(rig.fault(9), Err(absent));
        rig.audit(512);
    }
}

#[test]
fn refusals_say_why() {
    let rig = windowed(Window::Page);
    rig.region(4);
    let iova = Iova::new(BASE + 4 * PAGE);
    assert_eq!(rig.fault(4), Err(FaultError::NoRegion { iova }));
    let execute = FaultRequest { access: Access::EXECUTE, ..request(1) };
    let refused = rig.container.fault(&execute);
    assert!(matches!(refused, Err(FaultError::Denied { .. })), "{refused:?}");
    assert_eq!(rig.container.usage().failed, 2);
}

#[test]
fn a_limit_shrinks_windows_before_it_refuses() {
    let options = IoasOptions {
        window: fixed(16),
        limits: Limits { mapped: 18 * PAGE, ..Limits::default() },
        ..IoasOptions::default()
    };
    let rig = Rig::new(options, 64);
    rig.region(512);
    assert_eq!(rig.fault(0).unwrap().granules, 16);
    assert_eq!(rig.fault(100).unwrap().granules, 1);
    assert_eq!(rig.fault(200).unwrap().granules, 1);
    assert!(matches!(rig.fault(300), Err(FaultError::Limit(_))));
    rig.container.invalidate(pages_at(0, 512)).unwrap();
    assert_eq!(rig.fault(300).unwrap().granules, 16);
    rig.audit(512);
}
