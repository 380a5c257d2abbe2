//! Performance counters, on a unit that counts its commands and the accesses of its devices.

use portolan::addr::StreamId;
use portolan::iommu::IommuError;
use portolan::platform::Mmio as _;
use portolan_chips::amd::AmdMachine as Machine;
use portolan_chips::chips::RAVEN_RIDGE;
use portolan_chips::machine::Withheld;
use portolan_spec::amd::counter;

use super::machine::{Iommu, at, with};
use super::{STREAM, config};
use crate::amd::{AmdCounterError, CounterBanks, CounterEvent};
use crate::chassis::tests::suite::{BASE, Driven};

/// Accesses that are translated, and commands that are processed.
const ACCESSES: u8 = 5;
const COMMANDS: u8 = 0x11;

fn opened() -> (Machine, Iommu) {
    let machine = with(RAVEN_RIDGE.identification.counters(2, 4));
    let unit = machine.enable(config()).unwrap();
    (machine, unit)
}

#[test]
fn counters_count_from_when_they_are_opened_until_they_are_closed() {
    let (machine, unit) = opened();
    assert_eq!(unit.counter_banks(), Ok(CounterBanks { banks: 2, counters: 4 }));
    let all = unit.open_counter(CounterEvent::new(ACCESSES)).unwrap();
    let mut of_one = CounterEvent::new(ACCESSES);
    of_one.device = Some(STREAM);
    let one = unit.open_counter(of_one).unwrap();
    let commands = unit.open_counter(CounterEvent::new(COMMANDS)).unwrap();
    for stream in [STREAM, StreamId::new(0x29), STREAM] {
        machine.read(stream, BASE.get());
    }
    assert_eq!([&all, &one].map(|of| unit.read_counter(of)), [Ok(3), Ok(2)]);
    let before = unit.read_counter(&commands).unwrap();
    unit.invalidate_interrupts(STREAM).unwrap();
    // The command and its wait.
    assert_eq!(unit.close_counter(commands), Ok(before + 2));
    assert_eq!(unit.close_counter(one), Ok(2));
    machine.read(STREAM, BASE.get());
    assert_eq!(unit.read_counter(&all), Ok(4));
    // One that is opened again begins at 0, and its filter is not that of before.
    let again = unit.open_counter(CounterEvent::new(ACCESSES)).unwrap();
    assert_eq!(unit.read_counter(&again), Ok(0));
    machine.read(StreamId::new(0x29), BASE.get());
    assert_eq!(unit.read_counter(&again), Ok(1));
    machine.expect_obedience();
}

/// By hand: bit 31, the value below, the bits that are compared from bit 32 on.
#[test]
fn registers_of_a_counter_by_hand() {
    let (machine, unit) = opened();
    let mut event = CounterEvent::new(ACCESSES);
    event.device = Some(STREAM);
    event.domain = Some(7);
    event.pasid = Some(portolan::addr::Pasid::new(0x12345));
    let held: alloc::vec::Vec<_> =
        (0..5).map(|_| unit.open_counter(CounterEvent::new(COMMANDS)).unwrap()).collect();
    let last = unit.open_counter(event).unwrap();
    // Counter 1 of bank 1.
    assert_eq!(machine.read64(0x4_1108), 5);
    assert_eq!(machine.read64(0x4_1110), 0x000f_ffff_8001_2345);
    assert_eq!(machine.read64(0x4_1118), 0x0000_ffff_8000_0007);
    assert_eq!(machine.read64(0x4_1120), 0x0000_ffff_8000_0028);
    unit.close_counter(last).unwrap();
    assert_eq!(machine.read64(0x4_1108), 0);
    drop(held);
}

#[test]
fn what_cannot_be_counted_is_refused_by_name() {
    let absent = with(RAVEN_RIDGE.identification.counters(0, 0));
    let unit = absent.enable(config()).unwrap();
    assert_eq!(unit.counter_banks(), Err(AmdCounterError::Absent));
    let refused = unit.open_counter(CounterEvent::new(COMMANDS));
    assert_eq!(refused, Err(AmdCounterError::Absent));
    let (machine, unit) = opened();
    assert_eq!(unit.open_counter(CounterEvent::new(0)), Err(AmdCounterError::NoEvent));
    let mut strange = CounterEvent::new(ACCESSES);
    let device = StreamId::new(1 << 16);
    strange.device = Some(device);
    let refused = unit.open_counter(strange);
    assert_eq!(refused, Err(AmdCounterError::NoSuchStream { device }));
    let open = || unit.open_counter(CounterEvent::new(COMMANDS));
    let held: alloc::vec::Vec<_> = (0..8).map(|_| open().unwrap()).collect();
    let full = AmdCounterError::Full { banks: 2, counters: 4 };
    assert_eq!(open(), Err(full));
    let other = at(0x20_0000).enable(config()).unwrap();
    for counter in held {
        assert_eq!(other.read_counter(&counter), Err(AmdCounterError::Foreign));
        unit.close_counter(counter).unwrap();
    }
    // A counter that other software has locked does not count, and is not taken.
    let offset = counter::FIRST + counter::SOURCE;
    machine.withhold(offset, Withheld::Locked);
    let locked = IommuError::Nonsense { offset, value: 0 };
    assert_eq!(open(), Err(locked.into()));
    assert_eq!(open(), Err(locked.into()));
}
