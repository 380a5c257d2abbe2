//! Interrupts of devices through MSI page tables.

use crate::promise::tests::{all_memory, described};
use alloc::sync::Arc;
use alloc::vec::Vec;

use portolan::addr::{Iova, PhysAddr, RequesterId, StreamId};
use portolan::iommu::{
    Attach as _, AttachError, Delivery, Destination, Domain as _, FaultEvent, FaultReason,
    Interrupt, InterruptError, InterruptRefusal, InterruptSource, InterruptTarget, Iommu as _,
    IommuDomains as _, IommuError, MsiMessage, Polarity, RemapInterrupts as _, ReservedKind, Stage,
    Trigger, Vector,
};
use portolan::table::format::RiscvLevels;
use portolan_chips::riscv::{RiscvIdentification, RiscvMachine as Machine};

use super::machine::{Iommu, new_machine, with};
use super::{STREAM, config};
use crate::chassis::tests::suite::{BASE, Driven, map, unmap};
use crate::riscv::{Config, InterruptFiles, Messages};
use portolan_spec::riscv::PPN;
use portolan_spec::riscv::command::opcode;
use portolan_spec::riscv::reg::{self, queue};

const OTHER: StreamId = StreamId::new(0x30);
/// The file of the first hart, and where messages are written to.
const FILES: u64 = 0x2800_0000;
const WINDOW: u64 = 0xe000_0000;

fn source(stream: StreamId) -> InterruptSource {
    InterruptSource::Requester(RequesterId::new(stream.get() as u16))
}

fn target(vector: u8, hart: u32) -> InterruptTarget {
    InterruptTarget::new(Vector::new(vector).unwrap(), Destination::Physical(hart))
}

/// Four harts; two entries for each stream.
fn messages() -> Messages {
    Messages {
        lg2_entries: 1,
        ..Messages::new(InterruptFiles::new(PhysAddr::new(FILES), 4), described())
    }
}

fn remapping(interrupts: Messages) -> Config {
    Config { interrupts: Some(interrupts), ..config() }
}

fn machine() -> Machine {
    with(RiscvIdentification::able().extended())
}

fn unit(machine: &Machine) -> Iommu {
    let unit = machine.enable(remapping(messages())).unwrap();
    machine.commands();
    unit
}

fn allocate(unit: &Iommu, stream: StreamId, vector: u8, hart: u32) -> (Interrupt, MsiMessage) {
    let interrupt = unit.allocate(source(stream), target(vector, hart)).unwrap();
    let message = unit.message(&interrupt).unwrap();
    (interrupt, message)
}

/// Hart and number of the interrupt that arrives if `from` writes a message.
fn send(machine: &Machine, from: StreamId, message: MsiMessage) -> Option<(u64, u32)> {
    let at = machine.write(from, message.address)?;
    assert_eq!(at % 4096, 0);
    Some(((at - FILES) / 4096, message.data))
}

/// The eight words of the context of `stream`, which the directory's root holds.
fn context(machine: &Machine, stream: StreamId) -> [u64; 8] {
    let root = PPN.of(machine.reg(reg::DIRECTORY)) << 12;
    let at = root + u64::from(stream.get()) * 64;
    [0, 1, 2, 3, 4, 5, 6, 7].map(|word| machine.word(at + 8 * word))
}

fn reasons(unit: &Iommu) -> Vec<(StreamId, FaultReason)> {
    let mut all = Vec::new();
    while let Some(event) = unit.next_fault().unwrap() {
        let FaultEvent::Fault(record) = event else {
            panic!("{event:?}");
        };
        all.push((record.stream, record.reason));
    }
    all
}

const ABSENT: FaultReason =
    FaultReason::Interrupt { index: None, refusal: InterruptRefusal::Absent };

