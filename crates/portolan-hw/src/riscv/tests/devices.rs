//! Devices with translations of their own: the time and order of their commands, devices that do
//! not answer, and page requests.

use crate::promise::tests::all_memory;
use alloc::sync::Arc;
use alloc::vec::Vec;

use portolan::addr::{Iova, Pasid, PhysAddr, StreamId};
use portolan::iommu::{Attach as _, AttachError, DeviceTlb, Domain as _, Iommu as _, IommuError};
use portolan::iopf::{
    GroupId, Permissions, Place, RawPageRequest, ReplyName, ReplyTo, RequestKind, Responder as _,
    Response, StallTag,
};
use portolan::table::format::RiscvLevels;
use portolan_chips::inject::RegisterFaults;
use portolan_chips::riscv::{RiscvIdentification, RiscvMachine as Machine};
use portolan_sim::decode::AccessKind;

use super::machine::{Iommu, Riscv as _, new_machine, with};
use super::{STREAM, Tables, config};
use crate::chassis::Words;
use crate::chassis::tests::suite::{BASE, Driven, PAGE, map, unmap};
use crate::riscv::{Config, PageRequestEvent, Signal};
use portolan_spec::riscv::command::{OPCODE, opcode};
use portolan_spec::riscv::reg::{self, queue};

const OTHER: StreamId = StreamId::new(0x29);
const TLB: DeviceTlb = DeviceTlb { depth: 1, physical: 0, twice: false };
/// ATS.INVAL of all of [`STREAM`].
const ALL: Words = [0x0000_2800_0000_0004, 0x7fff_ffff_ffff_f800];

fn machine() -> Machine {
    with(RiscvIdentification::able().pasids().ats())
}

fn asking() -> Config {
    Config { requests_lg2: Some(8), ..config() }
}

/// A unit with one stream, whose device keeps translations, attached to one domain, and no commands.
fn attached(machine: &Machine) -> (Iommu, Arc<Tables>) {
    let unit = machine.enable(asking()).unwrap();
    let domain = Arc::new(unit.first_stage(RiscvLevels::Four).unwrap());
    unit.use_device_tlb(STREAM, TLB, all_memory()).unwrap();
    unit.attach(STREAM, &domain).unwrap();
    machine.commands();
    (unit, domain)
}

fn kept_as(machine: &Machine, pasid: Option<u32>, iova: u64) -> Option<u64> {
    let (unit, pasid) = (machine.unit(), pasid.map(Pasid::new));
    let pa = unit.ats_access(STREAM, pasid, Iova::new(iova), AccessKind::Write);
    pa.map(PhysAddr::get)
}

fn kept(machine: &Machine, iova: u64) -> Option<u64> {
    kept_as(machine, None, iova)
}

fn asked(machine: &Machine) -> Vec<Words> {
    let all = machine.commands().into_iter();
    all.filter(|words| OPCODE.of(words[0]) == opcode::DEVICE).collect()
}

/// ATS.INVAL that never ends: the unit says so at the fence behind it.
fn silence(machine: &Machine, mut times: u32) {
    machine.wrong(RegisterFaults::NONE);
    let mut asked = false;
    machine.refuse(move |words| {
        let fence = OPCODE.of(words[0]) == opcode::FENCE;
        asked |= OPCODE.of(words[0]) == opcode::DEVICE;
        let silent = asked && fence && times > 0;
        if silent {
            (times, asked) = (times - 1, false);
        }
        silent.then_some(queue::TIME_OUT)
    });
}

#[test]
fn a_unit_without_them_refuses() {
    let machine = new_machine();
    let refused = machine.enable(asking()).err();
    assert_eq!(refused, Some(IommuError::Unsupported));
    let unit = machine.enable(config()).unwrap();
    let unsupported = Err(IommuError::Unsupported);
    assert_eq!(unit.use_device_tlb(STREAM, TLB, all_memory()), unsupported);
    assert_eq!(unit.next_page_request(), Err(IommuError::Unsupported));
    let machine = self::machine();
    let unit = machine.enable(config()).unwrap();
    assert_eq!(unit.use_device_tlb(StreamId::new(64), TLB, all_memory()), unsupported);
    unit.enable_pasids(STREAM, 1).unwrap();
    assert_eq!(unit.use_device_tlb(STREAM, TLB, all_memory()), unsupported);
    // Without the queue a device may keep translations, and may not ask.
    unit.use_device_tlb(OTHER, TLB, all_memory()).unwrap();
    let domain = Arc::new(unit.first_stage(RiscvLevels::Four).unwrap());
    unit.attach(OTHER, &domain).unwrap();
    assert_eq!(machine.context(0x29)[0], 0b011);
}

