//! Leaves of 64 KiB (Svnapot), on a unit that keeps each of their sixteen parts by itself.

use crate::promise::tests::all_memory;
use crate::promise::tests::promised;
use alloc::sync::Arc;
use alloc::vec::Vec;

use portolan::addr::{IovaRange, PageSize, PhysAddr};
use portolan::inval::Gather;
use portolan::iommu::{Attach, Domain, IommuError};
use portolan::table::format::{Format, RiscvContiguity, RiscvLevels};
use portolan::table::{Access, TableUnmapError};
use portolan_chips::riscv::{RiscvIdentification, RiscvMachine as Machine};

use super::machine::{self};
use super::{Config, Queue, STREAM, config};
use crate::chassis::tests::suite::{BASE, Driven, PAGE};

/// Pages of a leaf.
const PAGES: u64 = 16;
/// Physical address to which they lead.
const THERE: u64 = 0x12_0000;

fn with_large_leaves() -> Config {
    Config { contiguity: RiscvContiguity::Svnapot, ..config() }
}

fn reached(machine: &Machine) -> Vec<Option<u64>> {
    let pages = (0..PAGES).map(|page| BASE.get() + page * PAGE);
    pages.map(|iova| machine.read(STREAM, iova)).collect()
}

/// A leaf is mapped, cut and unmapped.
fn cut<F>(machine: &Machine, domain: &portolan::iommu::PagedDomain<F, Machine, Queue>)
where
    F: Format<Word = core::sync::atomic::AtomicU64>,
{
    let mut owed = Gather::new();
    let there = PhysAddr::new(THERE);
    let (all, access) = (PAGES * PAGE, Access::READ | Access::WRITE);
    domain.map(BASE, promised(there, all), access, &mut owed).unwrap();
    domain.sync(&mut owed).unwrap();
    let leaf = domain.table().translate(BASE).unwrap();
    assert_eq!(leaf.size, PageSize::SIZE_64K);
    let whole: Vec<_> = (0..PAGES).map(|page| Some(THERE + page * PAGE)).collect();
    assert_eq!(reached(machine), whole);
    // One page of them.
    let hole = BASE.checked_add(5 * PAGE).unwrap();
    let page = IovaRange::page(hole, PageSize::SIZE_4K);
    let block = IovaRange::page(BASE, PageSize::SIZE_64K);
    let refused = domain.unmap(page, &mut owed);
    assert_eq!(refused, Err(TableUnmapError::NeedsSplit { block }.into()));
    domain.split(hole, &mut owed).unwrap();
    assert_eq!(reached(machine), whole);
    domain.unmap(page, &mut owed).unwrap();
    domain.sync(&mut owed).unwrap();
    let mut rest = whole;
    rest[5] = None;
    for _ in 0..2 {
        // What its neighbours say brings nothing back.
        assert_eq!(reached(machine), rest);
    }
    let parts = [(0, 5), (6, 10)].map(|(first, pages)| {
        let start = BASE.checked_add(first * PAGE).unwrap();
        IovaRange::from_len(start, pages * PAGE).unwrap()
    });
    for part in parts {
        domain.unmap(part, &mut owed).unwrap();
        domain.sync(&mut owed).unwrap();
        assert_eq!(machine.read(STREAM, part.start().get()), None);
        assert_eq!(machine.read(STREAM, part.last().get() & !3), None);
    }
}

#[test]
fn leaves_of_64_kib_go_as_one_and_in_parts() {
    let extended = RiscvIdentification::able().extended();
    for identification in [RiscvIdentification::able(), extended] {
        let machine = machine::with(identification);
        let unit = machine.enable(with_large_leaves()).unwrap();
        let first = Arc::new(unit.first_stage(RiscvLevels::Four).unwrap());
        unit.attach(STREAM, &first).unwrap();
        cut(&machine, &first);
        let second = Arc::new(unit.second_stage(RiscvLevels::Three).unwrap());
        unit.attach(STREAM, &second).unwrap();
        cut(&machine, &second);
        machine.expect_obedience();
    }
}

#[test]
fn there_are_none_unless_somebody_says_so() -> Result<(), IommuError> {
    let machine = machine::new_machine();
    let unit = machine.enable(config())?;
    let domain = unit.first_stage(RiscvLevels::Four)?;
    let sizes = domain.table().format().page_sizes();
    assert!(!sizes.contains(PageSize::SIZE_64K));
    drop(domain);
    unit.release(all_memory())?;
    Ok(())
}
