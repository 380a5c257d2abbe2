//! Memory that its owner takes back.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use spin::Mutex;

use super::rig::{BASE, Once, PAGE, Rig, TIMED_OUT, pages_at, request};
use crate::addr::Iova;
use crate::demand::{FaultError, InvalidateError, IoasOptions, RecoverError, RemoveError, Window};

fn blocks() -> IoasOptions {
    IoasOptions { window: Window::Block, ..IoasOptions::default() }
}

#[test]
fn what_is_taken_back_is_gone_and_quiet() {
    let rig = Rig::new(IoasOptions::default(), 64);
    rig.region(2048);
    for page in [1, 2, 3, 600, 601] {
        rig.fault(page).unwrap();
    }
    let range = pages_at(2, 599);
    rig.memory.forget(range);
    assert_eq!(rig.container.invalidate(range), Ok(3));
    assert_eq!(rig.hardware.syncs.load(Ordering::Relaxed), 1);
    assert!(rig.leads(1).is_some() && rig.leads(601).is_some());
    assert!([2, 3, 600].iter().all(|page| rig.leads(*page).is_none()));
    rig.audit(2048);
    // Nothing there: nothing to wait for.
    assert_eq!(rig.container.invalidate(range), Ok(0));
    assert_eq!(rig.hardware.syncs.load(Ordering::Relaxed), 1);
    rig.fault(3).unwrap();
    rig.audit(2048);
}

#[test]
fn a_block_that_is_cut_goes_whole() {
    let rig = Rig::new(blocks(), 64);
    rig.region(1024);
    rig.fault(5).unwrap();
    assert_eq!(rig.container.invalidate(pages_at(100, 1)), Ok(512));
    rig.audit(1024);
    rig.fault(99).unwrap();
    rig.audit(1024);
}

#[test]
fn memory_taken_back_in_between_is_populated_again() {
    let rig = Rig::new(blocks(), 64);
    rig.region(512);
    let (container, memory) = (Arc::downgrade(&rig.container), rig.memory.clone());
    *rig.memory.hook.lock() = Some(Box::new(move || {
        memory.forget(pages_at(0, 512));
        let container = container.upgrade().unwrap();
        assert_eq!(container.invalidate(pages_at(17, 1)), Ok(0));
    }));
    rig.fault(17).unwrap();
    assert_eq!(rig.container.usage().raced, 1);
    rig.audit(512);
}

#[test]
fn retries_are_bounded() {
    fn again(rig: &Rig) {
        let (container, memory) = (Arc::downgrade(&rig.container), Arc::downgrade(&rig.memory));
        fn hook(
            container: alloc::sync::Weak<super::rig::Container>,
            memory: alloc::sync::Weak<super::rig::Memory>,
        ) -> Box<dyn Fn() + Send + Sync> {
            Box::new(move || {
                let _ = container.upgrade().unwrap().invalidate(pages_at(0, 1));
                let next = hook(container.clone(), memory.clone());
                *memory.upgrade().unwrap().hook.lock() = Some(next);
            })
        }
        *rig.memory.hook.lock() = Some(hook(container, memory));
    }
    // A block of one page is a page.
    for options in [IoasOptions::default(), blocks()] {
        let rig = Rig::new(options, 64);
        rig.region(1);
        again(&rig);
        let iova = Iova::new(BASE);
        assert_eq!(rig.fault(0), Err(FaultError::Contended { iova, times: 65 }));
        assert_eq!(rig.container.usage().raced, 65);
        rig.audit(1);
        *rig.memory.hook.lock() = None;
        rig.fault(0).unwrap();
    }
}

#[test]
fn what_is_not_mapped_between_slots_is_not_counted() {
    for pages in [[511, 512], [511, 600], [100, 512], [100, 1100]] {
        let rig = Rig::new(IoasOptions::default(), 64);
        rig.region(2048);
        for page in pages {
            rig.fault(page).unwrap();
        }
        assert_eq!(rig.container.invalidate(pages_at(0, 2048)), Ok(2));
        rig.audit(2048);
    }
}

#[test]
fn what_became_quiet_before_is_not_waited_for() {
    let rig = Rig::new(IoasOptions::default(), 64);
    rig.region(2048);
    let container = &rig.container;
    // Page 1 is quiet and still to be taken back; page 600 is not.
    for page in [1, 600] {
        rig.fault(page).unwrap();
        container.recover().unwrap();
        rig.hardware.broken.store(1, Ordering::Relaxed);
        assert!(container.invalidate(pages_at(page, 1)).is_err());
        rig.hardware.broken.store(0, Ordering::Relaxed);
    }
    let other = container.clone();
    *rig.hardware.hook.lock() = Some(Once(Box::new(move || {
        assert_eq!(other.invalidate(pages_at(1, 1)), Ok(0));
    })));
    assert_eq!(container.invalidate(pages_at(600, 1)), Ok(0));
    assert!(rig.hardware.hook.lock().is_none());
    rig.fault(1).unwrap();
    rig.audit(2048);
}

