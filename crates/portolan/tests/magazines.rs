//! Every interleaving of two CPUs that exchange magazines with a depot, explored with a model
//! checker.
//!
//! Magazines of one block, so that every second call is an exchange; where the front of a cache is
//! looked at, it has room for one or two. A block that is given out to both, or lost between two
//! caches, fails the test.
#![allow(missing_docs)]

mod support;

use loom::sync::Arc;
use portolan::addr::{Iova, IovaRange, PageSize};
use portolan::iova::{IovaOptions, IovaSpace, Request};
use support::loom_cpus::{LoomCpus, as_cpu, explore, on_cpu};

const PAGE: u64 = 4096;

type Space = IovaSpace<LoomCpus>;

fn space(pages: u64, front: u8) -> Arc<Space> {
    let all = IovaRange::from_len(Iova::new(0), pages * PAGE).unwrap();
    let options =
        IovaOptions { front, depot_magazines: 1, refill: 1, rounds: 1, ..IovaOptions::default() };
    let space = IovaSpace::new(LoomCpus::new(2), all, PageSize::SIZE_4K, options).unwrap();
    // The other CPU's cache is made here: the model does not see the pointer that publishes it, which is
    // of `once_cell`.
    as_cpu(1, || space.free(space.alloc(&one()).unwrap()).unwrap());
    space.trim_all();
    Arc::new(space)
}

fn one() -> Request {
    Request { bytes: PAGE, align: PageSize::SIZE_4K, limit: Iova::new(u64::MAX) }
}

fn whole_again(space: &Space, pages: u64) {
    space.trim_all();
    let stats = space.stats();
    assert_eq!((stats.free, stats.fragments), (pages, 1), "{stats:?}");
}

#[test]
fn two_cpus_exchange_magazines() {
    explore(2, || {
        let space = space(8, 0);
        let turn = |space: &Space| {
            let held = [(); 3].map(|()| space.alloc(&one()).unwrap());
            for range in held {
                space.free(range).unwrap();
            }
            space.alloc(&one()).unwrap()
        };
        let other = Arc::clone(&space);
        let cpu = on_cpu(1, move || turn(&other));
        let mine = turn(&space);
        let theirs = cpu.join().unwrap();
        assert!(!mine.overlaps(theirs), "given out twice");
        assert_eq!(space.free_all(&[mine, theirs]), 0);
        whole_again(&space, 8);
    });
}

#[test]
fn a_cpu_without_addresses_takes_those_of_another_at_work() {
    explore(2, || {
        let space = space(3, 0);
        let held = [(); 2].map(|()| space.alloc(&one()).unwrap());
        let other = Arc::clone(&space);
        let cpu = on_cpu(1, move || {
            assert_eq!(other.free_all(&held), 0);
            other.alloc(&one()).unwrap()
        });
        // One granule is free all the time.
        let first = space.alloc(&one()).unwrap();
        let second = space.alloc(&one());
        let theirs = cpu.join().unwrap();
        assert!(!first.overlaps(theirs));
        if let Ok(second) = second {
            assert!(!second.overlaps(theirs) && !second.overlaps(first));
            space.free(second).unwrap();
        }
        assert_eq!(space.free_all(&[first, theirs]), 0);
        whole_again(&space, 3);
    });
}

/// A handler that interrupts, or a task that moves: two callers are one CPU.
#[test]
fn two_callers_on_one_cpu_share_its_front() {
    explore(2, || {
        let space = space(4, 2);
        let held = [(); 2].map(|()| space.alloc(&one()).unwrap());
        space.free(held[0]).unwrap();
        let other = Arc::clone(&space);
        let beside = on_cpu(0, move || {
            let range = other.alloc(&one()).unwrap();
            other.free(range).unwrap();
            other.alloc(&one()).unwrap()
        });
        space.free(held[1]).unwrap();
        let mine = space.alloc(&one()).unwrap();
        let theirs = beside.join().unwrap();
        assert!(!mine.overlaps(theirs), "given out twice");
        assert_eq!(space.free_all(&[mine, theirs]), 0);
        whole_again(&space, 4);
    });
}

#[test]
fn a_cpu_without_addresses_empties_the_front_of_another_at_work() {
    explore(2, || {
        let space = space(2, 1);
        let held = [(); 2].map(|()| space.alloc(&one()).unwrap());
        let other = Arc::clone(&space);
        let cpu = on_cpu(1, move || {
            // One to the front, one behind it.
            for range in held {
                other.free(range).unwrap();
            }
            other.alloc(&one()).ok()
        });
        let mine = space.alloc(&one()).ok();
        let theirs = cpu.join().unwrap();
        if let (Some(mine), Some(theirs)) = (mine, theirs) {
            assert!(!mine.overlaps(theirs), "given out twice");
        }
        for range in mine.into_iter().chain(theirs) {
            space.free(range).unwrap();
        }
        whole_again(&space, 2);
    });
}