#[test]
fn devices_forget_after_the_unit_and_before_the_unmap_is_complete() {
    let machine = machine();
    let (unit, domain) = attached(&machine);
    assert_eq!(machine.context(0x28)[0], 0b111);
    domain.sync(&mut map(&*domain, 3)).unwrap();
    let here = BASE.get();
    assert_eq!(kept(&machine, here), Some(0x1000));
    assert_eq!(kept(&machine, here + PAGE), Some(0x2000));
    assert_eq!(machine.commands(), Vec::<Words>::new());
    domain.sync(&mut unmap(&*domain, 1)).unwrap();
    let page = [0x0000_2800_0000_0004, here];
    assert_eq!(machine.commands(), [[0x1_0000_1401, here >> 2], page]);
    assert_eq!(kept(&machine, here), None);
    assert_eq!(kept(&machine, here + PAGE), Some(0x2000));
    domain.sync(&mut map(&*domain, 1)).unwrap();
    domain.sync(&mut unmap(&*domain, 3)).unwrap();
    // Three pages are in four.
    let four = [0x0000_2800_0000_0004, here | 0x1800];
    assert_eq!(asked(&machine), [four]);
    assert_eq!(kept(&machine, here + PAGE), None);
    // The device is not asked for a domain that it has left.
    unit.block(STREAM).unwrap();
    machine.commands();
    domain.sync(&mut map(&*domain, 1)).unwrap();
    domain.sync(&mut unmap(&*domain, 1)).unwrap();
    assert_eq!(asked(&machine), Vec::<Words>::new());
    machine.expect_obedience();
}

/// With any stages: the context leads nowhere when the device is asked, and lets it answer.
#[test]
fn what_a_device_got_ends_with_each_move() {
    let machine = machine();
    let unit = machine.enable(asking()).unwrap();
    unit.use_device_tlb(STREAM, TLB, all_memory()).unwrap();
    let first = Arc::new(unit.first_stage(RiscvLevels::Four).unwrap());
    let second = Arc::new(unit.second_stage(RiscvLevels::Three).unwrap());
    first.sync(&mut map(&*first, 1)).unwrap();
    let here = BASE.get();
    for _ in 0..2 {
        unit.attach(STREAM, &first).unwrap();
        assert_eq!(asked(&machine), [ALL]);
        assert_eq!(kept(&machine, here), Some(0x1000));
        unit.attach(STREAM, &second).unwrap();
        assert_eq!(asked(&machine), [ALL]);
        assert_eq!(kept(&machine, here), None);
        unit.attach(STREAM, &first).unwrap();
        assert_eq!(asked(&machine), [ALL]);
        assert_eq!(kept(&machine, here), Some(0x1000));
        // A stream that passes through gives its device nothing.
        unit.pass_through(STREAM, all_memory()).unwrap();
        assert_eq!(asked(&machine), [ALL]);
        assert_eq!(machine.context(0x28)[0], 1);
        assert_eq!(kept(&machine, here), None);
        unit.attach(STREAM, &first).unwrap();
        assert_eq!(asked(&machine), Vec::<Words>::new());
        assert_eq!(kept(&machine, here), Some(0x1000));
        unit.block(STREAM).unwrap();
        assert_eq!(asked(&machine), [ALL]);
        assert_eq!(kept(&machine, here), None);
        unit.attach(STREAM, &second).unwrap();
        assert_eq!(asked(&machine), Vec::<Words>::new());
    }
    unit.block(STREAM).unwrap();
    assert_eq!(Arc::strong_count(&first), 1);
    machine.expect_obedience();
}

#[test]
fn each_address_space_is_forgotten_by_itself() {
    let machine = machine();
    let unit = machine.enable(asking()).unwrap();
    unit.use_device_tlb(STREAM, TLB, all_memory()).unwrap();
    unit.enable_pasids(STREAM, 4).unwrap();
    let [zero, one] = [0, 1].map(|_| Arc::new(unit.first_stage(RiscvLevels::Four).unwrap()));
    unit.attach(STREAM, &zero).unwrap();
    unit.attach_pasid(STREAM, Pasid::new(1), &one).unwrap();
    let here = BASE.get();
    for domain in [&zero, &one] {
        domain.sync(&mut map(&**domain, 1)).unwrap();
    }
    // What names PASID 0 is of the same as what names none.
    let all = [None, Some(0), Some(1)];
    let reach = || all.map(|pasid| kept_as(&machine, pasid, here).is_some());
    assert_eq!(reach(), [true; 3]);
    machine.commands();
    zero.sync(&mut unmap(&*zero, 1)).unwrap();
    let none = [0x0000_2800_0000_0004, here];
    let named = |pasid: u64| [0x0000_2801_0000_0004 | pasid << 12, here];
    assert_eq!(asked(&machine), [none, named(0)]);
    assert_eq!(reach(), [false, false, true]);
    unit.block_pasid(STREAM, Pasid::new(1)).unwrap();
    assert_eq!(asked(&machine), [[named(1)[0], ALL[1]]]);
    assert_eq!(reach(), [false; 3]);
    machine.expect_obedience();
}

