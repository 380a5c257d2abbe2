//! Taking a unit over in any state.

use crate::promise::tests::{all_memory, described, doorbell};
use alloc::vec::Vec;

use portolan::addr::{Iova, IovaRange, PhysAddr};
use portolan::iommu::{Iommu as _, IommuError, ReservedKind, ReservedRegion};
use portolan::platform::Mmio;
use portolan::table::Access;
use portolan_chips::inject::{Drain, RegisterFaults};
use portolan_chips::machine::Event;
use portolan_chips::riscv::{RiscvIdentification, RiscvMachine as Machine};
use portolan_sim::decode::AccessKind;

use super::machine::{self, new_machine};
use super::{STREAM, config};
use crate::chassis::tests::suite::Driven;
use crate::reservations::Reserved;
use crate::riscv::{Config, Signal};
use portolan_spec::riscv::reg::{self, feature, queue};

/// The modes that the directory's register was given, in order.
fn modes(machine: &Machine) -> Vec<u64> {
    let all = machine.done().into_iter().filter_map(|event| match event {
        Event::Write(reg::DIRECTORY, value) => Some(value & 0xf),
        _ => None,
    });
    all.collect()
}

#[test]
fn everything_is_forgotten_before_the_directory_is_used() {
    let machine = new_machine();
    let unit = machine.enable(config()).unwrap();
    // Of one level; nothing has ever been let through.
    assert_eq!(modes(&machine), [0, 2]);
    assert_eq!(machine.reg(reg::DIRECTORY) & 0x3ff, 2);
    let on = queue::ENABLE | queue::ON;
    assert_eq!(machine.reg32(reg::COMMAND_CONTROL), on);
    assert_eq!(machine.reg32(reg::FAULT_CONTROL), on);
    // 256 commands, 128 records.
    assert_eq!(machine.reg(reg::COMMAND_BASE) & 0x3ff, 7);
    assert_eq!(machine.reg(reg::FAULT_BASE) & 0x3ff, 6);
    assert_eq!(machine.reg32(reg::FAULT_HEAD), 0);
    let done = machine.done();
    let at = |wanted: &dyn Fn(&Event) -> bool| done.iter().position(wanted).unwrap();
    let used =
        at(&|event| matches!(event, Event::Write(reg::DIRECTORY, value) if value & 0xf == 2));
    let commands = [[0x3, 0], [0x1, 0], [0x81, 0]];
    for words in commands {
        let is = |event: &Event| matches!(event, Event::Command(of) if of[..2] == words);
        assert!(at(&is) < used, "{words:x?}");
    }
    assert_eq!(machine.commands(), commands);
    assert_eq!(machine.read(STREAM, 0x5000), None);
    machine.expect_obedience();
    drop(unit);
}

/// Memory that a display goes on reading.
const FRAMES: u64 = 0x7000_0000;

/// Memory that the display, and another device, reach at every access to a register while a unit is enabled that was in
/// the mode `before`.
fn seen_meanwhile(machine: &Machine, before: u64, signal: Signal) -> [Vec<Option<u64>>; 2] {
    machine.write64(reg::DIRECTORY, before);
    machine.take();
    let range = IovaRange::new(Iova::new(FRAMES), Iova::new(FRAMES + 0xfff)).unwrap();
    let kind = ReservedKind::Direct(Access::READ_WRITE);
    let region = ReservedRegion { range, kind };
    let mut config = Config { signal, ..config() };
    config.reserved.believe(described());
    config.reserved.add(Reserved::one(STREAM, region)).unwrap();
    let [_, other] = Machine::STREAMS;
    for stream in [STREAM, other] {
        let at = Iova::new(FRAMES);
        let unit = machine.unit();
        unit.observe(stream, None, at, AccessKind::Read);
    }
    machine.unit().observed();
    let unit = machine.enable(config).unwrap();
    let seen = machine.unit().observed();
    machine.expect_obedience();
    drop(unit);
    let [display, other] = &seen[..] else {
        panic!("{seen:?}");
    };
    [display, other].map(|seen| seen.iter().map(|at| at.map(PhysAddr::get)).collect())
}

#[test]
fn a_display_goes_on_at_every_access_while_a_unit_is_enabled_that_lets_all_through() {
    const GOES_ON: Option<u64> = Some(FRAMES);
    let able = RiscvIdentification::able();
    // Directories of one level, and of three alone.
    for levels in [able.levels, 0b1000] {
        let machine = machine::with(RiscvIdentification { levels, ..able });
        let [display, other] = seen_meanwhile(&machine, 1, Signal::None);
        assert_eq!(other, [GOES_ON, None]);
        assert_eq!(display, [GOES_ON]);
    }
    // Features change in Off alone (6.4): interrupts by wires here.
    let [display, other] = seen_meanwhile(&new_machine(), 1, Signal::Wired);
    assert_eq!(other, [GOES_ON, None]);
    assert_eq!(display, [GOES_ON, None, GOES_ON]);
    // What let nothing through goes on doing so.
    let [display, other] = seen_meanwhile(&new_machine(), 0, Signal::None);
    assert_eq!((display, other), ([None, GOES_ON].to_vec(), [None].to_vec()));
}