#[test]
fn what_is_being_paid_for_the_first_time_is_not_to_be_recovered() {
    let rig = Rig::new(IoasOptions::default(), 64);
    rig.region(16);
    let container = &rig.container;
    for page in [1, 2] {
        rig.fault(page).unwrap();
        let other = container.clone();
        *rig.hardware.hook.lock() = Some(Once(Box::new(move || {
            assert_eq!(other.recover(), Ok(()));
        })));
        assert_eq!(container.invalidate(pages_at(page, 1)), Ok(1));
    }
    rig.audit(16);
}

#[test]
fn who_cannot_have_all_slots_leaves_those_it_had_as_they_were() {
    let rig = Rig::new(IoasOptions::default(), 64);
    rig.region(2048);
    rig.fault(1).unwrap();
    rig.hardware.broken.store(1, Ordering::Relaxed);
    assert!(rig.container.invalidate(pages_at(1, 1)).is_err());
    rig.hardware.broken.store(0, Ordering::Relaxed);
    rig.fault(1100).unwrap();
    let iova = Iova::new(BASE + PAGE);
    let not_quiet = Err(FaultError::NotQuiet { iova });
    let container = rig.container.clone();
    *rig.hardware.hook.lock() = Some(Once(Box::new(move || {
        // The first slot is stuck, the second open, the third in use.
        let busy = container.invalidate(pages_at(0, 2048));
        assert!(matches!(busy, Err(InvalidateError::Busy { .. })));
        assert_eq!(container.fault(&request(1)), not_quiet);
        assert_eq!(container.fault(&request(700)).unwrap().granules, 1);
    })));
    assert_eq!(rig.container.invalidate(pages_at(1100, 1)), Ok(1));
    assert!(rig.hardware.hook.lock().is_none());
    assert_eq!(rig.fault(1), not_quiet);
    assert_eq!(rig.container.invalidate(pages_at(1, 1)), Ok(0));
    rig.fault(1).unwrap();
    rig.audit(2048);
}

#[test]
fn what_is_not_quiet_is_not_mapped_again() {
    let rig = Rig::new(IoasOptions::default(), 64);
    rig.region(1024);
    rig.fault(0).unwrap();
    rig.fault(600).unwrap();
    rig.hardware.broken.store(1, Ordering::Relaxed);
    let failed = rig.container.invalidate(pages_at(0, 1));
    assert_eq!(failed, Err(InvalidateError::Iommu(TIMED_OUT)));
    let iova = Iova::new(BASE);
    assert_eq!(rig.fault(0), Err(FaultError::NotQuiet { iova }));
    assert_eq!(rig.container.usage().leaving_bytes, PAGE);
    // Faults elsewhere owe nothing, and do not wait for hardware that fails.
    rig.fault(601).unwrap();
    rig.hardware.broken.store(0, Ordering::Relaxed);
    assert_eq!(rig.container.invalidate(pages_at(0, 1)), Ok(0));
    rig.fault(0).unwrap();
    rig.fault(602).unwrap();
    rig.audit(1024);
}

#[test]
fn a_region_that_is_removed_is_gone() {
    let rig = Rig::new(blocks(), 64);
    rig.region(1024);
    rig.fault(0).unwrap();
    rig.hardware.broken.store(1, Ordering::Relaxed);
    let start = Iova::new(BASE);
    assert!(matches!(rig.container.remove_region(start), Err(RemoveError::NotQuiet(_))));
    assert!(rig.fault(0).is_err());
    rig.hardware.broken.store(0, Ordering::Relaxed);
    rig.container.remove_region(start).unwrap();
    let iova = Iova::new(BASE + 3 * PAGE);
    assert_eq!(rig.fault(3), Err(FaultError::NoRegion { iova }));
    assert_eq!(rig.container.remove_region(start), Err(RemoveError::NoRegion { start }));
    rig.region(8);
    rig.fault(3).unwrap();
}

#[test]
fn a_region_removed_in_the_middle_of_a_fault_maps_nothing() {
    let rig = Rig::new(blocks(), 64);
    rig.region(512);
    let container = Arc::downgrade(&rig.container);
    *rig.memory.hook.lock() = Some(Box::new(move || {
        let container = container.upgrade().unwrap();
        container.remove_region(Iova::new(BASE)).unwrap();
    }));
    let iova = Iova::new(BASE + 9 * PAGE);
    assert_eq!(rig.fault(9), Err(FaultError::NoRegion { iova }));
    assert!((0..512).all(|page| rig.leads(page).is_none()));
    assert_eq!(rig.container.usage().mapped_bytes, 0);
}

