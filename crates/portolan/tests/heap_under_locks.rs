//! No heap memory is taken or freed while a lock of the platform is held, since interrupts are out
//! then; nor at all by what handlers of interrupts may call.
#![allow(missing_docs)]

#[path = "support/watched_heap.rs"]
mod watched_heap;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use portolan::addr::{PageSize, PhysAddr, PhysRange};
use portolan::bounce::{GrowingPool, Growth, Need, Pool, PoolOptions, PoolSource};
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
        patience: 1,
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