#[test]
fn a_unit_that_is_on_already_is_taken_over() {
    for before in [0u64, 1, 4] {
        let machine = new_machine();
        // A directory elsewhere, and queues.
        machine.write64(reg::DIRECTORY, 0x1_0000 << 10 | before);
        for control in [reg::COMMAND_CONTROL, reg::FAULT_CONTROL] {
            machine.write32(control, queue::ENABLE);
        }
        machine.take();
        let (unit, _domain) = machine.attached();
        assert_eq!(machine.reg(reg::DIRECTORY) & 0xf, 2);
        machine.expect_obedience();
        unit.release(all_memory()).unwrap();
        machine.expect_obedience();
    }
}

#[test]
fn a_unit_that_stays_big_endian_is_refused() {
    for signal in [Signal::None, Signal::Wired] {
        let machine = new_machine();
        let stays = u64::from(feature::BIG_ENDIAN | feature::GUEST_32);
        machine.lie(reg::FEATURES, stays, stays);
        let refused = machine.enable(Config { signal, ..config() });
        assert_eq!(refused.err(), Some(IommuError::Unsupported), "{signal:?}");
    }
}

#[test]
fn a_directory_as_deep_as_the_unit_has_one() {
    // Of two and three levels alone; of three alone.
    for (levels, mode) in [(0b1100, 3), (0b1000, 4)] {
        let identification = RiscvIdentification { levels, ..RiscvIdentification::able() };
        let machine = machine::with(identification);
        let (unit, _domain) = machine.attached();
        assert_eq!(machine.reg(reg::DIRECTORY) & 0xf, mode);
        unit.block(STREAM).unwrap();
        machine.expect_obedience();
    }
    let identification = RiscvIdentification { levels: 0b0110, ..RiscvIdentification::able() };
    let machine = machine::with(identification);
    let wide = Config { streams_lg2: 17, ..config() };
    assert_eq!(machine.enable(wide).err(), Some(IommuError::Unsupported));
    assert_eq!(machine.reg(reg::DIRECTORY) & 0xf, 0);
    machine.expect_obedience();
}

#[test]
fn what_a_unit_cannot_be_or_do_is_refused() {
    let plain = RiscvIdentification::able();
    let offset = reg::CAPABILITIES;
    let outcome = |capabilities, config| {
        let identification = RiscvIdentification { capabilities, ..plain };
        machine::with(identification).enable(config).err()
    };
    let unsupported = Some(IommuError::Unsupported);
    // Another version; interrupts of no kind; physical addresses of 57 and of 11 bits.
    assert_eq!(outcome(plain.capabilities | 0x20, config()), unsupported);
    let without = plain.capabilities & !(0x3f << 32);
    for value in [plain.capabilities | 3 << 28, without | 57 << 32, without | 11 << 32] {
        let nonsense = Some(IommuError::Nonsense { offset, value });
        assert_eq!(outcome(value, config()), nonsense);
    }
    // Interrupts that it does not raise, and messages that it cannot send.
    let signal = |signal| Config { signal, ..config() };
    let message =
        |address| signal(Signal::Message { address: doorbell(PhysAddr::new(address)), data: 7 });
    let either = plain.capabilities & !(3 << 28);
    assert_eq!(outcome(either, signal(Signal::Wired)), unsupported);
    assert_eq!(outcome(either | 1 << 28, message(0x2000)), unsupported);
    assert_eq!(outcome(plain.capabilities, message(0x2002)), unsupported);
    assert_eq!(outcome(plain.capabilities, message(1 << 56)), unsupported);
    assert_eq!(outcome(plain.capabilities, message(0x2000)), None);
    // A queue that is longer than it takes.
    let short = RiscvIdentification { queue_lg2: 7, ..plain };
    assert_eq!(machine::with(short).enable(config()).err(), unsupported);
}

#[test]
fn a_unit_that_does_not_follow_ends_in_time() {
    let machine = new_machine();
    machine.write64(reg::DIRECTORY, 1);
    machine.wrong(RegisterFaults { control: Drain::Never, ..RegisterFaults::NONE });
    let error = machine.enable(config()).err();
    assert!(matches!(error, Some(IommuError::TimedOut { .. })), "{error:?}");
    assert_eq!(machine.live(), 0);
    machine.wrong(RegisterFaults::GONE);
    assert_eq!(machine.enable(config()).err(), Some(IommuError::Gone));
    assert_eq!(machine.live(), 0);
}

#[test]
fn a_mode_that_is_not_what_was_written_is_nonsense() {
    let machine = new_machine();
    machine.lie(reg::DIRECTORY, 0xf, 4);
    let error = machine.enable(config()).err();
    let offset = reg::DIRECTORY;
    assert_eq!(error, Some(IommuError::Nonsense { offset, value: 4 }));
}