/// The debt of a range that is stuck is in another CPU's hands, whose sync then fails: taking the
/// range back again takes a sync of that very debt.
#[test]
fn memory_is_not_given_back_while_another_cpu_pays_for_it_in_vain() {
    let rig = Rig::new(IoasOptions::default(), 64);
    rig.region(2048);
    rig.fault(1).unwrap();
    rig.fault(600).unwrap();
    rig.hardware.broken.store(1, Ordering::Relaxed);
    let container = rig.container.clone();
    let failed = Err(InvalidateError::Iommu(TIMED_OUT));
    assert_eq!(container.invalidate(pages_at(1, 1)), failed);
    let said = Arc::new(Mutex::new(None));
    let (other, out) = (container.clone(), said.clone());
    *rig.hardware.hook.lock() = Some(Once(Box::new(move || {
        *out.lock() = Some(other.invalidate(pages_at(1, 1)));
    })));
    assert_eq!(container.invalidate(pages_at(600, 1)), failed);
    let said = said.lock().take().unwrap();
    assert!(matches!(said, Err(InvalidateError::Busy { .. })), "{said:?}");
    assert_eq!(rig.hardware.syncs.load(Ordering::Relaxed), 2);
    let iova = Iova::new(BASE + PAGE);
    assert_eq!(rig.fault(1), Err(FaultError::NotQuiet { iova }));
    assert_eq!(rig.container.usage().leaving_bytes, 2 * PAGE);
    // Still in vain, and then not.
    assert_eq!(container.invalidate(pages_at(1, 1)), failed);
    rig.hardware.broken.store(0, Ordering::Relaxed);
    assert_eq!(container.invalidate(pages_at(600, 1)), Ok(0));
    assert_eq!(rig.hardware.syncs.load(Ordering::Relaxed), 4);
    // That has paid for page 1 as well.
    assert_eq!(container.invalidate(pages_at(1, 1)), Ok(0));
    assert_eq!(rig.hardware.syncs.load(Ordering::Relaxed), 4);
    rig.fault(1).unwrap();
    rig.audit(2048);
}

#[test]
fn recovering_pays_and_leaves_it_to_the_owner_to_ask() {
    let rig = Rig::new(IoasOptions::default(), 64);
    rig.region(2048);
    rig.container.recover().unwrap();
    rig.fault(1).unwrap();
    rig.hardware.broken.store(1, Ordering::Relaxed);
    rig.container.invalidate(pages_at(1, 1)).unwrap_err();
    assert_eq!(rig.container.recover(), Err(RecoverError::Iommu(TIMED_OUT)));
    rig.hardware.broken.store(0, Ordering::Relaxed);
    rig.container.recover().unwrap();
    let syncs = rig.hardware.syncs.load(Ordering::Relaxed);
    rig.container.recover().unwrap();
    let iova = Iova::new(BASE + PAGE);
    assert_eq!(rig.fault(1), Err(FaultError::NotQuiet { iova }));
    // The hardware may fail again: this needs nothing of it.
    rig.hardware.broken.store(1, Ordering::Relaxed);
    assert_eq!(rig.container.invalidate(pages_at(1, 1)), Ok(0));
    assert_eq!(rig.hardware.syncs.load(Ordering::Relaxed), syncs);
    rig.fault(1).unwrap();
    rig.audit(2048);
}

/// A caller that takes memory back where another does, waits for that one, but not for ever; the
/// hardware has not failed then, and nothing has changed.
#[test]
fn a_second_owner_is_told_that_others_are_at_it() {
    let rig = Rig::new(IoasOptions::default(), 64);
    rig.region(2048);
    for page in [1, 600] {
        rig.fault(page).unwrap();
    }
    let container = rig.container.clone();
    *rig.hardware.hook.lock() = Some(Once(Box::new(move || {
        let busy = container.invalidate(pages_at(0, 1024));
        let range = pages_at(0, 1024);
        let waited = crate::platform::Nanos::from_millis(1000);
        assert_eq!(busy, Err(InvalidateError::Busy { range, waited }));
        let iova = Iova::new(BASE + 601 * PAGE);
        let busy = container.fault(&request(601));
        assert_eq!(busy, Err(FaultError::Busy { iova }));
        let start = Iova::new(BASE);
        let busy = container.remove_region(start);
        assert!(matches!(busy, Err(RemoveError::NotQuiet(InvalidateError::Busy { .. }))));
        // Its slots serve no fault any more, those that are busy as soon as they are not.
        let iova = Iova::new(BASE + 5 * PAGE);
        let closed = container.fault(&request(5));
        assert_eq!(closed, Err(FaultError::NoRegion { iova }));
    })));
    assert_eq!(rig.container.invalidate(pages_at(600, 1)), Ok(1));
    assert!(rig.leads(1).is_some());
    let iova = Iova::new(BASE + 600 * PAGE);
    assert_eq!(rig.fault(600), Err(FaultError::NoRegion { iova }));
    rig.container.remove_region(Iova::new(BASE)).unwrap();
    rig.audit(2048);
}
