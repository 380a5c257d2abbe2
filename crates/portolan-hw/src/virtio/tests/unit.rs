//! Endpoints that move, the device's features and properties, and its faults.

use alloc::{format, vec};

use portolan::addr::{Iova, PhysAddr, StreamId};
use portolan::inval::Gather;
use portolan::iommu::{
    Attach as _, AttachError, Domain as _, FaultAccess, FaultEvent, FaultReason, Iommu,
    IommuDomains as _, IommuError, ReservedKind,
};
use portolan::table::Access;

use super::kit::*;
use crate::promise::tests::{all_memory, promised};
use crate::virtio::Counts;
use portolan_spec::virtio::{self as spec, FAULT_BYTES, Request, config};

const ENDPOINT: u32 = FIRST.get();

fn attach(domain: u32, flags: u32) -> Request {
    Request::Attach { domain, endpoint: ENDPOINT, flags }
}

fn detach(domain: u32) -> Request {
    Request::Detach { domain, endpoint: ENDPOINT }
}

#[test]
fn a_unit_is_shown_with_its_sizes_of_pages() {
    let (unit, _domain) = Scripted::with(spec::F_PROBE).attached();
    let shown = format!("{unit:?}");
    assert!(shown.starts_with("Viommu { page_sizes: "), "{shown}");
}

#[test]
fn requests_are_counted_by_kind() {
    let device = Scripted::with(spec::F_PROBE);
    let (unit, domain) = device.attached();
    for page in 0..3 {
        mapped(&device, &domain, page * 0x2000, 0x1000);
    }
    for page in 0..2 {
        sync(&domain, &mut unmap(&domain, page * 0x2000, 0x1000)).unwrap();
    }
    for stream in 0..4 {
        unit.reserved(StreamId::new(stream)).unwrap();
    }
    unit.attach(SECOND, &domain).unwrap();
    unit.block(SECOND).unwrap();
    let counts = Counts { attach: 2, detach: 1, map: 3, unmap: 2, probe: 4 };
    assert_eq!(unit.counts(), counts);
    let mut named = vec![];
    unit.commands(&mut |name, count| named.push((name, count)));
    let wanted = [("ATTACH", 2), ("DETACH", 1), ("MAP", 3), ("UNMAP", 2), ("PROBE", 4)];
    assert_eq!(named, wanted);
}

#[test]
fn an_endpoint_moves_once_and_leaves_what_it_was_in() {
    let device = Scripted::new();
    let (unit, domain) = device.attached();
    unit.attach(FIRST, &domain).unwrap();
    assert_eq!(device.take(), []);
    let other = unit.domain().unwrap();
    unit.attach(FIRST, &other).unwrap();
    assert_eq!(device.take(), [attach(other.number(), 0)]);
    unit.block(FIRST).unwrap();
    assert_eq!(device.take(), [detach(other.number())]);
    unit.block(FIRST).unwrap();
    assert_eq!(device.take(), []);
    let elsewhere = Scripted::new().start().unwrap();
    assert_eq!(elsewhere.attach(FIRST, &domain), Err(AttachError::Mismatch));
    // An endpoint that is attached when the unit goes is detached.
    unit.attach(FIRST, &domain).unwrap();
    device.take();
    drop(unit);
    assert_eq!(device.take(), [detach(DOMAIN)]);
}

#[test]
fn an_endpoint_that_is_not_there_is_named() {
    let device = Scripted::with(spec::F_PROBE);
    let unit = device.start().unwrap();
    let domain = unit.domain().unwrap();
    let stream = FIRST;
    let no_such = Err(AttachError::NoSuchStream { stream });
    device.answer(&[Answer::Status(spec::S_NOENT); 2]);
    assert_eq!(unit.attach(FIRST, &domain), no_such);
    assert_eq!(unit.block(FIRST), no_such);
    let probe = Request::Probe { endpoint: ENDPOINT };
    assert_eq!(device.take(), [attach(DOMAIN, 0), probe]);
    // It is attached to nothing: the domain goes without a word.
    drop((unit, domain));
    assert_eq!(device.take(), []);
}

