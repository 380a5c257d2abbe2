//! Interrupts that are posted to virtual CPUs, and the log of those for CPUs that sleep.

use crate::promise::tests::{all_memory, page_at, posted_at};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::AtomicU64;
use std::sync::Mutex;

use portolan::addr::{PageSize, PhysAddr, RequesterId};
use portolan::iommu::{
    ApicPosting, DescriptorPosting, Destination, GuestCpu, GuestTag, Interrupt, InterruptError,
    InterruptSource, InterruptTarget, Iommu as _, IommuDomains as _, IommuError, MsiMessage,
    Posting, RemapInterrupts as _, Vector,
};
use portolan::platform::TableMem;
use portolan_chips::amd::{AmdDelivered, AmdInterrupt, AmdMachine, AmdSetup};
use portolan_chips::chips::ROME;
use portolan_chips::memory::PairStores;

use super::machine::{Amd, ILLEGAL, Iommu, with};
use super::{STREAM, config};
use crate::amd::posted::{entry, stages};
use crate::amd::{Config, SleeperEvent};
use crate::chassis::tests::suite::{Driven, machine_with_pairs};
use crate::interrupt::{ApicMode, Remapping};
use portolan_spec::amd::command::opcode;
use portolan_spec::amd::reg::{self, control, status};

const SOURCE: InterruptSource = InterruptSource::Requester(RequesterId::new(0x28));
const NEAR: GuestCpu = GuestCpu::Runs(Destination::Physical(0x0102_0304));
const FAR: GuestCpu = GuestCpu::Runs(Destination::Physical(0x0502_0306));
const TAG: u32 = 0xabcd_0123;

fn target(vector: u8, cpu: u32) -> InterruptTarget {
    InterruptTarget::new(Vector::new(vector).unwrap(), Destination::Physical(cpu))
}

fn posting(page: u64, vector: u8, cpu: GuestCpu) -> Posting {
    let (page, tag) = (page_at(PhysAddr::new(page)), GuestTag::new(TAG));
    Posting::Apic(ApicPosting { page, vector: Vector::new(vector).unwrap(), tag, cpu })
}

fn wanted() -> Config {
    let interrupts = Some(Remapping { apic: ApicMode::X2Apic, lg2_entries: 9 });
    Config { interrupts, sleepers_lg2: Some(9), ..config() }
}

fn unit() -> (AmdMachine, Iommu) {
    unit_with(PairStores::Absent)
}

fn unit_with(pairs: PairStores) -> (AmdMachine, Iommu) {
    let setup = AmdSetup { identification: ROME.identification, ..AmdSetup::default() };
    let machine = machine_with_pairs(0x10_0000, setup, pairs);
    let unit = machine.enable(wanted()).unwrap();
    machine.commands();
    (machine, unit)
}

/// A unit with an interrupt, its message, and a page in the machine's memory.
fn posted(cpu: GuestCpu) -> (AmdMachine, Iommu, Interrupt, MsiMessage, u64) {
    let (machine, unit) = unit();
    let page = TableMem::<AtomicU64>::alloc(&machine, PageSize::SIZE_4K).unwrap().get();
    let mut interrupt = unit.allocate(SOURCE, target(0x52, 5)).unwrap();
    let message = unit.message(&interrupt).unwrap();
    assert_eq!(send(&machine, message), Some(arrived(5, 0x52)));
    unit.post(&mut interrupt, posting(page, 0x81, cpu)).unwrap();
    machine.commands();
    (machine, unit, interrupt, message, page)
}

fn send(machine: &AmdMachine, message: MsiMessage) -> Option<AmdDelivered> {
    machine.unit().deliver(STREAM, message.address, message.data)
}

fn arrived(destination: u32, vector: u8) -> AmdDelivered {
    AmdDelivered::Arrived(AmdInterrupt { vector, destination })
}

fn words(machine: &AmdMachine) -> [u64; 2] {
    let table = machine.entry(STREAM.get().into())[2] & 0x000f_ffff_ffff_ffc0;
    [0, 8].map(|at| machine.word(table + at))
}

fn wake() -> Option<SleeperEvent> {
    Some(SleeperEvent::Wake(GuestTag::new(TAG)))
}

