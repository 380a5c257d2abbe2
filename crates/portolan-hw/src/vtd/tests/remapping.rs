//! Remapping of interrupts.

use crate::promise::tests::all_memory;
use alloc::vec::Vec;

use portolan::addr::{RequesterId, StreamId};
use portolan::iommu::{
    Delivery, Destination, FaultEvent, FaultReason, Interrupt, InterruptError, InterruptRefusal,
    InterruptSource, InterruptTarget, Iommu as _, IommuDomains as _, IommuError, MsiMessage,
    Polarity, RemapInterrupts as _, Trigger, Vector,
};
use portolan::platform::Mmio as _;
use portolan_chips::inject::RegisterFaults;
use portolan_chips::machine::Event;
use portolan_chips::vtd::VtdMachine;

use super::kit::{CAP, ECAP, Iommu, Kit as _, REFUSED, new_machine};
use super::{STREAM, attached, legacy};
use crate::chassis::tests::suite::Driven;
use crate::interrupt::{ApicMode, Remapping};
use crate::vtd::{Config, Invalidation};
use portolan_spec::vtd::reg::{self, command};

const OTHER: StreamId = StreamId::new(0x0210);
const SOURCE: InterruptSource = InterruptSource::Requester(RequesterId::new(0x0108));
const CACHING: u64 = 1 << 7;
const WRITE_BUFFER: u64 = 1 << 4;
const TABLE: u64 = 0x000f_ffff_ffff_f000;

fn target(vector: u8, cpu: u32) -> InterruptTarget {
    InterruptTarget::new(Vector::new(vector).unwrap(), Destination::Physical(cpu))
}

fn remapping(apic: ApicMode, lg2_entries: u32) -> Config {
    Config { interrupts: Some(Remapping { apic, lg2_entries }), ..legacy() }
}

fn unit(cap: u64) -> (VtdMachine, Iommu) {
    let machine = new_machine(cap, ECAP);
    let unit = machine.enable(remapping(ApicMode::XApic, 8)).unwrap();
    machine.take();
    (machine, unit)
}

/// CPU and vector of the interrupt that arrives if `from` writes the message that it was told to.
fn send(machine: &VtdMachine, from: StreamId, message: MsiMessage) -> Result<(u32, u8), u8> {
    let arrived = machine.unit().message(from, message.address, message.data)?;
    Ok((arrived.destination, arrived.vector))
}

/// The two words of an interrupt's entry.
fn words(machine: &VtdMachine, interrupt: &Interrupt) -> [u64; 2] {
    let at = machine.reg(reg::IRTA) & TABLE;
    let at = at + u64::from(interrupt.index()) * 16;
    [machine.word(at), machine.word(at + 8)]
}

/// Words that a person wrote down from the figures of section 9.10.
#[test]
fn entries_say_what_arrives_and_verify_the_source() {
    let (machine, unit) = unit(CAP);
    let mut wanted = target(0x52, 5);
    let plain = unit.allocate(SOURCE, wanted).unwrap();
    assert_eq!(words(&machine, &plain), [0x0000_0500_0052_0001, 0x4_0108]);
    wanted.destination = Destination::Logical(0x81);
    wanted.delivery = Delivery::LowestPriority;
    wanted.trigger = Trigger::Level;
    let device = InterruptSource::Device(RequesterId::new(0x0108));
    let other = unit.allocate(device, wanted).unwrap();
    assert_eq!(words(&machine, &other), [0x0000_8100_0052_003d, 0x7_0108]);
    let buses = InterruptSource::Buses { first: 2, last: 9 };
    let behind = unit.allocate(buses, target(0xff, 0)).unwrap();
    assert_eq!(words(&machine, &behind), [0x00ff_0001, 0x8_0209]);
    let none = InterruptSource::Buses { first: 9, last: 2 };
    let refused = unit.allocate(none, target(0xff, 0));
    assert_eq!(refused, Err(InterruptError::Source(none)));
    let far = target(0x40, 256);
    let refused = unit.allocate(SOURCE, far);
    assert_eq!(refused, Err(InterruptError::Destination(far.destination)));

    let machine = new_machine(CAP, ECAP | 1 << 4);
    let unit = machine.enable(remapping(ApicMode::X2Apic, 12)).unwrap();
    assert_eq!(machine.reg(reg::IRTA) & !TABLE, 0x80b);
    let far = unit.allocate(SOURCE, target(0x40, 0x1_2345)).unwrap();
    assert_eq!(words(&machine, &far), [0x0001_2345_0040_0001, 0x4_0108]);
    let message = unit.message(&far).unwrap();
    assert_eq!(send(&machine, STREAM, message), Ok((0x1_2345, 0x40)));
    let redirection = unit.redirection(&far, Polarity::Low).unwrap();
    assert_eq!(redirection.get(), 0x0001_0000_0000_2040);
    machine.expect_obedience();
}

