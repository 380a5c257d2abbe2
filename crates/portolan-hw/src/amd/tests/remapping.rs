//! Remapping of interrupts.

use crate::promise::tests::all_memory;
use alloc::vec::Vec;

use portolan::addr::{Iova, RequesterId, StreamId};
use portolan::iommu::{
    Delivery, Destination, FaultEvent, FaultReason, InterruptError, InterruptRefusal,
    InterruptSource, InterruptTarget, Iommu as _, IommuDomains as _, IommuError, MsiMessage,
    Polarity, RemapInterrupts as _, Vector,
};
use portolan_chips::amd::{AmdInterrupt, AmdMachine};
use portolan_chips::chips::ROME;
use portolan_sim::decode::AccessKind;

use super::machine::{Amd, ILLEGAL, Iommu, new_machine, with};
use super::{STREAM, config};
use crate::amd::Config;
use crate::chassis::tests::suite::Driven;
use crate::interrupt::{ApicMode, Remapping};
use portolan_spec::amd::command::opcode;
use portolan_spec::amd::reg;

const OTHER: StreamId = StreamId::new(0x30);

fn source(stream: StreamId) -> InterruptSource {
    InterruptSource::Requester(RequesterId::new(stream.get() as u16))
}

fn target(vector: u8, cpu: u32) -> InterruptTarget {
    InterruptTarget::new(Vector::new(vector).unwrap(), Destination::Physical(cpu))
}

fn remapping(lg2_entries: u32) -> Config {
    Config { interrupts: Some(Remapping { lg2_entries, ..Remapping::default() }), ..config() }
}

fn unit() -> (AmdMachine, Iommu) {
    let machine = new_machine();
    let unit = machine.enable(remapping(9)).unwrap();
    machine.commands();
    (machine, unit)
}

/// CPU and vector of the interrupt that arrives if `from` writes the message that it was told to.
fn send(machine: &AmdMachine, from: StreamId, message: MsiMessage) -> Option<(u32, u8)> {
    let arrived = machine.unit().message(from, message.address, message.data);
    arrived.map(|of| (of.destination, of.vector))
}

/// Words that a person wrote down from the figures of sections 2.2.2.1 and 2.2.5.
#[test]
fn entries_say_what_arrives_and_each_stream_has_its_own() {
    let (machine, unit) = unit();
    // Valid, no entries, and aborted.
    assert_eq!(machine.entry(STREAM.get().into())[2], 1);
    let plain = MsiMessage { address: 0xfee0_1000, data: 0x52 };
    assert_eq!(send(&machine, STREAM, plain), None);
    let first = unit.allocate(source(STREAM), target(0x52, 5)).unwrap();
    let word = machine.entry(STREAM.get().into())[2];
    assert_eq!(word & !0x000f_ffff_ffff_ffc0, 2 << 60 | 9 << 1 | 1);
    let table = word & 0x000f_ffff_ffff_ffc0;
    let mut wanted = target(0x63, 0x81);
    wanted.destination = Destination::Logical(0x81);
    wanted.delivery = Delivery::LowestPriority;
    let second = unit.allocate(source(STREAM), wanted).unwrap();
    assert_eq!(machine.word(table), 0x0063_8145_0052_0501);
    let message = unit.message(&second).unwrap();
    assert_eq!((message.address, message.data), (0xfee0_0000, 1));
    assert_eq!(send(&machine, STREAM, message), Some((0x81, 0x63)));
    let own = unit.message(&first).unwrap();
    assert_eq!(send(&machine, STREAM, own), Some((5, 0x52)));
    // The same message is another stream's own entry, if it has one.
    assert_eq!(send(&machine, OTHER, own), None);
    let others = unit.allocate(source(OTHER), target(0x70, 2)).unwrap();
    assert_eq!(send(&machine, OTHER, own), Some((2, 0x70)));
    assert_eq!(send(&machine, OTHER, message), None);
    let line = unit.redirection(&others, Polarity::Low).unwrap();
    assert_eq!(line.get(), 0x2000);
    for no in [
        InterruptSource::Device(RequesterId::new(0x28)),
        InterruptSource::Buses { first: 0, last: 1 },
        source(StreamId::new(128)),
    ] {
        let refused = unit.allocate(no, target(0x52, 5));
        assert_eq!(refused, Err(InterruptError::Source(no)));
    }
    let far = target(0x52, 256);
    let refused = unit.allocate(source(STREAM), far);
    assert_eq!(refused, Err(InterruptError::Destination(far.destination)));
    machine.expect_obedience();
}

