//! The driver on the unit of `portolan-chips`.

mod counters;
mod devices;
mod dirty;
mod firmware;
mod former;
mod guest_devices;
mod guests;
mod guests_alone;
mod handed_guests;
mod handover;
mod interrupts;
mod machine;
mod moved;
mod nested;
mod posted;
mod queue;
mod remapping;
mod reserved;
mod sizes;

use crate::promise::tests::all_memory;
use alloc::sync::Arc;
use alloc::vec;

use portolan::addr::{Iova, StreamId};
use portolan::inval::{Caching, Command, InvalidationQueue as _, Step, TablesLeft};
use portolan::iommu::{
    Attach, AttachError, Awaited, Domain, FaultAccess, FaultEvent, FaultReason, Iommu as _,
    IommuError,
};
use portolan::platform::{Mmio, Nanos};
use portolan::table::format::AmdLevels;
use portolan_chips::amd::{AmdIdentification, AmdSetup};
use portolan_chips::chips::RAVEN_RIDGE;
use portolan_chips::inject::{Drain, Pace};
use portolan_sim::decode::AccessKind;

use super::{AmdDomain, Config, refusal};
use crate::chassis::tests::suite::*;
use machine::{Amd, new_machine};
use portolan_spec::amd::command::opcode;
use portolan_spec::amd::reg::{self, control, status};

use portolan_chips::amd::AmdMachine as Machine;
use portolan_chips::inject::RegisterFaults;
use portolan_chips::machine::{LOOK_NS, Manner, Withheld};

const STREAM: StreamId = StreamId::new(0x28);

suite! {
    portolan_chips::amd::AmdMachine:
        devices_reach_what_is_mapped_for_them_and_nothing_else
        a_domain_of_another_unit_does_not_fit
        a_unit_that_refuses_everything_ends_in_time
        a_unit_that_was_turned_off_has_stopped
        a_release_that_fails_keeps_what_may_still_be_reached
        a_queue_that_never_drains_is_an_error_and_the_stream_stays_blocked
        a_unit_that_goes_away_is_an_error_at_each_call
        a_unit_that_is_slow_is_waited_for
        what_a_failure_left_of_one_stream_is_not_settled_with_another
}

crate::chassis::tests::hostile::on_a_hostile_machine! { portolan_chips::amd::AmdMachine }

type Tables = AmdDomain<Machine>;

/// Tables that fit the machine's pages.
fn config() -> Config {
    Config { limit: Nanos::from_millis(10), streams_lg2: 7, ..Config::default() }
}

/// The unit writes the upper half of a register now before the lower one, now behind it.
#[test]
fn nothing_more_is_excluded_while_an_exclusion_range_goes() {
    for reads in 0..2 {
        let machine = new_machine();
        machine.unit().behave(Manner::Hostile);
        machine.write64(reg::CONTROL, control::ENABLE);
        // A page at 4 GiB, for every device.
        machine.write64(reg::EXCLUSION_BASE, 1 << 32 | 0b11);
        machine.write64(reg::EXCLUSION_LIMIT, 1 << 32);
        let read = |_| machine.reg(reg::STATUS);
        let _: u64 = (0..reads).map(read).sum();
        let below = Iova::new(0x8000_0000);
        let unit = machine.unit();
        unit.observe(STREAM, None, below, AccessKind::Read);
        let _driver = machine.enable(config()).unwrap();
        assert_eq!(unit.observed(), [[None]], "{reads}");
    }
}

/// As a kernel left it that crashed with SNP on: the registers keep its buffers.
#[test]
fn a_unit_that_snp_has_locked_is_refused_at_once() {
    let machine = new_machine();
    let buffer = 8 << 56 | 0x1000;
    machine.write64(reg::COMMAND_BASE, buffer);
    let on = control::ENABLE | control::COMMANDS | control::EVENT_LOG;
    machine.write64(reg::CONTROL, on);
    for register in [
        reg::DEVICE_TABLE,
        reg::COMMAND_BASE,
        reg::EVENT_BASE,
        reg::EXCLUSION_BASE,
        reg::EXCLUSION_LIMIT,
    ] {
        machine.withhold(register, Withheld::Locked);
    }
    let clock = machine.unit().clock().clone();
    let before = clock.now_ns();
    let (offset, value) = (reg::COMMAND_BASE, buffer);
    let error = machine.enable(config()).err();
    assert_eq!(error, Some(IommuError::Nonsense { offset, value }));
    assert!(clock.now_ns() - before < config().limit.get());
    // The former kernel's table goes on.
    assert_eq!(machine.turned_off(), 0);
}