/// Words that a person wrote down from the figure of section 2.2.5.3: GuestMode (7), IsRun (6), GALogIntr (2), and
/// GAMEn (27:25), GALogEn (28), GALogBase and GATAddr of section 3.4.
#[test]
fn entries_say_where_the_page_is_and_who_is_told() {
    let (machine, unit) = unit();
    assert_eq!(machine.reg(reg::CONTROL) & (0x1f << 25), 1 << 25 | 1 << 28);
    let log = machine.reg(0xe0);
    assert_eq!(log & !0x000f_ffff_ffff_f000, 8 << 56);
    assert_eq!(machine.reg(0xe8), (log & 0x000f_ffff_ffff_f000) + 0x1000);
    let mut interrupt = unit.allocate(SOURCE, target(0x52, 5)).unwrap();
    let page = 0x0001_2345_6789_a000;
    for (cpu, wanted) in [
        (NEAR, [0xabcd_0123_0203_04c1, 0x0101_2345_6789_a061]),
        (FAR, [0xabcd_0123_0203_06c1, 0x0501_2345_6789_a061]),
        // The unit does not read the high bits of a destination then.
        (GuestCpu::Waits, [0xabcd_0123_0000_0081, 0x0501_2345_6789_a061]),
        (GuestCpu::Sleeps, [0xabcd_0123_0000_0085, 0x0501_2345_6789_a061]),
    ] {
        unit.post(&mut interrupt, posting(page, 0x61, cpu)).unwrap();
        assert_eq!(words(&machine), wanted, "{cpu:?}");
    }
}

#[test]
fn an_interrupt_is_pending_in_the_page_and_the_right_cpu_is_told() {
    let (machine, unit, mut interrupt, message, page) = posted(NEAR);
    let requests = || [0, 1, 2, 3, 4, 5, 6, 7].map(|at| machine.word(page + 0x200 + at * 16));
    assert_eq!(send(&machine, message), Some(AmdDelivered::Rung(0x0102_0304)));
    assert_eq!(requests(), [0, 0, 0, 0, 1 << 1, 0, 0, 0]);
    // Another vector: what the unit has kept of the entry counts no more.
    unit.post(&mut interrupt, posting(page, 0xff, NEAR)).unwrap();
    assert_eq!(send(&machine, message), Some(AmdDelivered::Rung(0x0102_0304)));
    assert_eq!(requests(), [0, 0, 0, 0, 1 << 1, 0, 0, 1 << 31]);
    unit.post(&mut interrupt, posting(page, 0xff, FAR)).unwrap();
    assert_eq!(send(&machine, message), Some(AmdDelivered::Rung(0x0502_0306)));
    unit.post(&mut interrupt, posting(page, 0xff, GuestCpu::Waits)).unwrap();
    assert_eq!(send(&machine, message), Some(AmdDelivered::Pending));
    assert_eq!(unit.next_sleeper(), Ok(None));
    unit.post(&mut interrupt, posting(page, 0xff, GuestCpu::Sleeps)).unwrap();
    assert_eq!(send(&machine, message), Some(AmdDelivered::Pending));
    assert_eq!([unit.next_sleeper(), unit.next_sleeper()], [Ok(wake()), Ok(None)]);
    unit.retarget(&mut interrupt, target(0x53, 6)).unwrap();
    assert_eq!(send(&machine, message), Some(arrived(6, 0x53)));
    unit.post(&mut interrupt, posting(page, 0x30, GuestCpu::Waits)).unwrap();
    unit.free(interrupt).unwrap();
    assert_eq!(send(&machine, message), None);
    assert_eq!(requests(), [0, 0, 0, 0, 1 << 1, 0, 0, 1 << 31]);
    TableMem::<AtomicU64>::free(&machine, PhysAddr::new(page), PageSize::SIZE_4K);
    unit.release(all_memory()).unwrap();
    assert_eq!(machine.live(), 0);
    machine.expect_obedience();
}