#[test]
fn a_device_that_never_answers_can_be_left_behind_and_come_back() {
    for lg2 in [0, 4] {
        let machine = machine();
        let unit = machine.enable(asking()).unwrap();
        let domain = Arc::new(unit.first_stage(RiscvLevels::Four).unwrap());
        unit.use_device_tlb(STREAM, TLB, all_memory()).unwrap();
        if lg2 > 0 {
            unit.enable_pasids(STREAM, lg2).unwrap();
        }
        unit.attach(STREAM, &domain).unwrap();
        unit.attach(OTHER, &domain).unwrap();
        domain.sync(&mut map(&*domain, 1)).unwrap();
        assert_eq!(kept(&machine, BASE.get()), Some(0x1000));
        let mut owed = unmap(&*domain, 1);
        silence(&machine, u32::MAX);
        let silent = IommuError::DeviceSilent { stream: None };
        let error = IommuError::from(domain.sync(&mut owed).unwrap_err());
        assert_eq!(error, silent);
        // Blocked as far as the hardware looks, and kept, as the device may still have it.
        assert_eq!(unit.block(STREAM), Err(AttachError::Iommu(silent)));
        assert_eq!(machine.read(STREAM, BASE.get()), None);
        assert_eq!(Arc::strong_count(&domain), 3);
        unit.device_gone(STREAM).unwrap();
        assert_eq!(kept(&machine, BASE.get()), None);
        // No caller asks it any more.
        domain.sync(&mut owed).unwrap();
        unit.block(STREAM).unwrap();
        unit.block(OTHER).unwrap();
        assert_eq!(Arc::strong_count(&domain), 1);
        machine.wrong(RegisterFaults::NONE);
        silence(&machine, 0);
        machine.commands();
        unit.use_device_tlb(STREAM, TLB, all_memory()).unwrap();
        unit.attach(STREAM, &domain).unwrap();
        assert_eq!(asked(&machine), [ALL]);
        assert_eq!(kept(&machine, BASE.get()), None);
    }
}

/// One time-out may have been another device's, and a move that failed is repeated.
#[test]
fn a_device_that_was_silent_once_is_asked_again() {
    let machine = machine();
    let (unit, domain) = attached(&machine);
    domain.sync(&mut map(&*domain, 1)).unwrap();
    assert_eq!(kept(&machine, BASE.get()), Some(0x1000));
    let mut owed = unmap(&*domain, 1);
    silence(&machine, 1);
    domain.sync(&mut owed).unwrap();
    assert_eq!(asked(&machine).len(), 2);
    assert_eq!(kept(&machine, BASE.get()), None);
    domain.sync(&mut map(&*domain, 1)).unwrap();
    assert_eq!(kept(&machine, BASE.get()), Some(0x1000));
    silence(&machine, 2);
    unit.block(STREAM).unwrap_err();
    assert_eq!(Arc::strong_count(&domain), 2);
    unit.block(STREAM).unwrap();
    assert_eq!(Arc::strong_count(&domain), 1);
    assert_eq!(kept(&machine, BASE.get()), None);
    let empty = Arc::new(unit.first_stage(RiscvLevels::Four).unwrap());
    unit.attach(STREAM, &empty).unwrap();
    assert_eq!(kept(&machine, BASE.get()), None);
    machine.expect_obedience();
}

fn raw(group: u16, place: Place) -> RawPageRequest {
    let group = GroupId::new(group);
    RawPageRequest {
        stream: STREAM,
        pasid: None,
        iova: BASE,
        wants: Permissions::READ,
        kind: RequestKind::Pri { group, place },
    }
}

fn read(unit: &Iommu) -> Option<PageRequestEvent> {
    unit.next_page_request().unwrap()
}

#[test]
fn page_requests_are_read_in_order_and_overflow_is_told() {
    let machine = machine();
    let (unit, _domain) = attached(&machine);
    let ask = |n: u16| machine.unit().ask(raw(n, Place::Last));
    for _ in 0..3 {
        (0..200).for_each(ask);
        for n in 0..200 {
            let wanted = PageRequestEvent::Request(raw(n, Place::Last));
            assert_eq!(read(&unit), Some(wanted));
        }
        assert_eq!(read(&unit), None);
    }
    machine.unit().told();
    (0..257).for_each(ask);
    let told: Vec<_> = machine.unit().told().into_iter().map(|of| of.1).collect();
    assert_eq!(told, [Response::Success; 2]);
    for _ in 0..255 {
        assert!(matches!(read(&unit), Some(PageRequestEvent::Request(_))));
    }
    assert_eq!(read(&unit), Some(PageRequestEvent::Lost));
    assert_eq!(read(&unit), None);
    ask(7);
    assert!(matches!(read(&unit), Some(PageRequestEvent::Request(_))));
    machine.expect_obedience();
}

