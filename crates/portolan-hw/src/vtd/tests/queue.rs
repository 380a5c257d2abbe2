//! The queue: wrap, errors at any point, and a unit that never drains.

use crate::promise::tests::all_memory;
use alloc::sync::Arc;
use alloc::vec;

use portolan::addr::StreamId;
use portolan::inval::{Preference, Quirks};
use portolan::iommu::{Attach, AttachError, Domain, Iommu as _, IommuError};
use portolan::table::format::VtdLevels;

use super::kit::{CAP, ECAP, Kit, REFUSED, new_machine};
use super::{STREAM, attached, legacy, map, unmap};
use crate::chassis::tests::suite::{Driven, failure};
use crate::chassis::{BatchEnd, Outcome};
use crate::vtd::command::CommandKind as Kind;
use crate::vtd::control::Way;
use crate::vtd::{Config, DeviceTlb, Invalidation};
use portolan_chips::inject::RegisterFaults;
use portolan_chips::machine::Event;
use portolan_spec::vtd::descriptor::kind;
use portolan_spec::vtd::reg::{self, fsts};

#[test]
fn the_tail_wraps_to_the_start_and_never_points_behind_the_end() {
    let machine = new_machine(CAP, ECAP);
    let (unit, _) = attached(&machine, legacy());
    let quirks =
        Quirks { preference: Preference::ByPage, context_above: u64::MAX, ..Quirks::default() };
    let caps = unit.second_capabilities();
    let domain = unit.second_stage_as(VtdLevels::Four, caps, quirks).unwrap();
    for pages in [511, 3, 253, 256, 255] {
        domain.sync(&mut map(&domain, pages)).unwrap();
        domain.sync(&mut unmap(&domain, pages)).unwrap();
    }
    let tails = machine.take().into_iter().filter_map(|event| match event {
        Event::Write(reg::IQT, tail) => Some(tail),
        _ => None,
    });
    let tails: vec::Vec<_> = tails.collect();
    assert!(tails.iter().all(|tail| *tail < 4096), "{tails:x?}");
    assert!(tails.windows(2).filter(|two| two[1] < two[0]).count() >= 3);
}

#[test]
fn a_refused_descriptor_is_told_to_its_submitter_and_the_queue_goes_on() {
    for which in [kind::IOTLB, kind::WAIT] {
        let machine = new_machine(CAP, ECAP);
        let (unit, domain) = attached(&machine, legacy());
        domain.sync(&mut map(&*domain, 4)).unwrap();
        let mut owed = unmap(&*domain, 4);
        machine.refuse_kind(which, 1, REFUSED);
        let error = failure(&*domain, &mut owed);
        assert_eq!(error, IommuError::Refused { code: 3 });
        assert_eq!(machine.reg32(reg::FSTS) & fsts::IQE, 0);
        assert_eq!(machine.reg(reg::IQH), machine.reg(reg::IQT));
        // The debt is still owed, and can be paid.
        domain.sync(&mut owed).unwrap();
        assert_eq!(unit.counts().of(Kind::Replaced), 1);
    }
}

#[test]
fn a_device_that_times_out_is_told_and_others_go_on() {
    let machine = new_machine(CAP, ECAP | 1 << 2);
    let unit = machine.enable(legacy()).unwrap();
    let device = DeviceTlb { depth: 4, physical: STREAM.get() as u16, twice: false };
    unit.use_device_tlb(STREAM, device, all_memory()).unwrap();
    let domain = Arc::new(unit.second_stage().unwrap());
    unit.attach(STREAM, &domain).unwrap();
    domain.sync(&mut map(&*domain, 1)).unwrap();
    let mut owed = unmap(&*domain, 1);
    machine.device_times_out();
    let error = failure(&*domain, &mut owed);
    assert_eq!(error, IommuError::DeviceSilent { stream: None });
    assert_eq!(machine.reg32(reg::FSTS), 0);
    domain.sync(&mut owed).unwrap();
}

#[test]
fn a_completion_error_is_cleared_and_harms_nobody() {
    let machine = new_machine(CAP, ECAP);
    let (_unit, domain) = attached(&machine, legacy());
    domain.sync(&mut map(&*domain, 1)).unwrap();
    machine.refuse_kind(kind::IOTLB, 1, REFUSED);
    machine.unit().raise(fsts::ICE | fsts::PFO, 0);
    let mut owed = unmap(&*domain, 1);
    let error = failure(&*domain, &mut owed);
    assert!(matches!(error, IommuError::Refused { .. }));
    // Overflow of faults does not matter here.
    assert_eq!(machine.reg32(reg::FSTS), fsts::PFO);
}

