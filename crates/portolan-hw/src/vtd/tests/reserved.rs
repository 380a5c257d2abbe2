//! Memory that devices go on reaching at its own addresses.

use crate::promise::of_firmware;
use crate::promise::tests::described;
use alloc::sync::Arc;
use alloc::vec::Vec;

use portolan::addr::{Iova, IovaRange, PhysAddr, StreamId};
use portolan::inval::Gather;
use portolan::iommu::{Attach, AttachError, Domain as _, Iommu as _, ReservedKind, ReservedRegion};
use portolan::table::Access;

use super::STREAM;
use super::kit::{CAP, ECAP, new_machine};
use crate::chassis::tests::suite::Driven;
use crate::reservations::{Ignored, Limits, Reservations, Reserved};
use crate::vtd::Config;
use portolan_spec::vtd::reg;
use portolan_tables::describe::UnitKind;

fn one(start: u64, last: u64) -> Reserved {
    let range = IovaRange::new(Iova::new(start), Iova::new(last)).unwrap();
    let kind = ReservedKind::Direct(Access::READ | Access::WRITE);
    Reserved::one(STREAM, ReservedRegion { range, kind })
}

pub(super) fn config(ranges: &[(u64, u64)]) -> Config {
    let most_bytes = u64::MAX;
    let mut reserved = Reservations::new(Limits { most_bytes, ..Limits::default() });
    reserved.believe(described());
    for &(start, last) in ranges {
        reserved.add(one(start, last)).unwrap();
    }
    Config { reserved, ..super::legacy() }
}

#[test]
fn ranges_that_overlap_or_repeat_are_held_once() {
    let ranges = [
        (0x10_3000, 0x10_5fff),
        (0x10_0000, 0x10_4fff),
        (0x10_3000, 0x10_5fff),
        (0x10_0800, 0x10_7001),
        (0x20_0000, 0x7f_ffff),
        (0x0f_f000, 0x80_0fff),
    ];
    let machine = new_machine(CAP, ECAP);
    let unit = machine.enable(config(&ranges)).unwrap();
    let domain = Arc::new(unit.second_stage().unwrap());
    for _ in 0..2 {
        unit.attach(STREAM, &domain).unwrap();
        for at in (0xff_000..0x80_1000).step_by(4096) {
            let found = domain.translate(Iova::new(at)).unwrap();
            assert_eq!(found.pa, PhysAddr::new(at));
        }
    }
    assert_eq!(domain.translate(Iova::new(0xfe_000)), None);
}

/// Firmware that claims all addresses, or those of interrupt messages.
#[test]
fn ranges_that_no_unit_can_map_are_ignored_and_counted() {
    let beyond = |start, last| Ignored::Beyond { reserved: one(start, last), address_lg2: 52 };
    let torn = |start, last| Ignored::Contradiction {
        reserved: one(start, last),
        other: Reserved::everywhere(UnitKind::Vtd.not_translated().next().unwrap()),
    };
    for (start, last, why) in [
        (1, u64::MAX, beyond(1, u64::MAX)),
        (1 << 47, 1 << 52, beyond(1 << 47, 1 << 52)),
        (0, (1 << 48) - 1, torn(0, (1 << 48) - 1)),
        (0xfedf_f000, 0xfee0_0000, torn(0xfedf_f000, 0xfee0_0000)),
    ] {
        let machine = new_machine(CAP, ECAP);
        let unit = machine.enable(config(&[(start, last)])).unwrap();
        let left_out = unit.reservations().left_out();
        assert_eq!((left_out.count, left_out.first), (1, Some(why)));
        let domain = Arc::new(unit.second_stage().unwrap());
        unit.attach(STREAM, &domain).unwrap();
        assert_eq!(domain.translate(Iova::new(start)), None);
    }
}

#[test]
fn ranges_that_tables_cannot_map_are_refused_in_time() {
    // The second is too large for the memory that there is for tables.
    for range in [(1 << 47, 1 << 48), (1 << 32, (1 << 48) - 1)] {
        let machine = new_machine(CAP, ECAP);
        let unit = machine.enable(config(&[range])).unwrap();
        assert_eq!(unit.reservations().left_out().count, 0);
        let domain = Arc::new(unit.second_stage().unwrap());
        let refused = unit.attach(STREAM, &domain);
        assert_eq!(refused, Err(AttachError::Mismatch), "{range:x?}");
    }
}

