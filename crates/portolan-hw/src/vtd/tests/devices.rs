//! Devices with TLBs of their own: their invalidations, and devices that do not answer.

use crate::promise::tests::all_memory;
use alloc::sync::Arc;
use alloc::vec::Vec;

use portolan::addr::{Pasid, StreamId};
use portolan::inval::{Preference, Quirks};
use portolan::iommu::{Attach, AttachError, Awaited, Domain as _, Iommu as _, IommuError};
use portolan::iopf::{GroupId, ReplyName, ReplyTo, Responder as _, Response};
use portolan::table::format::{VtdFirstLevels, VtdLevels};

use super::kit::{CAP, ECAP, Iommu, Kit, SCALABLE, new_machine};
use super::{BASE, PAGE, STREAM, config, legacy, map, unmap};
use crate::chassis::BatchEnd;
use crate::chassis::tests::suite::Driven;
use crate::vtd::command::CommandKind as Kind;
use crate::vtd::control::Way;
use crate::vtd::{DeviceTlb, InterruptEntries, Mode};
use portolan_chips::inject::{Drain, RegisterFaults};
use portolan_chips::vtd::VtdMachine;
use portolan_spec::vtd::descriptor::{TYPE, Words, kind, wait};
use portolan_spec::vtd::reg::{self, prs};

const FIRST: u64 = CAP | 1 << 56;
const WITH_TLBS: u64 = ECAP | 1 << 2;
const DRAINS: u64 = 1 << 42;
const PASID: Pasid = Pasid::new(0x47);

fn device(stream: StreamId) -> DeviceTlb {
    let physical = stream.get() as u16;
    DeviceTlb { depth: 4, physical, twice: false }
}

fn is(words: &Words, of: u64) -> bool {
    TYPE.of(words[0]) == of
}

/// A domain that invalidates each page by itself, with a device that has a TLB.
fn by_page(unit: &Iommu) -> super::Second {
    let quirks =
        Quirks { preference: Preference::ByPage, context_above: u64::MAX, ..Quirks::default() };
    let caps = unit.second_capabilities();
    unit.second_stage_as(VtdLevels::Four, caps, quirks).unwrap()
}

#[test]
fn few_pages_are_forgotten_by_devices_one_by_one_and_many_at_once() {
    for (pages, exact) in [(1, true), (3, true), (64, true), (65, false), (200, false)] {
        let machine = new_machine(CAP, WITH_TLBS);
        let unit = machine.enable(legacy()).unwrap();
        unit.use_device_tlb(STREAM, device(STREAM), all_memory()).unwrap();
        let domain = Arc::new(by_page(&unit));
        unit.attach(STREAM, &domain).unwrap();
        domain.sync(&mut map(&*domain, pages)).unwrap();
        machine.take();
        domain.sync(&mut unmap(&*domain, pages)).unwrap();
        let sent = machine.commands();
        let told = sent.iter().filter(|words| is(words, kind::DEVICE_TLB));
        let told: Vec<_> = told.map(|words| words[1]).collect();
        if exact {
            let wanted = (0..pages).map(|n| BASE.get() + n * PAGE);
            assert!(told.iter().copied().eq(wanted), "{pages}: {told:x?}");
        } else {
            assert_eq!(told, [0x7fff_ffff_ffff_f001], "{pages}");
        }
    }
}

/// Intel's QuickAssist kept what it was asked to forget once (Linux e65a6897be5e): at an unmap, and when its
/// stream moves.
#[test]
fn a_device_that_keeps_translations_after_one_request_is_asked_twice() {
    for (twice, times) in [(false, 1), (true, 2)] {
        let machine = new_machine(CAP, WITH_TLBS);
        let unit = machine.enable(legacy()).unwrap();
        let tlb = DeviceTlb { twice, ..device(STREAM) };
        unit.use_device_tlb(STREAM, tlb, all_memory()).unwrap();
        let domain = Arc::new(by_page(&unit));
        unit.attach(STREAM, &domain).unwrap();
        domain.sync(&mut map(&*domain, 1)).unwrap();
        let told = || {
            let sent = machine.commands();
            let told = sent.iter().filter(|words| is(words, kind::DEVICE_TLB));
            told.map(|words| words[1]).collect::<Vec<_>>()
        };
        told();
        domain.sync(&mut unmap(&*domain, 1)).unwrap();
        assert_eq!(told(), alloc::vec![BASE.get(); times]);
        unit.block(STREAM).unwrap();
        assert_eq!(told(), alloc::vec![0x7fff_ffff_ffff_f001; times]);
    }
}