#[test]
fn registers_serve_without_a_queue_and_not_beside_one() {
    let machine = new_machine(CAP, ECAP & !2);
    let (unit, domain) = attached(&machine, legacy());
    domain.sync(&mut map(&*domain, 1)).unwrap();
    assert!(machine.take().is_empty() || unit.counts().of(Kind::Wait) == 0);
    domain.sync(&mut unmap(&*domain, 1)).unwrap();
    let log = machine.take();
    // Address with leaf hint, then page-selective with both drains.
    let id = domain.context().get();
    let command = 1 << 63 | 3 << 60 | 3 << 48 | u64::from(id) << 32;
    assert!(log.contains(&Event::Write(0xf8, command)), "{log:x?}");
    assert!(log.iter().any(|event| matches!(event, Event::Write(0xf0, a) if a >> 12 == 0x40000)));
    // Another owner turned the queue on.
    machine.command(&[1 << 26]);
    domain.sync(&mut map(&*domain, 1)).unwrap();
    let mut owed = unmap(&*domain, 1);
    let error = failure(&*domain, &mut owed);
    assert_eq!(error, IommuError::Unsupported);
}

#[test]
fn a_command_that_registers_refuse_is_told_to_who_gave_it() {
    let machine = new_machine(CAP, ECAP & !2);
    let (unit, domain) = attached(&machine, legacy());
    domain.sync(&mut map(&*domain, 1)).unwrap();
    let mut owed = unmap(&*domain, 1);
    // What was done is told in two bits; nothing was.
    machine.lie(0xf8, 3 << 57, 0);
    let error = failure(&*domain, &mut owed);
    assert_eq!(error, IommuError::RefusedByRegister { offset: 0xf8 });
    machine.lie(reg::CCMD, 3 << 59, 0);
    domain.sync(&mut owed).unwrap();
    let refused = AttachError::Iommu(IommuError::RefusedByRegister { offset: reg::CCMD });
    assert_eq!(unit.block(STREAM), Err(refused));
    machine.wrong(RegisterFaults::NONE);
    unit.block(STREAM).unwrap();
}

#[test]
fn streams_are_requester_ids() {
    let machine = new_machine(CAP, ECAP);
    let invalidation = Invalidation::Registers;
    let config = Config { invalidation, ..legacy() };
    let unit = machine.enable(config).unwrap();
    let stream = StreamId::new(0x1_0000);
    let refused = Err(AttachError::NoSuchStream { stream });
    assert_eq!(unit.block(stream), refused);
}

#[test]
fn a_time_out_repaired_by_somebody_else_is_told_to_who_sent_it() {
    let machine = new_machine(CAP, ECAP | 1 << 2);
    let unit = machine.enable(legacy()).unwrap();
    let core = unit.queue().0;
    let Way::Ring(ring) = &core.way else {
        panic!("no queue");
    };
    let asks = |ticket: &mut _, stream: u64| {
        let command = (Kind::DeviceTlb, [kind::DEVICE_TLB | stream << 32, 0]);
        ring.place(&*core, ticket, &[command], BatchEnd::More).unwrap();
    };
    let end = |mut ticket, asked: Option<u16>| {
        let asks = |stream: Option<u16>| asked.is_some() && (stream.is_none() || stream == asked);
        ring.finish(&*core, &mut ticket, &[], &asks)
    };
    let mut first = None;
    machine.silent(7);
    asks(&mut first, 7);
    // Before the first has sent its wait, the second finds the queue stopped and sets it going.
    assert_eq!(end(None, None), Ok(Outcome::Again));
    let silent = Err(IommuError::DeviceSilent { stream: Some(StreamId::new(7)) });
    assert_eq!(end(first, Some(7)), silent);
    // Who comes later has nothing to do with it.
    assert_eq!(end(None, Some(7)), Ok(Outcome::Done));
    // Where the unit does not tell which, it may have been any that was asked.
    let mut third = None;
    machine.device_times_out();
    asks(&mut third, 8);
    assert_eq!(end(None, None), Ok(Outcome::Again));
    let silent = Err(IommuError::DeviceSilent { stream: None });
    assert_eq!(end(third, Some(8)), silent);
}