/// Words that a person wrote down from the figures of the contexts and of the entries.
#[test]
fn tables_and_entries_by_hand() {
    let machine = machine();
    let unit = unit(&machine);
    let (first, own) = allocate(&unit, STREAM, 0x52, 3);
    let words = context(&machine, STREAM);
    // Valid; Sv48x4, the last tag; no first stage; flat, two entries, from the window's first page on.
    assert_eq!((words[0], words[1] >> 44, words[2], words[3]), (1, 9 << 16 | 0xffff, 0, 0));
    assert_eq!((words[4] >> 60, words[5], words[6], words[7]), (1, 1, 0xe_0000, 0));
    let table = words[4] << 12;
    // Valid, to another page: that of the fourth file.
    assert_eq!(machine.word(table), (FILES + 0x3000) >> 12 << 10 | 7);
    assert_eq!([8, 16, 24].map(|at| machine.word(table + at)), [0; 3]);
    assert_eq!((own.address, own.data), (WINDOW, 0x52));
    let (second, more) = allocate(&unit, STREAM, 0x63, 0);
    assert_eq!((more.address, more.data), (WINDOW + 0x1000, 0x63));
    assert_eq!((first.index(), second.index()), (0, 1));
    // What begins to count takes no command.
    assert_eq!(machine.commands(), [[0; 2]; 0]);
    // The next stream has the next two pages.
    let (_others, others) = allocate(&unit, OTHER, 0x70, 1);
    assert_eq!((others.address, others.data), (WINDOW + 0x2000, 0x70));
    assert_eq!(context(&machine, OTHER)[6], 0xe_0002);
    assert_eq!(send(&machine, STREAM, own), Some((3, 0x52)));
    assert_eq!(send(&machine, STREAM, more), Some((0, 0x63)));
    assert_eq!(send(&machine, OTHER, others), Some((1, 0x70)));
    machine.commands();
    unit.free(first).unwrap();
    // IOTINVAL.GVMA of that tag and of the page.
    assert_eq!(machine.commands(), [[0x0fff_f002_0000_0481, WINDOW >> 2]]);
    assert_eq!(machine.word(table), 0);
    machine.expect_obedience();
}

#[test]
fn only_its_own_messages_arrive_and_nothing_else_is_reached() {
    let machine = machine();
    let unit = unit(&machine);
    let (_own, own) = allocate(&unit, STREAM, 0x52, 3);
    let (_other, other) = allocate(&unit, OTHER, 0x60, 1);
    assert_eq!(send(&machine, OTHER, other), Some((1, 0x60)));
    // Another's; an entry that does not count; where no stream's are; the file itself.
    assert_eq!(send(&machine, STREAM, other), None);
    assert_eq!(send(&machine, OTHER, own), None);
    let at = |address| MsiMessage { address, data: 0x52 };
    assert_eq!(send(&machine, STREAM, at(WINDOW + 0x1000)), None);
    assert_eq!(send(&machine, STREAM, at(WINDOW + 0x80_0000)), None);
    let refused = [STREAM, OTHER, STREAM, STREAM].map(|stream| (stream, ABSENT));
    assert_eq!(reasons(&unit), refused);
    assert_eq!(machine.write(STREAM, FILES), None);
    assert_eq!(machine.read(STREAM, FILES), None);
    assert_eq!(reasons(&unit), [(STREAM, FaultReason::NotMapped); 2]);
    // Devices without interrupts are blocked as ever.
    let third = StreamId::new(0x31);
    assert_eq!(send(&machine, third, own), None);
    assert_eq!(machine.write(third, FILES), None);
    let blocked = (third, FaultReason::Blocked);
    assert_eq!(reasons(&unit), [(third, ABSENT), blocked]);
}

#[test]
fn what_is_freed_moved_or_blocked_counts_at_once() {
    let machine = machine();
    let unit = unit(&machine);
    let (mut first, message) = allocate(&unit, STREAM, 0x52, 3);
    let (second, other) = allocate(&unit, STREAM, 0x60, 1);
    assert_eq!(send(&machine, STREAM, message), Some((3, 0x52)));
    assert_eq!(send(&machine, STREAM, other), Some((1, 0x60)));
    unit.retarget(&mut first, target(0x52, 2)).unwrap();
    assert_eq!(send(&machine, STREAM, message), Some((2, 0x52)));
    assert_eq!(unit.message(&first), Ok(message));
    let renumbered = unit.retarget(&mut first, target(0x53, 2));
    assert_eq!(renumbered, Err(InterruptError::Target));
    unit.free(first).unwrap();
    assert_eq!(send(&machine, STREAM, message), None);
    assert_eq!(send(&machine, STREAM, other), Some((1, 0x60)));
    unit.block(STREAM).unwrap();
    assert_eq!(send(&machine, STREAM, other), None);
    assert_eq!(unit.message(&second), Err(InterruptError::NotInUse));
    assert_eq!(unit.free(second), Err(InterruptError::NotInUse));
    assert_eq!(reasons(&unit), [(STREAM, ABSENT); 2]);
    // The next owner of the entry is told from the previous one.
    let (third, again) = allocate(&unit, STREAM, 0x61, 0);
    assert_eq!(again.address, message.address);
    assert_eq!(send(&machine, STREAM, message), Some((0, 0x52)));
    unit.revoke(STREAM).unwrap();
    assert_eq!(send(&machine, STREAM, again), None);
    assert_eq!(unit.message(&third), Err(InterruptError::NotInUse));
    machine.expect_obedience();
}