/// A unit whose interrupts reach CPUs with identifiers of 32 bits.
fn wide_unit() -> (AmdMachine, Iommu) {
    let machine = with(ROME.identification);
    let unit = machine.enable(wide()).unwrap();
    machine.commands();
    (machine, unit)
}

fn wide() -> Config {
    let wanted = Remapping { apic: ApicMode::X2Apic, lg2_entries: 9 };
    Config { interrupts: Some(wanted), ..config() }
}

/// Words that a person wrote down from the figures of section 2.2.5.2: GAEn (17), XTEn (50) and IntCapXTEn (51).
#[test]
fn wide_entries_say_what_arrives_at_far_cpus() {
    let (machine, unit) = wide_unit();
    assert_eq!(machine.reg(reg::CONTROL) & (1 << 17 | 1 << 50 | 1 << 51), 0x000c_0000_0002_0000);
    let mut first = unit.allocate(source(STREAM), target(0x52, 0x0102_0304)).unwrap();
    let mut wanted = target(0x63, 0);
    wanted.destination = Destination::Logical(0x8000_0081);
    wanted.delivery = Delivery::LowestPriority;
    let second = unit.allocate(source(STREAM), wanted).unwrap();
    let word = machine.entry(STREAM.get().into())[2];
    assert_eq!(word & !0x000f_ffff_ffff_ffc0, 2 << 60 | 9 << 1 | 1);
    let table = word & 0x000f_ffff_ffff_ffc0;
    let words = || [0, 8, 16, 24].map(|at| machine.word(table + at));
    let others = [0x8145, 0x8000_0000_0000_0063];
    assert_eq!(words()[..2], [0x0203_0401, 0x0100_0000_0000_0052]);
    assert_eq!(words()[2..], others);
    let [message, other] = [&first, &second].map(|of| unit.message(of).unwrap());
    assert_eq!((other.address, other.data), (0xfee0_0000, 1));
    assert_eq!(send(&machine, STREAM, message), Some((0x0102_0304, 0x52)));
    assert_eq!(send(&machine, STREAM, other), Some((0x8000_0081, 0x63)));
    // By one store, and through a closed entry.
    for cpu in [0x0100_0007, 0x0200_0007] {
        unit.retarget(&mut first, target(0x52, cpu)).unwrap();
        assert_eq!(send(&machine, STREAM, message), Some((cpu, 0x52)));
    }
    assert_eq!(words()[..2], [0x0000_0701, 0x0200_0000_0000_0052]);
    unit.free(first).unwrap();
    assert_eq!(send(&machine, STREAM, message), None);
    assert_eq!(words()[2..], others);
    unit.release(all_memory()).unwrap();
    assert_eq!(machine.live(), 0);
    machine.expect_obedience();
}

/// Old and new entry mixed would send an interrupt to a CPU that neither names.
#[test]
fn an_entry_whose_words_both_change_is_closed_meanwhile() {
    let (machine, unit) = wide_unit();
    let mut first = unit.allocate(source(STREAM), target(0x52, 0x0100_0005)).unwrap();
    let message = unit.message(&first).unwrap();
    machine.refuse_kind(opcode::INTERRUPT_TABLE, 1, ILLEGAL);
    let refused = unit.retarget(&mut first, target(0x53, 0x0200_0006));
    assert!(matches!(refused, Err(InterruptError::Iommu(_))));
    let table = machine.entry(STREAM.get().into())[2] & 0x000f_ffff_ffff_ffc0;
    assert_eq!([0, 8].map(|at| machine.word(table + at)), [0, 0x0100_0000_0000_0052]);
    unit.retarget(&mut first, target(0x53, 0x0200_0006)).unwrap();
    assert_eq!(send(&machine, STREAM, message), Some((0x0200_0006, 0x53)));
}

#[test]
fn a_unit_without_wide_entries_refuses_them_by_name() {
    let machine = with(ROME.identification);
    let unit = machine.enable(remapping(9)).unwrap();
    let far = target(0x52, 256);
    let refused = unit.allocate(source(STREAM), far);
    assert_eq!(refused, Err(InterruptError::Destination(far.destination)));
    drop(unit);
    // XTSup without GASup, and the other way round.
    for bit in [1 << 2, 1 << 7] {
        let mut identification = ROME.identification;
        identification.features &= !bit;
        let refused = with(identification).enable(wide()).err();
        assert_eq!(refused, Some(IommuError::Unsupported), "{bit:#x}");
    }
}

