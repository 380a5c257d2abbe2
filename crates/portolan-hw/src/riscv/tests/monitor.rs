//! Hardware counters.

use alloc::sync::Arc;

use portolan::addr::StreamId;
use portolan::iommu::{Attach as _, Domain as _, Iommu as _, IommuError};
use portolan::platform::Mmio as _;
use portolan::table::format::RiscvLevels;
use portolan_chips::inject::RegisterFaults;
use portolan_chips::riscv::{RiscvIdentification, RiscvMachine as Machine};

use super::machine::{new_machine, with};
use super::{STREAM, config};
use crate::chassis::tests::suite::{BASE, Driven, PAGE, map};
use crate::riscv::{Config, CounterError, Event, Signal};
use portolan_spec::riscv::reg;

fn machine(counters: u8) -> Machine {
    with(RiscvIdentification::able().counters(counters))
}

#[test]
fn what_the_unit_does_is_counted() {
    let machine = machine(4);
    let unit = machine.enable(config()).unwrap();
    let domain = Arc::new(unit.first_stage(RiscvLevels::Four).unwrap());
    domain.sync(&mut map(&*domain, 2)).unwrap();
    let other = StreamId::new(0x29);
    for stream in [STREAM, other] {
        unit.attach(stream, &domain).unwrap();
    }
    let all = unit.count_event(Event::Untranslated, None).unwrap();
    let ours = unit.count_event(Event::Untranslated, Some(STREAM)).unwrap();
    let misses = unit.count_event(Event::Misses, None).unwrap();
    let walks = unit.count_event(Event::FirstWalks, Some(other)).unwrap();
    let read = || [&all, &ours, &misses, &walks].map(|of| unit.read_counter(of).unwrap());
    assert_eq!(read(), [0; 4]);
    for _ in 0..3 {
        machine.read(STREAM, BASE.get()).unwrap();
    }
    machine.read(other, BASE.get() + PAGE).unwrap();
    // Two streams of one domain share cached translations, and each page was walked to once.
    assert_eq!(read(), [4, 3, 2, 1]);
    assert_eq!(unit.stop_counter(ours), Ok(3));
    machine.read(STREAM, BASE.get()).unwrap();
    let again = unit.count_event(Event::DeviceWalks, None).unwrap();
    assert_eq!(unit.read_counter(&again), Ok(0));
    assert_eq!(unit.read_counter(&all), Ok(5));
    assert!(unit.cycles().is_ok());
    machine.expect_obedience();
}

#[test]
fn what_cannot_be_counted_is_an_error() {
    let unit = new_machine().enable(config()).unwrap();
    let absent = Some(CounterError::Absent);
    assert_eq!(unit.count_event(Event::Misses, None).err(), absent);
    assert_eq!(unit.cycles().err(), absent);
    let machine = machine(2);
    let unit = machine.enable(config()).unwrap();
    // The model counts none of these.
    let event = Event::Translated;
    let refused = unit.count_event(event, None).err();
    assert_eq!(refused, Some(CounterError::Event { event }));
    let stream = StreamId::new(64);
    let refused = unit.count_event(Event::Misses, Some(stream)).err();
    assert_eq!(refused, Some(CounterError::NoSuchStream { stream }));
    let [one, _two] = [0, 1].map(|_| unit.count_event(Event::Misses, None).unwrap());
    let full = unit.count_event(Event::Misses, None).err();
    assert_eq!(full, Some(CounterError::Full));
    let other = self::machine(1).enable(config()).unwrap();
    assert_eq!(other.read_counter(&one), Err(CounterError::NotInUse));
    machine.wrong(RegisterFaults::GONE);
    let gone = Err(CounterError::Iommu(IommuError::Gone));
    assert_eq!(unit.read_counter(&one), gone);
    assert_eq!(unit.cycles(), gone);
}

#[test]
fn counters_go_on_when_they_overflow_and_interrupt_nobody_for_long() {
    let machine = machine(1);
    let signal = Signal::Wired;
    let unit = machine.enable(Config { signal, ..config() }).unwrap();
    let counter = unit.count_event(Event::Untranslated, None).unwrap();
    // The model's have 40 bits.
    machine.write64(reg::COUNTERS, (1 << 40) - 2);
    for n in 0..4 {
        machine.read(STREAM, BASE.get());
        let wanted = (1 << 40) - 1 + n;
        assert_eq!(unit.read_counter(&counter), Ok(wanted));
    }
    assert_eq!(machine.reg32(reg::PENDING) & 4, 4);
    while unit.next_fault().unwrap().is_some() {}
    assert_eq!(machine.reg32(reg::PENDING) & 4, 0);
}

#[test]
fn counters_that_cannot_be_are_errors() {
    let machine = machine(1);
    let unit = machine.enable(config()).unwrap();
    let nonsense = |offset, value| CounterError::Iommu(IommuError::Nonsense { offset, value });
    let offset = reg::COUNTERS;
    for value in [0xff, 0xffff_ffff_0000_0000] {
        machine.lie(offset, u64::MAX, value);
        let refused = unit.count_event(Event::Misses, None).err();
        assert_eq!(refused, Some(nonsense(offset, value)));
    }
    machine.lie(offset, 0, 0);
    let counter = unit.count_event(Event::Misses, None).unwrap();
    // More than it can hold.
    machine.lie(offset, u64::MAX, 1 << 41);
    assert_eq!(unit.read_counter(&counter), Err(nonsense(offset, 1 << 41)));
}