#[test]
fn an_attach_without_an_answer_is_detached_before_the_next() {
    let device = Scripted::new();
    let unit = device.start().unwrap();
    let (domain, other) = (unit.domain().unwrap(), unit.domain().unwrap());
    device.answer(&[Answer::Lost, Answer::Status(1)]);
    unit.attach(FIRST, &domain).unwrap_err();
    // Where it may be, it may also not be: a refusal is none.
    unit.attach(FIRST, &other).unwrap();
    let moved = [attach(DOMAIN, 0), detach(DOMAIN), attach(other.number(), 0)];
    assert_eq!(device.take(), moved);
}

#[test]
fn an_endpoint_that_cannot_get_all_of_its_domain_gets_none_of_it() {
    let device = Scripted::new();
    let unit = device.start().unwrap();
    let domain = unit.domain().unwrap();
    sync(&domain, &mut map(&domain, 0x1000, 0x1000)).unwrap();
    device.answer(&[Answer::Status(0), Answer::Status(1)]);
    unit.attach(FIRST, &domain).unwrap_err();
    let asked = [attach(DOMAIN, 0), told(0x1000, 0x1000), detach(DOMAIN)];
    assert_eq!(device.take(), asked);
}

#[test]
fn an_endpoint_passes_through_a_domain_of_its_own_where_the_device_can() {
    let device = Scripted::with(spec::F_BYPASS_CONFIG);
    let unit = device.start().unwrap();
    for _ in 0..2 {
        unit.pass_through(FIRST, all_memory()).unwrap();
    }
    assert_eq!(device.take(), [attach(DOMAIN, spec::ATTACH_BYPASS)]);
    let domain = unit.domain().unwrap();
    assert_ne!(domain.number(), DOMAIN);
    unit.block(FIRST).unwrap();
    assert_eq!(device.take(), [detach(DOMAIN)]);
    let unable = Scripted::new().start().unwrap();
    let refused = Err(AttachError::Iommu(IommuError::Unsupported));
    assert_eq!(unable.pass_through(FIRST, all_memory()), refused);
}

#[test]
fn a_device_that_says_nonsense_of_itself_is_not_started() {
    let started = |features: u64, offset: usize, value: u64| {
        let device = Scripted::with(features);
        device.set(offset, value);
        device.start().map(drop)
    };
    let nonsense = |offset, value| Err(IommuError::Nonsense { offset, value });
    let probe = spec::F_PROBE;
    for (features, offset, value) in [
        (0, config::PAGE_SIZE_MASK, 0),
        (0, config::DOMAIN_RANGE_END, u64::from(DOMAIN) - 1),
        (probe, config::PROBE_SIZE, 0x1_0001),
        (spec::F_BYPASS_CONFIG, config::BYPASS, 1),
    ] {
        assert_eq!(started(features, offset, value), nonsense(offset, value));
    }
    assert_eq!(started(probe, config::PROBE_SIZE, 0x1_0000), Ok(()));
    let one = u64::from(DOMAIN);
    assert_eq!(started(0, config::DOMAIN_RANGE_END, one), Ok(()));
    // Every size of page is nonsense of a device only if nothing else comes from it either.
    assert_eq!(started(0, config::PAGE_SIZE_MASK, u64::MAX), Ok(()));
    let gone = started(u64::MAX, config::PAGE_SIZE_MASK, u64::MAX);
    assert_eq!(gone, Err(IommuError::Gone));
    let device = Scripted::new();
    device.state().features = 0;
    assert_eq!(device.start().err(), Some(IommuError::Unsupported));
}

#[test]
fn reserved_addresses_are_those_of_the_properties() {
    let device = Scripted::with(spec::F_PROBE);
    let unit = device.start().unwrap();
    let property = |kind: u8, start: u64, last: u64| {
        let head = [[1, 0], [20, 0], [kind, 0], [0, 0]].concat();
        [head, start.to_le_bytes().into(), last.to_le_bytes().into()].concat()
    };
    device.state().properties =
        [property(1, 0xfee0_0000, 0xfeef_ffff), property(0, 0x1000, 0x1fff)].concat();
    let mut all = vec![];
    Iommu::reserved(&unit, FIRST, &mut |one| all.push((one.kind, one.range)));
    let wanted = [
        (ReservedKind::Interrupts, range(0xfee0_0000, 0x10_0000)),
        (ReservedKind::Unusable, range(0x1000, 0x1000)),
    ];
    assert_eq!(all, wanted);
    assert_eq!(device.take(), [Request::Probe { endpoint: ENDPOINT }]);
    // A device that cannot tell is not asked.
    let silent = Scripted::new();
    let unsupported = Err(AttachError::Iommu(IommuError::Unsupported));
    let unit = silent.start().unwrap();
    assert_eq!(unit.reserved(FIRST), unsupported);
    assert_eq!(silent.take(), []);
}

