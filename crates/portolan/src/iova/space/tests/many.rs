//! Many addresses given back in any order: to depots, and from there in batches.

use super::*;

/// Enough for thousands of magazines.
const MANY: usize = 100_000;

/// So many pages, in random order.
fn shuffled(space: &OneCpu, count: usize) -> Vec<IovaRange> {
    let mut held: Vec<_> = (0..count).map(|_| space.alloc(&bytes(4096)).unwrap()).collect();
    // The seed is printed by the assertions that depend on the order.
    let mut random = Random(1);
    for at in (1..held.len()).rev() {
        held.swap(at, random.below(at as u64 + 1) as usize);
    }
    held
}

/// Locks and exchanges of one release.
const FREE: usize = 4;

#[test]
fn giving_many_back_in_any_order_never_changes_the_ranges() {
    let space = one_cpu(window(0, (1 << 40) - 1));
    let held = shuffled(&space, MANY);
    let free = space.stats().free;
    for range in &held {
        space.take_steps();
        space.free(*range).unwrap();
        let steps = space.take_steps();
        assert!(steps <= FREE, "{steps} steps");
    }
    let stats = space.stats();
    assert_eq!(stats.free, free);
    assert!(stats.in_depots > MANY as u64 - 3 * 127, "{stats:?}");
}

#[test]
fn a_flush_of_many_changes_no_ranges_either() {
    let space = one_cpu(window(0, (1 << 40) - 1));
    for chunk in shuffled(&space, MANY).chunks(256) {
        space.take_steps();
        assert_eq!(space.free_all(chunk), 0);
        // A lock for each 64, and an exchange with the depot for each 127.
        let steps = space.take_steps();
        assert!(steps <= 8 * FREE, "{steps} steps");
    }
}

#[test]
fn idle_depots_shrink_to_what_was_asked_for_batch_by_batch() {
    let space = one_cpu(window(0, (1 << 40) - 1));
    let total = space.stats().free;
    let held = shuffled(&space, MANY);
    for range in &held {
        space.free(*range).unwrap();
    }
    let kept = (space.options.depot_magazines * 127) as u64;
    let mut before = space.stats();
    // The first call begins to watch.
    space.trim_overfull();
    assert_eq!(space.stats(), before);
    while before.in_depots > kept {
        space.trim_overfull();
        let after = space.stats();
        let batch = before.in_depots - after.in_depots;
        // A 64th of the low addresses, and the rest of a magazine.
        assert!((1..=(1 << 20) / 64 + 127).contains(&batch), "{batch} blocks");
        before = after;
    }
    assert!(before.in_depots > kept - 127, "{before:?}");
    let exchanges = before.exchanges;
    space.trim_overfull();
    assert_eq!(space.stats().exchanges, exchanges);
    space.trim_all();
    assert_eq!((space.stats().free, space.stats().fragments), (total, 1));
}

#[test]
fn magazines_for_all_that_is_out_survive_a_trim() {
    let space = one_cpu(window(0, (1 << 40) - 1));
    let held = shuffled(&space, MANY);
    space.trim();
    space.trim();
    let free = space.stats().free;
    assert_eq!(space.free_all(&held), 0);
    assert_eq!((space.stats().free, space.is_short()), (free, false));
}

#[test]
fn a_batch_with_a_block_given_back_twice_gives_all_others_back() {
    let space = one_cpu(window(0, (1 << 30) - 1));
    let total = space.stats().free;
    let held: Vec<_> = (0..64).map(|_| space.alloc(&bytes(4096)).unwrap()).collect();
    assert_eq!(space.free_all(&held), 0);
    // A caller's mistake that cheap checks do not see.
    space.free(held[3]).unwrap();
    space.trim_all();
    assert_eq!((space.stats().free, space.stats().fragments), (total, 1));
}