/// The unit may read between any two stores: the entry is open, and names no CPU that no caller named.
#[test]
fn each_store_leaves_an_entry_that_a_caller_named() {
    let all = [NEAR, FAR, GuestCpu::Waits, GuestCpu::Sleeps];
    let words = |cpu| match posting(0x5000, 0x81, cpu) {
        Posting::Apic(to) => entry(&to).unwrap(),
        other => panic!("{other:?}"),
    };
    for (from, to) in all.iter().flat_map(|from| all.map(|to| (*from, to))) {
        // As a virtual CPU that does not run leaves it behind one that ran.
        for left in [0, 5 << 56] {
            let mut now = words(from);
            now[1] |= if matches!(from, GuestCpu::Runs(_)) { 0 } else { left };
            for stage in stages(&now, &words(to)) {
                assert!(now.iter().zip(&stage).filter(|(old, new)| old != new).count() <= 1);
                let at = (stage[0] >> 8 & 0xff_ffff | stage[1] >> 56 << 24) as u32;
                let named = [0x0102_0304, 0x0502_0306].contains(&at);
                assert_eq!(stage[0] & 0x81, 0x81);
                assert!(stage[0] & 1 << 6 == 0 || named, "{from:?} {to:?}: {at:#x}");
                now = stage;
            }
            assert_eq!(now[0], words(to)[0]);
        }
    }
}

/// A virtual CPU that moves, stops and sleeps: the unit is told nothing.
#[test]
fn the_state_of_a_virtual_cpu_changes_while_the_device_sends() {
    let (machine, unit, mut interrupt, message, page) = posted(GuestCpu::Sleeps);
    for cpu in [NEAR, FAR, GuestCpu::Waits, NEAR, GuestCpu::Sleeps, FAR, NEAR] {
        unit.post(&mut interrupt, posting(page, 0x81, cpu)).unwrap();
        assert!(machine.commands().is_empty());
        let told = match cpu {
            GuestCpu::Runs(at) => AmdDelivered::Rung(at.get()),
            GuestCpu::Waits | GuestCpu::Sleeps => AmdDelivered::Pending,
        };
        assert_eq!(send(&machine, message), Some(told));
        let woken = if cpu == GuestCpu::Sleeps { wake() } else { None };
        assert_eq!(unit.next_sleeper(), Ok(woken));
    }
    machine.expect_obedience();
}

/// Old and new entry mixed would post to a page that neither names.
#[test]
fn an_entry_that_comes_to_lead_to_a_page_is_closed_meanwhile() {
    let (machine, unit) = unit();
    let mut interrupt = unit.allocate(SOURCE, target(0x52, 5)).unwrap();
    machine.refuse_kind(opcode::INTERRUPT_TABLE, 1, ILLEGAL);
    let refused = unit.post(&mut interrupt, posting(0x5000, 0x81, NEAR));
    assert!(matches!(refused, Err(InterruptError::Iommu(_))));
    assert_eq!(words(&machine), [0, 0x52]);
    unit.post(&mut interrupt, posting(0x5000, 0x81, NEAR)).unwrap();
    assert_eq!(words(&machine)[1], 0x0100_0000_0000_5081);
}

/// Outcomes of the interrupts that a device sends around stores of pairs, whose entry the unit reads anew each
/// time: the interrupt is moved in both words, posted, moved on with its virtual CPU, and taken back.
fn sent_meanwhile(pairs: PairStores) -> Vec<Option<AmdDelivered>> {
    let (machine, unit) = unit_with(pairs);
    let page = TableMem::<AtomicU64>::alloc(&machine, PageSize::SIZE_4K).unwrap().get();
    let mut interrupt = unit.allocate(SOURCE, target(0x52, 5)).unwrap();
    let message = unit.message(&interrupt).unwrap();
    let (device, all) = (machine.clone(), Arc::new(Mutex::new(Vec::new())));
    let noted = all.clone();
    machine.memory().during_pairs(Some(Box::new(move || {
        device.unit().evict_interrupts();
        noted.lock().unwrap().push(send(&device, message));
    })));
    unit.retarget(&mut interrupt, target(0x53, 0x0200_0006)).unwrap();
    unit.post(&mut interrupt, posting(page, 0x81, NEAR)).unwrap();
    machine.commands();
    unit.post(&mut interrupt, posting(page, 0x81, FAR)).unwrap();
    assert!(machine.commands().is_empty());
    assert_eq!(words(&machine), [0xabcd_0123_0203_06c1, page | 0x0500_0000_0000_0081]);
    unit.retarget(&mut interrupt, target(0x52, 5)).unwrap();
    machine.memory().during_pairs(None);
    assert_eq!(send(&machine, message), Some(arrived(5, 0x52)));
    all.lock().unwrap().clone()
}

