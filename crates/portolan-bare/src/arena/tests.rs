//! The arena against a list of the blocks in use.

use super::*;
extern crate std;
use std::vec::Vec;
use std::{eprintln, vec};

fn range(start: u64, bytes: u64) -> PhysRange {
    PhysRange::from_len(PhysAddr::new(start), bytes).unwrap()
}

fn layout(bytes: usize, align: usize) -> Layout {
    Layout::from_size_align(bytes, align).unwrap()
}

#[test]
fn blocks_are_aligned_inside_the_region_apart_and_all_come_back() {
    for seed in 1..=20 {
        let mut random = fastrand::Rng::with_seed(seed);
        let start = 0x10_0000 + random.u64(..0x1_0000) * 8;
        let memory = range(start, random.u64(0x2000..0x20_0000));
        let mut records = vec![0; Arena::records(memory)];
        let mut arena = Arena::new(memory, &mut records).unwrap();
        let all = arena.free_bytes();
        // The loss at the ends is less than two units.
        assert!(memory.len_minus_one() + 1 - all < 128, "seed {seed}");
        let mut live: Vec<(PhysRange, Layout)> = Vec::new();
        for _ in 0..3000 {
            if random.bool() || live.is_empty() {
                let align = 1 << random.u32(0..14);
                let wanted = layout(1 << random.u32(0..15), align);
                let Some(at) = arena.alloc(wanted) else {
                    continue;
                };
                let got = range(at.get(), wanted.size() as u64);
                assert_eq!(at.get() % align as u64, 0, "seed {seed}");
                assert!(memory.covers(got), "seed {seed}: {got}");
                assert!(live.iter().all(|(other, _)| !other.overlaps(got)), "seed {seed}");
                live.push((got, wanted));
            } else {
                let (gone, its) = live.swap_remove(random.usize(..live.len()));
                arena.free(gone.start(), its);
            }
        }
        for (gone, its) in live {
            arena.free(gone.start(), its);
        }
        assert_eq!(arena.free_bytes(), all, "seed {seed}");
        eprintln!("seed {seed} done");
    }
}

#[test]
fn halves_become_whole_again() {
    let memory = range(0x40_0000, 0x1_0000);
    let mut records = vec![0; Arena::records(memory)];
    let mut arena = Arena::new(memory, &mut records).unwrap();
    let page = layout(0x1000, 0x1000);
    let pages: Vec<PhysAddr> = core::iter::from_fn(|| arena.alloc(page)).collect();
    assert_eq!(pages.len(), 16);
    assert_eq!(pages[0].get(), 0x40_0000);
    assert!(arena.alloc(layout(1, 1)).is_none());
    pages.iter().for_each(|at| arena.free(*at, page));
    assert_eq!(arena.alloc(layout(0x1_0000, 0x1_0000)), Some(pages[0]));
}

#[test]
fn a_block_is_taken_where_it_is_while_all_of_it_is_free() {
    let memory = range(0x40_0000, 0x1_0000);
    let mut records = vec![0; Arena::records(memory)];
    let mut arena = Arena::new(memory, &mut records).unwrap();
    let (page, all) = (layout(0x1000, 0x1000), arena.free_bytes());
    let at = |number: u64| PhysAddr::new(0x40_0000 + (number << 12));
    for number in [5, 0, 15] {
        assert!(arena.take(at(number), page), "{number}");
        assert!(!arena.take(at(number), page), "{number}");
    }
    // Another page's part is in use.
    let small = arena.alloc(layout(64, 64)).unwrap();
    assert!(!arena.take(small.align_down(portolan::addr::PageSize::SIZE_4K), page));
    for wrong in [at(16), PhysAddr::new(0x3f_f000), PhysAddr::new(0x40_1040)] {
        assert!(!arena.take(wrong, page), "{wrong}");
    }
    assert_eq!(arena.free_bytes(), all - 3 * 0x1000 - 64);
    let others: Vec<PhysAddr> = core::iter::from_fn(|| arena.alloc(page)).collect();
    assert_eq!(others.len(), 12);
    assert!([5, 0, 15].iter().all(|number| !others.contains(&at(*number))));
    others.into_iter().chain([5, 0, 15].map(at)).for_each(|at| arena.free(at, page));
    arena.free(small, layout(64, 64));
    assert_eq!(arena.free_bytes(), all);
    assert!(arena.take(at(0), layout(0x1_0000, 0x1_0000)));
}

#[test]
fn what_was_never_handed_out_is_not_taken() {
    let memory = range(0x40_0000, 0x1_0000);
    let mut records = vec![0; Arena::records(memory)];
    let mut arena = Arena::new(memory, &mut records).unwrap();
    let page = layout(0x1000, 0x1000);
    let at = arena.alloc(page).unwrap();
    let free = arena.free_bytes();
    for (wrong, its) in [
        (0x3f_f000, page),
        (0x41_0000, page),
        (u64::MAX - 0xfff, page),
        (0x40_0040, page),
        (at.get(), layout(1 << 40, 1)),
    ] {
        arena.free(PhysAddr::new(wrong), its);
        assert_eq!(arena.free_bytes(), free, "{wrong:#x}");
    }
    assert!(arena.alloc(layout(0x1_0000, 1)).is_none());
}

#[test]
fn an_arena_has_room_for_its_records_or_is_none() {
    let memory = range(0x1000, 0x1000);
    let words = Arena::records(memory);
    assert!(Arena::new(memory, &mut vec![0; words - 1]).is_none());
    assert!(Arena::new(memory, &mut vec![0; words]).is_some());
    // A region of less than one block has none to hand out.
    let tiny = range(0x1008, 8);
    let mut records = vec![0; Arena::records(tiny)];
    let mut arena = Arena::new(tiny, &mut records).unwrap();
    assert!(arena.alloc(layout(1, 1)).is_none());
    assert_eq!(arena.free_bytes(), 0);
}
