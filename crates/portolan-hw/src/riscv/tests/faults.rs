//! The fault queue: order, overflow, its records, and its interrupts.

use crate::promise::tests::doorbell;
use crate::promise::tests::promised;
use portolan::addr::{Iova, IovaRange, PhysAddr, StreamId};
use portolan::inval::Gather;
use portolan::iommu::{
    Attach as _, Domain, FaultAccess, FaultEvent, FaultReason, Iommu as _, IommuError,
};
use portolan::table::Access;
use portolan_chips::riscv::RiscvMachine as Machine;

use super::machine::{Iommu, new_machine};
use super::{STREAM, config};
use crate::chassis::tests::suite::{BASE, Driven, PAGE, faults_are_read_in_order};
use crate::riscv::{Config, Signal};
use portolan_spec::riscv::reg::{self, queue};

#[test]
fn faults_are_read_in_order_and_overflow_is_told() {
    let machine = new_machine();
    let is_full = || machine.reg32(reg::FAULT_CONTROL) & queue::OVERFLOW != 0;
    faults_are_read_in_order(&machine, 127, is_full);
}

#[test]
fn faults_tell_why_as_far_as_it_is_known() {
    let machine = new_machine();
    let (unit, domain) = machine.attached();
    let mut owed = Gather::new();
    let pa = PhysAddr::new(0x1000);
    domain.map(BASE, promised(pa, PAGE), Access::READ, &mut owed).unwrap();
    domain.sync(&mut owed).unwrap();
    let fault = |stream, iova: u64| {
        assert_eq!(machine.write(stream, iova), None);
        let Ok(Some(FaultEvent::Fault(record))) = unit.next_fault() else {
            panic!("no record");
        };
        assert_eq!(record.access, Some(FaultAccess::Write));
        assert_eq!((record.stream, record.pasid), (stream, None));
        assert_eq!(record.iova, Some(Iova::new(iova)));
        record.reason
    };
    let (here, other) = (BASE.get(), StreamId::new(0x29));
    assert_eq!(fault(STREAM, here), FaultReason::Permission);
    assert_eq!(fault(STREAM, here + PAGE), FaultReason::NotMapped);
    assert_eq!(fault(other, here), FaultReason::Blocked);
    // Wider than the directory.
    assert_eq!(fault(StreamId::new(0x80), here), FaultReason::Blocked);
    domain.unmap(IovaRange::from_len(BASE, PAGE).unwrap(), &mut owed).unwrap();
    domain.sync(&mut owed).unwrap();
    assert_eq!(fault(STREAM, here), FaultReason::NotMapped);
    let second = unit.second_stage(portolan::table::format::RiscvLevels::Three);
    let second = alloc::sync::Arc::new(second.unwrap());
    unit.attach(STREAM, &second).unwrap();
    assert_eq!(fault(STREAM, here), FaultReason::NotMapped);
}

#[test]
fn indices_and_states_that_cannot_be_are_errors() {
    let machine = new_machine();
    let (unit, _domain) = machine.attached();
    let (offset, value) = (reg::FAULT_TAIL, 128);
    machine.lie(offset, u64::MAX, value);
    let nonsense = |offset, value| Err(IommuError::Nonsense { offset, value });
    assert_eq!(unit.next_fault(), nonsense(offset, value));
    // An overflow that does not go away although the queue is empty.
    let offset = reg::FAULT_CONTROL;
    let stays = u64::from(queue::OVERFLOW);
    machine.lie(offset, stays, stays);
    let value = stays | u64::from(queue::ON | queue::ENABLE);
    assert_eq!(unit.next_fault(), nonsense(offset, value));
    let on = u64::from(queue::ON);
    machine.lie(offset, on, 0);
    assert_eq!(unit.next_fault(), Err(IommuError::Stopped));
}

fn signalling(machine: &Machine, signal: Signal) -> Iommu {
    machine.enable(Config { signal, ..config() }).unwrap()
}

/// One interrupt for all faults until the handler reads, and none that was not asked for.
#[test]
fn faults_interrupt_as_they_are_told_to() {
    let message = Signal::Message { address: doorbell(PhysAddr::new(0x13_f008)), data: 0x55 };
    for (signal, wanted) in [(Signal::None, 0), (Signal::Wired, 1), (message, 1)] {
        let machine = new_machine();
        let unit = signalling(&machine, signal);
        let interrupts = || machine.unit().counts().fault_interrupts;
        for n in 1..4 {
            assert_eq!(machine.read(STREAM, 0x5000), None);
            assert_eq!(machine.read(STREAM, 0x6000), None);
            assert_eq!(interrupts(), n * wanted, "{signal:?}");
            while unit.next_fault().unwrap().is_some() {}
        }
        let pending = machine.reg32(reg::PENDING);
        assert_eq!(pending, 0);
        if wanted == 1 {
            let wired = u32::from(signal == Signal::Wired) << 1;
            assert_eq!(machine.reg32(reg::FEATURES), wired);
        }
        let arrived = machine.word(0x13_f008) as u32;
        assert_eq!(arrived, if signal == message { 0x55 } else { 0 });
        machine.expect_obedience();
    }
}
