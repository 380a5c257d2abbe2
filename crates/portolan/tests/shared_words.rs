//! Words that several CPUs write while each maps and unmaps pages of its own: none in a steady state, but
//! those of the page table, which are words of the table's memory.
#![allow(missing_docs)]

#[path = "support/attached.rs"]
mod attached;

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use attached::{Attached, Quick, simulated, unowned};
use portolan::addr::{CpuId, InvalTag, PageSize, PhysAddr, PhysRange, StreamId};
use portolan::dma::{Constraints, Device, DmaSpace, FromDevice, Policy, SpaceOptions};
use portolan::inval::{Capabilities, Quirks};
use portolan::iommu::{BoundDomain, PagedDomain};
use portolan::platform::{Clock, Cpus, LeftBehind, Lock, Nanos, SharedWord, SlabTables};
use portolan::table::PageTable;
use portolan::table::format::{VtdLevels, VtdSecondStage};

thread_local! {
    static CPU: Cell<u32> = const { Cell::new(0) };
}

/// CPUs that wrote to each address, a bit each.
static WRITERS: Mutex<Option<HashMap<usize, u64>>> = Mutex::new(None);

/// Notes a write of the calling CPU.
fn write(at: usize) {
    if let Some(writers) = &mut *WRITERS.lock().unwrap_or_else(PoisonError::into_inner) {
        *writers.entry(at).or_default() |= 1 << CPU.get();
    }
}

/// A word of which writes are noted.
struct Watched(AtomicU64);

impl Watched {
    fn written(&self) -> &AtomicU64 {
        write(std::ptr::from_ref(self).addr());
        &self.0
    }
}

impl SharedWord for Watched {
    fn new(value: u64) -> Self {
        Self(AtomicU64::new(value))
    }

    fn load(&self, order: Ordering) -> u64 {
        self.0.load(order)
    }

    fn store(&self, value: u64, order: Ordering) {
        self.written().store(value, order);
    }

    fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.written().swap(value, order)
    }

    fn compare_exchange_weak(
        &self,
        old: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        self.written().compare_exchange_weak(old, new, success, failure)
    }

    fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.written().fetch_add(value, order)
    }

    fn fetch_or(&self, mask: u64, order: Ordering) -> u64 {
        self.written().fetch_or(mask, order)
    }
}

/// A lock of which each use is noted as a write.
struct WatchedLock<T>(Mutex<T>);

impl<T: Send> Lock<T> for WatchedLock<T> {
    type Guard<'a>
        = MutexGuard<'a, T>
    where
        Self: 'a;

    fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    fn lock(&self) -> MutexGuard<'_, T> {
        write(std::ptr::from_ref(self).addr());
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        write(std::ptr::from_ref(self).addr());
        self.0.try_lock().ok()
    }

    fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Four;

impl Clock for Four {
    fn now(&self) -> Nanos {
        Nanos::new(0)
    }
}

impl Cpus for Four {
    type Word = Watched;
    type Lock<T: Send> = WatchedLock<T>;

    fn count(&self) -> usize {
        4
    }

    fn current(&self) -> CpuId {
        CpuId::new(CPU.get())
    }

    fn flush_wanted(&self) {}

    fn drop_later(&self, left: LeftBehind) {
        drop(left);
    }
}

fn device(policy: Policy) -> Device<Arc<Four>> {
    let format = VtdSecondStage::new(VtdLevels::Four, 46);
    let memory = SlabTables::<AtomicU64>::new(PhysAddr::new(1 << 40), PageSize::SIZE_4K, 256);
    let table = PageTable::new(format, memory).unwrap();
    let caps = Capabilities::new(PageSize::SIZE_4K);
    let domain = PagedDomain::new(table, InvalTag::new(1), caps, Quirks::default(), Quick);
    let bound = BoundDomain::new(Arc::new(Attached), Arc::new(domain), simulated());
    let mut options = SpaceOptions::default();
    options.policy = policy;
    let space = DmaSpace::with_cpus(bound, Arc::new(Four), &options, simulated()).unwrap();
    Device::translated(Arc::new(space), StreamId::new(1), Constraints::trusted()).unwrap()
}

/// Each CPU in turn maps and unmaps pages of its own, `out` at a time.
fn turns(device: &Device<Arc<Four>>, turns: u64, out: u64) {
    for turn in 0..4 * turns {
        CPU.set(turn as u32 % 4);
        let map = |page: u64| {
            let start = PhysAddr::new(page << 12);
            let buffer = unowned(PhysRange::from_len(start, 0x1000).unwrap());
            device.map(buffer, FromDevice).map_err(|failed| failed.error).unwrap()
        };
        let held: Vec<_> = (0..out).map(map).collect();
        for mapping in held {
            drop(mapping.defer().unwrap().reclaim());
        }
    }
}

/// One test: what is noted is noted for all threads.
#[test]
fn cpus_write_to_no_word_or_lock_of_another() {
    for policy in [Policy::Strict, Policy::Lazy] {
        for out in [1, 5, 100] {
            let device = device(policy);
            turns(&device, 200, out);
            *WRITERS.lock().unwrap() = Some(HashMap::new());
            turns(&device, 50, out);
            let writers = WRITERS.lock().unwrap().take().unwrap();
            let shared = writers.values().filter(|cpus| cpus.count_ones() > 1).count();
            println!("{policy:?}, {out} out: {} words written, {shared} shared", writers.len());
            assert!(writers.len() > 4, "{policy:?}");
            assert_eq!(shared, 0, "{policy:?}, {out} out");
        }
    }
}