#[test]
fn an_interrupt_arrives_from_its_source_alone_until_it_is_freed() {
    for cap in [CAP, CAP | CACHING, CAP | WRITE_BUFFER] {
        let (machine, unit) = unit(cap);
        let unused = MsiMessage { address: 0xfee0_0010, data: 0 };
        assert_eq!(send(&machine, STREAM, unused), Err(0x22));
        let mut interrupt = unit.allocate(SOURCE, target(0x52, 5)).unwrap();
        let message = unit.message(&interrupt).unwrap();
        assert_eq!(message, unused, "the first entry");
        assert_eq!(send(&machine, STREAM, message), Ok((5, 0x52)));
        assert_eq!(send(&machine, OTHER, message), Err(0x26));
        unit.retarget(&mut interrupt, target(0x53, 6)).unwrap();
        assert_eq!(send(&machine, STREAM, message), Ok((6, 0x53)));
        let second = unit.allocate(SOURCE, target(0x60, 1)).unwrap();
        unit.free(interrupt).unwrap();
        assert_eq!(send(&machine, STREAM, message), Err(0x22));
        // Its entry is another's now.
        let other = InterruptSource::Requester(RequesterId::new(0x0210));
        let third = unit.allocate(other, target(0x70, 2)).unwrap();
        assert_eq!(third.index(), 0);
        assert_eq!(send(&machine, STREAM, message), Err(0x26));
        assert_eq!(send(&machine, OTHER, message), Ok((2, 0x70)));
        let message = unit.message(&second).unwrap();
        assert_eq!(send(&machine, STREAM, message), Ok((1, 0x60)));
        machine.expect_obedience();
    }
}

#[test]
fn what_is_refused_is_recorded_as_an_interrupt() {
    let (machine, unit) = unit(CAP);
    let interrupt = unit.allocate(SOURCE, target(0x52, 5)).unwrap();
    let message = unit.message(&interrupt).unwrap();
    let plain = MsiMessage { address: 0xfee0_1000, data: 0x52 };
    let beyond = MsiMessage { address: 0xfee0_2030, data: 0 };
    for (from, sent, index, refusal) in [
        (OTHER, message, Some(0), InterruptRefusal::Source),
        (STREAM, plain, None, InterruptRefusal::NotRemapped),
        (STREAM, beyond, Some(0x101), InterruptRefusal::Absent),
        (STREAM, MsiMessage { data: 1, ..message }, None, InterruptRefusal::Malformed),
    ] {
        assert!(send(&machine, from, sent).is_err());
        let Ok(Some(FaultEvent::Fault(record))) = unit.next_fault() else {
            panic!("no record of {sent:?}");
        };
        let reason = FaultReason::Interrupt { index, refusal };
        assert_eq!((record.stream, record.reason), (from, reason));
        assert_eq!((record.iova, record.access), (None, None));
    }
}

#[test]
fn interrupts_of_a_stream_that_is_blocked_or_gone_are_taken_back() {
    for gone in [false, true] {
        let machine = new_machine(CAP, ECAP);
        let (unit, _domain) = attached(&machine, remapping(ApicMode::XApic, 8));
        let mut mine = unit.allocate(SOURCE, target(0x52, 5)).unwrap();
        let other = InterruptSource::Requester(RequesterId::new(0x0210));
        let others = unit.allocate(other, target(0x70, 2)).unwrap();
        let (message, kept) = (unit.message(&mine).unwrap(), unit.message(&others).unwrap());
        assert!(send(&machine, STREAM, message).is_ok());
        if gone {
            unit.device_gone(STREAM).unwrap()
        } else {
            unit.block(STREAM).unwrap()
        }
        assert_eq!(send(&machine, STREAM, message), Err(0x22));
        assert_eq!(send(&machine, OTHER, kept), Ok((2, 0x70)));
        let ended = Err(InterruptError::NotInUse);
        assert_eq!(unit.message(&mine), ended);
        assert_eq!(unit.retarget(&mut mine, target(0x53, 1)), ended.map(|_: MsiMessage| ()));
        // The same entry for another source does not bring the handle back.
        let next = unit.allocate(other, target(0x71, 3)).unwrap();
        assert_eq!((next.index(), unit.message(&mine)), (0, ended));
        assert_eq!(unit.free(mine), ended.map(|_| ()));
        assert_eq!(send(&machine, OTHER, message), Ok((3, 0x71)));
    }
}

