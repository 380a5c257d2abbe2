//! Interrupts that are pending in memory-resident interrupt files.

use alloc::vec::Vec;
use core::sync::atomic::AtomicU64;

use portolan::addr::{PageSize, PhysAddr, RequesterId};
use portolan::iommu::{
    DescriptorPosting, Destination, FaultEvent, FaultReason, FilePosting, Interrupt,
    InterruptError, InterruptRefusal, InterruptSource, InterruptTarget, Iommu as _, MsiMessage,
    Posting, RemapInterrupts as _, Vector,
};
use portolan::platform::TableMem;
use portolan_chips::machine::Event;
use portolan_chips::riscv::{RiscvDelivered, RiscvIdentification, RiscvMachine as Machine};

use super::machine::{Iommu, with};
use super::{STREAM, config};
use crate::chassis::tests::suite::Driven as _;
use crate::promise::tests::{described, file_at, posted_at};
use crate::riscv::{Config, InterruptFiles, Messages};
use portolan_spec::riscv::PPN;
use portolan_spec::riscv::command::opcode;
use portolan_spec::riscv::reg::{self, queue};

const SOURCE: InterruptSource = InterruptSource::Requester(RequesterId::new(0x28));
const FILES: u64 = 0x2800_0000;

fn target(vector: u8, hart: u32) -> InterruptTarget {
    InterruptTarget::new(Vector::new(vector).unwrap(), Destination::Physical(hart))
}

fn posting(file: u64, number: u8, hart: u32) -> Posting {
    let file = file_at(PhysAddr::new(file));
    Posting::File(FilePosting { file, notice: target(number, hart) })
}

fn able() -> RiscvIdentification {
    RiscvIdentification::able().extended().interrupt_files()
}

fn unit(identification: RiscvIdentification) -> (Machine, Iommu) {
    let machine = with(identification);
    let files = InterruptFiles::new(PhysAddr::new(FILES), 4);
    let interrupts = Some(Messages { lg2_entries: 1, ..Messages::new(files, described()) });
    let unit = machine.enable(Config { interrupts, ..config() }).unwrap();
    machine.commands();
    (machine, unit)
}

/// An interrupt that arrives at the fourth hart, its message, and the place of its entry.
fn allocate(machine: &Machine, unit: &Iommu) -> (Interrupt, MsiMessage, u64) {
    let interrupt = unit.allocate(SOURCE, target(0x52, 3)).unwrap();
    let message = unit.message(&interrupt).unwrap();
    let context = (PPN.of(machine.reg(reg::DIRECTORY)) << 12) + 0x28 * 64;
    let entry = machine.word(context + 32) << 12;
    machine.commands();
    (interrupt, message, entry)
}

/// A file in the machine's memory.
fn file(machine: &Machine) -> u64 {
    let page = TableMem::<AtomicU64>::alloc(machine, PageSize::SIZE_4K).unwrap();
    page.get() + 0x200
}

fn deliver(machine: &Machine, message: MsiMessage) -> Option<RiscvDelivered> {
    machine.unit().deliver(STREAM, message.address, message.data).ok()
}

/// The message as it arrives at a hart.
fn at_hart(hart: u64) -> RiscvDelivered {
    RiscvDelivered::Written(PhysAddr::new(FILES + hart * 0x1000), 0x52)
}

/// The notice at a hart.
fn noticed(hart: u64, number: u32) -> RiscvDelivered {
    RiscvDelivered::Stored { page: PhysAddr::new(FILES + hart * 0x1000), number }
}

fn reasons(unit: &Iommu) -> Vec<FaultReason> {
    let next = || match unit.next_fault().unwrap()? {
        FaultEvent::Fault(record) => Some(record.reason),
        other => panic!("{other:?}"),
    };
    core::iter::from_fn(next).collect()
}

