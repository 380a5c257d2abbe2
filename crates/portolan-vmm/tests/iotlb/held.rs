//! An invalidation and the look-ups that hold translations that it takes away.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use fastrand::Rng;
use portolan_chips::fixture::seed;
use portolan_vmm::{Replacement, VhostIotlb};
use vm_memory::iommu::Iommu;
use vm_memory::{GuestAddress, Permissions};

use crate::{PAGE, iotlb, map, options, page, range};

/// An invalidation that does not wait.
fn impatient(capacity: usize) -> VhostIotlb {
    let mut options = options(capacity, Replacement::InSets);
    options.invalidation_limit = Duration::ZERO;
    iotlb(options)
}

#[test]
fn an_invalidation_is_not_done_while_its_range_is_held() {
    let iotlb = impatient(64);
    map(&iotlb, 1, 11, Permissions::Read);
    map(&iotlb, 100, 12, Permissions::Read);
    let held = iotlb.translate(GuestAddress(PAGE), 8, Permissions::Read);
    let held = held.unwrap();
    assert_eq!(iotlb.invalidate(page(100)), Ok(()), "another's range");
    assert!(iotlb.invalidate(page(1)).is_err());
    let gone = iotlb.translate(GuestAddress(PAGE), 8, Permissions::Read);
    assert!(gone.is_err(), "forgotten for others");
    assert!(iotlb.invalidate(range(0, u64::MAX)).is_err(), "still held");
    let found: Vec<_> = held.map(|piece| piece.base.0).collect();
    assert_eq!(found, [11 * PAGE]);
    assert_eq!(iotlb.invalidate(page(1)), Ok(()));
    assert_eq!((iotlb.counts().invalidations, iotlb.counts().waits), (2, 2));
}

#[test]
fn what_a_guard_holds_counts_whatever_came_in_its_place() {
    // Neighbours that are taken in put another set in the place of the one that is held, and so does
    // making room.
    let iotlb = impatient(4);
    map(&iotlb, 0, 10, Permissions::Read);
    let held = iotlb.translate(GuestAddress(0), 8, Permissions::Read);
    let held = held.unwrap();
    for number in 1..9 {
        map(&iotlb, number, number, Permissions::Read);
    }
    assert!(iotlb.invalidate(page(0)).is_err());
    drop(held);
    assert_eq!(iotlb.invalidate(page(0)), Ok(()));
}

#[test]
fn a_guard_on_several_sets_holds_each_of_them() {
    let iotlb = impatient(64);
    let (first, second) = (7, 8);
    map(&iotlb, first, 20, Permissions::ReadWrite);
    map(&iotlb, second, 30, Permissions::ReadWrite);
    let both = || {
        let found =
            iotlb.translate(GuestAddress(first * PAGE), 2 * PAGE as usize, Permissions::Write);
        found.unwrap()
    };
    let held = both();
    let pieces: Vec<_> = both().map(|piece| (piece.base.0, piece.length)).collect();
    let bytes = PAGE as usize;
    assert_eq!(pieces, [(20 * PAGE, bytes), (30 * PAGE, bytes)]);
    assert!(iotlb.invalidate(page(first)).is_err());
    assert!(iotlb.invalidate(page(second)).is_err());
    drop(held);
    assert_eq!(iotlb.invalidate(range(0, u64::MAX)), Ok(()));
}

#[test]
fn an_invalidation_ends_when_the_last_guard_goes() {
    let iotlb = iotlb(options(64, Replacement::InSets));
    map(&iotlb, 1, 11, Permissions::Read);
    let (taken, dropped) = (Barrier::new(2), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let held = iotlb.translate(GuestAddress(PAGE), 8, Permissions::Read);
            let held = held.unwrap();
            taken.wait();
            // Until the other one has begun: it takes away before it waits.
            while iotlb.translations() != 0 {
                std::thread::yield_now();
            }
            dropped.store(true, SeqCst);
            drop(held);
        });
        taken.wait();
        assert_eq!(iotlb.invalidate(page(1)), Ok(()));
        assert!(dropped.load(SeqCst), "it was still held");
    });
}

const PAGES: u64 = 48;

/// Looks pages up, and sees to it that each is valid as long as it is held.
fn look_up(iotlb: &VhostIotlb, valid: &[AtomicU64], done: &AtomicBool, mut rng: Rng) -> u64 {
    let mut found = 0;
    while !done.load(SeqCst) {
        let number = rng.u64(..PAGES - 1);
        let length = rng.u64(1..2 * PAGE) as usize;
        let at = GuestAddress(number * PAGE);
        let Ok(held) = iotlb.translate(at, length, Permissions::Read) else {
            continue;
        };
        let last = number + (length as u64 - 1) / PAGE;
        for number in number..=last {
            let valid = &valid[number as usize];
            assert_ne!(valid.load(SeqCst), 0, "page {number} was invalidated");
        }
        let pieces: Vec<_> = held.collect();
        assert_eq!(pieces.iter().map(|piece| piece.length).sum::<usize>(), length);
        found += 1;
    }
    found
}

#[test]
fn nothing_is_held_once_its_invalidation_is_done() {
    let iotlb = iotlb(options(32, Replacement::InSets));
    let valid: Vec<_> = (0..PAGES).map(|_| AtomicU64::new(0)).collect();
    let done = AtomicBool::new(false);
    let mut rng = Rng::with_seed(seed());
    let found = std::thread::scope(|scope| {
        let readers = [rng.fork(), rng.fork()];
        let readers = readers.map(|rng| scope.spawn(|| look_up(&iotlb, &valid, &done, rng)));
        for _ in 0..40_000 {
            let number = rng.u64(..PAGES);
            match rng.u32(..3) {
                0 => {
                    iotlb.invalidate(page(number)).unwrap();
                    valid[number as usize].store(0, SeqCst);
                }
                _ => {
                    valid[number as usize].store(1, SeqCst);
                    map(&iotlb, number, number, Permissions::Read);
                }
            }
        }
        done.store(true, SeqCst);
        readers.map(|reader| reader.join().unwrap())
    });
    println!("{found:?} look-ups, {:?}", iotlb.counts());
}
