//! Devices with translations of their own: the order in which they are asked, and those that never
//! answer.

use super::*;
use crate::promise::tests::all_memory;
use portolan::inval::SyncError;
use portolan_spec::smmuv3::ste;

const ASK: [u64; 2] = [op::ATC_INV, op::SYNC];

fn with_ats() -> (SmmuMachine, Driver) {
    let (unit, driver) = setup();
    driver.enable_ats(STREAM, all_memory()).unwrap();
    (unit, driver)
}

fn silent() -> AttachError {
    AttachError::Iommu(IommuError::DeviceSilent { stream: None })
}

fn eats(unit: &SmmuMachine) -> u64 {
    ste::EATS.get(&unit.entry(STREAM.get()).unwrap())
}

#[test]
fn translations_of_a_device_end_after_it_was_asked_to_forget_them() {
    let (unit, driver) = with_ats();
    let domain = first(&driver);
    driver.attach(STREAM, &domain).unwrap();
    unit.take_log();
    assert_eq!(eats(&unit), 1);
    driver.disable_ats(STREAM).unwrap();
    let entry = [op::CFGI_STE, op::SYNC];
    assert_eq!(unit.take_codes(), [ASK, entry].concat());
    assert_eq!(eats(&unit), 0);
    // From now on it is not asked any more.
    domain.sync(&mut debt(&*domain, 0x7000)).unwrap();
    driver.disable_ats(STREAM).unwrap();
    driver.block(STREAM).unwrap();
    assert!(!unit.take_codes().contains(&op::ATC_INV));
}

#[test]
fn translations_that_a_device_did_not_give_up_stay_counted() {
    let (unit, driver) = with_ats();
    let domain = first(&driver);
    driver.attach(STREAM, &domain).unwrap();
    unit.refuse_kind((op::SYNC, error::ATC_INV_SYNC, u32::MAX));
    assert_eq!(driver.disable_ats(STREAM), Err(silent()));
    assert_eq!(eats(&unit), 1);
    unit.wrong(RegisterFaults::NONE);
    // The unit fails where the entry was already changed in memory.
    let illegal = (op::CFGI_STE, error::ILL, 1);
    unit.refuse_kind(illegal);
    driver.disable_ats(STREAM).unwrap_err();
    unit.take_log();
    domain_is_told(&unit, &*domain);
    driver.disable_ats(STREAM).unwrap();
    assert_eq!(unit.take_codes()[..3], [op::ATC_INV, op::SYNC, op::CFGI_STE]);
}

#[test]
fn a_blocked_device_is_asked_before_its_entry_refuses_it_and_after() {
    let (unit, driver) = with_ats();
    let domain = first(&driver);
    driver.attach(STREAM, &domain).unwrap();
    unit.take_log();
    driver.block(STREAM).unwrap();
    let codes = unit.take_codes();
    assert_eq!(codes[..2], ASK);
    assert_eq!(codes[2..4], [op::CFGI_STE, op::CFGI_CD_ALL]);
    assert_eq!(codes[codes.len() - 2..], ASK);
    // It has nothing left.
    driver.block(STREAM).unwrap();
    assert!(!unit.take_codes().contains(&op::ATC_INV));
}

#[test]
fn a_device_that_did_not_answer_is_asked_again_before_its_domain_goes() {
    let (unit, driver) = with_ats();
    let domain = first(&driver);
    driver.attach(STREAM, &domain).unwrap();
    let weak = Arc::downgrade(&domain);
    drop(domain);
    unit.refuse_kind((op::SYNC, error::ATC_INV_SYNC, u32::MAX));
    for _ in 0..3 {
        assert_eq!(driver.block(STREAM), Err(silent()));
        assert!(weak.upgrade().is_some(), "let go though the device may use it");
    }
    unit.wrong(RegisterFaults::NONE);
    unit.take_log();
    driver.block(STREAM).unwrap();
    assert!(unit.take_codes().contains(&op::ATC_INV));
    assert!(weak.upgrade().is_none());
}

#[test]
fn a_unit_that_failed_twice_is_asked_a_third_time() {
    let (unit, driver) = setup();
    let domain = first(&driver);
    driver.attach(STREAM, &domain).unwrap();
    let weak = Arc::downgrade(&domain);
    drop(domain);
    let illegal = (op::CFGI_STE, error::ILL, 3);
    unit.refuse_kind(illegal);
    for _ in 0..3 {
        driver.block(STREAM).unwrap_err();
        // One by the stream, and ours.
        assert_eq!(weak.upgrade().map(|domain| Arc::strong_count(&domain)), Some(2));
    }
    unit.take_log();
    driver.block(STREAM).unwrap();
    assert!(unit.take_codes().contains(&op::CFGI_STE), "taken for forgotten");
    assert!(weak.upgrade().is_none());
}

