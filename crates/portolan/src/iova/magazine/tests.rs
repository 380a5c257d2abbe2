//! Magazines and depots at their edges: empty, full, and one more.

use super::*;

fn magazine(rounds: usize, blocks: &[u64]) -> Magazine {
    let mut made = Magazine::try_new(rounds).unwrap();
    assert!(blocks.iter().all(|&block| made.put(block)));
    made
}

fn both(loaded: Magazine, previous: Magazine) -> Magazines {
    Magazines { loaded, previous, ..Magazines::default() }
}

#[test]
fn a_limit_finds_the_uppermost_of_the_few_on_top() {
    assert_eq!(magazine(4, &[1, 2, 50]).take(10), Some(2));
    assert_eq!(magazine(4, &[1, 2, 10]).take(10), Some(10));
    for (above, found) in [(LOOKS - 1, Some(1)), (LOOKS, None)] {
        let mut magazine = magazine(1 + above, &[1]);
        while magazine.put(50) {}
        assert_eq!(magazine.take(10), found);
    }
}

#[test]
fn the_second_magazine_serves_where_the_first_is_empty_or_full() {
    let mut cache = both(magazine(2, &[]), magazine(2, &[7]));
    assert_eq!((cache.take(9), cache.take(9)), (Some(7), None));
    assert_eq!((cache.given, cache.taken), (1, 0));
    let mut cache = both(magazine(1, &[5]), magazine(1, &[]));
    assert_eq!((cache.put(6), cache.put(6)), (Put::Done, Put::Twice));
    assert_eq!(cache.put(8), Put::Full);
    assert_eq!((cache.given, cache.taken, cache.len()), (0, 1, 2));
}

#[test]
fn a_magazine_comes_in_where_one_is_empty() {
    for (loaded, previous, out) in
        [(&[][..], &[][..], 0), (&[], &[9], 0), (&[9], &[], 0), (&[9], &[8], 3)]
    {
        let mut cache = both(magazine(2, loaded), magazine(2, previous));
        let there = cache.len();
        let left = cache.load(magazine(4, &[1, 2, 3]));
        assert_eq!((left.len(), cache.len()), (out, there + 3 - out));
    }
}

#[test]
fn a_depot_keeps_what_it_has_room_for() {
    let mut depot = Depot::try_new(2, 1).unwrap();
    for _ in 0..3 {
        assert!(depot.keep(magazine(1, &[1])).is_none());
    }
    assert!(depot.keep(magazine(1, &[1])).is_some());
    for _ in 0..6 {
        assert!(depot.keep(magazine(1, &[])).is_none());
    }
    assert!(depot.keep(magazine(1, &[])).is_some());
    assert_eq!((depot.magazines(), depot.len()), (3, 3));
}

#[test]
fn exchanges_are_magazines_with_blocks_that_come_and_go() {
    let mut depot = Depot::try_new(2, 1).unwrap();
    assert!(depot.fetch().is_none());
    depot.keep(magazine(1, &[]));
    for exchanges in [1, 2] {
        depot.keep(magazine(1, &[1]));
        assert_eq!(depot.exchanges, exchanges);
    }
    assert!(depot.fetch().is_some());
    assert_eq!(depot.exchanges, 3);
}

#[test]
fn a_depot_wants_as_many_magazines_as_it_may_have_full_ones() {
    let mut depot = Depot::try_new(3, 1).unwrap();
    for blocks in [&[][..], &[1], &[]] {
        assert!(depot.wants_empty());
        depot.keep(magazine(1, blocks));
    }
    assert!(!depot.wants_empty());
    // Of the two empty ones one is enough for one CPU.
    assert!(depot.surplus().is_some() && depot.surplus().is_none());
    assert!(depot.wants_empty());
}

#[test]
fn what_nobody_fetched_since_the_last_mark_is_idle() {
    let mut depot = Depot::try_new(3, 1).unwrap();
    for _ in 0..3 {
        depot.keep(magazine(1, &[1]));
    }
    assert!(depot.idle().is_none());
    depot.mark();
    let fetched = depot.fetch().unwrap();
    depot.keep(fetched);
    assert!(depot.idle().is_some() && depot.idle().is_some());
    assert!(depot.idle().is_none());
    assert_eq!(depot.magazines(), 1);
}
