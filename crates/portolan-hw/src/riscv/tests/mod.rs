//! The driver on the unit of `portolan-model`.

mod contiguity;
mod devices;
mod dirty;
mod faults;
mod machine;
mod messages;
mod monitor;
mod processes;
mod queue;
mod takeover;

use alloc::sync::Arc;
use alloc::vec;
use core::sync::atomic::AtomicU64;

use portolan::addr::{Iova, IovaRange, PhysAddr, StreamId};
use portolan::inval::Gather;
use portolan::iommu::{Attach, AttachError, Domain, Iommu as _, IommuError, PagedDomain};
use portolan::platform::{Nanos, TableMem};
use portolan::table::Access;
use portolan::table::format::{Format, RiscvLevels};
use portolan_model::riscv::{RiscvIdentification, RiscvMachine as Machine};

use super::{Config, FirstDomain, RiscvQueue};
use machine::{Iommu, Riscv, new_machine};

const PAGE: u64 = 4096;
const BASE: Iova = Iova::new(0x4000_0000);
const STREAM: StreamId = StreamId::new(0x28);

type Tables = FirstDomain<Machine, Machine, Machine>;
type Queue = RiscvQueue<Machine, Machine, Machine>;

/// A directory of one level.
fn config() -> Config {
    Config {
        limit: Nanos::from_millis(10),
        streams_lg2: 6,
        ..Config::default()
    }
}

/// A unit with one stream attached to one domain, and no commands.
fn attached(machine: &Machine) -> (Iommu, Arc<Tables>) {
    let unit = machine.enable(config()).unwrap();
    let domain = Arc::new(unit.first_stage(RiscvLevels::Four).unwrap());
    unit.attach(STREAM, &domain).unwrap();
    machine.commands();
    (unit, domain)
}

fn map<F: Format<Word = AtomicU64>>(domain: &PagedDomain<F, Machine, Queue>, pages: u64) -> Gather
where
    Machine: TableMem<AtomicU64>,
{
    let mut owed = Gather::new();
    let (pa, access) = (PhysAddr::new(0x1000), Access::READ | Access::WRITE);
    domain
        .map(BASE, pa, pages * PAGE, access, &mut owed)
        .unwrap();
    owed
}

fn unmap<F: Format<Word = AtomicU64>>(
    domain: &PagedDomain<F, Machine, Queue>,
    pages: u64,
) -> Gather {
    let mut owed = Gather::new();
    let range = IovaRange::from_len(BASE, pages * PAGE).unwrap();
    domain.unmap(range, &mut owed).unwrap();
    owed
}

#[test]
fn contexts_by_hand_and_what_is_forgotten() {
    let machine = new_machine();
    let unit = machine.enable(config()).unwrap();
    let first = Arc::new(unit.first_stage(RiscvLevels::Four).unwrap());
    let second = Arc::new(unit.second_stage(RiscvLevels::Three).unwrap());
    let page_of = |root: PhysAddr| root.get() >> 12;
    machine.commands();
    unit.attach(STREAM, &first).unwrap();
    // Valid; no second stage; tag 1; Sv48.
    let root = page_of(first.table().root());
    assert_eq!(machine.context(0x28), [1, 0, 1 << 12, 9 << 60 | root]);
    // What does not count is not kept.
    assert_eq!(machine.commands(), vec![[0; 2]; 0]);
    unit.attach(STREAM, &second).unwrap();
    // Sv39x4, tag 1 of another kind; a root of 16 KiB.
    let root = page_of(second.table().root());
    assert_eq!(root & 3, 0);
    assert_eq!(machine.context(0x28), [1, 8 << 60 | 1 << 44 | root, 0, 0]);
    let context = [0x0000_2802_0000_0003, 0];
    assert_eq!(machine.commands(), [context, [0x1_0000_1001, 0]]);
    unit.pass_through(STREAM).unwrap();
    assert_eq!(machine.context(0x28), [1, 0, 0, 0]);
    assert_eq!(machine.commands(), [context, [0x1002_0000_0081, 0]]);
    unit.block(STREAM).unwrap();
    assert_eq!(machine.context(0x28), [0, 0, 0, 0]);
    assert_eq!(machine.commands(), [context]);
    unit.block(STREAM).unwrap();
    assert_eq!(machine.commands(), vec![[0; 2]; 0]);
    let stream = StreamId::new(64);
    let refused = Err(AttachError::NoSuchStream { stream });
    assert_eq!(unit.attach(stream, &first), refused);
    machine.expect_obedience();
    assert_eq!(machine.unit().counts().unordered, 0);
}

#[test]
fn devices_reach_what_is_mapped_for_them_and_nothing_else() {
    let extended = RiscvIdentification::default().extended();
    for identification in [RiscvIdentification::default(), extended] {
        let machine = machine::with(identification);
        let (unit, domain) = attached(&machine);
        let (here, other) = (BASE.get() + 0x123, StreamId::new(0x29));
        assert_eq!(machine.read(STREAM, here), None);
        domain.sync(&mut map(&domain, 2)).unwrap();
        assert_eq!(machine.read(STREAM, here), Some(0x1123));
        assert_eq!(machine.write(STREAM, here + PAGE), Some(0x2123));
        assert_eq!(machine.read(other, here), None);
        domain.sync(&mut unmap(&domain, 1)).unwrap();
        assert_eq!(machine.read(STREAM, here), None);
        assert_eq!(machine.write(STREAM, here + PAGE), Some(0x2123));
        unit.pass_through(STREAM).unwrap();
        assert_eq!(machine.read(STREAM, here), Some(here));
        unit.attach(other, &domain).unwrap();
        unit.block(STREAM).unwrap();
        assert_eq!(machine.read(STREAM, here + PAGE), None);
        assert_eq!(machine.read(other, here + PAGE), Some(0x2123));
        machine.expect_obedience();
    }
}

