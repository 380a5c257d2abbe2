//! Interrupts that are posted to the descriptor of a virtual CPU.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::AtomicU64;
use std::sync::Mutex;

use portolan::addr::{PageSize, PhysAddr, RequesterId};
use portolan::iommu::{
    DescriptorPosting, Destination, FilePosting, Interrupt, InterruptError, InterruptSource,
    InterruptTarget, MsiMessage, Posting, RemapInterrupts as _, Vector,
};
use portolan::platform::TableMem;
use portolan_chips::machine::Event;
use portolan_chips::memory::PairStores;
use portolan_chips::vtd::{Delivered, VtdIdentification, VtdMachine, VtdSetup};

use super::kit::{CAP, ECAP, Iommu};
use super::{STREAM, legacy};
use crate::chassis::tests::suite::{Driven as _, machine_with_pairs};
use crate::interrupt::{ApicMode, Remapping};
use crate::promise::tests::{file_at, posted_at};
use crate::vtd::Config;
use portolan_spec::vtd::reg;

const SOURCE: InterruptSource = InterruptSource::Requester(RequesterId::new(0x0108));
const POSTED: u64 = 1 << 59;
const CACHING: u64 = 1 << 7;
/// Notification by vector 0xf2 at the CPU with the x2APIC identifier 3.
const CONTROL: u64 = 3 << 32 | 0xf2 << 16;

fn target(vector: u8, cpu: u32) -> InterruptTarget {
    InterruptTarget::new(Vector::new(vector).unwrap(), Destination::Physical(cpu))
}

fn posting(at: u64, vector: u8) -> Posting {
    let descriptor = posted_at(PhysAddr::new(at));
    let vector = Vector::new(vector).unwrap();
    Posting::Descriptor(DescriptorPosting { descriptor, vector, urgent: false })
}

fn urgent(at: u64, vector: u8) -> Posting {
    match posting(at, vector) {
        Posting::Descriptor(to) => Posting::Descriptor(DescriptorPosting { urgent: true, ..to }),
        file => file,
    }
}

fn unit(cap: u64) -> (VtdMachine, Iommu) {
    unit_at(0x1000_0000, cap, PairStores::Absent)
}

/// One whose memory begins at `base`.
fn unit_at(base: u64, cap: u64, pairs: PairStores) -> (VtdMachine, Iommu) {
    let identification = VtdIdentification { version: 0x40, cap, ecap: ECAP | 1 << 4 };
    let setup = VtdSetup { identification, ..VtdSetup::default() };
    let machine = machine_with_pairs(base, setup, pairs);
    let interrupts = Some(Remapping { apic: ApicMode::X2Apic, lg2_entries: 8 });
    let unit = machine.enable(Config { interrupts, ..legacy() }).unwrap();
    machine.take();
    (machine, unit)
}

/// A descriptor in the machine's memory.
fn descriptor(machine: &VtdMachine) -> u64 {
    let page = TableMem::<AtomicU64>::alloc(machine, PageSize::SIZE_4K).unwrap();
    let at = page.get();
    machine.store(at + 32, CONTROL);
    at
}

fn send(machine: &VtdMachine, message: MsiMessage) -> Result<Delivered, u8> {
    machine.unit().deliver(STREAM, message.address, message.data)
}

/// CPU and vector of an interrupt that arrives; none while it is pending.
fn arrived(machine: &VtdMachine, message: MsiMessage) -> Option<(u32, u8)> {
    match send(machine, message).unwrap() {
        Delivered::Arrived(arrived) => Some((arrived.destination, arrived.vector)),
        Delivered::Pending => None,
    }
}

fn words(machine: &VtdMachine, interrupt: &Interrupt) -> [u64; 2] {
    let at = machine.reg(reg::IRTA) & 0x000f_ffff_ffff_f000;
    let at = at + u64::from(interrupt.index()) * 16;
    [machine.word(at), machine.word(at + 8)]
}

