//! Fault records and page requests, with overflow.

use alloc::vec::Vec;

use portolan::addr::{Iova, Pasid, StreamId};
use portolan::iommu::{Domain as _, FaultAccess, FaultEvent, FaultReason, Iommu as _, IommuError};
use portolan::iopf::{
    GroupId, Permissions, Place, ReplyName, ReplyTo, RequestKind, Responder as _, Response,
    StallTag,
};
use portolan::platform::Mmio as _;

use super::kit::{CAP, ECAP, Kit, SCALABLE, new_machine};
use super::{BASE, STREAM, attached, config, legacy, map};
use crate::chassis::tests::suite::Driven;
use crate::vtd::{Mode, PageEvent};
use portolan_spec::vtd::reg::{self, fsts, prs};

/// With four fault records instead of one.
const FOUR_RECORDS: u64 = 3 << 40;
const READ: u64 = 1 << 62;

fn next(unit: &super::Iommu) -> Option<(u32, FaultReason)> {
    match unit.next_fault().unwrap()? {
        FaultEvent::Fault(record) => Some((record.stream.get(), record.reason)),
        FaultEvent::Lost => Some((u32::MAX, FaultReason::Blocked)),
    }
}

#[test]
fn records_are_read_oldest_first_around_the_end_and_overflow_comes_last() {
    let machine = new_machine(CAP | FOUR_RECORDS, ECAP);
    let (unit, _domain) = attached(&machine, legacy());
    let record = |stream: u64| machine.record(0x1000, 2 << 32 | stream);
    // The oldest is in the third place.
    for stream in [3, 4] {
        record(stream);
        assert_eq!(next(&unit).unwrap().0, stream as u32);
    }
    (5..10).for_each(record);
    let streams: Vec<_> = (0..5).filter_map(|_| next(&unit)).map(|of| of.0).collect();
    assert_eq!(streams, [5, 6, 7, 8, u32::MAX]);
    assert_eq!(next(&unit), None);
    assert_eq!(machine.reg32(reg::FSTS) & 3, 0);
    // The next one is expected behind the last.
    record(10);
    assert_eq!(next(&unit), Some((10, FaultReason::Blocked)));
}

#[test]
fn fields_of_a_record() {
    let machine = new_machine(CAP, ECAP);
    let (unit, domain) = attached(&machine, legacy());
    let stream = u64::from(STREAM.get());
    let pasid = 0xabcde_u64 << 40 | 1 << 31;
    machine.record(0x7000, READ | pasid | 6 << 32 | stream);
    let Ok(Some(FaultEvent::Fault(fault))) = unit.next_fault() else {
        panic!("no record");
    };
    assert_eq!(fault.stream, STREAM);
    assert_eq!(fault.pasid, Some(Pasid::new(0xabcde)));
    assert_eq!(fault.iova, Some(Iova::new(0x7000)));
    assert_eq!(fault.access, Some(FaultAccess::Read));
    // Which of the two it was the tables tell.
    domain.sync(&mut map(&*domain, 1)).unwrap();
    let write = 5 << 32 | stream;
    machine.record(BASE.get(), write);
    assert_eq!(next(&unit).unwrap().1, FaultReason::Permission);
    machine.record(BASE.get() + 0x1000, write);
    assert_eq!(next(&unit).unwrap().1, FaultReason::NotMapped);
    // Neither read nor write.
    for odd in [1 << 28, READ | 1 << 28] {
        machine.record(0x7000, odd | write);
        let Ok(Some(FaultEvent::Fault(fault))) = unit.next_fault() else {
            panic!("no record");
        };
        assert_eq!(fault.access, None);
    }
}

#[test]
fn every_reason_has_a_meaning_or_its_number() {
    let machine = new_machine(CAP, ECAP);
    let (unit, _domain) = attached(&machine, legacy());
    let mut other = Vec::new();
    for code in 0..=0xff_u64 {
        machine.record(0x7000, code << 32 | 0x42);
        match next(&unit) {
            Some((0x42, FaultReason::Other { code: of })) => {
                assert_eq!(u64::from(of), code);
                other.push(code);
            }
            Some((0x42, _)) => {}
            lost => panic!("{code:#x}: {lost:?}"),
        }
    }
    assert!((0x29..0x30).all(|code| other.contains(&code)));
    for (code, reason) in [
        (0x1, FaultReason::Blocked),
        (0x2, FaultReason::Blocked),
        (0x3, FaultReason::Configuration),
        (0x4, FaultReason::AddressSize),
        (0x5, FaultReason::Permission),
        (0x6, FaultReason::Permission),
        (0x7, FaultReason::External),
        (0xc, FaultReason::Table),
        (0x39, FaultReason::Blocked),
        (0x41, FaultReason::Blocked),
        (0x51, FaultReason::Blocked),
        (0x59, FaultReason::Blocked),
        (0x71, FaultReason::NotMapped),
        (0x79, FaultReason::Permission),
        (0x80, FaultReason::AddressSize),
        (0x85, FaultReason::Permission),
    ] {
        machine.record(0x7000, code << 32 | 0x42);
        assert_eq!(next(&unit), Some((0x42, reason)), "{code:#x}");
    }
}