#[test]
fn an_entry_changes_in_both_words_while_the_device_sends() {
    let (first, moved) = (Some(arrived(5, 0x52)), Some(arrived(0x0200_0006, 0x53)));
    let [near, far] = [0x0102_0304, 0x0502_0306].map(|cpu| Some(AmdDelivered::Rung(cpu)));
    let sent = sent_meanwhile(PairStores::AtOnce);
    assert_eq!(sent, [first, moved, moved, near, near, far, far, first]);
}

/// Two stores instead of one: the unit reads an entry that is neither.
#[test]
fn a_torn_entry_goes_where_no_caller_said() {
    let sent = sent_meanwhile(PairStores::Torn);
    assert_eq!([sent[1], sent[4]], [Some(arrived(6, 0x52)), None]);
    assert_eq!(sent[7], Some(AmdDelivered::Rung(0x0102_0306)));
}

#[test]
fn what_a_unit_cannot_post_is_refused_by_name() {
    let (machine, unit) = unit();
    let mut interrupt = unit.allocate(SOURCE, target(0x52, 5)).unwrap();
    let before = words(&machine);
    let vector = Vector::new(0x61).unwrap();
    let descriptor = posted_at(PhysAddr::new(0x1000));
    let descriptor = Posting::Descriptor(DescriptorPosting { descriptor, vector, urgent: false });
    for to in [descriptor, posting(0x1800, 0x61, NEAR), posting(1 << 52, 0x61, NEAR)] {
        assert_eq!(unit.post(&mut interrupt, to), Err(InterruptError::Unposted), "{to:?}");
    }
    let logical = Destination::Logical(3);
    let refused = unit.post(&mut interrupt, posting(0x1000, 0x61, GuestCpu::Runs(logical)));
    assert_eq!(refused, Err(InterruptError::Destination(logical)));
    assert_eq!(words(&machine), before);
    drop(unit);
    // Without a log, without GAMSup, with another mode of it, and with identifiers of 8 bits.
    let machine = with(ROME.identification);
    let unit = machine.enable(Config { sleepers_lg2: None, ..wanted() }).unwrap();
    let mut interrupt = unit.allocate(SOURCE, target(0x52, 5)).unwrap();
    let refused = unit.post(&mut interrupt, posting(0x1000, 0x61, NEAR));
    assert_eq!(refused, Err(InterruptError::Unposted));
    assert_eq!(unit.next_sleeper(), Err(IommuError::Unsupported));
    assert_eq!(unit.signal_sleepers(None), Err(IommuError::Unsupported));
    assert_eq!(machine.reg(reg::CONTROL) & (0x1f << 25), 0);
    for mode in [0, 2, 3, 7] {
        let mut identification = ROME.identification;
        identification.features = identification.features & !(7 << 21) | mode << 21;
        let refused = with(identification).enable(wanted()).err();
        assert_eq!(refused, Some(IommuError::Unsupported), "{mode}");
    }
    let interrupts = Some(Remapping { apic: ApicMode::XApic, lg2_entries: 9 });
    let refused = with(ROME.identification).enable(Config { interrupts, ..wanted() }).err();
    assert_eq!(refused, Some(IommuError::Unsupported));
}

/// The log has room for all but one of its records; the interrupts stay pending.
#[test]
fn a_log_that_overflows_says_that_some_were_lost_and_goes_on() {
    let (machine, unit, _interrupt, message, page) = posted(GuestCpu::Sleeps);
    for _ in 0..600 {
        assert_eq!(send(&machine, message), Some(AmdDelivered::Pending));
    }
    assert_eq!(machine.unit().counts().lost_sleepers, 600 - 511);
    let mut woken = 0;
    while unit.next_sleeper().unwrap() == wake() {
        woken += 1;
    }
    assert_eq!((woken, machine.word(page + 0x240)), (511, 1 << 1));
    assert_eq!(machine.reg(reg::STATUS) & status::GUEST_LOG_RUNS, status::GUEST_LOG_RUNS);
    assert_eq!(unit.next_sleeper(), Ok(None));
    // Around the end of the log.
    assert_eq!(send(&machine, message), Some(AmdDelivered::Pending));
    assert_eq!([unit.next_sleeper(), unit.next_sleeper()], [Ok(wake()), Ok(None)]);
    machine.expect_obedience();
}