#[test]
fn an_exclusion_range_that_stays_is_an_error() {
    let machine = new_machine();
    let (offset, value) = (reg::EXCLUSION_BASE, 0x1003);
    machine.write64(offset, value);
    machine.withhold(offset, Withheld::Locked);
    let error = machine.enable(config()).err();
    assert_eq!(error, Some(IommuError::Nonsense { offset, value }));
}

#[test]
fn taking_over_blocks_every_stream_and_forgets_everything() {
    let machine = new_machine();
    // Left on by firmware, with its excluded memory and its way of tunnelling.
    let left = control::ENABLE | control::COMMANDS | control::EVENT_LOG | 1 << 1 | 1 << 13;
    machine.write64(reg::CONTROL, left);
    machine.write64(reg::EXCLUSION_BASE, 0x1003);
    let unit = machine.enable(config()).unwrap();
    let on = control::ENABLE | control::COMMANDS | control::EVENT_LOG | control::COHERENT;
    assert_eq!(machine.reg(reg::CONTROL), on | 1 << 1 | control::GUESTS);
    assert_eq!(machine.turned_off(), 0);
    assert_eq!(machine.reg(reg::EXCLUSION_BASE), 0);
    // 128 streams are a page of entries; 256 commands, 256 events.
    assert_eq!(machine.reg(reg::DEVICE_TABLE) & 0xfff, 0);
    assert_eq!(machine.reg(reg::COMMAND_BASE) >> 56, 8);
    assert_eq!(machine.reg(reg::EVENT_BASE) >> 56, 8);
    for stream in 0..128 {
        assert_eq!(machine.entry(stream), [3, 0, 0, 0]);
    }
    assert_eq!(machine.commands(), [[0x8000_0000_0000_0000, 0]]);
    machine.expect_obedience();
    assert_eq!(unit.counts().total(), 2);
}

#[test]
fn without_one_command_for_all_each_entry_and_domain_is_named() {
    let machine = machine::with(AmdIdentification::default());
    let unit = machine.enable(config()).unwrap();
    let commands = machine.commands();
    assert_eq!(commands.len(), 128 + 65536);
    assert_eq!(commands[127], [0x2000_0000_0000_007f, 0]);
    let last = [0x3000_ffff_0000_0000, 0x7fff_ffff_ffff_f003];
    assert_eq!(commands.last(), Some(&last));
    assert_eq!(unit.capabilities().caching, Caching::PresentOnly);
    // Four levels are the least that there is.
    let caps = unit.capabilities();
    let five = unit.domain_as(AmdLevels::Five, caps, config().quirks);
    assert_eq!(five.err(), Some(IommuError::Unsupported));
}

#[test]
fn a_reserved_number_of_levels_is_nonsense() {
    let value = 3 << 10;
    let offset = reg::FEATURES;
    let identification = AmdIdentification { features: value, ..RAVEN_RIDGE.identification };
    let answer = machine::with(identification).enable(config());
    assert_eq!(answer.err(), Some(IommuError::Nonsense { offset, value }));
}

#[test]
fn entries_by_hand_and_what_is_forgotten() {
    let machine = new_machine();
    let unit = machine.enable(config()).unwrap();
    let domain = Arc::new(unit.domain().unwrap());
    let root = domain.table().root().get();
    machine.commands();
    unit.attach(STREAM, &domain).unwrap();
    // Valid, translated, four levels, read and write; domain 2.
    assert_eq!(machine.entry(0x28), [0x6000_0000_0000_0803 | root, 2, 0, 0]);
    let entry = [0x2000_0000_0000_0028, 0];
    let of = |domain: u64| [3 << 60 | domain << 32, 0x7fff_ffff_ffff_f003];
    // The block was cached, and so may be what was absent.
    assert_eq!(machine.commands(), [entry, of(2)]);
    unit.pass_through(STREAM, all_memory()).unwrap();
    assert_eq!(machine.entry(0x28), [0x6000_0000_0000_0003, 1, 0, 0]);
    assert_eq!(machine.commands(), [entry, of(2), entry, of(1)]);
    unit.block(STREAM).unwrap();
    assert_eq!(machine.entry(0x28), [3, 0, 0, 0]);
    assert_eq!(machine.commands(), [entry, of(1), entry]);
    unit.block(STREAM).unwrap();
    assert_eq!(machine.commands(), vec![[0; 2]; 0]);
    let stream = StreamId::new(128);
    let refused = Err(AttachError::NoSuchStream { stream });
    assert_eq!(unit.attach(stream, &domain), refused);
}

