//! Places of free addresses: in the ranges, in depots, in magazines; and that none is lost.

use super::*;

/// Granules that are free, wherever they are.
fn free(space: &IovaSpace<impl Cpus>) -> u64 {
    let stats = space.stats();
    stats.free + stats.in_magazines + stats.in_depots
}

fn take(space: &IovaSpace<impl Cpus>, count: usize, length: u64) -> Vec<IovaRange> {
    let request = bytes(length);
    (0..count).map(|_| space.alloc(&request).unwrap()).collect()
}

/// Lets each of the four CPUs take memory of its own.
fn use_all(space: &IovaSpace<Chosen>, cpu: &AtomicU64) {
    for number in (0..4).rev() {
        cpu.store(number, Ordering::Relaxed);
        space.free(space.alloc(&bytes(4096)).unwrap()).unwrap();
    }
}

#[test]
fn every_granule_is_counted_where_it_is() {
    let options = IovaOptions { rounds: 4, refill: 4, ..IovaOptions::default() };
    for pages in [1u64, 4] {
        let space = one_cpu_with(window(0, 64 * MIB - 1), options);
        let total = free(&space);
        let held = take(&space, 40, pages << 12);
        assert_eq!(free(&space), total - 40 * pages);
        assert_eq!(space.free_all(&held), 0);
        let stats = space.stats();
        assert_eq!(free(&space), total);
        assert!(stats.in_magazines > 0 && stats.in_depots > 0);
        assert!(stats.given > 0 && stats.taken > 0 && stats.exchanges > 0);
    }
}

#[test]
fn the_last_blocks_that_came_back_lie_at_the_front() {
    for front in [0, 3, 7] {
        let space =
            one_cpu_with(window(0, 64 * MIB - 1), IovaOptions { front, ..IovaOptions::default() });
        let held = take(&space, 10, 4096);
        let before = space.stats();
        held.iter().for_each(|&range| space.free(range).unwrap());
        let after = space.stats();
        assert_eq!(after.taken - before.taken, 10 - u64::from(front));
        assert_eq!(after.in_magazines - before.in_magazines, 10);
        // The same ten, from the front before the others.
        let again = take(&space, 10, 4096);
        assert_eq!(space.stats().given - after.given, 10 - u64::from(front));
        assert!(held.iter().all(|range| again.contains(range)));
    }
}

#[test]
fn the_fronts_of_all_cpus_are_emptied_before_a_request_fails() {
    let cpu = Arc::new(AtomicU64::new(0));
    let all = window(0, 28 * 4096 - 1);
    let options = IovaOptions::default();
    let space = IovaSpace::new(Chosen(cpu.clone()), all, PageSize::SIZE_4K, options).unwrap();
    use_all(&space, &cpu);
    let held = take(&space, 28, 4096);
    for (at, &range) in held.iter().enumerate() {
        cpu.store(at as u64 % 4, Ordering::Relaxed);
        space.free(range).unwrap();
    }
    let stats = space.stats();
    assert_eq!((stats.free, stats.in_magazines), (0, 28));
    assert_eq!(space.alloc(&bytes(28 * 4096)), Ok(all));
}

#[test]
fn a_request_for_all_gets_what_lies_in_a_depot() {
    let all = window(0, 4 * MIB - 1);
    let space = one_cpu(all);
    let held = take(&space, 1024, 4096);
    assert_eq!(space.free_all(&held), 0);
    assert!(space.stats().in_depots > 0);
    assert_eq!(space.alloc(&bytes(4 * MIB)), Ok(all));
}

#[test]
fn a_timer_empties_a_depot_that_no_cpu_needs() {
    let space = one_cpu(window(0, 4 * MIB - 1));
    let held = take(&space, 1024, 4096);
    assert_eq!(space.free_all(&held), 0);
    let before = space.stats();
    space.trim();
    space.trim();
    let after = space.stats();
    assert!(before.in_depots > 0 && after.in_depots == 0);
    assert_eq!(after.in_magazines, before.in_magazines);
    assert_eq!(free(&space), 1024);
}

#[test]
fn trimming_all_leaves_nothing_in_caches_low_or_high() {
    let space = one_cpu(window(0, (1 << 40) - 1));
    let total = free(&space);
    let low = Request { limit: Iova::new(u64::from(u32::MAX)), ..bytes(4096) };
    let mut held = take(&space, 10, 4096);
    held.extend((0..10).map(|_| space.alloc(&low).unwrap()));
    assert_eq!(space.free_all(&held), 0);
    space.trim_all();
    let stats = space.stats();
    assert_eq!((stats.free, stats.fragments), (total, 1));
}