#[test]
fn what_was_recorded_before_is_not_reported() {
    let machine = new_machine(CAP | FOUR_RECORDS, ECAP);
    for _ in 0..5 {
        machine.record(0x1000, 2 << 32 | 9);
    }
    machine.unit().raise(fsts::PFO | fsts::IQE | fsts::ICE | fsts::ITE, 0);
    let unit = machine.enable(legacy()).unwrap();
    assert_eq!(next(&unit), None);
    assert_eq!(machine.reg32(reg::FSTS) & 0x73, 0);
}

#[test]
fn page_requests_are_read_around_the_end_and_overflow_comes_last() {
    let machine = new_machine(CAP, SCALABLE);
    let unit = machine.enable(config(Mode::Scalable)).unwrap();
    assert_eq!(unit.next_page_request(), Err(IommuError::Unsupported));
    let mut to = ReplyTo {
        stream: STREAM,
        pasid: Some(Pasid::new(5)),
        name: ReplyName::Group(GroupId::new(9)),
    };
    let early = unit.respond(to, Response::Success);
    assert_eq!(early, Err(IommuError::Unsupported));
    unit.read_page_requests(0).unwrap();
    assert_eq!(unit.read_page_requests(0), Err(IommuError::Unsupported));
    let queue = machine.reg(reg::PQA);
    assert_eq!(queue & 0xfff, 0);
    assert_eq!(unit.next_page_request(), Ok(None));
    // The last slot and the first.
    machine.write64(reg::PQH, 0xfe0);
    let stream = u64::from(STREAM.get());
    machine.store(queue + 0xfe0, 1 | 1 << 8 | stream << 16 | 5 << 32 | 1 << 52);
    machine.store(queue + 0xfe8, 0x7000 | 3 | 9 << 3);
    machine.store(queue + 0xff0, 0x11);
    machine.store(queue + 0xff8, 0x22);
    machine.store(queue, 0x7f);
    machine.write64(reg::PQT, 0x20);
    machine.unit().raise(0, prs::PRO | prs::PPR);
    let Ok(Some(PageEvent::Request { request, private })) = unit.next_page_request() else {
        panic!("no request");
    };
    assert_eq!(request.stream, StreamId::new(0x0108));
    assert_eq!(request.pasid, Some(Pasid::new(5)));
    assert_eq!(request.iova, Iova::new(0x7000));
    assert_eq!(request.wants, Permissions::READ | Permissions::WRITE | Permissions::EXECUTE);
    let (group, place) = (GroupId::new(9), Place::More);
    assert_eq!(request.kind, RequestKind::Pri { group, place });
    assert_eq!(private, [0x11, 0x22]);
    assert_eq!(machine.reg(reg::PQH), 0);
    let unknown = PageEvent::Unknown { word: 0x7f };
    assert_eq!(unit.next_page_request(), Ok(Some(unknown)));
    assert_eq!(unit.next_page_request(), Ok(Some(PageEvent::Lost)));
    assert_eq!(machine.reg32(reg::PRS) & prs::PRO, 0);
    assert_eq!(unit.next_page_request(), Ok(None));
    machine.take();
    for (response, code) in
        [(Response::Success, 0), (Response::Invalid, 1), (Response::Failure, 15)]
    {
        unit.respond(to, response).unwrap();
        let word = 0x5_0108_0019 | code << 12;
        assert_eq!(machine.commands(), [[word, 0x4c]]);
        machine.take();
    }
    to.name = ReplyName::Stall(StallTag::new(1));
    let stall = unit.respond(to, Response::Success);
    assert_eq!(stall, Err(IommuError::Unsupported));
}

#[test]
fn a_page_request_tail_outside_the_queue_is_nonsense() {
    let machine = new_machine(CAP, SCALABLE);
    let unit = machine.enable(config(Mode::Scalable)).unwrap();
    unit.read_page_requests(0).unwrap();
    for value in [0x1000, 0x7ffe0, 0x10] {
        machine.lie(reg::PQT, u64::MAX, value);
        let offset = reg::PQT;
        let nonsense = Err(IommuError::Nonsense { offset, value });
        assert_eq!(unit.next_page_request(), nonsense);
    }
}

#[test]
fn two_bits_of_a_record_say_what_was_wanted() {
    let machine = new_machine(CAP, ECAP);
    let (unit, _domain) = attached(&machine, legacy());
    let access = |types: u64| {
        machine.record(0x1000, 5 << 32 | types | 7);
        match unit.next_fault() {
            Ok(Some(FaultEvent::Fault(record))) => record.access,
            other => panic!("{other:?}"),
        }
    };
    // T1 is bit 62 of the upper half, T2 bit 28: a page request, an atomic operation.
    let (first, second) = (1 << 62, 1 << 28);
    assert_eq!(access(0), Some(FaultAccess::Write));
    assert_eq!(access(first), Some(FaultAccess::Read));
    assert_eq!([access(second), access(first | second)], [None; 2]);
}
