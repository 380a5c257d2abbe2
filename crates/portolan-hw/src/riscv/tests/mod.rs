//! The driver on the unit of `portolan-chips`.

mod contiguity;
mod devices;
mod dirty;
mod faults;
mod filed;
mod former;
mod handover;
mod machine;
mod messages;
mod monitor;
mod processes;
mod queue;
mod takeover;

use crate::promise::tests::all_memory;
use alloc::sync::Arc;
use alloc::vec;

use portolan::addr::{PhysAddr, StreamId};
use portolan::iommu::{Attach, AttachError, Domain, Iommu as _, IommuError};
use portolan::platform::Nanos;
use portolan::table::format::RiscvLevels;
use portolan_chips::riscv::{RiscvIdentification, RiscvMachine as Machine};

use super::{Config, FirstDomain, RiscvQueue};
use crate::chassis::tests::suite::*;
use machine::{Riscv, new_machine};

const STREAM: StreamId = StreamId::new(0x28);

suite! {
    portolan_chips::riscv::RiscvMachine:
        devices_reach_what_is_mapped_for_them_and_nothing_else
        a_domain_of_another_unit_does_not_fit
        a_unit_that_refuses_everything_ends_in_time
        a_unit_that_was_turned_off_has_stopped
        a_release_that_fails_keeps_what_may_still_be_reached
        a_queue_that_never_drains_is_an_error_and_the_stream_stays_blocked
        a_unit_that_goes_away_is_an_error_at_each_call
        a_unit_that_is_slow_is_waited_for
        what_a_failure_left_of_one_stream_is_not_settled_with_another
}

crate::chassis::tests::hostile::on_a_hostile_machine! { portolan_chips::riscv::RiscvMachine }

type Tables = FirstDomain<Machine>;
type Queue = RiscvQueue<Machine>;

/// A directory of one level.
fn config() -> Config {
    Config { limit: Nanos::from_millis(10), streams_lg2: 6, ..Config::default() }
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
    unit.pass_through(STREAM, all_memory()).unwrap();
    assert_eq!(machine.context(0x28), [1, 0, 0, 0]);
    // Translations of both stages, of which there are none here, and of the second.
    let guest = [[0x1002_0000_0001, 0], [0x1002_0000_0081, 0]];
    assert_eq!(machine.commands(), [context, guest[0], guest[1]]);
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
fn devices_reach_what_is_mapped_for_them_by_contexts_in_extended_format() {
    let extended = RiscvIdentification::able().extended();
    reaches_what_is_mapped(&machine::with(extended));
}

#[test]
fn second_stages_translate_as_well() {
    let machine = machine::with(RiscvIdentification::able().second_stage_only());
    let unit = machine.enable(config()).unwrap();
    let none = unit.first_stage(RiscvLevels::Four);
    assert_eq!(none.err(), Some(IommuError::Unsupported));
    for levels in [RiscvLevels::Three, RiscvLevels::Four, RiscvLevels::Five] {
        let domain = Arc::new(unit.second_stage(levels).unwrap());
        unit.attach(STREAM, &domain).unwrap();
        domain.sync(&mut map(&*domain, 2)).unwrap();
        assert_eq!(machine.read(STREAM, BASE.get()), Some(0x1000));
        domain.sync(&mut unmap(&*domain, 2)).unwrap();
        assert_eq!(machine.read(STREAM, BASE.get()), None);
    }
    machine.expect_obedience();
}

#[test]
fn numbers_of_devices_are_as_wide_as_asked_for() {
    for identification in [RiscvIdentification::able(), RiscvIdentification::able().extended()] {
        for (lg2, last) in [(6, 0x3f), (15, 0x7fff), (16, 0xffff), (24, 0xff_ffff)] {
            let machine = machine::with(identification);
            let wide = Config { streams_lg2: lg2, ..config() };
            let unit = machine.enable(wide).unwrap();
            let domain = Arc::new(unit.first_stage(RiscvLevels::Three).unwrap());
            domain.sync(&mut map(&*domain, 1)).unwrap();
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
fn invalidations_by_hand() {
    let machine = new_machine();
    let (_unit, domain) = machine.attached();
    // What translates nothing is not kept.
    domain.sync(&mut map(&*domain, 2)).unwrap();
    assert_eq!(machine.commands(), vec![[0; 2]; 0]);
    domain.sync(&mut unmap(&*domain, 1)).unwrap();
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
    unit.release(all_memory()).unwrap();
    assert_eq!(machine.live(), 0);
    assert_eq!(machine.reg(16) & 0xf, 1);
}

#[test]
fn each_allocation_may_fail() {
    let wide = || Config { streams_lg2: 24, ..config() };
    // Queue, what it stores, faults, the directory's root, the tables' root, two pages that lead to the
    // context, and three tables below.
    assert_eq!(allocations_that_may_fail::<Machine>(wide), 10);
}
