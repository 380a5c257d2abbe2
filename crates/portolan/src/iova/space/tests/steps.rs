//! The most that a call does: locks taken, blocks moved and records looked at.

use super::*;
extern crate std;

/// Nodes looked at in one change of the ranges that has `gaps` gaps at most: for each level one
/// for the gap that the limit cuts and two for each search, at most 23 to take a gap out with a
/// rotation at every level, and 7 to put in each of two, with 32 for its rotation.
fn change(gaps: usize) -> usize {
    (23 + 2 * 7) * height(gaps) + 2 * 32 + search(gaps)
}

/// Nodes looked at in one search.
fn search(gaps: usize) -> usize {
    5 * height(gaps)
}

fn height(gaps: usize) -> usize {
    3 * gaps.next_power_of_two().ilog2() as usize / 2 + 2
}

/// Locks and exchanges beside that, with one for each magazine that a leaf table's blocks fill.
const EXCHANGE: usize = 8 + 5;

fn most_steps<T>(space: &IovaSpace<impl Cpus>, most: &mut usize, call: impl FnOnce() -> T) -> T {
    space.take_steps();
    let result = call();
    *most = space.take_steps().max(*most);
    result
}

#[test]
fn a_call_with_room_left_changes_the_ranges_once() {
    for outstanding in [256usize, 4096, 32_768] {
        let space = high_first(window(0, (1 << 46) - 1));
        let mut random = Random(outstanding as u64);
        let mut held = Vec::new();
        let (mut most, mut pieces) = (0, 0);
        for _ in 0..8 * outstanding {
            if held.len() == outstanding {
                let back = held.swap_remove(random.below(outstanding as u64) as usize);
                most_steps(&space, &mut most, || space.free(back).unwrap());
            }
            let request = Request {
                bytes: 1 + random.below(512 << 12),
                align: PageSize::of_lg2(12 + random.below(11) as u32),
                limit: Iova::new(
                    [u64::MAX, u64::MAX >> 24, u64::MAX >> 18][random.below(3) as usize],
                ),
            };
            held.push(most_steps(&space, &mut most, || space.alloc(&request).unwrap()));
            pieces = pieces.max(space.stats().fragments);
            // As many as in caches and out, and no more.
            assert!(pieces <= 2 * outstanding + 20 * 127 * 3);
        }
        // An offered magazine that finds no depot to go to, at most.
        let bound = change(pieces) + EXCHANGE;
        std::println!("{outstanding} out, {pieces} fragments: {most} steps of {bound}");
        assert!(most <= bound, "{most} steps, {pieces} fragments");
    }
}

/// For the blocks of a leaf table, for a few, for one, and for a part of one.
const SEARCHES: usize = 4;

#[test]
fn a_call_that_finds_low_addresses_used_up_searches_once_more() {
    let space = one_cpu(window(0, (1 << 40) - 1));
    let mut raised = 0;
    for _ in 0..20_000 {
        let before = space.ceiling.get();
        let mut steps = 0;
        let range = most_steps(&space, &mut steps, || space.alloc(&bytes(2 * MIB)).unwrap());
        let pieces = space.stats().fragments;
        let rises = usize::from(space.ceiling.get() != before);
        let bound = change(pieces) + EXCHANGE + rises * (SEARCHES * search(pieces) + EXCHANGE);
        assert!(steps <= bound, "{steps} steps of {bound} for {range}");
        raised += rises;
    }
    // To 8, 16, 32 and 64 GiB.
    assert_eq!(raised, 4);
}

#[test]
fn a_call_that_finds_nothing_empties_each_cache_once() {
    let all = window(0, 64 * MIB - 1);
    let cpu = Arc::new(AtomicU64::new(0));
    let options = IovaOptions::default();
    let space = IovaSpace::new(Chosen(cpu.clone()), all, PageSize::SIZE_4K, options).unwrap();
    let held: Vec<_> = (0..16384).map(|_| space.alloc(&bytes(4096)).unwrap()).collect();
    // Every second one comes back, so that no two are neighbours.
    for (at, range) in held.iter().enumerate().step_by(2) {
        cpu.store(at as u64 / 2 % 4, Ordering::Relaxed);
        space.free(*range).unwrap();
    }
    let stats = space.stats();
    let blocks = (stats.in_magazines + stats.in_depots) as usize;
    let mut most = 0;
    let request = bytes(8192);
    assert!(most_steps(&space, &mut most, || space.alloc(&request)).is_err());
    // Each retry searches twice.
    let retries = 2 + 4;
    let looks = (5 + retries) * KINDS + 64;
    let bound = (blocks + 3 * retries) * change(8192) + looks;
    std::println!("{blocks} blocks in caches: {most} steps of {bound}");
    assert!(blocks > 4000 && most <= bound);
    // Nothing is in caches any more, so that the next one finds out soon.
    let mut most = 0;
    assert!(most_steps(&space, &mut most, || space.alloc(&request)).is_err());
    assert!(most <= 3 * change(8192) + looks, "{most}");
}

#[test]
fn a_limit_is_met_in_a_few_steps_whatever_is_in_caches() {
    let space = one_cpu(window(0, (1 << 40) - 1));
    for limit in [u64::from(u32::MAX), u64::MAX] {
        let request = Request { limit: Iova::new(limit), ..bytes(4096) };
        let held: Vec<_> = (0..4000).map(|_| space.alloc(&request).unwrap()).collect();
        assert_eq!(space.free_all(&held), 0);
    }
    for lg2 in [24, 28, 30, 32, 36, 39] {
        let request = Request { limit: Iova::new((1 << lg2) - 1), ..bytes(4096) };
        let mut held = Vec::new();
        let mut most = 0;
        for _ in 0..500 {
            let range = most_steps(&space, &mut most, || space.alloc(&request).unwrap());
            assert!(range.last() <= request.limit);
            held.push(range);
        }
        std::println!("below 2^{lg2}: {most} steps");
        assert!(most <= change(64) + EXCHANGE);
        assert_eq!(space.free_all(&held), 0);
    }
}

#[test]
fn a_bulk_takes_the_lock_once_for_many() {
    let space = one_cpu(window(0, (1 << 40) - 1));
    let held: Vec<_> = (0..200).map(|_| space.alloc(&bytes(4096)).unwrap()).collect();
    let mut most = 0;
    assert_eq!(most_steps(&space, &mut most, || space.free_all(&held)), 0);
    assert!((2..=30).contains(&most), "{most}");
}