#[test]
fn a_handle_of_another_unit_is_refused() {
    let (_, one) = unit(CAP);
    let machine = new_machine(CAP, ECAP);
    // A page more, so that the tables are not at the same place.
    let (other, _domain) = attached(&machine, legacy());
    assert!(other.interrupts().is_none());
    let refused = other.allocate(SOURCE, target(0x52, 5));
    assert_eq!(refused, Err(IommuError::Unsupported.into()));
    let two = machine.enable(remapping(ApicMode::XApic, 9)).unwrap();
    let (mine, _) = (
        one.allocate(SOURCE, target(0x52, 5)).unwrap(),
        two.allocate(SOURCE, target(0x52, 5)).unwrap(),
    );
    assert_eq!(two.message(&mine), Err(InterruptError::NotInUse));
    assert_eq!(two.free(mine), Err(InterruptError::NotInUse));
}

#[test]
fn an_entry_that_the_unit_did_not_forget_stays_out_of_use_until_it_has() {
    let (machine, unit) = unit(CAP);
    let first = unit.allocate(SOURCE, target(0x52, 5)).unwrap();
    let message = unit.message(&first).unwrap();
    assert!(send(&machine, STREAM, message).is_ok());
    machine.refuse_kind(4, 1, REFUSED);
    assert!(matches!(unit.free(first), Err(InterruptError::Iommu(_))));
    assert_eq!(unit.unsettled_interrupts(), Ok(1));
    // The unit still lets it through, which is why no other source gets it.
    assert!(send(&machine, STREAM, message).is_ok());
    let rest: Vec<_> = (1..256).map(|_| unit.allocate(SOURCE, target(0x60, 1)).unwrap()).collect();
    assert!(rest.iter().all(|interrupt| interrupt.index() != 0));
    let last = unit.allocate(SOURCE, target(0x61, 1)).unwrap();
    assert_eq!((last.index(), unit.unsettled_interrupts()), (0, Ok(0)));
    assert_eq!(send(&machine, STREAM, message), Ok((1, 0x61)));
    let full = unit.allocate(SOURCE, target(0x61, 1));
    assert_eq!(full, Err(InterruptError::Full));
}

#[test]
fn a_new_entry_that_fails_is_closed() {
    // In caching mode a new entry, too, has to be told of.
    let (machine, unit) = unit(CAP | CACHING);
    machine.refuse_kind(4, 1, REFUSED);
    assert!(unit.allocate(SOURCE, target(0x52, 5)).is_err());
    assert_eq!(machine.word(machine.reg(reg::IRTA) & TABLE), 0);
    assert_eq!(unit.unsettled_interrupts(), Ok(1));
}

/// Between any two writes, with any words that the unit reads of them, no other source is let in.
#[test]
fn no_step_leaves_an_open_entry_without_its_source() {
    let (machine, unit) = unit(CAP);
    let table = machine.reg(reg::IRTA) & TABLE;
    machine.watch(table, 2);
    let mut interrupt = unit.allocate(SOURCE, target(0x52, 5)).unwrap();
    unit.retarget(&mut interrupt, target(0x53, 6)).unwrap();
    unit.free(interrupt).unwrap();
    let other = InterruptSource::Requester(RequesterId::new(0x0210));
    unit.allocate(other, target(0x70, 2)).unwrap();
    let seen = machine.seen();
    assert!(seen.len() > 4);
    // Of the source that comes last nothing is there before the entry of the first is forgotten.
    let forgotten = seen
        .iter()
        .rposition(|(event, _)| matches!(event, Event::Command([0x14, 0, 0, 0])))
        .unwrap();
    for (event, words) in &seen[..=forgotten] {
        assert!(words[0] == 0 || words[1] == 0x4_0108, "{event:x?} {words:x?}");
        assert_ne!(words[1], 0x4_0210, "{event:x?}");
    }
}

