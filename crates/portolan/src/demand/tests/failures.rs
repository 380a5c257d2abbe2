//! Faults that cannot be served.

use alloc::boxed::Box;
use core::sync::atomic::Ordering;

use super::rig::{BASE, Once, PAGE, Rig, TIMED_OUT, pages_at, request};
use super::std;
use crate::addr::{Iova, StreamId};
use crate::demand::{Already, FaultError, IoasOptions, ReadDirtyError, RecoverError, Window};
use crate::inval::Caching;
use crate::iommu::Domain as _;
use crate::iopf::{Group, Handler, Permissions, RawPageRequest, RequestKind, Response, StallTag};

#[test]
fn every_shortage_of_table_memory_is_an_answer() {
    for window in [Window::Page, Window::Block] {
        let mut served = 0;
        for tables in 1..8 {
            let options = IoasOptions { window, ..IoasOptions::default() };
            let rig = Rig::new(options, tables);
            rig.memory.gap.store(1, Ordering::Relaxed);
            rig.region(1024);
            match rig.fault(600) {
                Ok(_) => served += 1,
                Err(error) => {
                    assert!(matches!(error, FaultError::Map(_)), "{error}");
                    // No caller has to wait for a map that failed.
                    assert_eq!(rig.container.invalidate(pages_at(600, 1)), Ok(0));
                }
            }
            rig.audit(1024);
        }
        assert_eq!(served, 4);
    }
}

fn raw(page: u64, wants: Permissions) -> RawPageRequest {
    RawPageRequest {
        stream: StreamId::new(3),
        pasid: None,
        iova: Iova::new(BASE + page * PAGE),
        wants,
        kind: RequestKind::Stall { tag: StallTag::new(1) },
    }
}

#[test]
fn devices_are_told() {
    let rig = Rig::caching(IoasOptions::default(), 64, Caching::NotPresentToo);
    rig.region(16);
    rig.memory.absent.lock().insert(BASE / PAGE + 5);
    let ask = |pages: &[u64], wants| {
        let requests: alloc::vec::Vec<_> =
            pages.iter().map(|page| raw(*page, wants).check().unwrap()).collect();
        rig.container.handle(&Group::new(raw(0, wants).reply_to(), &requests))
    };
    assert_eq!(ask(&[1, 2, 1], Permissions::READ | Permissions::WRITE), Response::Success);
    assert_eq!(ask(&[3, 5], Permissions::READ), Response::Invalid);
    assert_eq!(ask(&[6], Permissions::READ | Permissions::EXECUTE), Response::Invalid);
    assert_eq!(ask(&[16], Permissions::READ), Response::Invalid);
    rig.hardware.broken.store(1, Ordering::Relaxed);
    assert_eq!(ask(&[7], Permissions::READ), Response::Failure);
    rig.hardware.broken.store(0, Ordering::Relaxed);
    assert_eq!(ask(&[7], Permissions::READ), Response::Success);
    rig.audit(16);
}

#[test]
fn a_domain_is_free_again_once_its_container_is_gone_and_quiet() {
    for (broken, stays_claimed) in [(0, false), (1, true)] {
        let rig = Rig::new(IoasOptions::default(), 64);
        rig.region(16);
        rig.fault(3).unwrap();
        assert!(rig.domain.claim().is_taken());
        rig.hardware.broken.store(broken, Ordering::Relaxed);
        let Rig { container, domain, .. } = rig;
        drop(container);
        assert_eq!(domain.claim().is_taken(), stays_claimed);
    }
}

/// A map's own debt is not paid: a device that asks again is not told that all is there until it
/// is.
#[test]
fn a_fault_on_what_was_mapped_and_not_paid_for_pays_or_fails() {
    let rig = Rig::caching(IoasOptions::default(), 64, Caching::NotPresentToo);
    rig.region(16);
    rig.hardware.broken.store(1, Ordering::Relaxed);
    for syncs in 1..4 {
        assert_eq!(rig.fault(7), Err(FaultError::Iommu(TIMED_OUT)));
        assert_eq!(rig.hardware.syncs.load(Ordering::Relaxed), syncs);
    }
    rig.hardware.broken.store(0, Ordering::Relaxed);
    assert_eq!(rig.fault(7).unwrap().already, Already::Yes);
    assert_eq!(rig.hardware.syncs.load(Ordering::Relaxed), 4);
    // Paid once.
    assert_eq!(rig.fault(7).unwrap().already, Already::Yes);
    assert_eq!(rig.hardware.syncs.load(Ordering::Relaxed), 4);
    rig.audit(16);
}

