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
fn many_blocks_go_into_the_loaded_magazine_as_far_as_it_has_room() {
    for (held, blocks, put) in [
        (&[][..], &[5, 6, 7, 8][..], 3),
        (&[1, 2], &[5, 6], 1),
        (&[1, 2, 3], &[5], 0),
        // The second of two alike is left to the caller.
        (&[1], &[1, 5], 0),
        (&[1], &[5, 5], 1),
        (&[], &[], 0),
    ] {
        let mut cache = both(magazine(3, held), magazine(2, &[9]));
        assert_eq!(cache.put_all(blocks.iter().copied()), put);
        assert_eq!(cache.taken, put as u64);
        let expected = held.iter().chain(blocks.iter().take(put)).chain(&[9]);
        assert!(cache.blocks().eq(expected.copied()), "{cache:?}");
    }
    assert_eq!(Magazines::default().put_all([5].into_iter()), 0);
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
fn fresh_blocks_come_last_and_the_lowest_first() {
    let mut cache = both(magazine(2, &[]), magazine(2, &[7]));
    assert_eq!(cache.freshen(FreshRun::new(0x1000, 3, 12)).len(), 0);
    // Those of another refill go back as long as there are some.
    let surplus = cache.freshen(FreshRun::new(0x8000, 2, 12));
    assert!(surplus.starts().eq([0x8000, 0x9000]));
    assert_eq!((cache.len(), cache.take(9), cache.take(0xfff)), (4, Some(7), None));
    assert_eq!(
        (cache.take(0x1000), cache.put(9), cache.take(u64::MAX)),
        (Some(0x1000), Put::Done, Some(9))
    );
    let (_, fresh) = cache.clear();
    assert!(fresh.starts().eq([0x2000, 0x3000]));
    assert_eq!((cache.len(), cache.take(u64::MAX)), (0, None));
}

#[test]
fn the_last_block_of_64_bits_is_fresh_once() {
    let mut run = FreshRun::new(u64::MAX - 0xfff, 1, 12);
    assert_eq!((run.take(u64::MAX), run.take(u64::MAX)), (Some(u64::MAX - 0xfff), None));
}

/// A depot of magazines for one block.
fn depot(spare: usize) -> Depot {
    Depot::new(1, spare)
}

#[test]
fn a_depot_keeps_all_that_comes() {
    let mut depot = depot(1);
    for _ in 0..100_000 {
        depot.keep(magazine(1, &[1]));
        depot.keep(magazine(1, &[]));
    }
    assert_eq!(
        (depot.magazines(), depot.len(), depot.blocks().count()),
        (100_000, 100_000, 100_000)
    );
    let fetched = core::iter::from_fn(|| depot.fetch()).count();
    assert_eq!((fetched, depot.len()), (100_000, 0));
    // Dropped one by one: a list that drops link in link overflows the stack here.
    assert!(depot.fetch_empty().is_some());
}

#[test]
fn exchanges_are_magazines_with_blocks_that_come_and_go() {
    let mut depot = depot(1);
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
fn a_depot_wants_magazines_for_all_blocks_that_are_out() {
    let mut depot = Depot::new(2, 1);
    assert!(!depot.wants_empty());
    depot.note_out(5);
    for blocks in [&[][..], &[1, 2], &[]] {
        assert!(depot.wants_empty());
        depot.keep(magazine(2, blocks));
    }
    assert!(!depot.wants_empty());
    // All three have blocks to hold.
    assert!(depot.surplus().is_none());
    depot.note_back(3);
    // Of the two empty ones one is enough for one CPU.
    assert!(depot.surplus().is_some() && depot.surplus().is_none());
}

#[test]
fn what_was_not_fetched_since_the_last_mark_is_idle() {
    let mut depot = depot(1);
    for _ in 0..4 {
        depot.keep(magazine(1, &[1]));
    }
    assert!(depot.idle(0).is_none());
    depot.mark();
    let fetched = depot.fetch().unwrap();
    depot.keep(fetched);
    assert!(depot.idle(3).is_some() && depot.idle(3).is_none());
    assert!(depot.idle(0).is_some() && depot.idle(0).is_some());
    assert!(depot.idle(0).is_none());
    assert_eq!((depot.magazines(), depot.len()), (1, 1));
}
