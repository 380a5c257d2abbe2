//! Records of the unit: events, page requests and stalls.

use super::*;
use portolan::iopf::RawPageRequest;

#[test]
fn every_event_is_decoded() {
    let (unit, driver) = setup();
    assert_eq!(driver.next_fault(), Ok(None));
    unit.record([0x1234_0000_0010, 1 << 35, 0xdead_b123, 0]);
    unit.record([0x1234_abcd_e813, 0, 0xffff_ffff_f000, 0]);
    let Ok(Some(FaultEvent::Fault(one))) = driver.next_fault() else {
        panic!("no fault");
    };
    assert_eq!((one.stream, one.pasid), (STREAM, None));
    assert_eq!(one.iova, Some(Iova::new(0xdead_b123)));
    assert_eq!(one.access, Some(FaultAccess::Read));
    assert_eq!(one.reason, FaultReason::NotMapped);
    let Ok(Some(FaultEvent::Fault(two))) = driver.next_fault() else {
        panic!("no fault");
    };
    assert_eq!(two.pasid, Some(Pasid::new(0xabcde)));
    assert_eq!(two.reason, FaultReason::Permission);
    assert_eq!(two.access, Some(FaultAccess::Write));
    for code in 0..=0xff {
        let record = faults::decode_event(&[code, u64::MAX, u64::MAX, u64::MAX]);
        let known = matches!(code, 2..=0xb | 0x10..=0x13 | 0x20 | 0x21 | 0x25);
        let other = matches!(record.reason, FaultReason::Other { .. });
        assert_eq!(known, !other, "{code:#x}");
        let addressed = matches!(code, 1 | 5 | 7 | 0xb | 0x10..=0x13 | 0x20 | 0x21 | 0x24);
        assert_eq!(record.iova.is_some(), addressed, "{code:#x}");
    }
    // An access that stalled nevertheless is ended.
    unit.take_log();
    unit.record([0x1234_0000_0010, 1 << 31 | 0x77, 0, 0]);
    assert!(driver.next_fault().unwrap().is_some());
    assert_eq!(unit.take_log()[0], [0x1234_0000_2044, 0x77]);
}

#[test]
fn overflow_is_told_after_what_was_kept() {
    let (unit, driver) = setup();
    for round in 0..3 {
        // The event queue has 2^4 entries.
        for event in 0..18 {
            unit.record([0x10 | event << 32, 0, 0, 0]);
        }
        for event in 0..16 {
            let Ok(Some(FaultEvent::Fault(record))) = driver.next_fault() else {
                panic!("lost too early in round {round}");
            };
            assert_eq!(record.stream.get(), event);
        }
        assert_eq!(driver.next_fault(), Ok(Some(FaultEvent::Lost)));
        assert_eq!(driver.next_fault(), Ok(None));
    }
    unit.unit().raise(reg::gerror::EVENTQ_ABT);
    assert_eq!(driver.next_fault(), Ok(Some(FaultEvent::Lost)));
    assert_eq!(driver.next_fault(), Ok(None));
    unit.lie(reg::EVENTQ_PROD, u64::MAX, 1);
    // The index stands at 16 of 32.
    let lie = driver.next_fault();
    assert!(matches!(lie, Err(IommuError::Nonsense { .. })), "{lie:?}");
}