#[test]
fn remapping_begins_with_an_empty_table_that_blocks_everything() {
    let machine = new_machine(CAP, ECAP);
    // The previous owner had all of it on, with compatibility format.
    machine.write64(reg::IQA, 0x7000_0000);
    machine.write64(reg::IRTA, 0x7001_0007);
    machine.command(&[command::QIE, command::SIRTP]);
    machine.write64(reg::IQT, 0);
    machine.command(&[command::CFI]);
    let unit = machine.enable(remapping(ApicMode::XApic, 8)).unwrap();
    let log = machine.take();
    let at = |wanted: Event| log.iter().position(|event| *event == wanted).unwrap();
    let irta = machine.reg(reg::IRTA);
    assert_eq!(irta & !TABLE, 7);
    let (set, forgot) = (at(Event::Write(reg::IRTA, irta)), at(Event::Command([4, 0, 0, 0])));
    let on = |event: &Event| matches!(event, Event::Write(reg::GCMD, of) if *of as u32 & command::IRE != 0);
    assert!(set < forgot && forgot < log.iter().position(on).unwrap());
    let status = machine.reg32(reg::GSTS) & (command::IRE | command::CFI);
    assert_eq!(status, command::IRE);
    drop(unit);
    // Nothing of it is freed while the unit may read it.
    assert!(machine.live() > 0);
    machine.expect_obedience();
}

#[test]
fn remapping_that_was_on_goes_off_before_its_queue() {
    let (machine, before) = unit(CAP);
    core::mem::forget(before);
    let unit = machine.enable(remapping(ApicMode::XApic, 8)).unwrap();
    let live = machine.live();
    unit.release(all_memory()).unwrap();
    assert!(machine.live() < live);
    let off = machine.take();
    let commands = off.iter().filter_map(|event| match event {
        Event::Write(reg::GCMD, value) => Some(*value as u32 & (command::IRE | command::QIE)),
        _ => None,
    });
    // Off for the new table, and off at the end, each time before the queue.
    let mut commands: Vec<_> = commands.collect();
    commands.dedup();
    let (both, queue) = (command::IRE | command::QIE, command::QIE);
    assert_eq!(commands, [queue, 0, queue, both, queue, 0]);
    machine.expect_obedience();
}

#[test]
fn units_that_cannot_remap_say_so() {
    let refused = |ecap, config| {
        let machine = new_machine(CAP, ecap);
        let error = machine.enable(config).err();
        assert_eq!(machine.live(), 0);
        error
    };
    let unsupported = Some(IommuError::Unsupported);
    let plain = || remapping(ApicMode::XApic, 8);
    assert_eq!(refused(ECAP & !8, plain()), unsupported);
    assert_eq!(refused(ECAP & !(1 << 4), remapping(ApicMode::X2Apic, 8)), unsupported);
    for lg2_entries in [0, 7, 17, u32::MAX] {
        let config = remapping(ApicMode::XApic, lg2_entries);
        assert_eq!(refused(ECAP, config), unsupported);
    }
    let registers = Config { invalidation: Invalidation::Registers, ..plain() };
    assert_eq!(refused(ECAP, registers), unsupported);
}

#[test]
fn running_out_of_table_memory_leaves_nothing_behind() {
    for nth in 1..6 {
        let machine = new_machine(CAP, ECAP);
        machine.fail_in(nth);
        match machine.enable(remapping(ApicMode::XApic, 12)) {
            Ok(_) => assert_eq!(nth, 5, "four blocks"),
            Err(error) => {
                assert!(matches!(error, IommuError::Memory(_)), "{error}");
                assert_eq!(machine.live(), 0);
            }
        }
    }
}

#[test]
fn a_unit_that_does_not_answer_ends_in_an_error() {
    let (machine, unit) = unit(CAP);
    let interrupt = unit.allocate(SOURCE, target(0x52, 5)).unwrap();
    machine.wrong(RegisterFaults::STUCK);
    let failed = unit.free(interrupt);
    assert!(matches!(failed, Err(InterruptError::Iommu(IommuError::TimedOut { .. }))));
    assert!(unit.revoke(STREAM).is_ok(), "nothing is in use");
    machine.wrong(RegisterFaults::GONE);
    assert!(unit.allocate(SOURCE, target(0x52, 5)).is_ok(), "memory alone");
}
