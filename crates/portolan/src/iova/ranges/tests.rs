//! The range allocator against a set of pages, and the steps that it takes.

use super::*;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
extern crate std;

const MB: u64 = 1 << 20;

fn space(start: u64, bytes: u64) -> RangeAllocator {
    let range = IovaRange::from_len(Iova::new(start), bytes).unwrap();
    RangeAllocator::new(range, PageSize::SIZE_4K).unwrap()
}

fn want(bytes: u64) -> Request {
    Request { bytes, align: PageSize::SIZE_4K, limit: Iova::new(u64::MAX) }
}

#[test]
fn a_request_that_fails_leaves_room_for_one_that_fits() {
    let mut ranges = space(0x1000_0000, 1024 * MB);
    ranges.alloc(want(500 * MB)).unwrap();
    let middle = ranges.alloc(want(12 * MB)).unwrap();
    ranges.alloc(want(499 * MB)).unwrap();
    ranges.alloc(want(13 * MB)).unwrap();
    ranges.free(middle).unwrap();
    let full = ranges.alloc(want(13 * MB));
    assert!(matches!(full, Err(IovaError::Full { .. })));
    assert_eq!(ranges.alloc(want(2 * MB)).map(|range| range.last()), Ok(middle.last()));
}

#[test]
fn errors_leave_everything_as_it_was() {
    let mut ranges = space(0, 16 * MB);
    let range = ranges.alloc(want(MB)).unwrap();
    let before = (ranges.free_pages(), ranges.fragments());
    assert_eq!(ranges.alloc(want(0)), Err(IovaError::Empty));
    assert!(ranges.alloc(want(u64::MAX)).is_err());
    let page = IovaRange::from_len(range.start(), 0x1000).unwrap();
    ranges.free(page).unwrap();
    assert_eq!(ranges.free(page), Err(FreeError::Free { range: page }));
    assert_eq!(ranges.free(range), Err(FreeError::Free { range }));
    for (start, bytes) in [(0x10, 0x1000), (0x1000, 0x10), (32 * MB, 0x1000)] {
        let range = IovaRange::from_len(Iova::new(start), bytes).unwrap();
        assert_eq!(ranges.free(range), Err(FreeError::Foreign { range }));
    }
    // The page joined the free range below it.
    assert_eq!((ranges.free_pages() - 1, ranges.fragments()), before);
}

#[test]
fn the_whole_of_64_bits() {
    let all = IovaRange::new(Iova::new(0), Iova::new(u64::MAX)).unwrap();
    let mut ranges = RangeAllocator::new(all, PageSize::SIZE_4K).unwrap();
    assert_eq!(ranges.free_pages(), 1 << 52);
    let top = ranges.alloc(want(1)).unwrap();
    assert_eq!(top.last(), Iova::new(u64::MAX));
    ranges.free(top).unwrap();
    assert_eq!((ranges.free_pages(), ranges.fragments()), (1 << 52, 1));
}

#[test]
fn devices_with_few_address_bits_are_served_low() {
    let mut ranges = space(0, 1 << 40);
    let low = Request { limit: Iova::new(u32::MAX.into()), ..want(2 * MB) };
    let found = ranges.alloc(low).unwrap();
    assert_eq!(found.last(), Iova::new(u32::MAX.into()));
    assert_eq!(ranges.alloc(want(MB)).unwrap().last(), Iova::new((1 << 40) - 1));
}

#[test]
fn reserved_regions_are_never_given_out() {
    let mut ranges = space(0, 64 * MB);
    let region = IovaRange::from_len(Iova::new(10 * MB + 0x1800), 3 * MB).unwrap();
    ranges.reserve(region).unwrap();
    ranges.reserve(region).unwrap();
    let mut given = 0;
    while let Ok(range) = ranges.alloc(want(0x1000)) {
        assert!(!range.overlaps(region), "{range:?}");
        given += 1;
    }
    // Its ends fall inside pages: one more than it has.
    assert_eq!(given, 64 * 256 - (3 * 256 + 1));
}

/// Random requests against a set of free pages; a request aligned to the granule is refused only if
/// the set has no run for it.
#[test]
fn random_requests_agree_with_a_set_of_pages() {
    const PAGES: u64 = 512;
    let seed = 0x10fa_5eed_u64;
    std::println!("seed {seed:#x}");
    let mut state = seed;
    let mut random = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let mut ranges = space(0, PAGES << 12);
    let mut free: BTreeSet<u64> = (0..PAGES).collect();
    let mut live: Vec<IovaRange> = Vec::new();
    for _ in 0..20_000 {
        if random(2) == 0 && !live.is_empty() {
            let range = live.swap_remove(random(live.len() as u64) as usize);
            ranges.free(range).unwrap();
            free.extend(range.start().get() >> 12..=range.last().get() >> 12);
        } else {
            let pages = 1 + random(24);
            let align = if random(3) == 0 { random(5) as u32 } else { 0 };
            let limit = random(PAGES) << 12 | 0xfff;
            let request = Request {
                bytes: pages << 12,
                align: PageSize::of_lg2(12 + align),
                limit: Iova::new(limit),
            };
            let fits = |first: u64| (first..first + pages).all(|page| free.contains(&page));
            let top = (limit >> 12) + 1;
            let highest = (0..top.saturating_sub(pages - 1)).rev().find(|&first| fits(first));
            match ranges.alloc(request) {
                Ok(range) => {
                    let first = range.start().get() >> 12;
                    assert!(fits(first) && range.last() <= request.limit);
                    assert!(range.start().is_aligned(request.align));
                    assert!(align > 0 || Some(first) == highest);
                    (first..first + pages).for_each(|page| assert!(free.remove(&page)));
                    live.push(range);
                }
                Err(IovaError::Full { .. }) => assert!(align > 0 || highest.is_none()),
                Err(other) => panic!("{other}"),
            }
        }
        let starts = free.iter().filter(|&&page| page == 0 || !free.contains(&(page - 1)));
        assert_eq!(ranges.fragments(), starts.count());
        assert_eq!(ranges.free_pages(), free.len() as u64);
    }
}