/// So many pages of each of two devices: the commands to both count.
#[test]
fn what_several_devices_have_to_forget_is_limited_in_sum() {
    let streams = VtdMachine::STREAMS;
    for (pages, exact) in [(32, true), (33, false)] {
        let machine = new_machine(CAP, WITH_TLBS);
        let unit = machine.enable(legacy()).unwrap();
        let domain = Arc::new(by_page(&unit));
        for stream in streams {
            unit.use_device_tlb(stream, device(stream), all_memory()).unwrap();
            unit.attach(stream, &domain).unwrap();
        }
        domain.sync(&mut map(&*domain, pages)).unwrap();
        machine.take();
        domain.sync(&mut unmap(&*domain, pages)).unwrap();
        let sent = machine.commands();
        for stream in streams {
            let own = |words: &&Words| words[0] >> 32 == u64::from(stream.get());
            let told = sent.iter().filter(|words| is(words, kind::DEVICE_TLB));
            let told: Vec<_> = told.filter(own).map(|words| words[1]).collect();
            if exact {
                let wanted = (0..pages).map(|n| BASE.get() + n * PAGE);
                assert!(told.iter().copied().eq(wanted), "{pages}: {told:x?}");
            } else {
                assert_eq!(told, [0x7fff_ffff_ffff_f001], "{pages}");
            }
        }
    }
}

#[test]
fn a_device_that_never_answers_can_be_left_behind_and_come_back() {
    let other = StreamId::new(0x0210);
    for (mode, ecap) in [(Mode::Legacy, WITH_TLBS), (Mode::Scalable, SCALABLE)] {
        let machine = new_machine(FIRST, ecap);
        let unit = machine.enable(config(mode)).unwrap();
        let domain = Arc::new(unit.second_stage().unwrap());
        for stream in [STREAM, other] {
            unit.use_device_tlb(stream, device(stream), all_memory()).unwrap();
            unit.attach(stream, &domain).unwrap();
        }
        domain.sync(&mut map(&*domain, 4)).unwrap();
        let silent = STREAM.get() as u16;
        machine.silent(silent);
        let mut owed = unmap(&*domain, 4);
        let error = IommuError::from(domain.sync(&mut owed).unwrap_err());
        assert_eq!(error, IommuError::DeviceSilent { stream: Some(STREAM) });
        // Blocked as far as the hardware looks, but its TLB may hold what it held.
        unit.block(STREAM).unwrap_err();
        domain.sync(&mut owed).unwrap_err();
        unit.device_gone(STREAM).unwrap();
        // No caller asks it any more.
        domain.sync(&mut owed).unwrap();
        unit.block(STREAM).unwrap();
        unit.block(other).unwrap();
        assert_eq!(Arc::strong_count(&domain), 1);
        machine.wrong(RegisterFaults::NONE);
        machine.take();
        unit.use_device_tlb(STREAM, device(STREAM), all_memory()).unwrap();
        unit.attach(STREAM, &domain).unwrap();
        let asked = |words: &Words| is(words, kind::DEVICE_TLB);
        assert!(machine.commands().first().is_some_and(asked));
    }
}

#[test]
fn a_device_that_is_gone_while_the_unit_is_stuck_keeps_its_domain() {
    let machine = new_machine(CAP, WITH_TLBS);
    let unit = machine.enable(legacy()).unwrap();
    let domain = Arc::new(unit.second_stage().unwrap());
    unit.use_device_tlb(STREAM, device(STREAM), all_memory()).unwrap();
    unit.attach(STREAM, &domain).unwrap();
    machine.wrong(RegisterFaults::STUCK);
    unit.device_gone(STREAM).unwrap_err();
    assert_eq!(Arc::strong_count(&domain), 2);
    let context = machine.word(machine.reg(reg::RTADDR) + 16) & !0xfff;
    assert_eq!(machine.word(context + 8 * 16), 0);
    machine.wrong(RegisterFaults::NONE);
    unit.device_gone(STREAM).unwrap();
    assert_eq!(Arc::strong_count(&domain), 1);
    // Of a stream without a home there is nothing to leave behind.
    machine.take();
    unit.device_gone(StreamId::new(0x0333)).unwrap();
    assert!(machine.take().is_empty());
    let stream = StreamId::new(0x1_0000);
    let refused = Err(AttachError::NoSuchStream { stream });
    assert_eq!(unit.device_gone(stream), refused);
}

/// Flags of the wait descriptors, with the number of other descriptors before each.
fn waits(machine: &VtdMachine) -> Vec<u64> {
    let waits = machine.take_commands().map(|words| words[0]);
    let waits = waits.filter(|word| TYPE.of(*word) == kind::WAIT);
    waits.map(|word| wait::PD.of(word)).collect()
}

