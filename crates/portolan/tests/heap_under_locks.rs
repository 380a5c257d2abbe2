//! No heap memory is taken or freed while a lock of the platform is held, since interrupts are out
//! then; nor at all by what handlers of interrupts may call.
#![allow(missing_docs)]

#[path = "support/watched_heap.rs"]
mod watched_heap;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use portolan::addr::{Iova, IovaRange, PageSize, PhysAddr, PhysRange};
use portolan::bounce::{GrowingPool, Growth, Need, Pool, PoolOptions, PoolSource};
use portolan::iova::{Checks, IovaOptions, IovaSpace, Request};
use watched_heap::{Machine, held, uses};

struct Blocks(AtomicU64);

impl PoolSource for Blocks {
    fn grow(&self, bytes: u64) -> Option<PhysRange> {
        assert_eq!(held(), 0, "memory is asked for under a lock");
        let start = self
            .0
            .fetch_add(bytes, std::sync::atomic::Ordering::Relaxed);
        PhysRange::from_len(PhysAddr::new(start), bytes)
    }

    fn shrink(&self, _memory: PhysRange) {
        assert_eq!(held(), 0, "memory is given back under a lock");
    }
}

#[test]
fn a_pool_grows_and_shrinks_with_no_heap_under_its_lock() {
    let cpus = Arc::new(Machine);
    let options = PoolOptions {
        slot: PageSize::of_lg2(11),
        ..PoolOptions::for_cpus(&*cpus)
    };
    let memory = PhysRange::from_len(PhysAddr::new(1 << 30), 256 << 11).unwrap();
    let first = Pool::new(cpus.clone(), memory, options).unwrap();
    let growth = Growth {
        step: 64 << 11,
        most: 1 << 30,
        timeout: 1,
    };
    let source = Blocks(AtomicU64::new(1 << 32));
    let pool = GrowingPool::new(cpus, first, source, growth, options);
    let mut taken = Vec::with_capacity(64);
    uses("making it");
    for round in 0..20 {
        let need = Need::bytes(128 << 11);
        while let Ok(slots) = pool.take(&need) {
            taken.push(slots);
        }
        let used = uses("taking");
        assert_eq!(
            used, 0,
            "round {round}: a handler of interrupts takes slots"
        );
        assert!(pool.maintain().grown > 0, "round {round}");
        uses("growing");
    }
    for slots in taken.drain(..) {
        pool.give(slots).unwrap();
    }
    assert_eq!(
        uses("giving"),
        0,
        "a handler of interrupts gives slots back"
    );
    let shrunk: u64 = (0..4).map(|_| pool.maintain().shrunk).sum();
    assert!(shrunk > 0);
    uses("shrinking");
}

#[test]
fn addresses_come_and_go_with_no_heap_under_a_lock_and_none_on_their_way_back() {
    for checks in [Checks::Cheap, Checks::Exact] {
        let all = IovaRange::from_len(Iova::new(1 << 20), 1 << 40).unwrap();
        let options = IovaOptions {
            checks,
            ..IovaOptions::default()
        };
        let space = IovaSpace::new(Machine, all, PageSize::SIZE_4K, options).unwrap();
        let request = |step: u64| Request {
            bytes: 0x1000 * (1 + step % 700),
            align: PageSize::SIZE_4K,
            limit: Iova::new([u64::MAX, u64::from(u32::MAX)][step as usize % 2]),
        };
        let mut held = Vec::with_capacity(20_000);
        uses("making it");
        for round in 0..3 {
            let context = format!("{checks:?}, round {round}");
            uses(&context);
            for step in 0..5_000 {
                held.push(space.alloc(&request(step)).unwrap());
            }
            assert!(uses(&context) > 0 || round > 0, "{context}");
            for step in 0..500 {
                held.extend(space.try_alloc(&request(step)).ok());
            }
            assert_eq!(uses(&context), 0, "{context}: a handler takes addresses");
            while held.len() > 100 {
                let at = held.len() * 7 / 11;
                space.free(held.swap_remove(at)).unwrap();
            }
            assert_eq!(space.free_all(&held), 0);
            held.clear();
            assert_eq!(
                uses(&context),
                0,
                "{context}: a handler gives addresses back"
            );
            space.trim();
            uses(&context);
        }
        space
            .reserve(IovaRange::from_len(Iova::new(1 << 30), 1 << 20).unwrap())
            .unwrap();
        uses("setting aside");
    }
}
