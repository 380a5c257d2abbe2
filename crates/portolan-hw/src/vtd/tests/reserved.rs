//! Memory that devices go on reaching at its own addresses.

use alloc::sync::Arc;
use alloc::vec::Vec;

use portolan::addr::{Iova, PhysAddr, PhysRange, StreamId};
use portolan::table::Access;
use portolan::unit::{Attach, AttachError, Domain as _, ReservedKind, Unit as _};

use super::STREAM;
use super::mock::{CAP, ECAP, Mock};
use crate::vtd::{Config, Reserved};

fn config(ranges: &[(u64, u64)]) -> Config {
    let reserved = ranges.iter().map(|&(start, last)| Reserved {
        stream: STREAM,
        memory: PhysRange::new(PhysAddr::new(start), PhysAddr::new(last)).unwrap(),
    });
    Config {
        reserved: reserved.collect::<Vec<_>>(),
        ..super::legacy()
    }
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
    let mock = Mock::new(CAP, ECAP);
    let unit = mock.enable(config(&ranges)).unwrap();
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

#[test]
fn ranges_that_make_no_sense_are_refused_in_time() {
    for range in [(0, u64::MAX), (1 << 47, u64::MAX), (0, (1 << 48) - 1)] {
        let mock = Mock::new(CAP, ECAP);
        let unit = mock.enable(config(&[range])).unwrap();
        let domain = Arc::new(unit.second_stage().unwrap());
        let refused = unit.attach(STREAM, &domain);
        // The last of them is too large for the memory that there is for tables.
        assert_eq!(refused, Err(AttachError::Mismatch), "{range:x?}");
    }
}

#[test]
fn what_is_mapped_otherwise_already_is_refused() {
    let mock = Mock::new(CAP, ECAP);
    let start = super::BASE.get();
    let ranges = [(start - 0x2000, start + 0x2fff)];
    let unit = mock.enable(config(&ranges)).unwrap();
    let domain = Arc::new(unit.second_stage().unwrap());
    domain.sync(&mut super::map(&*domain, 1)).unwrap();
    let refused = unit.attach(STREAM, &domain);
    assert_eq!(refused, Err(AttachError::Mismatch));
}

#[test]
fn the_window_of_interrupt_messages_is_reserved_for_every_stream() {
    let mock = Mock::new(CAP, ECAP);
    let unit = mock.enable(config(&[(0x10_0800, 0x10_7001)])).unwrap();
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
    assert_eq!(of(STREAM), [window, (0x10_0800, 0x10_7001, direct)]);
    assert_eq!(of(StreamId::new(0x0333)), [window]);
}