#[test]
fn page_requests_on_their_way_are_drained_when_a_pasid_is_left() {
    let drains: [(u64, &[u64]); 2] = [(SCALABLE | DRAINS, &[0, 0, 1, 0]), (SCALABLE, &[0, 0, 0])];
    for (ecap, wanted) in drains {
        let machine = new_machine(FIRST, ecap);
        let unit = machine.enable(config(Mode::Scalable)).unwrap();
        unit.read_page_requests(0).unwrap();
        unit.use_device_tlb(STREAM, device(STREAM), all_memory()).unwrap();
        let domain = Arc::new(unit.first_stage(VtdFirstLevels::Four).unwrap());
        unit.attach_pasid(STREAM, PASID, &domain).unwrap();
        assert!(waits(&machine).iter().all(|drains| *drains == 0));
        unit.block_pasid(STREAM, PASID).unwrap();
        // Behind the invalidation of the device's TLB, in front of the wait for all of it.
        assert_eq!(waits(&machine), wanted);
    }
}

#[test]
fn a_drain_is_not_complete_while_requests_were_lost() {
    let machine = new_machine(FIRST, SCALABLE | DRAINS);
    let unit = machine.enable(config(Mode::Scalable)).unwrap();
    unit.read_page_requests(0).unwrap();
    unit.use_device_tlb(STREAM, device(STREAM), all_memory()).unwrap();
    let domain = Arc::new(unit.first_stage(VtdFirstLevels::Four).unwrap());
    unit.attach_pasid(STREAM, PASID, &domain).unwrap();
    machine.unit().raise(0, prs::PRO);
    let AttachError::Iommu(IommuError::TimedOut { awaited, .. }) =
        unit.block_pasid(STREAM, PASID).unwrap_err()
    else {
        panic!("not for want of a reader");
    };
    assert_eq!(awaited, Awaited::Turn);
    assert_eq!(Arc::strong_count(&domain), 2);
    while unit.next_page_request().unwrap().is_some() {}
    unit.block_pasid(STREAM, PASID).unwrap();
    assert_eq!(Arc::strong_count(&domain), 1);
}

#[test]
fn cached_interrupt_entries_are_forgotten_through_the_units_queue() {
    let machine = new_machine(CAP, ECAP);
    let unit = machine.enable(legacy()).unwrap();
    machine.take();
    let which = InterruptEntries::Some { index: 0x40, lg2_count: 2 };
    unit.queue().invalidate_interrupt_entries(which).unwrap();
    assert_eq!(machine.commands(), [[0x40_1000_0014, 0]]);
    assert_eq!(unit.counts().of(Kind::InterruptEntries), 1);
    machine.wrong(RegisterFaults::STUCK);
    let all = InterruptEntries::All;
    let stuck = unit.queue().invalidate_interrupt_entries(all);
    assert!(matches!(stuck, Err(IommuError::TimedOut { .. })));
    for ecap in [ECAP & !(1 << 3), ECAP & !2] {
        let machine = new_machine(CAP, ecap);
        let unit = machine.enable(legacy()).unwrap();
        let refused = unit.queue().invalidate_interrupt_entries(all);
        assert_eq!(refused, Err(IommuError::Unsupported));
    }
}

#[test]
fn a_unit_that_goes_on_slowly_is_not_broken_and_one_that_stands_is() {
    let machine = new_machine(CAP, ECAP);
    let unit = machine.enable(legacy()).unwrap();
    let domain = Arc::new(by_page(&unit));
    unit.attach(STREAM, &domain).unwrap();
    domain.sync(&mut map(&*domain, 300)).unwrap();
    // More than the whole limit for every second descriptor, and more than the ring holds.
    machine.drain(Drain::OneEach(6_000_000));
    domain.sync(&mut unmap(&*domain, 300)).unwrap();
    domain.sync(&mut map(&*domain, 1)).unwrap();
    let mut owed = unmap(&*domain, 1);
    machine.wrong(RegisterFaults::STUCK);
    let error = IommuError::from(domain.sync(&mut owed).unwrap_err());
    let IommuError::TimedOut { awaited, waited } = error else {
        panic!("{error}");
    };
    assert_eq!(awaited, Awaited::Completion);
    let limit = config(Mode::Legacy).limit.get();
    assert!(waited.get() <= limit + limit / 10, "{waited:?}");
    machine.wrong(RegisterFaults::NONE);
    domain.sync(&mut owed).unwrap();
}

#[test]
fn an_answer_is_sent_once_though_another_device_times_out_before_it() {
    let machine = new_machine(FIRST, SCALABLE);
    let unit = machine.enable(config(Mode::Scalable)).unwrap();
    unit.read_page_requests(0).unwrap();
    let core = unit.queue().0;
    let Way::Ring(ring) = &core.way else {
        panic!("no queue");
    };
    let asks = (Kind::DeviceTlb, [kind::DEVICE_TLB | 7 << 32, 0]);
    machine.silent(7);
    machine.take();
    ring.place(&*core, &mut None, &[asks], BatchEnd::More).unwrap();
    let to =
        ReplyTo { stream: STREAM, pasid: Some(PASID), name: ReplyName::Group(GroupId::new(5)) };
    unit.respond(to, Response::Success).unwrap();
    let sent = machine.commands();
    let answers = sent.iter().filter(|words| is(words, kind::RESPONSE));
    assert_eq!(answers.count(), 1);
}