/// Words that a person wrote down from the figure of the entry in MRIF mode.
#[test]
fn entries_name_the_file_and_the_notice() {
    let (machine, unit) = unit(able());
    let (mut interrupt, _, entry) = allocate(&machine, &unit);
    let words = || [machine.word(entry), machine.word(entry + 8)];
    unit.post(&mut interrupt, posting(0x1234_5600, 0xa1, 2)).unwrap();
    // Address bits 55:9 in bits 53:7, mode 1, valid; the third file's page in bits 53:10, and the number.
    assert_eq!(words(), [0x1234_5600 >> 9 << 7 | 3, 0x28002 << 10 | 0xa1]);
    // Bit 55 of the address is bit 53 of the word.
    unit.post(&mut interrupt, posting(0x80_0000_0000_0000, 0xff, 0)).unwrap();
    assert_eq!(words(), [1 << 53 | 3, 0x28000 << 10 | 0xff]);
    // Each change: IOTINVAL.GVMA of the tag and of the page, twice.
    assert_eq!(machine.commands(), [[0x0fff_f002_0000_0481, 0xe000_0000 >> 2]; 4]);
}

#[test]
fn an_interrupt_is_pending_and_noticed_until_it_goes_back_to_a_hart() {
    let (machine, unit) = unit(able());
    let (mut interrupt, message, _) = allocate(&machine, &unit);
    let (first, second) = (file(&machine), file(&machine));
    assert_eq!(deliver(&machine, message), Some(at_hart(3)));
    unit.post(&mut interrupt, posting(first, 0x61, 1)).unwrap();
    // Each is noticed, also one that is pending.
    for _ in 0..2 {
        assert_eq!(deliver(&machine, message), Some(noticed(1, 0x61)));
        // Identity 0x52 is bit 18 of the second pair.
        assert_eq!([first, first + 16].map(|at| machine.word(at)), [0, 1 << 18]);
    }
    unit.post(&mut interrupt, posting(second, 0x62, 2)).unwrap();
    assert_eq!(deliver(&machine, message), Some(noticed(2, 0x62)));
    assert_eq!(machine.word(second + 16), 1 << 18);
    // What is no interrupt is discarded, and other accesses are aborted.
    let of = |address, data| deliver(&machine, MsiMessage { address, data });
    assert_eq!(of(message.address, 0x800), Some(RiscvDelivered::Discarded));
    assert_eq!(of(message.address + 4, 0x52), Some(RiscvDelivered::Discarded));
    assert_eq!(of(message.address + 2, 0x52), None);
    assert_eq!(machine.read(STREAM, message.address), None);
    unit.retarget(&mut interrupt, target(0x52, 0)).unwrap();
    assert_eq!(deliver(&machine, message), Some(at_hart(0)));
    unit.post(&mut interrupt, posting(first, 0x61, 1)).unwrap();
    assert_eq!(deliver(&machine, message), Some(noticed(1, 0x61)));
    unit.free(interrupt).unwrap();
    assert_eq!(deliver(&machine, message), None);
    // The entry's next use is not affected by the word that is left.
    let (_next, message, _) = allocate(&machine, &unit);
    assert_eq!(deliver(&machine, message), Some(at_hart(3)));
    machine.expect_obedience();
}

#[test]
fn no_message_is_refused_or_noticed_elsewhere_while_it_changes() {
    for sent in 0..8 {
        let (machine, unit) = unit(able());
        let (mut interrupt, message, entry) = allocate(&machine, &unit);
        let files = [file(&machine), file(&machine)];
        machine.watch(entry, 2);
        let to = |number: usize| posting(files[number], 0x61 + number as u8, number as u32);
        let possible = [at_hart(3), noticed(0, 0x61), noticed(1, 0x62), at_hart(2)];
        for change in 0..3 {
            // It has read the second word, and reads the first later.
            if sent >> change & 1 == 1 {
                machine.unit().send(STREAM, message.address, message.data);
            }
            match change {
                2 => unit.retarget(&mut interrupt, target(0x52, 2)).unwrap(),
                number => unit.post(&mut interrupt, to(number)).unwrap(),
            }
            for end in machine.unit().delivered() {
                let end = end.unwrap();
                assert!(possible[change..change + 2].contains(&end), "{sent} {change}: {end:?}");
            }
            assert_eq!(deliver(&machine, message), Some(possible[change + 1]));
        }
        let seen: Vec<(Event, Vec<u64>)> = machine.seen();
        assert!(!seen.is_empty());
        assert!(seen.iter().all(|(_, words)| words[0] & 1 == 1), "{seen:x?}");
        machine.expect_obedience();
    }
}