/// Section 3.4.31: the unit's own interrupts go where the register says.
#[test]
fn events_of_a_unit_with_wide_entries_interrupt_a_far_cpu() {
    let (machine, unit) = wide_unit();
    unit.signal_faults(Some(target(0x31, 0x0102_0304))).unwrap();
    assert_eq!(machine.reg(0x170), 0x0100_0031_0203_0400);
    assert!(machine.unit().dma(STREAM, Iova::new(0x4000), AccessKind::Write, 4).is_err());
    let sent = AmdInterrupt { vector: 0x31, destination: 0x0102_0304 };
    assert_eq!(machine.unit().own_interrupts(), [Some(sent)]);
}

#[test]
fn what_is_freed_moved_or_blocked_counts_at_once() {
    let (machine, unit) = unit();
    let mut first = unit.allocate(source(STREAM), target(0x52, 5)).unwrap();
    let second = unit.allocate(source(STREAM), target(0x60, 1)).unwrap();
    let [message, other] = [&first, &second].map(|of| unit.message(of).unwrap());
    assert_eq!(send(&machine, STREAM, message), Some((5, 0x52)));
    assert_eq!(send(&machine, STREAM, other), Some((1, 0x60)));
    unit.retarget(&mut first, target(0x53, 6)).unwrap();
    assert_eq!(send(&machine, STREAM, message), Some((6, 0x53)));
    unit.free(first).unwrap();
    assert_eq!(send(&machine, STREAM, message), None);
    assert_eq!(send(&machine, STREAM, other), Some((1, 0x60)));
    unit.block(STREAM).unwrap();
    assert_eq!(send(&machine, STREAM, other), None);
    assert_eq!(unit.message(&second), Err(InterruptError::NotInUse));
    assert_eq!(unit.free(second), Err(InterruptError::NotInUse));
    let mut records = Vec::new();
    while let Some(event) = unit.next_fault().unwrap() {
        let FaultEvent::Fault(record) = event else {
            panic!("{event:?}");
        };
        records.push((record.stream, record.reason, record.iova));
    }
    let absent = FaultReason::Interrupt { index: None, refusal: InterruptRefusal::Absent };
    assert_eq!(records, [(STREAM, absent, None); 2]);
    machine.expect_obedience();
}

#[test]
fn an_entry_that_the_unit_did_not_forget_stays_out_of_use_until_it_has() {
    let machine = new_machine();
    let unit = machine.enable(remapping(1)).unwrap();
    let first = unit.allocate(source(STREAM), target(0x52, 5)).unwrap();
    let message = unit.message(&first).unwrap();
    assert!(send(&machine, STREAM, message).is_some());
    machine.refuse_kind(opcode::INTERRUPT_TABLE, 1, ILLEGAL);
    assert!(matches!(unit.free(first), Err(InterruptError::Iommu(_))));
    // The unit still lets it through.
    assert_eq!(send(&machine, STREAM, message), Some((5, 0x52)));
    let second = unit.allocate(source(STREAM), target(0x60, 1)).unwrap();
    assert_eq!(second.index(), 1);
    let third = unit.allocate(source(STREAM), target(0x61, 2)).unwrap();
    assert_eq!(third.index(), 0);
    assert_eq!(send(&machine, STREAM, message), Some((2, 0x61)));
    let full = unit.allocate(source(STREAM), target(0x62, 1));
    assert_eq!(full, Err(InterruptError::Full));
}

#[test]
fn a_release_gives_the_tables_back() {
    let (machine, unit) = unit();
    let _first = unit.allocate(source(STREAM), target(0x52, 5)).unwrap();
    unit.release(all_memory()).unwrap();
    assert_eq!(machine.live(), 0);
    // The unit has entries of 32 bits only.
    let refused = machine.enable(wide()).err();
    assert_eq!((refused, machine.live()), (Some(IommuError::Unsupported), 0));
}

/// One interrupt for all events until the handler reads; later ones raise another.
#[test]
fn events_interrupt_who_has_asked_for_it() {
    let (machine, unit) = unit();
    let access = || {
        let refused = machine.unit().dma(STREAM, Iova::new(0x4000), AccessKind::Write, 4);
        assert!(refused.is_err());
        machine.unit().counts().event_interrupts
    };
    assert_eq!(access(), 0);
    unit.signal_faults(Some(target(0x31, 7))).unwrap();
    while unit.next_fault().unwrap().is_some() {}
    assert_eq!([access(), access()], [1, 1]);
    while unit.next_fault().unwrap().is_some() {}
    assert_eq!(access(), 2);
    unit.signal_faults(None).unwrap();
    while unit.next_fault().unwrap().is_some() {}
    assert_eq!(access(), 2);
    machine.expect_obedience();
}
