//! The allocator of addresses when memory for its own records fails: at each allocation in turn,
//! once and from then on.
#![allow(missing_docs)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use portolan::addr::{CpuId, Iova, IovaRange, PageSize};
use portolan::iova::{AddressOrder, Checks, IovaError, IovaOptions, IovaSpace, Request};
use portolan::platform::{Clock, Nanos, SpinCpus};

thread_local! {
    /// Allocations of this thread that still succeed, and the number of failures after those.
    static PLAN: Cell<(u64, u64)> = const { Cell::new((u64::MAX, 0)) };
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

struct Failing;

fn fails() -> bool {
    COUNT.set(COUNT.get() + 1);
    match PLAN.get() {
        (0, 0) => false,
        (0, failures) => {
            PLAN.set((0, failures - 1));
            true
        }
        (left, failures) => {
            PLAN.set((left - 1, failures));
            false
        }
    }
}

// SAFETY: all memory is the system allocator's, with the layout that the caller gave; a null
// pointer says that there is none.
unsafe impl GlobalAlloc for Failing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if fails() {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's duties are the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's duties are the same.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        if fails() {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's duties are the same.
        unsafe { System.realloc(pointer, layout, bytes) }
    }
}

#[global_allocator]
static MEMORY: Failing = Failing;

struct Still;

impl Clock for Still {
    fn now(&self) -> Nanos {
        Nanos::new(0)
    }
}

const PAGES: u64 = 4096;
const MOST: usize = 700;

/// Takes and gives many, with `failures` failures after `before` allocations of memory, and returns
/// the number of allocations of memory.
fn run(before: u64, failures: u64, checks: Checks) -> u64 {
    let context = (before, failures, checks);
    let mut held: Vec<IovaRange> = Vec::with_capacity(MOST);
    COUNT.set(0);
    PLAN.set((before, failures));
    let cpus = SpinCpus::new(2, Still, || CpuId::new(0));
    let all = IovaRange::from_len(Iova::new((1 << 32) - 0x80_0000), PAGES << 12);
    let options = IovaOptions {
        front: 2,
        depot_magazines: 2,
        refill: 4,
        rounds: 8,
        reserve: 140,
        checks,
        order: AddressOrder::LowFirst,
    };
    let space = match IovaSpace::new(cpus, all.unwrap(), PageSize::SIZE_4K, options) {
        Ok(space) => space,
        Err(error) => {
            PLAN.set((u64::MAX, 0));
            assert_eq!(error, IovaError::Memory);
            return COUNT.get();
        }
    };
    for step in 0..1200u64 {
        let request = Request {
            bytes: 0x1000 << (step % 3),
            align: PageSize::SIZE_4K,
            limit: Iova::new([u64::MAX, u64::from(u32::MAX)][step as usize / 5 % 2]),
        };
        let found = match step % 8 {
            6 => space.try_alloc(&request),
            _ => space.alloc(&request),
        };
        match found {
            Ok(range) => held.push(range),
            Err(error) => assert_eq!(error, IovaError::Memory, "{context:?}"),
        }
        // In another order than they came.
        if step % 3 == 2 && !held.is_empty() {
            let range = held.swap_remove(held.len() / 3);
            assert_eq!(space.free(range), Ok(()), "{context:?}");
        }
        if step % 100 == 99 {
            // Without memory the next one tries again.
            let filled = space.replenish();
            assert!(filled.is_ok() || space.is_short(), "{context:?}");
        }
        if step % 400 == 399 {
            assert_eq!(space.free_all(&held), 0, "{context:?}");
            held.clear();
            space.trim();
        }
    }
    // Nothing of this takes memory that may not be there.
    assert_eq!(space.free_all(&held), 0, "{context:?}");
    space.trim_all();
    let stats = space.stats();
    PLAN.set((u64::MAX, 0));
    assert_eq!((stats.free, stats.fragments), (PAGES, 1), "{context:?}");
    COUNT.get()
}

#[test]
fn every_failure_of_memory_leaves_all_addresses() {
    for checks in [Checks::Cheap, Checks::Exact] {
        let count = run(u64::MAX, 0, checks);
        assert!(count > 30, "{count} allocations of memory");
        for before in 0..=count {
            for failures in [1, 2, u64::MAX] {
                run(before, failures, checks);
            }
        }
    }
}