#[test]
fn a_change_that_the_unit_did_not_take_is_one_or_the_other_and_may_be_made_again() {
    for nth in 1..=2 {
        let (machine, unit) = unit(able());
        let (mut interrupt, message, _) = allocate(&machine, &unit);
        let at = file(&machine);
        assert_eq!(deliver(&machine, message), Some(at_hart(3)));
        let mut left = nth;
        machine.refuse(move |words| {
            left -= i32::from(words[0] & 0x7f == opcode::TRANSLATIONS);
            (left == 0).then(|| left -= 1).map(|()| queue::ILLEGAL)
        });
        let refused = unit.post(&mut interrupt, posting(at, 0x61, 1));
        assert!(matches!(refused, Err(InterruptError::Iommu(_))), "{nth}: {refused:?}");
        let end = deliver(&machine, message).unwrap();
        assert!([at_hart(3), noticed(1, 0x61)].contains(&end), "{nth}: {end:?}");
        unit.post(&mut interrupt, posting(at, 0x61, 1)).unwrap();
        assert_eq!(deliver(&machine, message), Some(noticed(1, 0x61)));
    }
}

#[test]
fn a_file_without_memory_is_told_and_one_full_of_bits_takes_interrupts() {
    let (machine, unit) = unit(able());
    let (mut interrupt, message, _) = allocate(&machine, &unit);
    unit.post(&mut interrupt, posting(0xffff_0000_0000, 0x61, 1)).unwrap();
    assert_eq!(deliver(&machine, message), None);
    let refusal = InterruptRefusal::External;
    assert_eq!(reasons(&unit), [FaultReason::Interrupt { index: None, refusal }]);
    let at = file(&machine);
    machine.store(at + 16, u64::MAX);
    unit.post(&mut interrupt, posting(at, 0x61, 1)).unwrap();
    assert_eq!(deliver(&machine, message), Some(noticed(1, 0x61)));
}

#[test]
fn units_files_and_notices_that_cannot_be_are_refused() {
    for without in [23, 21] {
        let plain = able();
        let capabilities = plain.capabilities & !(1 << without);
        let (machine, unit) = unit(RiscvIdentification { capabilities, ..plain });
        let (mut interrupt, message, _) = allocate(&machine, &unit);
        let refused = unit.post(&mut interrupt, posting(0x1000, 0x61, 1));
        assert_eq!(refused, Err(InterruptError::Unposted));
        assert_eq!(deliver(&machine, message), Some(at_hart(3)));
    }
    let (machine, unit) = unit(able());
    let (mut interrupt, message, _) = allocate(&machine, &unit);
    for at in [0x1100, 0x101, 1 << 56] {
        let refused = unit.post(&mut interrupt, posting(at, 0x61, 1));
        assert_eq!(refused, Err(InterruptError::Unposted), "{at:#x}");
    }
    let refused = unit.post(&mut interrupt, posting(0x1000, 0x61, 4));
    assert_eq!(refused, Err(InterruptError::Destination(Destination::Physical(4))));
    let (descriptor, vector) = (posted_at(PhysAddr::new(0x1000)), Vector::new(0x61).unwrap());
    let descriptor = DescriptorPosting { descriptor, vector, urgent: false };
    let refused = unit.post(&mut interrupt, Posting::Descriptor(descriptor));
    assert_eq!(refused, Err(InterruptError::Unposted));
    assert_eq!(deliver(&machine, message), Some(at_hart(3)));
    unit.revoke(STREAM).unwrap();
    let refused = unit.post(&mut interrupt, posting(0x1000, 0x61, 1));
    assert_eq!(refused, Err(InterruptError::NotInUse));
    assert_eq!(machine.commands().len(), 1);
}