#[test]
fn an_entry_that_the_unit_did_not_forget_stays_out_of_use_until_it_has() {
    let machine = machine();
    let unit = unit(&machine);
    let (first, message) = allocate(&unit, STREAM, 0x52, 3);
    assert!(send(&machine, STREAM, message).is_some());
    machine.refuse_kind(opcode::TRANSLATIONS, 1, queue::ILLEGAL);
    assert!(matches!(unit.free(first), Err(InterruptError::Iommu(_))));
    // The unit still lets it through.
    assert_eq!(send(&machine, STREAM, message), Some((3, 0x52)));
    let second = unit.allocate(source(STREAM), target(0x60, 1)).unwrap();
    assert_eq!(second.index(), 1);
    let third = unit.allocate(source(STREAM), target(0x61, 2)).unwrap();
    assert_eq!(third.index(), 0);
    assert_eq!(send(&machine, STREAM, message), Some((2, 0x52)));
    let full = unit.allocate(source(STREAM), target(0x62, 1));
    assert_eq!(full, Err(InterruptError::Full));
}

#[test]
fn interrupts_go_on_from_domain_to_domain_and_end_with_the_block() {
    let machine = machine();
    let unit = Arc::new(unit(&machine));
    let domain = || Arc::new(unit.second_stage(RiscvLevels::Four).unwrap());
    let [one, two] = [(); 2].map(|()| domain());
    let (_first, message) = allocate(&unit, STREAM, 0x52, 3);
    unit.attach(STREAM, &one).unwrap();
    one.sync(&mut map(&*one, 1)).unwrap();
    assert_eq!(send(&machine, STREAM, message), Some((3, 0x52)));
    assert_eq!(machine.read(STREAM, BASE.get()), Some(0x1000));
    unit.attach(STREAM, &two).unwrap();
    assert_eq!(send(&machine, STREAM, message), Some((3, 0x52)));
    assert_eq!(machine.read(STREAM, BASE.get()), None);
    // A second device of the same domain has messages of its own.
    unit.attach(OTHER, &two).unwrap();
    let (_second, other) = allocate(&unit, OTHER, 0x60, 0);
    assert_eq!(send(&machine, OTHER, other), Some((0, 0x60)));
    assert_eq!(send(&machine, OTHER, message), None);
    // Elsewhere there are no messages, so it stays.
    let first_stage = Arc::new(unit.first_stage(RiscvLevels::Four).unwrap());
    assert_eq!(unit.attach(STREAM, &first_stage), Err(AttachError::Mismatch));
    assert_eq!(unit.pass_through(STREAM, all_memory()), Err(AttachError::Mismatch));
    assert_eq!(send(&machine, STREAM, message), Some((3, 0x52)));
    unit.block(STREAM).unwrap();
    assert_eq!(send(&machine, STREAM, message), None);
    unit.attach(STREAM, &first_stage).unwrap();
    let refused = unit.allocate(source(STREAM), target(0x52, 3));
    assert_eq!(refused, Err(InterruptError::Target));
    assert_eq!(send(&machine, STREAM, message), None);
    assert_eq!(context(&machine, STREAM)[4..], [0; 4]);
    // An unmap of the window's neighbour takes no message away.
    one.sync(&mut unmap(&*one, 1)).unwrap();
    assert_eq!(send(&machine, OTHER, other), Some((0, 0x60)));
    machine.expect_obedience();
}

#[test]
fn only_a_write_to_the_window_is_told_as_a_message() {
    let machine = machine();
    let unit = unit(&machine);
    let _kept = allocate(&unit, OTHER, 0x52, 3);
    // Neither is attached; the second has messages of its own.
    let elsewhere = WINDOW - 4096;
    for stream in [StreamId::new(0x31), OTHER] {
        assert_eq!(machine.write(stream, elsewhere), None);
        assert_eq!(machine.read(stream, WINDOW + 0x800_0000), None);
        assert_eq!(machine.read(stream, elsewhere), None);
        for (of, reason) in reasons(&unit) {
            let ordinary = [FaultReason::Blocked, FaultReason::NotMapped].contains(&reason);
            assert!(ordinary && of == stream, "{reason:?}");
        }
        assert_eq!(machine.write(stream, WINDOW + 0x800_0000), None);
        assert_eq!(reasons(&unit), [(stream, ABSENT)]);
    }
}