#[test]
fn a_removed_device_settles_and_leaks_no_domain() {
    let (unit, driver) = with_ats();
    driver.enable_pasids(STREAM, 4).unwrap();
    let (one, two, three) = (first(&driver), first(&driver), first(&driver));
    driver.attach(STREAM, &one).unwrap();
    let pasid = Pasid::new(3);
    driver.attach_pasid(STREAM, pasid, &two).unwrap();
    driver.attach(StreamId::new(7), &two).unwrap();
    unit.refuse_kind((op::SYNC, error::ATC_INV_SYNC, u32::MAX));
    // A move, a detachment and an invalidation fail, and go on failing.
    driver.attach(STREAM, &three).unwrap_err();
    driver.block_pasid(STREAM, pasid).unwrap_err();
    let mut owed = debt(&*two, 0x7000);
    let failed = two.sync(&mut owed).unwrap_err();
    assert_eq!(failed, SyncError::Queue(IommuError::DeviceSilent { stream: None }));
    driver.device_gone(STREAM).unwrap();
    assert_eq!(ste::V.get(&unit.entry(STREAM.get()).unwrap()), 0);
    // No caller waits for it any more, and nothing of it is kept.
    unit.take_log();
    two.sync(&mut owed).unwrap();
    assert!(!unit.take_codes().contains(&op::ATC_INV));
    let weak = [&one, &two, &three].map(Arc::downgrade);
    drop((one, two, three));
    let alive = weak.map(|weak| weak.upgrade().is_some());
    assert_eq!(alive, [false, true, false], "the other stream has its own");
    // Another device in its place begins anew.
    driver.enable_ats(STREAM, all_memory()).unwrap();
    unit.wrong(RegisterFaults::NONE);
    driver.attach(STREAM, &first(&driver)).unwrap();
    drop(driver);
    assert_eq!(unit.live(), 0);
}

#[test]
fn a_unit_that_does_not_cut_a_removed_device_off_keeps_its_domain() {
    let (unit, driver) = with_ats();
    let domain = first(&driver);
    driver.attach(STREAM, &domain).unwrap();
    let weak = Arc::downgrade(&domain);
    drop(domain);
    unit.drain(Drain::Never);
    driver.device_gone(STREAM).unwrap_err();
    assert!(weak.upgrade().is_some());
    unit.drain(SLOWLY);
    driver.device_gone(STREAM).unwrap();
    assert!(weak.upgrade().is_none());
}

#[test]
fn a_stream_cannot_stall_and_have_translations_of_its_own() {
    let (_unit, driver) = with_ats();
    assert_eq!(driver.enable_stalls(STREAM), Err(AttachError::Mismatch));
    let other = StreamId::new(9);
    driver.enable_stalls(other).unwrap();
    assert_eq!(driver.enable_ats(other, all_memory()), Err(AttachError::Mismatch));
}

#[test]
fn a_passed_through_device_has_its_translation_requests_answered_or_is_refused() {
    let (unit, driver) = with_ats();
    assert_eq!(driver.pass_through(STREAM, all_memory()), Err(AttachError::Mismatch));
    assert_eq!(unit.entry(STREAM.get()), Some([0; 8]));
    driver.enable_pasids(STREAM, 1).unwrap();
    driver.pass_through(STREAM, all_memory()).unwrap();
    let entry = unit.entry(STREAM.get()).unwrap();
    // Stage 1, full ATS, accesses without a substream skip it.
    assert_eq!((entry[0] & 0xf, entry[0] >> 59), (0b1011, 1));
    assert_eq!((entry[1] >> 28 & 3, entry[1] & 3), (1, 1));
    // What the device got there are the addresses themselves: they have to go.
    unit.take_log();
    let domain = first(&driver);
    driver.attach(STREAM, &domain).unwrap();
    assert!(unit.take_codes().contains(&op::ATC_INV));
    let passing = StreamId::new(5);
    driver.pass_through(passing, all_memory()).unwrap();
    assert_eq!(driver.enable_ats(passing, all_memory()), Err(AttachError::Mismatch));
}