#[test]
fn what_is_set_aside_is_given_out_by_no_cache() {
    let space = one_cpu(window(0, 4 * MIB - 1));
    let held = take(&space, 1024, 4096);
    assert_eq!(space.free_all(&held), 0);
    let aside = window(0x8000, 0xffff);
    space.reserve(aside).unwrap();
    assert_eq!(free(&space), 1024 - 8);
    let mut given = 0;
    while let Ok(range) = space.alloc(&bytes(4096)) {
        assert!(!range.overlaps(aside), "{range:?}");
        given += 1;
    }
    assert_eq!(given, 1024 - 8);
}

#[test]
fn a_handler_gets_a_magazine_of_the_depot_and_loses_no_block() {
    let cpu = Arc::new(AtomicU64::new(0));
    let all = window(0, 4 * MIB - 1);
    let options = IovaOptions::default();
    let space = IovaSpace::new(Chosen(cpu.clone()), all, PageSize::SIZE_4K, options).unwrap();
    use_all(&space, &cpu);
    let held = take(&space, 1024, 4096);
    assert_eq!(space.free_all(&held), 0);
    cpu.store(1, Ordering::Relaxed);
    let before = space.stats();
    space.try_alloc(&bytes(4096)).unwrap();
    let after = space.stats();
    assert!(after.in_depots < before.in_depots && after.free == before.free);
    for out in 2..200 {
        space.try_alloc(&bytes(4096)).unwrap();
        assert_eq!(free(&space), 1024 - out);
    }
}

#[test]
fn blocks_too_high_for_a_device_are_not_added_to() {
    let space = one_cpu(window(0, (1 << 31) - 1));
    take(&space, 1, 4096);
    assert_eq!(space.stats().in_magazines, 15);
    let low = Request { limit: Iova::new(MIB - 1), ..bytes(4096) };
    assert!(space.alloc(&low).unwrap().last() <= low.limit);
    assert_eq!(space.stats().in_magazines, 15);
}

#[test]
fn fresh_blocks_are_two_mebibytes_at_most_and_few_the_first_time() {
    for (order, first, blocks) in [(0, 16, 512), (5, 16, 16), (6, 8, 8), (8, 2, 2), (9, 1, 1)] {
        let space = one_cpu(window(0, (1 << 31) - 1));
        for blocks in [first, blocks] {
            take(&space, 1, 4096 << order);
            assert_eq!(space.stats().in_magazines, (blocks - 1) << order, "{order}");
            take(&space, blocks as usize - 1, 4096 << order);
            assert_eq!(space.stats().in_magazines, 0);
        }
    }
}

#[test]
fn fresh_blocks_do_not_lie_across_the_end_of_the_low_zone() {
    let end = 1u64 << 32;
    let all = window(end - (1024 << 12), end + (1024 << 12) - 1);
    let space = high_first(all);
    // Eight blocks lie above, and runs have sixteen.
    space.reserve(window(end + (8 << 12), all.last().get())).unwrap();
    let first = take(&space, 1, 4096)[0];
    assert_eq!(first.start().get(), end - (16 << 12));
    assert_eq!((free(&space), space.stats().in_magazines), (1024 + 8 - 1, 15));
}

#[test]
fn cpus_take_their_pages_from_lines_of_their_own_and_then_from_leaf_tables() {
    let cpu = Arc::new(AtomicU64::new(0));
    let all = window(0, (1 << 32) - 1);
    let options = IovaOptions::default();
    let space = IovaSpace::new(Chosen(cpu.clone()), all, PageSize::SIZE_4K, options).unwrap();
    let mut owners = alloc::collections::BTreeMap::new();
    let mut pages = |number: u64, place: u64| {
        for at in 0..4 * number {
            cpu.store(at % 4, Ordering::Relaxed);
            let page = take(&space, 1, 4096)[0];
            let owner = *owners.entry((place, page.start().get() / place)).or_insert(at % 4);
            assert_eq!(owner, at % 4, "{page}");
        }
        owners.len()
    };
    // Two lines of eight entries for each, all in one leaf table.
    assert_eq!(pages(16, 16 * 4096), 4);
    let tables = pages(2000, 2 * MIB) - 4;
    assert_eq!(tables, 4 * 2000usize.div_ceil(512));
    let first = owners.keys().filter(|(place, _)| *place == 16 * 4096);
    let last = first.clone().map(|(_, at)| at).max().unwrap();
    assert_eq!(first.map(|(_, at)| last - at).max(), Some(3), "not beside each other");
}

#[test]
fn where_no_leaf_tables_addresses_are_free_a_few_are_fetched() {
    let space = one_cpu(window(0, (1 << 28) - 1));
    for at in 0..128 {
        space.reserve(window(at * 2 * MIB, at * 2 * MIB + 0xfff)).unwrap();
    }
    take(&space, 1, 4096);
    assert_eq!(space.stats().in_magazines, 15);
}