#[test]
fn what_cannot_arrive_is_refused() {
    let machine = machine();
    let unit = unit(&machine);
    let refused = |target| unit.allocate(source(STREAM), target).unwrap_err();
    let far = target(0x52, 4);
    assert_eq!(refused(far), InterruptError::Destination(far.destination));
    let mut wrong = target(0x52, 0);
    wrong.destination = Destination::Logical(1);
    assert_eq!(refused(wrong), InterruptError::Destination(wrong.destination));
    let mut wrong = target(0x52, 0);
    wrong.delivery = Delivery::LowestPriority;
    assert_eq!(refused(wrong), InterruptError::Target);
    let mut wrong = target(0x52, 0);
    wrong.trigger = Trigger::Level;
    assert_eq!(refused(wrong), InterruptError::Target);
    for no in [
        InterruptSource::Device(RequesterId::new(0x28)),
        InterruptSource::Buses { first: 0, last: 1 },
        source(StreamId::new(64)),
    ] {
        let refused = unit.allocate(no, target(0x52, 0));
        assert_eq!(refused, Err(InterruptError::Source(no)));
    }
    let (own, _) = allocate(&unit, STREAM, 0x52, 3);
    let line = unit.redirection(&own, Polarity::High);
    assert_eq!(line, Err(InterruptError::Target));
    // Files with few interrupts.
    let mut few = messages();
    few.files.identities = 63;
    let unit = super::machine::with(RiscvIdentification::able().extended())
        .enable(remapping(few))
        .unwrap();
    let of = |vector| unit.allocate(source(STREAM), target(vector, 0)).map(drop);
    assert_eq!((of(63), of(64)), (Ok(()), Err(InterruptError::Target)));
}

#[test]
fn a_window_has_room_for_so_many_streams() {
    let machine = machine();
    let small = Messages { window_lg2: 13, ..messages() };
    let unit = machine.enable(remapping(small)).unwrap();
    let (_own, _) = allocate(&unit, STREAM, 0x52, 3);
    let full = unit.allocate(source(OTHER), target(0x52, 3));
    assert_eq!(full, Err(InterruptError::Full));
    // Attached it is all the same.
    let domain = Arc::new(unit.second_stage(RiscvLevels::Four).unwrap());
    unit.block(OTHER).unwrap();
    unit.attach(OTHER, &domain).unwrap();
    domain.sync(&mut map(&*domain, 1)).unwrap();
    assert_eq!(machine.read(OTHER, BASE.get()), Some(0x1000));
}

#[test]
fn units_without_such_tables_and_windows_that_are_none_are_refused() {
    let error = |machine: &Machine, of| machine.enable(remapping(of)).err();
    assert_eq!(error(&new_machine(), messages()), Some(IommuError::Unsupported));
    let extended = RiscvIdentification::able().extended();
    let first_only =
        RiscvIdentification { capabilities: extended.capabilities & !(7 << 17), ..extended };
    assert_eq!(error(&with(first_only), messages()), Some(IommuError::Unsupported));
    let window =
        |window, window_lg2| Messages { window: Iova::new(window), window_lg2, ..messages() };
    for wrong in [
        window(0, 20),
        window(WINDOW + 0x1000, 20),
        window(1 << 32, 20),
        window(WINDOW, 30),
        window(WINDOW, 12),
        window(WINDOW, 64),
        window(WINDOW, u32::MAX),
    ] {
        let machine = machine();
        assert_eq!(error(&machine, wrong), Some(IommuError::Unsupported), "{wrong:?}");
        assert_eq!(machine.live(), 0);
    }
}

#[test]
fn new_domains_leave_the_window_alone_and_have_a_second_stage() {
    let machine = machine();
    let unit = Arc::new(unit(&machine));
    assert_eq!(unit.conditions().stage, Stage::Second);
    assert!(unit.interrupts().is_some());
    assert!(unit.clone().new_domain().is_ok());
    let mut reserved = Vec::new();
    unit.reserved(STREAM, &mut |one| reserved.push((one.kind, one.range)));
    let [(ReservedKind::Interrupts, range)] = reserved[..] else {
        panic!("{reserved:?}");
    };
    let ends = (range.start().get(), range.last().get());
    assert_eq!(ends, (WINDOW, WINDOW + 0xfff_ffff));
    let plain = Arc::new(new_machine().enable(config()).unwrap());
    assert_eq!(plain.conditions().stage, Stage::First);
    assert!(plain.interrupts().is_none());
}

#[test]
fn a_unit_that_is_released_gives_its_tables_back() {
    let machine = machine();
    let unit = unit(&machine);
    let (own, _) = allocate(&unit, STREAM, 0x52, 3);
    unit.free(own).unwrap();
    unit.release(all_memory()).unwrap();
    assert_eq!(machine.live(), 0);
}