#[test]
fn second_stages_translate_as_well() {
    let machine = machine::with(RiscvIdentification::default().second_stage_only());
    let unit = machine.enable(config()).unwrap();
    let none = unit.first_stage(RiscvLevels::Four);
    assert_eq!(none.err(), Some(IommuError::Unsupported));
    for levels in [RiscvLevels::Three, RiscvLevels::Four, RiscvLevels::Five] {
        let domain = Arc::new(unit.second_stage(levels).unwrap());
        unit.attach(STREAM, &domain).unwrap();
        domain.sync(&mut map(&domain, 2)).unwrap();
        assert_eq!(machine.read(STREAM, BASE.get()), Some(0x1000));
        domain.sync(&mut unmap(&domain, 2)).unwrap();
        assert_eq!(machine.read(STREAM, BASE.get()), None);
    }
    machine.expect_obedience();
}

#[test]
fn numbers_of_devices_are_as_wide_as_asked_for() {
    for identification in [
        RiscvIdentification::default(),
        RiscvIdentification::default().extended(),
    ] {
        for (lg2, last) in [(6, 0x3f), (15, 0x7fff), (16, 0xffff), (24, 0xff_ffff)] {
            let machine = machine::with(identification);
            let wide = Config {
                streams_lg2: lg2,
                ..config()
            };
            let unit = machine.enable(wide).unwrap();
            let domain = Arc::new(unit.first_stage(RiscvLevels::Three).unwrap());
            domain.sync(&mut map(&domain, 1)).unwrap();
            let streams = [0, 0x2f & last, last].map(StreamId::new);
            for stream in streams {
                unit.attach(stream, &domain).unwrap();
                assert_eq!(machine.read(stream, BASE.get()), Some(0x1000), "{lg2}");
            }
            unit.block(StreamId::new(last)).unwrap();
            assert_eq!(machine.read(StreamId::new(last), BASE.get()), None);
            assert_eq!(machine.read(StreamId::new(0), BASE.get()), Some(0x1000));
            let stream = StreamId::new(last + 1);
            let refused = Err(AttachError::NoSuchStream { stream });
            assert_eq!(unit.block(stream), refused);
            machine.expect_obedience();
        }
    }
}

#[test]
fn a_domain_of_another_unit_does_not_fit() {
    let (one, other) = (new_machine(), new_machine());
    let one = one.enable(config()).unwrap();
    let other = other.enable(config()).unwrap();
    let domain = Arc::new(other.first_stage(RiscvLevels::Four).unwrap());
    assert_eq!(one.attach(STREAM, &domain), Err(AttachError::Mismatch));
}

#[test]
fn invalidations_by_hand() {
    let machine = new_machine();
    let (_unit, domain) = attached(&machine);
    // What translates nothing is not kept.
    domain.sync(&mut map(&domain, 2)).unwrap();
    assert_eq!(machine.commands(), vec![[0; 2]; 0]);
    domain.sync(&mut unmap(&domain, 1)).unwrap();
    let first = [0x1_0000_1401, BASE.get() >> 2];
    assert_eq!(machine.commands(), [first]);
}

#[test]
fn domains_give_their_identifiers_back_and_their_tables() {
    let machine = new_machine();
    let unit = machine.enable(config()).unwrap();
    let live = machine.live();
    for _ in 0..3 {
        let first = unit.first_stage(RiscvLevels::Four).unwrap();
        assert_eq!(first.context().get(), 1);
        first.sync(&mut map(&first, 3)).unwrap();
        let second = unit.second_stage(RiscvLevels::Four).unwrap();
        assert_eq!(second.context().get(), 1 << 31 | 1);
        second.sync(&mut map(&second, 3)).unwrap();
    }
    assert_eq!(machine.live(), live);
    unit.release().unwrap();
    assert_eq!(machine.live(), 0);
    assert_eq!(machine.reg(16) & 0xf, 1);
}

fn map_a_page(unit: &Iommu) -> Result<(), IommuError> {
    let domain = Arc::new(unit.first_stage(RiscvLevels::Three)?);
    match unit.attach(STREAM, &domain) {
        Err(AttachError::Iommu(error)) => return Err(error),
        attached => attached.unwrap(),
    }
    let mut owed = Gather::new();
    let pa = PhysAddr::new(0x1000);
    let mapped = domain.map(BASE, pa, PAGE, Access::READ, &mut owed);
    domain.sync(&mut owed).unwrap();
    mapped.map(drop).map_err(|_| IommuError::Unsupported)
}

#[test]
fn each_allocation_may_fail() {
    let mut failures = 0;
    for n in 1..100 {
        let machine = new_machine();
        machine.fail_in(n);
        let wide = Config {
            streams_lg2: 24,
            ..config()
        };
        let outcome = machine.enable(wide).and_then(|unit| {
            let mapped = map_a_page(&unit);
            unit.release().unwrap();
            mapped
        });
        match outcome {
            Ok(()) => break,
            Err(_) => failures += 1,
        }
        assert_eq!(machine.live(), 0, "allocation {n}");
    }
    // Queue, what it stores, faults, the directory's root, the tables' root, two pages that lead to the
    // context, and two tables below.
    assert_eq!(failures, 9);
}
