//! Memory that a handler needs beforehand to allocate, and reports that there is too little of it.

use super::*;

const LARGE: u64 = 4 * MIB;

fn space(options: IovaOptions) -> OneCpu {
    one_cpu_with(window(0, (1 << 40) - 1), options)
}

/// Number of ranges that a handler gets until a caller is told that few can follow.
fn until_short(space: &OneCpu, length: u64) -> usize {
    let request = bytes(length);
    let taken = core::iter::from_fn(|| {
        let go_on = !space.is_short();
        go_on.then(|| space.try_alloc(&request).unwrap())
    });
    taken.take(1000).count()
}

#[test]
fn half_of_the_reserve_is_left_when_a_worker_is_told() {
    let space = space(IovaOptions::default());
    assert!(!space.is_short());
    let reserve = usize::from(IovaOptions::default().reserve);
    for turn in 0..3 {
        let taken = until_short(&space, LARGE);
        // Room comes in chunks: there may be more than was asked for.
        assert!((reserve / 2..=reserve).contains(&taken), "{turn}: {taken}");
        for _ in 0..reserve / 2 - 1 {
            space.try_alloc(&bytes(LARGE)).unwrap();
        }
        space.replenish().unwrap();
        assert!(!space.is_short());
    }
}

#[test]
fn who_may_use_the_heap_leaves_nothing_short() {
    for checks in [Checks::Cheap, Checks::Exact] {
        let space = space(IovaOptions { checks, ..IovaOptions::default() });
        for _ in 0..400 {
            space.alloc(&bytes(LARGE)).unwrap();
        }
        assert!(!space.is_short());
    }
}

#[test]
fn records_of_what_is_out_are_watched_where_addresses_come_from_caches() {
    let space = space(IovaOptions { checks: Checks::Exact, reserve: 16, ..IovaOptions::default() });
    let held: Vec<_> = (0..250).map(|_| space.alloc(&bytes(4096)).unwrap()).collect();
    assert_eq!(space.free_all(&held), 0);
    space.replenish().unwrap();
    // There is room for 256.
    assert_eq!(until_short(&space, 4096), 256 - 16 / 2 + 1);
    for _ in 0..7 {
        assert!(space.try_alloc(&bytes(4096)).is_ok());
    }
}

#[test]
fn without_a_reserve_a_handler_is_refused_and_that_is_told() {
    let space = space(IovaOptions { checks: Checks::Exact, reserve: 0, ..IovaOptions::default() });
    let total = space.stats().free;
    assert!(!space.is_short());
    assert_eq!(space.try_alloc(&bytes(4096)), Err(IovaError::Memory));
    assert!(space.is_short());
    assert_eq!(space.stats().free, total);
}

#[test]
fn a_block_without_a_magazine_asks_for_one_of_its_kind() {
    let space = space(IovaOptions { front: 0, ..IovaOptions::default() });
    let request = bytes(8 << 12);
    let range = space.try_alloc(&request).unwrap();
    let kind = space.classes.of_range(range).unwrap().unwrap();
    space.free(range).unwrap();
    assert_eq!((space.stats().in_magazines, space.is_short()), (0, true));
    space.replenish().unwrap();
    assert!(!space.is_short());
    for other in Kind::all().filter(|other| *other != kind) {
        let empty = space.depot(other, |depot| depot.fetch_empty());
        assert!(empty.is_none(), "{other:?}");
    }
    let range = space.try_alloc(&request).unwrap();
    space.free(range).unwrap();
    assert_eq!((space.stats().in_magazines, space.is_short()), (8, false));
}