/// A group whose end the unit has answered is not to be answered by anybody else.
#[test]
fn requests_of_a_stream_that_was_moved_are_lost() {
    let machine = machine();
    let (unit, domain) = attached(&machine);
    machine.unit().ask(raw(1, Place::More));
    unit.block(STREAM).unwrap();
    machine.unit().ask(raw(1, Place::Last));
    let told: Vec<_> = machine.unit().told().into_iter().map(|of| of.1).collect();
    assert_eq!(told, [Response::Failure]);
    assert!(matches!(read(&unit), Some(PageRequestEvent::Request(_))));
    assert_eq!(read(&unit), Some(PageRequestEvent::Lost));
    assert_eq!(read(&unit), None);
    unit.attach(STREAM, &domain).unwrap();
    assert_eq!(read(&unit), None);
}

#[test]
fn responses_by_hand_and_what_is_none() {
    let machine = machine();
    let (unit, _domain) = attached(&machine);
    machine.unit().ask(raw(0x155, Place::Last));
    let to = |stream, pasid, group| ReplyTo {
        stream,
        pasid,
        name: ReplyName::Group(GroupId::new(group)),
    };
    let invalid = Response::Invalid;
    unit.respond(to(STREAM, None, 0x155), invalid).unwrap();
    let answer = [0x0000_2800_0000_0084, 0x1155 << 32];
    assert_eq!(machine.commands(), [answer]);
    assert_eq!(machine.unit().told(), [(to(STREAM, None, 0x155), invalid)]);
    let wide = Some(Pasid::new(1 << 20));
    let none = [
        to(StreamId::new(64), None, 1),
        to(STREAM, wide, 1),
        to(STREAM, None, 512),
        ReplyTo { name: ReplyName::Stall(StallTag::new(1)), ..to(STREAM, None, 1) },
    ];
    for to in none {
        assert_eq!(unit.respond(to, invalid), Err(IommuError::Unsupported));
    }
    assert_eq!(machine.commands(), Vec::<Words>::new());
}

#[test]
fn indices_and_states_that_cannot_be_are_errors() {
    let machine = machine();
    let (unit, _domain) = attached(&machine);
    let nonsense = |offset, value| Err(IommuError::Nonsense { offset, value });
    let (offset, value) = (reg::REQUEST_TAIL, 256);
    machine.lie(offset, u64::MAX, value);
    assert_eq!(unit.next_page_request(), nonsense(offset, value));
    // An error that does not go away although the queue is empty.
    for stays in [queue::OVERFLOW, queue::MEMORY_FAULT] {
        let machine = self::machine();
        let (unit, _domain) = attached(&machine);
        let offset = reg::REQUEST_CONTROL;
        machine.lie(offset, stays.into(), stays.into());
        let value = (stays | queue::ON | queue::ENABLE).into();
        assert_eq!(unit.next_page_request(), nonsense(offset, value));
        machine.lie(offset, queue::ON.into(), 0);
        assert_eq!(unit.next_page_request(), Err(IommuError::Stopped));
    }
    let machine = self::machine();
    let (unit, _domain) = attached(&machine);
    machine.wrong(RegisterFaults::GONE);
    assert_eq!(unit.next_page_request(), Err(IommuError::Gone));
}

/// One interrupt for all requests until the handler reads.
#[test]
fn page_requests_interrupt_as_faults_do() {
    for (signal, wanted) in [(Signal::None, 0), (Signal::Wired, 1)] {
        let machine = machine();
        let unit = machine.enable(Config { signal, ..asking() }).unwrap();
        unit.use_device_tlb(STREAM, TLB, all_memory()).unwrap();
        let domain = Arc::new(unit.first_stage(RiscvLevels::Four).unwrap());
        unit.attach(STREAM, &domain).unwrap();
        for n in 1..4 {
            (0..2).for_each(|_| machine.unit().ask(raw(1, Place::More)));
            let interrupts = machine.unit().counts().request_interrupts;
            assert_eq!(interrupts, n * wanted, "{signal:?}");
            while read(&unit).is_some() {}
        }
        assert_eq!(machine.reg32(reg::PENDING), 0);
        machine.expect_obedience();
    }
}

#[test]
fn a_unit_that_is_released_gives_its_queues_back() {
    let machine = machine();
    let (unit, domain) = attached(&machine);
    drop(domain);
    unit.release(all_memory()).unwrap();
    assert_eq!(machine.live(), 0);
    assert_eq!(machine.reg32(reg::REQUEST_CONTROL) & queue::ON, 0);
}