/// Words that a person wrote down from the figure of the posted format in section 9.10.
#[test]
fn entries_say_where_the_descriptor_is_and_verify_the_source() {
    let (machine, unit) = unit(CAP | POSTED);
    let mut interrupt = unit.allocate(SOURCE, target(0x52, 5)).unwrap();
    unit.post(&mut interrupt, posting(0x1234_5640, 0x61)).unwrap();
    assert_eq!(words(&machine, &interrupt), [0x1234_5640_0061_8001, 0x4_0108]);
    unit.post(&mut interrupt, urgent(0xffff_ffc0, 0xff)).unwrap();
    assert_eq!(words(&machine, &interrupt), [0xffff_ffc0_00ff_c001, 0x4_0108]);
}

#[test]
fn an_interrupt_is_pending_until_the_monitor_takes_it() {
    for cap in [CAP | POSTED, CAP | POSTED | CACHING] {
        let (machine, unit) = unit(cap);
        let at = descriptor(&machine);
        let mut interrupt = unit.allocate(SOURCE, target(0x52, 5)).unwrap();
        let message = unit.message(&interrupt).unwrap();
        assert_eq!(arrived(&machine, message), Some((5, 0x52)));
        unit.post(&mut interrupt, posting(at, 0x81)).unwrap();
        // The first notifies, and no other until the monitor has taken what is pending.
        assert_eq!(arrived(&machine, message), Some((3, 0xf2)));
        assert_eq!(arrived(&machine, message), None);
        assert_eq!([machine.word(at), machine.word(at + 16)], [0, 1 << 1]);
        assert_eq!(machine.word(at + 32), CONTROL | 1);
        machine.store(at + 32, CONTROL);
        machine.store(at + 16, 0);
        assert_eq!(arrived(&machine, message), Some((3, 0xf2)));
        // Suppressed, but for an urgent one.
        machine.store(at + 32, CONTROL | 2);
        assert_eq!(arrived(&machine, message), None);
        unit.post(&mut interrupt, urgent(at, 0x82)).unwrap();
        assert_eq!(arrived(&machine, message), Some((3, 0xf2)));
        // Back to a CPU of the monitor's.
        unit.retarget(&mut interrupt, target(0x53, 6)).unwrap();
        assert_eq!(arrived(&machine, message), Some((6, 0x53)));
        unit.free(interrupt).unwrap();
        assert_eq!(send(&machine, message), Err(0x22));
        machine.expect_obedience();
    }
}

#[test]
fn an_entry_goes_to_and_fro_by_one_store() {
    let (machine, unit) = unit(CAP | POSTED);
    let at = descriptor(&machine);
    let mut interrupt = unit.allocate(SOURCE, target(0x52, 5)).unwrap();
    let message = unit.message(&interrupt).unwrap();
    let table = machine.reg(reg::IRTA) & 0x000f_ffff_ffff_f000;
    for round in 0..4u8 {
        machine.watch(table, 2);
        match round % 2 {
            0 => unit.post(&mut interrupt, posting(at, 0x81)).unwrap(),
            _ => unit.retarget(&mut interrupt, target(0x52, 5)).unwrap(),
        }
        let seen: Vec<(Event, Vec<u64>)> = machine.seen();
        assert!(!seen.is_empty());
        // The entry is never closed while the device sends.
        assert!(seen.iter().all(|(_, words)| words[0] & 1 == 1), "{round}: {seen:x?}");
        machine.store(at + 32, CONTROL);
        let wanted = if round % 2 == 0 { (3, 0xf2) } else { (5, 0x52) };
        assert_eq!(arrived(&machine, message), Some(wanted));
    }
}

const HIGH: u64 = 0x12_4000_0000;