#[test]
fn page_requests_come_and_are_answered() {
    let (unit, driver) = setup();
    let ask = |stream, pasid, iova, wants, group, place| {
        unit.unit().ask(RawPageRequest {
            stream: StreamId::new(stream),
            pasid,
            iova: Iova::new(iova),
            wants,
            kind: RequestKind::Pri { group: GroupId::new(group), place },
        });
    };
    let (read, pasid) = (Permissions::READ, Some(Pasid::new(5)));
    let both = read | Permissions::WRITE;
    ask(0x7_1234, pasid, 0x9_9000, both, 0x101, Place::Last);
    ask(0x1234, None, 0x1000, read, 0, Place::More);
    let Ok(Some(PageRequestEvent::Request(request))) = driver.next_page_request() else {
        panic!("no request");
    };
    assert_eq!(request.wants, Permissions::READ | Permissions::WRITE);
    assert_eq!(request.iova, Iova::new(0x9_9000));
    let (group, place) = (GroupId::new(0x101), Place::Last);
    assert_eq!(request.kind, RequestKind::Pri { group, place });
    assert_eq!(request.stream, StreamId::new(0x7_1234));
    assert_eq!(request.pasid, Some(Pasid::new(5)));
    let next = driver.next_page_request().unwrap();
    let Some(PageRequestEvent::Request(request)) = next else {
        panic!("no request");
    };
    let (group, place) = (GroupId::new(0), Place::More);
    assert_eq!(request.pasid, None);
    assert_eq!(request.kind, RequestKind::Pri { group, place });
    assert_eq!(driver.next_page_request(), Ok(None));
    unit.take_log();
    let mut to = ReplyTo {
        stream: STREAM,
        pasid: Some(Pasid::new(5)),
        name: ReplyName::Group(GroupId::new(0x101)),
    };
    for (response, word) in
        [(Response::Success, 0x2101), (Response::Invalid, 0x1101), (Response::Failure, 0x101)]
    {
        driver.respond(to, response).unwrap();
        assert_eq!(unit.take_log()[0], [0x1234_0000_5841, word]);
    }
    to.pasid = None;
    driver.respond(to, Response::Success).unwrap();
    assert_eq!(unit.take_log()[0], [0x1234_0000_0041, 0x2101]);
    for _ in 0..17 {
        ask(0x1234, None, 0, read, 0, Place::More);
    }
    let mut lost = 0;
    while let Some(event) = driver.next_page_request().unwrap() {
        lost += u32::from(event == PageRequestEvent::Lost);
    }
    assert_eq!(lost, 1);
}

#[test]
fn stalls_come_and_are_answered() {
    let (unit, driver) = setup();
    driver.enable_stalls(STREAM).unwrap();
    driver.attach(STREAM, &first(&driver)).unwrap();
    let mismatch = driver.enable_stalls(STREAM);
    assert_eq!(mismatch, Err(AttachError::Mismatch));
    let entry = unit.entry(STREAM.get()).unwrap();
    assert_eq!(entry[1], 1 << 44 | 0xd4, "stalls are not disabled");
    let descriptor = unit.descriptor(&entry, 0).unwrap();
    assert_eq!(descriptor[0], 0x0001_f205_c000_3510);
    driver.attach(STREAM, &second(&driver)).unwrap();
    let entry = unit.entry(STREAM.get()).unwrap();
    assert_eq!(entry[2] >> 57 & 1, 1);
    // A privileged read of an instruction, in substream 3.
    let who = 0x1234_0000_3810;
    unit.record([who, 7 << 33 | 1 << 31 | 0xbeef, 0xdead_b123, 0]);
    unit.record([0x1234_0000_0013, 1 << 31 | 1, 0x5000, 0]);
    unit.record([0x1234_0000_0010, 0, 0x5000, 0]);
    let Ok(Some(StallOrFault::Stalled { request, fault })) = driver.next_stall_or_fault() else {
        panic!("no stall");
    };
    assert_eq!(fault.reason, FaultReason::NotMapped);
    let wants = Permissions::READ | Permissions::EXECUTE | Permissions::PRIVILEGED;
    assert_eq!((request.wants, request.pasid), (wants, Some(Pasid::new(3))));
    assert_eq!(request.iova, Iova::new(0xdead_b123));
    unit.take_log();
    for (response, word) in [
        (Response::Success, 0x1234_0000_1044),
        (Response::Invalid, 0x1234_0000_2044),
        (Response::Failure, 0x1234_0000_2044),
    ] {
        driver.respond(request.reply_to(), response).unwrap();
        assert_eq!(unit.take_log()[0], [word, 0xbeef]);
    }
    let Ok(Some(StallOrFault::Stalled { request, fault })) = driver.next_stall_or_fault() else {
        panic!("no stall");
    };
    assert_eq!(fault.reason, FaultReason::Permission);
    assert_eq!(request.wants, Permissions::WRITE);
    let next = driver.next_stall_or_fault();
    let fault = matches!(next, Ok(Some(StallOrFault::Fault(FaultEvent::Fault(_)))));
    assert!(fault, "{next:?}");
    assert_eq!(driver.next_stall_or_fault(), Ok(None));
}
