//! Fronts at their edges, and with hints that others left wrong.

use core::sync::atomic::AtomicU64;

use super::*;

const HIGH: u64 = u64::MAX;

fn kind() -> Kind {
    Kind::all().nth(1).unwrap()
}

fn fronts(blocks: &[u64]) -> Fronts<AtomicU64> {
    let fronts = Fronts::new();
    for &block in blocks {
        assert_eq!(fronts.put(kind(), block, FRONT), Put::Done);
    }
    fronts
}

fn take(fronts: &Fronts<AtomicU64>, kind: Kind, highest: u64) -> Option<u64> {
    fronts.take(kind, highest).unwrap()
}

fn hint(fronts: &Fronts<AtomicU64>) -> &AtomicU64 {
    fronts.of(kind()).filled
}

#[test]
fn what_came_last_goes_first_address_zero_too() {
    let fronts = fronts(&[0x2000, 0, 0x1000]);
    let taken = [(); 4].map(|()| take(&fronts, kind(), HIGH));
    assert_eq!(taken, [Some(0x1000), Some(0), Some(0x2000), None]);
}

#[test]
fn a_block_too_high_stays() {
    let fronts = fronts(&[0x1000, 0x5000]);
    assert_eq!(take(&fronts, kind(), 0x4fff), None);
    assert_eq!(take(&fronts, kind(), 0x5000), Some(0x5000));
    assert_eq!(fronts.blocks(kind(), FRONT).count(), 1);
}

#[test]
fn there_is_room_for_as_many_as_were_allowed() {
    for room in [0, 3, FRONT, FRONT + 9] {
        let fronts = fronts(&[]);
        let put = (0..20).filter(|&at| fronts.put(kind(), at << 12, room) == Put::Done);
        assert_eq!(put.count(), room.min(FRONT));
    }
}

#[test]
fn there_is_more_room_for_single_granules() {
    let room = |kind: Kind| if kind.order() == 0 { GRANULES } else { FRONT };
    for kind in Kind::all() {
        let fronts = fronts(&[]);
        let put = (0..200).filter(|&at| fronts.put(kind, at << 12, 200) == Put::Done);
        assert_eq!(put.count(), room(kind));
        let taken = core::iter::from_fn(|| take(&fronts, kind, HIGH));
        assert_eq!(taken.count(), room(kind));
    }
}

#[test]
fn a_block_that_comes_back_twice_in_a_row_is_seen() {
    let fronts = fronts(&[]);
    for at in 0..FRONT as u64 {
        assert_eq!(fronts.put(kind(), at << 12, FRONT), Put::Done);
        assert_eq!(fronts.put(kind(), at << 12, FRONT), Put::Twice);
    }
}

#[test]
fn kinds_are_apart() {
    let fronts = fronts(&[]);
    for kind in Kind::all() {
        let own = kind.index() as u64 + 1;
        assert_eq!(fronts.put(kind, own << 12, FRONT), Put::Done);
    }
    for kind in Kind::all() {
        let own = kind.index() as u64 + 1;
        let taken = [(); 2].map(|()| take(&fronts, kind, HIGH));
        assert_eq!(taken, [Some(own << 12), None]);
    }
}

#[test]
fn clearing_finds_what_no_hint_tells_of() {
    let fronts = fronts(&[0x1000, 0x2000, 0x3000]);
    hint(&fronts).store(1, Ordering::Relaxed);
    let mut found: [u64; 3] = [0; 3];
    for (place, block) in found.iter_mut().zip(fronts.clear(kind(), FRONT)) {
        *place = block;
    }
    assert_eq!(found, [0x1000, 0x2000, 0x3000]);
    assert_eq!((fronts.blocks(kind(), FRONT).count(), take(&fronts, kind(), HIGH)), (0, None));
}

#[test]
fn a_hint_too_high_sinks_until_it_finds_a_block() {
    let fronts = fronts(&[0x1000]);
    hint(&fronts).store(4, Ordering::Relaxed);
    let taken = [(); 5].map(|()| take(&fronts, kind(), HIGH));
    assert_eq!(taken, [None, None, None, Some(0x1000), None]);
}

#[test]
fn a_hint_too_low_rises_until_it_finds_room() {
    let fronts = fronts(&[0x1000, 0x2000]);
    hint(&fronts).store(0, Ordering::Relaxed);
    let put = [(); 3].map(|()| fronts.put(kind(), 0x7000, FRONT));
    assert_eq!(put, [Put::Full, Put::Full, Put::Done]);
    let taken = [(); 4].map(|()| take(&fronts, kind(), HIGH));
    assert_eq!(taken, [Some(0x7000), Some(0x2000), Some(0x1000), None]);
}

#[test]
fn a_hint_that_is_no_number_of_blocks_does_no_harm() {
    let fronts = fronts(&[0x1000]);
    hint(&fronts).store(u64::MAX, Ordering::Relaxed);
    assert_eq!(take(&fronts, kind(), HIGH), None);
    assert_eq!(fronts.put(kind(), 0x2000, FRONT), Put::Full);
    assert_eq!(fronts.clear(kind(), FRONT).count(), 1);
}
