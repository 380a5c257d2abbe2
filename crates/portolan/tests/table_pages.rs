//! Every interleaving, and every order that C11 allows, of CPUs at one list of free table pages, or of free slots of
//! a pool: the library's source, over atomics that a model checker follows.
#![allow(missing_docs, unsafe_code)]

extern crate alloc;

use free_list::FreeList;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use portolan::addr::{PageSize, PhysAddr};
use portolan::platform::{OutOfTableMemory, TableMem, Word};

/// Items that the library's file finds in its crate and above itself.
mod addr {
    pub use portolan::addr::{PageSize, PhysAddr, PhysRange};
}

mod atomic {
    pub use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
}

#[allow(dead_code)]
#[path = "../src/platform/free_list.rs"]
mod free_list;
#[allow(dead_code)]
#[path = "../src/platform/slab.rs"]
mod slab;

use slab::SlabTables;

/// A word whose writes nothing orders.
#[derive(Debug)]
struct Plain(AtomicU64);

impl Word for Plain {
    const LG2_BYTES: u32 = 3;

    fn new(raw: u64) -> Self {
        Self(AtomicU64::new(raw))
    }

    fn load(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn store(&self, raw: u64) {
        self.0.store(raw, Ordering::Relaxed);
    }

    fn compare_exchange(&self, old: u64, new: u64) -> Result<u64, u64> {
        let relaxed = Ordering::Relaxed;
        self.0.compare_exchange(old, new, relaxed, relaxed)
    }
}

const SIZE: PageSize = PageSize::of_lg2(4);

fn slab(pages: u32) -> Arc<SlabTables<Plain>> {
    Arc::new(SlabTables::new(PhysAddr::new(0x1000), SIZE, pages))
}

fn explore(body: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(body);
}

#[test]
fn a_table_page_is_given_out_once() {
    explore(|| {
        let slab = slab(3);
        let other = Arc::clone(&slab);
        let cpu = loom::thread::spawn(move || {
            let (one, two) = (other.alloc(SIZE).unwrap(), other.alloc(SIZE).unwrap());
            other.free(one, SIZE);
            two
        });
        let mine = slab.alloc(SIZE).unwrap();
        let theirs = cpu.join().unwrap();
        assert_ne!(mine, theirs, "given out twice");
        let last = slab.alloc(SIZE).unwrap();
        assert!(last != mine && last != theirs, "given out twice");
        assert!(slab.alloc(SIZE).is_err());
    });
}

/// The page behind the first one is named by a word that its last owner has written.
#[test]
fn a_page_that_came_back_leads_to_what_is_free() {
    explore(|| {
        let slab = slab(3);
        let mine = [(); 2].map(|()| slab.alloc(SIZE).unwrap());
        let other = Arc::clone(&slab);
        let cpu = loom::thread::spawn(move || {
            let one = other.alloc(SIZE);
            let two = other.alloc(SIZE);
            [one, two]
        });
        slab.free(mine[0], SIZE);
        let theirs = cpu.join().unwrap();
        assert!(!theirs.contains(&Ok(mine[1])), "given out twice");
        assert!(theirs[0].is_ok() && theirs[0] != theirs[1]);
    });
}

/// A pool's slots, whose bytes only their owners reach.
struct Slots {
    free: FreeList,
    bytes: [UnsafeCell<u32>; 2],
}

// SAFETY: bytes of a slot are its owner's; the model checker finds two that have them at once.
unsafe impl Sync for Slots {}

impl Slots {
    /// Takes a slot, writes to it and gives it back, if one is free.
    fn use_one(&self) {
        if let Some(number) = self.free.take() {
            // SAFETY: as above.
            self.bytes[number as usize].with_mut(|byte| unsafe { *byte += 1 });
            self.free.give(number as usize);
        }
    }
}

#[test]
fn bytes_of_a_slot_are_seen_by_one_owner_after_the_other() {
    explore(|| {
        let bytes = [(); 2].map(|()| UnsafeCell::new(0));
        let free = FreeList::try_new(2).unwrap();
        let slots = Arc::new(Slots { free, bytes });
        let other = Arc::clone(&slots);
        let cpu = loom::thread::spawn(move || {
            other.use_one();
            other.use_one();
        });
        slots.use_one();
        slots.use_one();
        cpu.join().unwrap();
        // SAFETY: no other thread is left.
        let used = slots.bytes.each_ref().map(|byte| byte.with(|byte| unsafe { *byte }));
        assert_eq!(used.iter().sum::<u32>(), 4, "two CPUs find one of two slots free");
        assert_eq!(slots.free.taken(), 0);
    });
}