#[test]
fn records_that_make_no_sense_count_as_lost_and_a_tail_beyond_the_log_is_an_error() {
    let (machine, unit, _interrupt, message, _page) = posted(GuestCpu::Sleeps);
    let log = machine.reg(reg::GUEST_LOG_BASE) & 0x000f_ffff_ffff_f000;
    assert_eq!(send(&machine, message), Some(AmdDelivered::Pending));
    assert_eq!(machine.word(log), 0x1000_0028_abcd_0123);
    machine.store(log, 0x7000_0028_abcd_0123);
    assert_eq!(
        [unit.next_sleeper(), unit.next_sleeper()],
        [Ok(Some(SleeperEvent::Lost)), Ok(None)]
    );
    // One that is announced and does not come.
    assert_eq!(send(&machine, message), Some(AmdDelivered::Pending));
    machine.store(log + 8, 0);
    let mut looks = 0;
    while unit.next_sleeper().unwrap().is_none() {
        looks += 1;
        assert!(looks < 1_000_000);
    }
    assert!(looks > 0);
    for tail in [0x1008, 0x7_fff8] {
        machine.lie(reg::GUEST_LOG_TAIL, u64::MAX, tail);
        let (offset, value) = (reg::GUEST_LOG_TAIL, tail);
        assert_eq!(unit.next_sleeper(), Err(IommuError::Nonsense { offset, value }));
    }
}

/// Section 3.4.31: the interrupt goes where its register says.
#[test]
fn the_log_interrupts_who_has_asked_for_it_also_after_sleep() {
    for lost in [false, true] {
        let (machine, unit, interrupt, message, _page) = posted(GuestCpu::Sleeps);
        let sent = || machine.unit().counts().sleeper_interrupts;
        assert_eq!(send(&machine, message), Some(AmdDelivered::Pending));
        unit.signal_sleepers(Some(target(0x31, 0x0102_0304))).unwrap();
        assert_eq!(machine.reg(0x180), 0x0100_0031_0203_0400);
        assert_eq!([unit.next_sleeper(), unit.next_sleeper()], [Ok(wake()), Ok(None)]);
        for _ in 0..2 {
            assert_eq!(send(&machine, message), Some(AmdDelivered::Pending));
            assert_eq!(sent(), 1);
        }
        let told = AmdInterrupt { vector: 0x31, destination: 0x0102_0304 };
        assert_eq!(machine.unit().own_interrupts(), [Some(told)]);
        unit.suspend().unwrap();
        if lost {
            machine.unit().cut_power();
        }
        unit.resume().unwrap();
        // Whatever the log held.
        assert_eq!(unit.next_sleeper(), Ok(Some(SleeperEvent::Lost)));
        assert_eq!(unit.next_sleeper(), Ok(None));
        let before = sent();
        assert_eq!(send(&machine, message), Some(AmdDelivered::Pending));
        assert_eq!((unit.next_sleeper(), sent() - before), (Ok(wake()), 1));
        unit.signal_sleepers(None).unwrap();
        let on = machine.reg(reg::CONTROL);
        assert_eq!(on & (control::GUEST_LOG | control::GUEST_LOG_INTERRUPT), control::GUEST_LOG);
        // Posted interrupts end with the stream's others.
        unit.block(STREAM).unwrap();
        assert_eq!(send(&machine, message), None);
        assert_eq!(unit.free(interrupt), Err(InterruptError::NotInUse));
        assert_eq!(unit.next_sleeper(), Ok(None));
        machine.expect_obedience();
    }
}

/// A record has no room for them.
#[test]
fn a_unit_that_posts_is_not_handed_over() {
    let (_machine, unit, _interrupt, _message, _page) = posted(GuestCpu::Sleeps);
    assert_eq!(unit.handover().err(), Some(IommuError::Unsupported));
}
