//! Leaves of sizes between those of the levels.

use alloc::sync::Arc;
use alloc::vec::Vec;

use portolan::addr::{Iova, IovaRange, PageSize, PhysAddr};
use portolan::inval::Gather;
use portolan::iommu::{Attach, Domain};
use portolan::table::format::{AmdSizes, DirtyTracking, Format};
use portolan::table::{Access, TableUnmapError};
use portolan_chips::amd::AmdMachine as Machine;
use portolan_chips::chips::RAVEN_RIDGE;

use super::machine::{new_machine, of, real, with};
use super::{STREAM, config};
use crate::amd::{AmdDomain, Config};
use crate::chassis::tests::suite::{Driven, PAGE};
use crate::promise::tests::{all_memory, promised};

const MIB: u64 = 1 << 20;

fn between() -> Config {
    Config { sizes: AmdSizes::Between, ..config() }
}

fn reached(machine: &Machine, at: Iova, [bytes, step]: [u64; 2]) -> Vec<Option<u64>> {
    (0..bytes / step).map(|part| machine.read(STREAM, at.get() + part * step)).collect()
}

/// Maps a leaf of `bytes`, cuts one of the entries out that are `step` apart, and unmaps the rest.
fn cut(machine: &Machine, domain: &AmdDomain<Machine>, bytes: u64, step: u64) {
    let (at, there) = (Iova::new(bytes), bytes * 2);
    let size = PageSize::from_lg2(bytes.trailing_zeros()).unwrap();
    let mut owed = Gather::new();
    let memory = promised(PhysAddr::new(there), bytes);
    domain.map(at, memory, Access::READ_WRITE, &mut owed).unwrap();
    domain.sync(&mut owed).unwrap();
    assert_eq!(domain.table().translate(at).unwrap().size, size);
    let whole: Vec<_> = (0..bytes / step).map(|part| Some(there + part * step)).collect();
    assert_eq!(reached(machine, at, [bytes, step]), whole);
    let hole = at.checked_add(step).unwrap();
    let part = IovaRange::from_len(hole, step).unwrap();
    let block = IovaRange::page(at, size);
    let refused = domain.unmap(part, &mut owed);
    assert_eq!(refused, Err(TableUnmapError::NeedsSplit { block }.into()));
    domain.split(hole, &mut owed).unwrap();
    assert_eq!(reached(machine, at, [bytes, step]), whole);
    domain.unmap(part, &mut owed).unwrap();
    domain.sync(&mut owed).unwrap();
    let mut rest = whole;
    rest[1] = None;
    for _ in 0..2 {
        // What its neighbours say brings nothing back.
        assert_eq!(reached(machine, at, [bytes, step]), rest);
    }
    domain.unmap(IovaRange::from_len(at, step).unwrap(), &mut owed).unwrap();
    if let Some(after) = bytes.checked_sub(2 * step).filter(|bytes| *bytes > 0) {
        let start = at.checked_add(2 * step).unwrap();
        domain.unmap(IovaRange::from_len(start, after).unwrap(), &mut owed).unwrap();
    }
    domain.sync(&mut owed).unwrap();
    rest.fill(None);
    assert_eq!(reached(machine, at, [bytes, step]), rest);
}

#[test]
fn leaves_of_all_sizes_go_as_one_and_in_parts() {
    for machine in [new_machine(), of(real())] {
        let unit = machine.enable(between()).unwrap();
        let domain = Arc::new(unit.domain().unwrap());
        unit.attach(STREAM, &domain).unwrap();
        for (bytes, step) in [(2 * PAGE, PAGE), (16 * PAGE, PAGE), (MIB, PAGE), (4 * MIB, 2 * MIB)]
        {
            cut(&machine, &domain, bytes, step);
        }
        cut(&machine, &domain, 64 * MIB, 2 * MIB);
        machine.expect_obedience();
    }
}

#[test]
fn there_are_none_unless_a_caller_says_so_and_none_with_marks() {
    let machine = with(RAVEN_RIDGE.identification.marks());
    let marking = Config { dirty: DirtyTracking::Hardware, ..between() };
    for (config, there) in [(config(), false), (between(), true), (marking, false)] {
        let unit = machine.enable(config).unwrap();
        let domain = unit.domain().unwrap();
        let sizes = domain.table().format().page_sizes();
        assert_eq!(sizes.contains(PageSize::SIZE_64K), there);
        drop(domain);
        unit.release(all_memory()).unwrap();
    }
}