#[test]
fn invalidations_by_hand() {
    let machine = new_machine();
    let (_unit, domain) = machine.attached();
    let head = 0x3000_0002_0000_0000;
    // Absence may be cached, directories included: the first map adds tables.
    domain.sync(&mut map(&*domain, 1)).unwrap();
    assert_eq!(machine.commands().len(), 1);
    domain.sync(&mut unmap(&*domain, 1)).unwrap();
    let commands = machine.commands();
    assert_eq!(commands.len(), 1);
    assert_eq!(commands[0][0], head);
    assert_eq!(commands[0][1] & !0xfff, BASE.get());
}

#[test]
fn domains_give_their_identifiers_back_and_their_tables() {
    let machine = new_machine();
    let unit = machine.enable(config()).unwrap();
    let live = machine.live();
    for _ in 0..3 {
        let domain = unit.domain().unwrap();
        assert_eq!(domain.context().get(), 2);
        domain.sync(&mut map(&domain, 3)).unwrap();
    }
    assert_eq!(machine.live(), live);
    unit.release(all_memory()).unwrap();
    assert_eq!(machine.live(), 0);
    assert_eq!(machine.reg(reg::CONTROL), 0);
}

#[test]
fn all_streams_are_blocked_at_once_and_their_domains_let_go_of() {
    let machine = new_machine();
    let (unit, domain) = machine.attached();
    let passing = StreamId::new(0x29);
    unit.pass_through(passing, all_memory()).unwrap();
    unit.block_all().unwrap();
    for stream in [STREAM, passing] {
        assert_eq!(machine.entry(stream.get().into()), [3, 0, 0, 0]);
        assert_eq!(machine.read(stream, 0x5000), None);
    }
    assert_eq!(Arc::strong_count(&domain), 1);
    // The first failure is told, and the others are blocked all the same.
    unit.attach(STREAM, &domain).unwrap();
    unit.pass_through(passing, all_memory()).unwrap();
    let code = refusal::ILLEGAL;
    machine.refuse_kind(opcode::DEVICE_ENTRY, 1, machine::ILLEGAL);
    let refused = AttachError::Iommu(IommuError::Refused { code });
    assert_eq!(unit.block_all(), Err(refused));
    assert!([STREAM, passing].iter().all(|one| machine.is_blocked(*one)));
}

#[test]
fn a_unit_whose_rings_do_not_start_is_told_apart_from_one_that_does_not_answer() {
    let machine = new_machine();
    machine.wrong(RegisterFaults { control: Drain::Never, ..RegisterFaults::NONE });
    let error = machine.enable(config()).err();
    let awaited = Awaited::Control;
    let told = matches!(error, Some(IommuError::TimedOut { awaited: of, .. }) if of == awaited);
    assert!(told, "{error:?}");
    // Nothing was asked of rings that stand still.
    assert_eq!(machine.reg(reg::COMMAND_TAIL), 0);
}

#[test]
fn each_allocation_may_fail() {
    // Queue, what it stores, log, device table, root, and three tables below.
    assert_eq!(allocations_that_may_fail::<Machine>(config), 8);
}

#[test]
fn faults_are_read_in_order_and_overflow_is_told() {
    let machine = new_machine();
    let is_full = || machine.reg(reg::STATUS) & status::EVENT_RUNS == 0;
    faults_are_read_in_order(&machine, 255, is_full);
}

