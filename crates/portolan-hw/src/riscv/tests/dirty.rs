//! Dirty bits that the unit sets (`AMO_HWAD`).

use alloc::sync::Arc;
use alloc::vec::Vec;

use portolan::addr::{IovaRange, PageSize, Pasid};
use portolan::inval::Gather;
use portolan::iommu::{Attach, Domain, Iommu as _, IommuError, PagedDomain};
use portolan::table::format::{DirtyTracking, Format, RiscvLevels};
use portolan_chips::machine::Manner;
use portolan_chips::riscv::{RiscvIdentification, RiscvMachine as Machine, RiscvSetup};
use portolan_sim::decode::AccessKind;

use super::machine::{self, Riscv};
use super::{Config, Queue, STREAM, config};
use crate::chassis::tests::suite::{BASE, Driven, PAGE, map, quiet};

/// A unit whose devices do nothing on their own: an adversarial one's go on writing while they can.
fn with(identification: RiscvIdentification) -> Machine {
    let machine =
        machine::of(RiscvSetup { identification, temper: quiet(), ..RiscvSetup::default() });
    machine.unit().behave(Manner::Obliging);
    machine
}

fn tracking() -> Config {
    Config { dirty: DirtyTracking::Hardware, ..config() }
}

/// The pages that were written since the last time.
fn written<F>(domain: &PagedDomain<F, Machine, Queue>) -> Vec<u64>
where
    F: Format<Word = core::sync::atomic::AtomicU64>,
{
    let (mut owed, mut found) = (Gather::new(), Vec::new());
    let all = IovaRange::from_len(BASE, 4 * PAGE).unwrap();
    let visit = |page: IovaRange| {
        assert_eq!(page, IovaRange::page(page.start(), PageSize::SIZE_4K));
        found.push((page.start().get() - BASE.get()) / PAGE);
    };
    let read = domain.table().read_and_clear_dirty(all, &mut owed, visit);
    read.unwrap();
    domain.sync(&mut owed).unwrap();
    found
}

fn pages_are_told<F>(machine: &Machine, domain: &PagedDomain<F, Machine, Queue>)
where
    F: Format<Word = core::sync::atomic::AtomicU64>,
{
    domain.sync(&mut map(domain, 4)).unwrap();
    let at = |page: u64| BASE.get() + page * PAGE;
    for page in 0..4 {
        assert!(machine.read(STREAM, at(page)).is_some());
    }
    assert!(written(domain).is_empty());
    for _ in 0..2 {
        assert!(machine.write(STREAM, at(1)).is_some());
        assert!(machine.write(STREAM, at(3)).is_some());
        assert_eq!(written(domain), [1, 3]);
        assert!(machine.read(STREAM, at(1)).is_some());
        assert!(written(domain).is_empty());
    }
}

#[test]
fn pages_that_devices_write_are_told() {
    let machine = with(RiscvIdentification::able().updates());
    let unit = machine.enable(tracking()).unwrap();
    let first = Arc::new(unit.first_stage(RiscvLevels::Four).unwrap());
    unit.attach(STREAM, &first).unwrap();
    // SADE and GADE.
    assert_eq!(machine.context(0x28)[0], 0x181);
    pages_are_told(&machine, &first);
    let second = Arc::new(unit.second_stage(RiscvLevels::Three).unwrap());
    unit.attach(STREAM, &second).unwrap();
    pages_are_told(&machine, &second);
    unit.block(STREAM).unwrap();
    machine.expect_obedience();
}

#[test]
fn pages_written_with_a_pasid_are_told() {
    let machine = with(RiscvIdentification::able().updates().pasids());
    let unit = machine.enable(tracking()).unwrap();
    unit.enable_pasids(STREAM, 8).unwrap();
    let (pasid, domain) = (Pasid::new(5), unit.first_stage(RiscvLevels::Four).unwrap());
    let domain = Arc::new(domain);
    unit.attach_pasid(STREAM, pasid, &domain).unwrap();
    domain.sync(&mut map(&*domain, 4)).unwrap();
    let unit = machine.unit();
    let wrote = unit.dma(STREAM, Some(pasid), BASE, AccessKind::Write, 4);
    assert!(wrote.is_ok());
    assert_eq!(written(&domain), [0]);
}

#[test]
fn a_unit_that_marks_nothing_does_not_track() {
    let machine = machine::new_machine();
    let refused = machine.enable(tracking());
    assert_eq!(refused.err(), Some(IommuError::Unsupported));
    assert_eq!(machine.live(), 0);
}