#[test]
fn what_is_mapped_otherwise_already_is_refused() {
    let machine = new_machine(CAP, ECAP);
    let start = super::BASE.get();
    let ranges = [(start - 0x2000, start + 0x2fff)];
    let unit = machine.enable(config(&ranges)).unwrap();
    let domain = Arc::new(unit.second_stage().unwrap());
    domain.sync(&mut super::map(&*domain, 1)).unwrap();
    let refused = unit.attach(STREAM, &domain);
    assert_eq!(refused, Err(AttachError::Mismatch));
}

#[test]
fn what_is_mapped_at_its_own_address_already_stays_and_the_rest_is_added() {
    for pages in [0..1, 3..5, 15..16] {
        let machine = new_machine(CAP, ECAP);
        let unit = machine.enable(config(&[(0x10_0000, 0x10_ffff)])).unwrap();
        let domain = Arc::new(unit.second_stage().unwrap());
        let (start, past) = (0x10_0000 + pages.start * 4096, 0x10_0000 + pages.end * 4096);
        let range = IovaRange::new(Iova::new(start), Iova::new(past - 1)).unwrap();
        let mut owed = Gather::new();
        let access = Access::READ | Access::WRITE;
        let memory = of_firmware(range).unwrap();
        domain.map(range.start(), memory, access, &mut owed).unwrap();
        domain.sync(&mut owed).unwrap();
        unit.attach(STREAM, &domain).unwrap();
        for at in (0x10_0000..0x11_0000).step_by(4096) {
            let found = domain.translate(Iova::new(at)).unwrap();
            assert_eq!(found.pa, PhysAddr::new(at), "{pages:?}");
        }
        assert_eq!(domain.translate(Iova::new(0x11_0000)), None);
    }
}

#[test]
fn devices_at_work_reach_their_memory_from_enable_on_and_nothing_else() {
    let machine = new_machine(CAP, ECAP);
    let unit = machine.enable(config(&[(0x10_0000, 0x10_ffff)])).unwrap();
    assert_eq!(machine.read(STREAM, 0x10_f123), Some(0x10_f123));
    assert_eq!(machine.write(STREAM, 0x10_0000), Some(0x10_0000));
    assert_eq!(machine.read(STREAM, 0x11_0000), None);
    assert_eq!(machine.read(StreamId::new(0x0333), 0x10_0000), None);
    drop(unit);
}

/// Each device's context: its domain and its tables.
#[test]
fn devices_at_work_share_tables_if_their_memory_is_the_same_and_only_then() {
    let machine = new_machine(CAP, ECAP);
    let mut config = config(&[(0x10_0000, 0x10_ffff)]);
    let [same, other] = [0x0110, 0x0118].map(StreamId::new);
    for (stream, start) in [(same, 0x10_0000), (other, 0x30_0000)] {
        let region = one(start, start + 0xffff).region;
        config.reserved.add(Reserved::one(stream, region)).unwrap();
    }
    let unit = machine.enable(config).unwrap();
    for (stream, reached) in
        [(STREAM, [true, false]), (same, [true, false]), (other, [false, true])]
    {
        let of = [0x10_8000, 0x30_8000].map(|at| machine.read(stream, at).is_some());
        assert_eq!(of, reached, "{stream:?}");
    }
    let contexts = machine.word(machine.reg(reg::RTADDR) + 16) & !0xfff;
    let context = |stream: StreamId| {
        let at = contexts + 16 * u64::from(stream.get() & 0xff);
        [machine.word(at), machine.word(at + 8)]
    };
    assert_eq!(context(STREAM), context(same));
    assert_ne!(context(STREAM), context(other));
    drop(unit);
}

#[test]
fn the_window_of_interrupt_messages_is_reserved_for_every_stream() {
    let machine = new_machine(CAP, ECAP);
    let unit = machine.enable(config(&[(0x10_0800, 0x10_7001)])).unwrap();
    let of = |stream| {
        let mut found = Vec::new();
        unit.reserved(stream, &mut |region| {
            let range = region.range;
            found.push((range.start().get(), range.last().get(), region.kind));
        });
        found
    };
    let window = (0xfee0_0000, 0xfeef_ffff, ReservedKind::Interrupts);
    let direct = ReservedKind::Direct(Access::READ | Access::WRITE);
    assert_eq!(of(STREAM), [window, (0x10_0000, 0x10_7fff, direct)]);
    assert_eq!(of(StreamId::new(0x0333)), [window]);
}