/// Outcomes of the interrupts that a device sends around stores of pairs, whose entry the unit reads anew each
/// time, while the interrupt goes to a descriptor above 4 GiB and back.
fn sent_meanwhile(pairs: PairStores) -> Vec<Result<Option<(u32, u8)>, u8>> {
    let (machine, unit) = unit_at(HIGH, CAP | POSTED, pairs);
    let at = descriptor(&machine);
    assert!(at > 1 << 32);
    let mut interrupt = unit.allocate(SOURCE, target(0x52, 5)).unwrap();
    let message = unit.message(&interrupt).unwrap();
    let (device, all) = (machine.clone(), Arc::new(Mutex::new(Vec::new())));
    let noted = all.clone();
    machine.memory().during_pairs(Some(Box::new(move || {
        device.unit().evict_interrupts();
        let sent = send(&device, message).map(|delivered| match delivered {
            Delivered::Arrived(arrived) => Some((arrived.destination, arrived.vector)),
            Delivered::Pending => None,
        });
        noted.lock().unwrap().push(sent);
    })));
    unit.post(&mut interrupt, posting(at, 0x81)).unwrap();
    assert_eq!(words(&machine, &interrupt), [at << 32 | 0x81_8001, at & !0xffff_ffff | 0x4_0108]);
    unit.retarget(&mut interrupt, target(0x53, 6)).unwrap();
    machine.memory().during_pairs(None);
    // One notified, and none was taken since.
    let pending = [machine.word(at + 16), machine.word(at + 32)];
    assert_eq!((arrived(&machine, message), pending), (Some((6, 0x53)), [1 << 1, CONTROL | 1]));
    all.lock().unwrap().clone()
}

#[test]
fn a_descriptor_above_4_gib_is_posted_to_while_the_device_sends() {
    let (old, new) = (Ok(Some((5, 0x52))), Ok(Some((6, 0x53))));
    let sent = sent_meanwhile(PairStores::AtOnce);
    assert_eq!(sent, [old, Ok(Some((3, 0xf2))), Ok(None), new]);
}

/// Two stores instead of one: the unit reads an entry that is neither.
#[test]
fn a_torn_entry_refuses_interrupts() {
    let sent = sent_meanwhile(PairStores::Torn);
    assert_eq!([sent[1], sent[4]], [Err(0x27), Err(0x24)]);
}

/// Next to no stores of pairs: the entry stays as it is, and open.
#[test]
fn a_descriptor_above_4_gib_is_refused_without_stores_of_pairs() {
    let (machine, unit) = unit_at(HIGH, CAP | POSTED, PairStores::Absent);
    let at = descriptor(&machine);
    let mut interrupt = unit.allocate(SOURCE, target(0x52, 5)).unwrap();
    let before = words(&machine, &interrupt);
    machine.take();
    let refused = unit.post(&mut interrupt, posting(at, 0x81));
    assert_eq!(refused, Err(InterruptError::Unposted));
    assert_eq!((words(&machine, &interrupt), machine.take()), (before, Vec::new()));
    let message = unit.message(&interrupt).unwrap();
    assert_eq!(arrived(&machine, message), Some((5, 0x52)));
}

#[test]
fn a_unit_without_posting_and_a_descriptor_out_of_reach_are_refused() {
    let (machine, unit) = unit(CAP);
    let mut interrupt = unit.allocate(SOURCE, target(0x52, 5)).unwrap();
    let before = words(&machine, &interrupt);
    let refused = unit.post(&mut interrupt, posting(0x1000, 0x81));
    assert_eq!(refused, Err(InterruptError::Unposted));
    assert_eq!(words(&machine, &interrupt), before);
    let (machine, unit) = self::unit(CAP | POSTED);
    let mut interrupt = unit.allocate(SOURCE, target(0x52, 5)).unwrap();
    let before = words(&machine, &interrupt);
    for at in [0x1_0000_0000, 0x1020] {
        let refused = unit.post(&mut interrupt, posting(at, 0x81));
        assert_eq!(refused, Err(InterruptError::Unposted), "{at:#x}");
    }
    let file = FilePosting { file: file_at(PhysAddr::new(0x1000)), notice: target(0x53, 5) };
    let refused = unit.post(&mut interrupt, Posting::File(file));
    assert_eq!(refused, Err(InterruptError::Unposted));
    assert_eq!(words(&machine, &interrupt), before);
    // Nothing is there.
    unit.post(&mut interrupt, posting(0xffff_0000, 0x81)).unwrap();
    let message = unit.message(&interrupt).unwrap();
    assert_eq!(send(&machine, message), Err(0x27));
}