#[test]
fn faults_of_blocked_streams_say_so() {
    let machine = new_machine();
    let (unit, _domain) = machine.attached();
    let reason = |stream: u32| {
        assert_eq!(machine.read(StreamId::new(stream), 0x5000), None);
        let Ok(Some(FaultEvent::Fault(record))) = unit.next_fault() else {
            panic!("no record");
        };
        assert_eq!(record.access, Some(FaultAccess::Read));
        record.reason
    };
    assert_eq!(reason(0x28), FaultReason::NotMapped);
    assert_eq!(reason(0x29), FaultReason::Blocked);
}

#[test]
fn a_record_that_never_comes_is_lost() {
    let machine = new_machine();
    let (unit, _domain) = machine.attached();
    // Of a refused command the unit announces a record, and writes none.
    machine.refuse_kind(opcode::ALL, 1, 0);
    let everything = [Step::Invalidate(Command::Global), Step::Sync];
    let refused = unit.queue().pay(&mut everything.into_iter(), TablesLeft::ByDepth);
    let code = refusal::UNKNOWN;
    assert_eq!(refused, Err(IommuError::Refused { code }));
    assert_eq!(machine.read(STREAM, 0x5000), None);
    // Each call is short; the record has the whole limit.
    let mut calls = 0;
    while unit.next_fault() == Ok(None) {
        calls += 1;
        assert!(calls < 1000, "its time is over");
    }
    assert!(calls > 10);
    assert!(matches!(unit.next_fault(), Ok(Some(FaultEvent::Fault(_)))));
}

#[test]
fn a_record_that_is_written_after_the_tail_moved_is_read_whole() {
    // Within one call, and after some.
    for looks in [0, 1, 3, 40] {
        let machine =
            machine::of(AmdSetup { records: Pace::After(looks * LOOK_NS + 1), ..machine::real() });
        let (unit, _domain) = machine.attached();
        assert_eq!(machine.write(STREAM, 0x5000), None);
        let event = core::iter::repeat_with(|| unit.next_fault().unwrap())
            .take(100)
            .find_map(|event| event);
        let Some(FaultEvent::Fault(record)) = event else {
            panic!("{event:?} after {looks} looks");
        };
        assert_eq!(record.iova, Some(Iova::new(0x5000)));
        assert_eq!(unit.next_fault(), Ok(None));
    }
}

#[test]
fn pointers_beyond_the_end_are_nonsense() {
    let machine = new_machine();
    let (unit, domain) = machine.attached();
    let (offset, value) = (reg::EVENT_TAIL, 0x7_fff0);
    machine.lie(offset, u64::MAX, value);
    let nonsense = IommuError::Nonsense { offset, value };
    assert_eq!(unit.next_fault(), Err(nonsense));
    machine.wrong(RegisterFaults::STUCK);
    let offset = reg::COMMAND_HEAD;
    machine.lie(offset, u64::MAX, value);
    let nonsense = IommuError::Nonsense { offset, value };
    let mut owed = map(&*domain, 1);
    let error = IommuError::from(domain.sync(&mut owed).unwrap_err());
    assert_eq!(error, nonsense);
}

/// Chips write the register of its base in two halves, and read entries between the two: the upper half is 0
/// before and after.
#[test]
fn the_device_table_lies_below_4_gib() {
    let machine = machine::at(0xff00_0000);
    assert!(machine.enable(config()).is_ok());
    assert_eq!(machine.reg(reg::DEVICE_TABLE) >> 32, 0);
    let machine = machine::at(0x1_0000_0000);
    let error = machine.enable(config()).err();
    assert!(matches!(error, Some(IommuError::Memory(_))), "{error:?}");
    assert_eq!(machine.live(), 0);
}

#[test]
fn no_address_is_wider_than_the_capability_block_says() {
    for (bits, width) in [(0, 48), (40, 40), (64, 48)] {
        let mut identification = AmdIdentification::default();
        identification.capability[4] = 40 << 8 | bits << 15;
        let setup = AmdSetup { identification, ..AmdSetup::default() };
        let machine = machine::of(setup);
        let unit = machine.enable(config()).unwrap();
        let domain = unit.domain().unwrap();
        assert_eq!(domain.input_range().last().get(), (1 << width) - 1, "{bits}");
    }
}