fn fault(reason: u8, flags: u32, endpoint: u32, address: u64) -> [u8; FAULT_BYTES] {
    let mut bytes = [0; FAULT_BYTES];
    bytes[0] = reason;
    bytes[4..8].copy_from_slice(&flags.to_le_bytes());
    bytes[8..12].copy_from_slice(&endpoint.to_le_bytes());
    bytes[16..].copy_from_slice(&address.to_le_bytes());
    bytes
}

/// Report of the unit on a record of the device: which access, where, and why.
fn said(
    device: &Scripted,
    unit: &Unit,
    (reason, flags, endpoint, address): (u8, u32, u32, u64),
) -> (Option<FaultAccess>, Option<u64>, FaultReason) {
    let record = fault(reason, flags, endpoint, address);
    device.state().faults.push_back((record, FAULT_BYTES));
    let event = unit.next_fault();
    let Ok(Some(FaultEvent::Fault(record))) = event else {
        panic!("{event:?}");
    };
    assert_eq!(record.stream, StreamId::new(endpoint));
    (record.access, record.iova.map(Iova::get), record.reason)
}

#[test]
fn faults_say_who_where_and_why() {
    let device = Scripted::new();
    let (unit, domain) = device.attached();
    let (memory, mut owed) = (promised(PhysAddr::new(0x9000), 0x1000), Gather::new());
    domain.map(Iova::new(0x1000), memory, Access::READ, &mut owed).unwrap();
    sync(&domain, &mut owed).unwrap();
    let [read, write] = [FaultAccess::Read, FaultAccess::Write].map(Some);
    let (reads, writes, at) = (spec::FAULT_READ, spec::FAULT_WRITE, spec::FAULT_ADDRESS);
    let mapping = |flags, address| said(&device, &unit, (spec::R_MAPPING, flags, 8, address));
    // The device does not say whether something is mapped there.
    let forbidden = (write, Some(0x1008), FaultReason::Permission);
    assert_eq!(mapping(writes | at, 0x1008), forbidden);
    let missing = FaultReason::NotMapped;
    assert_eq!(mapping(reads | at, 0x1008), (read, Some(0x1008), missing));
    assert_eq!(mapping(at, 0x2000), (None, Some(0x2000), missing));
    assert_eq!(mapping(at, 0x1000), (None, Some(0x1000), FaultReason::Permission));
    let domain = |flags| said(&device, &unit, (spec::R_DOMAIN, flags, 9, 0x2000));
    assert_eq!(domain(reads), (read, None, FaultReason::Blocked));
    // Nor, in some cases, why.
    let other = |code, endpoint| said(&device, &unit, (code, reads, endpoint, 0)).2;
    assert_eq!(other(0, 9), FaultReason::Blocked);
    assert_eq!(other(0, 8), FaultReason::Other { code: 0 });
    assert_eq!(other(7, 9), FaultReason::Other { code: 7 });
    assert_eq!(unit.next_fault(), Ok(None));
}

#[test]
fn a_fault_that_was_not_written_whole_says_nothing() {
    let device = Scripted::new();
    let unit = device.start().unwrap();
    let record = fault(spec::R_MAPPING, spec::FAULT_ADDRESS, 8, 0);
    let short = (record, FAULT_BYTES - 1);
    device.state().faults.push_back(short);
    let (offset, value) = (0, FAULT_BYTES as u64 - 1);
    let nonsense = Err(IommuError::Nonsense { offset, value });
    assert_eq!(unit.next_fault(), nonsense);
}