/// With every second page of a space taken, no call looks at more nodes than a multiple of the
/// logarithm of their number.
#[test]
fn steps_grow_with_the_logarithm() {
    for lg2 in [6u32, 10, 14] {
        let pages = 2u64 << lg2;
        let mut ranges = space(0, pages << 12);
        let all: Vec<IovaRange> = (0..pages).map(|_| ranges.alloc(want(1)).unwrap()).collect();
        for range in all.iter().step_by(2) {
            ranges.free(*range).unwrap();
        }
        assert_eq!(ranges.fragments(), 1 << lg2);
        // Search for a range that is not there, for one that is; with a limit, aligned; and give it
        // back.
        let mut most = 0;
        let mut note = |ranges: &RangeAllocator| most = most.max(ranges.take_steps());
        ranges.take_steps();
        for n in 0..64u64 {
            let limit = Iova::new((pages << 12) / 64 * (n + 1) - 1);
            for (bytes, align) in [(0x2000, 12), (0x1000, 12), (0x1000, 13), (0x3000, 14)] {
                let request = Request { bytes, align: PageSize::of_lg2(align), limit };
                let found = ranges.alloc(request);
                note(&ranges);
                if let Ok(range) = found {
                    ranges.free(range).unwrap();
                    note(&ranges);
                }
            }
        }
        let height = 3 * lg2 as usize / 2 + 2;
        std::println!("{} free ranges: at most {most} steps", 1 << lg2);
        assert!(most <= 8 * height, "{most} steps with 2^{lg2} free ranges");
    }
}

/// `count` free ranges of three pages, each fourth page of the space being out.
fn threes(count: u64) -> RangeAllocator {
    let mut ranges = space(0, (4 * count + 4) << 12);
    ranges.alloc(want((4 * count + 4) << 12)).unwrap();
    for at in 0..count {
        let three = IovaRange::from_len(Iova::new(at << 14), 3 << 12).unwrap();
        ranges.free(three).unwrap();
    }
    assert_eq!(ranges.fragments() as u64, count);
    ranges
}

#[test]
fn what_cuts_a_free_range_in_two_finds_room_for_both() {
    for count in [1, 127, 128, 129, 256] {
        let mut ranges = threes(count);
        let page = IovaRange::from_len(Iova::new(0x1000), 0x1000).unwrap();
        let middle = Request { limit: page.last(), ..want(0x1000) };
        assert_eq!(ranges.alloc(middle), Ok(page));
        assert_eq!(ranges.fragments() as u64, count + 1);
        let mut ranges = threes(count);
        ranges.reserve(page).unwrap();
        assert_eq!(ranges.fragments() as u64, count + 1);
        assert_eq!(ranges.free_pages(), 3 * count - 1);
    }
}

#[test]
fn all_free_ranges_that_a_reserved_one_touches_are_cut() {
    let mut ranges = threes(5);
    let region = IovaRange::from_len(Iova::new(0x1000), 13 << 12).unwrap();
    ranges.reserve(region).unwrap();
    let left: Vec<_> = ranges.gaps().map(|gap| gap.start().get() >> 12).collect();
    assert_eq!((left, ranges.free_pages()), (alloc::vec![0, 14, 16], 5));
}

#[test]
fn what_went_out_in_pieces_comes_back_without_memory() {
    const PIECES: u64 = 600;
    let page = |at: u64| IovaRange::from_len(Iova::new(at << 12), 0x1000).unwrap();
    let (mut one_by_one, mut aside, mut at_once) =
        (space(0, PIECES << 12), space(0, PIECES << 12), space(0, PIECES << 12));
    for at in 0..PIECES {
        one_by_one.alloc(want(1)).unwrap();
        aside.reserve(page(at)).unwrap();
    }
    let all = |ranges: &mut RangeAllocator| ranges.try_alloc(want(PIECES << 12), PIECES as usize);
    at_once.with_room(IovaError::Memory, all).unwrap();
    for mut ranges in [one_by_one, aside, at_once] {
        assert_eq!(ranges.free_pages(), 0);
        for at in (0..PIECES).step_by(2) {
            assert!(ranges.try_free(page(at)).is_ok(), "{at}");
        }
        assert_eq!(ranges.fragments() as u64, PIECES / 2);
    }
}

#[test]
fn an_aligned_block_is_found_where_nothing_longer_is_free() {
    let aligned = |pages: u64, lg2| Request { align: PageSize::of_lg2(lg2), ..want(pages << 12) };
    for pages in [3, 4] {
        let mut ranges = space(0x4000, 4 << 12);
        let found = ranges.alloc(aligned(pages, 14)).unwrap();
        assert_eq!(found.start(), Iova::new(0x4000));
    }
    // The gap above is aligned and too short.
    let mut ranges = space(0, 64 << 12);
    ranges.alloc(want(64 << 12)).unwrap();
    for (first, pages) in [(8, 8), (32, 2)] {
        let free = IovaRange::from_len(Iova::new(first << 12), pages << 12).unwrap();
        ranges.free(free).unwrap();
    }
    let found = ranges.alloc(aligned(8, 13)).unwrap();
    assert_eq!(found.start(), Iova::new(8 << 12));
}
