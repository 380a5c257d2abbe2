//! Accesses that wait for an answer.

use alloc::sync::Arc;
use alloc::vec::Vec;

use portolan::iommu::{Attach, FaultAccess, FaultReason, Iommu as _, IommuError};
use portolan_chips::smmuv2::{FaultRegisters, SmmuV2Identification, SmmuV2Registers};
use portolan_sim::decode::AccessKind;

use super::super::{Config, OnFault, SmmuV2DomainOptions};
use super::kit::{First, Kit, Machine, Unit, bank, few, first, map, of, stream};
use portolan::addr::Iova;

fn stalling(unit: &Unit) -> Arc<First> {
    let options =
        SmmuV2DomainOptions { on_fault: OnFault::Stall, ..SmmuV2DomainOptions::default() };
    Arc::new(unit.first_stage(&options).unwrap())
}

/// A device writes where nothing is.
fn stall(machine: &Machine, n: u32, iova: u64) {
    let refused = machine.unit().dma(stream(n), Iova::new(iova), AccessKind::Write, 4);
    let code = refused.err().map(|fault| fault.code);
    assert_eq!(code, Some(SmmuV2Registers::STALLED));
}

/// Physical addresses that accesses reached which were answered since the last call.
fn resumed(machine: &Machine) -> Vec<Option<u64>> {
    let all = machine.unit().take_resumed().into_iter();
    all.map(|one| one.ok().map(|piece| piece.pa.get())).collect()
}

#[test]
fn an_access_that_stalls_goes_on_when_it_is_answered_and_is_told_once() {
    let (machine, unit) = of(SmmuV2Identification::default());
    let domain = stalling(&unit);
    unit.attach(stream(3), &domain).unwrap();
    assert!(unit.next_stall().unwrap().is_none());
    stall(&machine, 3, 0x5000);
    // No record of it takes its answer away.
    assert_eq!(unit.next_fault(), Ok(None));
    let held = unit.next_stall().unwrap().expect("a stalled access");
    assert_eq!(held.record.stream, stream(3));
    assert_eq!(held.record.iova, Some(Iova::new(0x5000)));
    assert_eq!(held.record.access, Some(FaultAccess::Write));
    assert_eq!(held.record.reason, FaultReason::NotMapped);
    assert!(alloc::format!("{held:?}").starts_with("Stalled("));
    assert!(unit.next_stall().unwrap().is_none(), "somebody holds it");
    map(&*domain, 0x5000, 0x9000_0000);
    held.retry();
    assert_eq!(resumed(&machine), [Some(0x9000_0000)]);
    // The next is another one; dropped, it ends.
    stall(&machine, 3, 0x6000);
    drop(unit.next_stall().unwrap().expect("a stalled access"));
    assert_eq!(resumed(&machine), [None]);
    stall(&machine, 3, 0x7000);
    unit.next_stall().unwrap().expect("another").terminate();
    assert_eq!(resumed(&machine), [None]);
    assert_eq!(unit.next_fault(), Ok(None));
}

#[test]
fn an_access_of_another_domain_is_found_while_one_is_held() {
    let (machine, unit) = of(SmmuV2Identification::default());
    let domains = [stalling(&unit), stalling(&unit)];
    for (n, domain) in (1..).zip(&domains) {
        unit.attach(stream(n), domain).unwrap();
        stall(&machine, n, 0x5000);
    }
    let one = unit.next_stall().unwrap().expect("one");
    let other = unit.next_stall().unwrap().expect("another");
    let mut both = [one.record.stream, other.record.stream];
    both.sort_unstable();
    assert_eq!(both, [stream(1), stream(2)]);
    drop(other);
    assert_eq!(resumed(&machine).len(), 1);
    drop(one);
    assert_eq!(resumed(&machine).len(), 1);
}

#[test]
fn an_answer_that_comes_after_the_domain_has_gone_is_not_given_to_the_next() {
    let (machine, unit) = of(SmmuV2Identification::default().banks(1, 0));
    let first = stalling(&unit);
    unit.attach(stream(1), &first).unwrap();
    stall(&machine, 1, 0x5000);
    let late = unit.next_stall().unwrap().expect("a stalled access");
    unit.block(stream(1)).unwrap();
    drop(first);
    // It has ended with its domain.
    assert_eq!(resumed(&machine), [None]);
    let second = stalling(&unit);
    unit.attach(stream(2), &second).unwrap();
    stall(&machine, 2, 0x6000);
    drop(late);
    assert_eq!(resumed(&machine), []);
    let own = unit.next_stall().unwrap().expect("its own");
    assert_eq!(own.record.stream, stream(2));
    drop(own);
    assert_eq!(resumed(&machine), [None]);
}

#[test]
fn an_access_that_stalls_though_nobody_wants_that_is_ended_and_told() {
    let machine = few(&[]);
    let unit = machine.enable(Config::default()).unwrap();
    let _domain = first(&unit);
    machine.take();
    let clear = |status: u32| {
        record(&machine, 0, status);
        assert!(matches!(unit.next_fault(), Ok(Some(_))));
        machine.take_writes().collect::<Vec<_>>()
    };
    assert_eq!(clear(1 << 1), [(bank(0, 0x58), 1 << 1)]);
    let ended = [(bank(0, 0x58), STALLED.into()), (bank(0, 0x8), 1)];
    assert_eq!(clear(STALLED), ended);
}

/// A status of an access that stalls.
const STALLED: u32 = SmmuV2Registers::STALLED | 1 << 1;

fn record(machine: &Machine, bank: usize, status: u32) {
    let record = FaultRegisters { status, ..FaultRegisters::default() };
    machine.unit().record(Some(bank), record);
}

#[test]
fn a_bank_that_does_not_take_what_it_is_to_do_about_faults_is_found_out() {
    // SCTLR.M stays 0, and CFCFG.
    for (bits, found_out) in [(1 << 0, [true, true]), (1 << 7, [false, true])] {
        let machine = few(&[]);
        machine.lie(bank(0, 0), bits, 0);
        let unit = machine.enable(Config::default()).unwrap();
        let found = [OnFault::Terminate, OnFault::Stall].map(|on_fault| {
            let options = SmmuV2DomainOptions { on_fault, ..SmmuV2DomainOptions::default() };
            let made = unit.first_stage::<12>(&options);
            let at = bank(0, 0);
            matches!(made.err(), Some(IommuError::Nonsense { offset, .. }) if offset == at)
        });
        assert_eq!(found, found_out);
    }
}

#[test]
fn what_a_bank_recorded_and_stalled_before_is_cleared_when_the_unit_is_taken_over() {
    let machine = few(&[]);
    record(&machine, 1, STALLED);
    record(&machine, 2, 1 << 1);
    assert!(machine.enable(Config::default()).is_ok());
    assert_eq!([1, 2].map(|n| machine.reg32(bank(n, 0x58))), [0, 0]);
    // Terminated where something stalled, and only there.
    let answers = machine.take_writes().filter(|(at, _)| (0..4).any(|n| *at == bank(n, 0x8)));
    assert_eq!(answers.collect::<Vec<_>>(), [(bank(1, 0x8), 1)]);
}