/// A granule that another CPU's fault mapped is there once that one has paid.
#[test]
fn a_fault_that_comes_second_waits_for_what_the_first_owes() {
    let rig = Rig::caching(IoasOptions::default(), 64, Caching::NotPresentToo);
    rig.region(16);
    let container = rig.container.clone();
    *rig.hardware.hook.lock() = Some(Once(Box::new(move || {
        let iova = Iova::new(BASE + 7 * PAGE);
        assert_eq!(container.fault(&request(7)), Err(FaultError::Busy { iova }));
    })));
    rig.fault(7).unwrap();
    assert!(rig.hardware.hook.lock().is_none());
    rig.audit(16);
}

#[test]
fn a_race_with_another_cpu_is_no_reason_to_fail_a_device() {
    let iova = Iova::new(BASE);
    let busy = FaultError::Busy { iova };
    let contended = FaultError::Contended { iova, times: 65 };
    assert_eq!(busy.response(), Response::Success);
    assert_eq!(contended.response(), Response::Success);
}

/// Marks that were cleared and not paid for: the next dirty read pays for them, with nothing of its
/// own to pay.
#[test]
fn a_dirty_read_pays_for_the_one_before() {
    let rig = Rig::new(IoasOptions::default(), 64);
    rig.region(16);
    rig.fault(3).unwrap();
    super::dirty::write(&rig, 3);
    rig.hardware.broken.store(1, Ordering::Relaxed);
    let mut seen = 0;
    let failed = rig.container.read_and_clear_dirty(pages_at(0, 16), |_| seen += 1);
    let not_paid = ReadDirtyError::NotPaid(RecoverError::Iommu(TIMED_OUT));
    assert_eq!((failed, seen), (Err(not_paid), 1));
    let again = rig.container.read_and_clear_dirty(pages_at(0, 16), |_| seen += 1);
    assert_eq!((again, seen), (Err(not_paid), 1));
    rig.hardware.broken.store(0, Ordering::Relaxed);
    let again = rig.container.read_and_clear_dirty(pages_at(0, 16), |_| seen += 1);
    assert_eq!((again, seen), (Ok(()), 1));
    let syncs = rig.hardware.syncs.load(Ordering::Relaxed);
    rig.container.read_and_clear_dirty(pages_at(0, 16), |_| ()).unwrap();
    assert_eq!(rig.hardware.syncs.load(Ordering::Relaxed), syncs);
}

/// While one dirty read succeeds another one fails: a later one does not take its marks for good
/// while they are being paid.
#[test]
fn marks_that_another_dirty_read_left_unpaid_are_waited_for() {
    let rig = Rig::new(IoasOptions::default(), 64);
    rig.region(16);
    for page in [3, 4] {
        rig.fault(page).unwrap();
        super::dirty::write(&rig, page);
    }
    let read = |container: &super::rig::Container, page| {
        container.read_and_clear_dirty(pages_at(page, 1), |_| ())
    };
    let (other, hardware) = (rig.container.clone(), rig.hardware.clone());
    *rig.hardware.hook.lock() = Some(Once(Box::new(move || {
        hardware.broken.store(1, Ordering::Relaxed);
        let not_paid = ReadDirtyError::NotPaid(RecoverError::Iommu(TIMED_OUT));
        assert_eq!(read(&other, 4), Err(not_paid));
        hardware.broken.store(0, Ordering::Relaxed);
    })));
    assert_eq!(read(&rig.container, 3), Ok(()));
    let other = rig.container.clone();
    *rig.hardware.hook.lock() = Some(Once(Box::new(move || {
        let busy = read(&other, 4);
        let expected = matches!(busy, Err(ReadDirtyError::NotPaid(RecoverError::Busy { .. })));
        assert!(expected, "{busy:?}");
    })));
    assert_eq!(rig.container.recover(), Ok(()));
    assert!(rig.hardware.hook.lock().is_none());
    assert_eq!(read(&rig.container, 4), Ok(()));
}

#[test]
fn a_debt_whose_sync_unwinds_is_owed_still() {
    let rig = Rig::new(IoasOptions::default(), 64);
    rig.region(16);
    rig.fault(3).unwrap();
    *rig.hardware.hook.lock() = Some(Once(Box::new(|| panic!("as the test wants it"))));
    let container = std::panic::AssertUnwindSafe(&rig.container);
    let unwound = std::panic::catch_unwind(move || container.invalidate(pages_at(3, 1)));
    assert!(unwound.is_err());
    let syncs = rig.hardware.syncs.load(Ordering::Relaxed);
    rig.container.recover().unwrap();
    assert_eq!(rig.hardware.syncs.load(Ordering::Relaxed), syncs + 1);
    // Paid once.
    rig.container.recover().unwrap();
    assert_eq!(rig.hardware.syncs.load(Ordering::Relaxed), syncs + 1);
}
