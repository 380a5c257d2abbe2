//! A handler of interrupts maps and takes back without the heap: addresses and records of them come
//! from a reserve, which tasks fill.
#![allow(missing_docs)]

#[path = "support/attached.rs"]
mod attached;
#[path = "support/watched_heap.rs"]
mod watched_heap;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use attached::{Attached, Quick, simulated, unowned};
use portolan::addr::{InvalTag, PageSize, PhysAddr, PhysRange, StreamId};
use portolan::bounce::{Pool, PoolMemory, PoolOptions};
use portolan::dma::{
    Constraints, CopyWhen, Copying, Deferred, Device, DmaSpace, FromDevice, LazyBounds, MapError,
    Policy, SpaceOptions, Unowned,
};
use portolan::inval::{Capabilities, Quirks, RangeForm};
use portolan::iommu::{BoundDomain, PagedDomain};
use portolan::iova::{Checks, IovaOptions};
use portolan::platform::{Clearing, PhysMemory, SlabTables, Transfer};
use portolan::table::PageTable;
use portolan::table::format::{VtdLevels, VtdSecondStage};
use watched_heap::{Machine, drop_left, uses};

const PAGE: u64 = 0x1000;

type Cpus = Arc<Machine>;

/// A device in a space whose queues take 4096 mappings.
fn device(policy: Policy, iova: IovaOptions) -> Device<Cpus> {
    let format = VtdSecondStage::new(VtdLevels::Four, 46);
    let memory = SlabTables::<AtomicU64>::new(PhysAddr::new(1 << 40), PageSize::SIZE_4K, 256);
    let table = PageTable::new(format, memory).unwrap();
    let caps = Capabilities {
        range: RangeForm::PowerOfTwo { max_lg2_pages: 18 },
        ..Capabilities::new(PageSize::SIZE_4K)
    };
    let domain = PagedDomain::new(table, InvalTag::new(1), caps, Quirks::default(), Quick);
    let mut options = SpaceOptions::default();
    options.policy = policy;
    options.bounds = LazyBounds { entries: 4096, ..LazyBounds::default() };
    options.iova = iova;
    let cpus = Arc::new(Machine);
    let bound = BoundDomain::new(Arc::new(Attached), Arc::new(domain), simulated());
    let space = DmaSpace::with_cpus(bound, cpus, &options, simulated()).unwrap();
    let stream = StreamId::new(1);
    Device::translated(Arc::new(space), stream, Constraints::trusted()).unwrap()
}

/// `pages` pages of memory without an owner.
fn buffer(number: u64, pages: u64) -> Unowned {
    memory(number * 64 * PAGE, pages * PAGE)
}

/// A pool's.
fn slots() -> Unowned {
    memory(1 << 30, 4096 << 11)
}

fn memory(start: u64, bytes: u64) -> Unowned {
    unowned(PhysRange::from_len(PhysAddr::new(start), bytes).unwrap())
}

/// Maps as a handler, of so many pages.
fn take(
    device: &Device<Cpus>,
    number: u64,
    pages: u64,
) -> Result<Deferred<Cpus, Unowned>, MapError> {
    let mapped = device.try_map(buffer(number, pages), FromDevice);
    let mapped = mapped.map_err(|failed| failed.error)?;
    Ok(mapped.defer().unwrap())
}

#[test]
fn thousands_of_maps_in_handlers_touch_no_heap() {
    for (policy, checks) in [
        (Policy::Strict, Checks::Cheap),
        (Policy::Deferred, Checks::Exact),
        (Policy::Lazy, Checks::Cheap),
    ] {
        let iova = IovaOptions { checks, reserve: 64, ..IovaOptions::default() };
        let device = device(policy, iova);
        let space = device.space().unwrap().clone();
        let mut deferred: Vec<Option<Deferred<_, _>>> = Vec::with_capacity(64);
        let (mut mapped, mut refused) = (0, 0);
        uses("making it");
        for round in 0..200u64 {
            let context = format!("{policy:?}, round {round}");
            uses(&context);
            for step in 0..64 {
                // The sizes of rings, of packets, and one that no stock has.
                let pages = [1, 1, 2, 16, 3, 40][step as usize % 6];
                match take(&device, step, pages) {
                    Ok(one) => deferred.push(Some(one)),
                    Err(MapError::NoReserve) => refused += 1,
                    Err(error) => panic!("{context}: {error}"),
                }
            }
            mapped += deferred.len();
            assert_eq!(uses(&context), 0, "a handler maps and defers");
            // A worker.
            space.flush().unwrap();
            uses(&context);
            for one in &mut deferred {
                let one = one.take().unwrap();
                assert!(one.try_reclaim().is_ok(), "{context}");
            }
            deferred.clear();
            assert_eq!(uses(&context), 0, "a handler gets buffers back");
        }
        assert_eq!((mapped, refused), (200 * 64, 0), "{policy:?}");
    }
}

/// Without a task that fills it, the reserve ends; with one, it goes on.
#[test]
fn a_reserve_that_is_used_up_is_said_and_filled_again() {
    let iova = IovaOptions { reserve: 16, ..IovaOptions::default() };
    let device = device(Policy::Deferred, iova);
    let space = device.space().unwrap().clone();
    let mut held = Vec::with_capacity(4096);
    uses("making it");
    for (round, fill) in ["tick", "flush", "map"].into_iter().enumerate() {
        let first = held.len();
        let error = loop {
            match device.try_map(buffer(held.len() as u64, 1), FromDevice) {
                Ok(one) => held.push(one),
                Err(failed) => break failed.error,
            }
        };
        assert_eq!(error, MapError::NoReserve, "{fill}");
        assert!(held.len() >= first + 16, "{fill}: {}", held.len() - first);
        assert_eq!(uses(fill), 0, "round {round}: a handler maps");
        match fill {
            "tick" => space.tick().unwrap(),
            "flush" => space.flush().unwrap(),
            _ => {
                let one = device.map(buffer(5000, 1), FromDevice);
                held.push(one.ok().unwrap());
            }
        }
        assert!(uses(fill) > 0, "{fill} takes memory");
    }
    assert!(device.try_map(buffer(5001, 1), FromDevice).is_ok());
}

/// Memory at which no code looks.
struct Nothing;

impl PhysMemory for Nothing {
    fn copy(&self, _transfer: &Transfer) {}

    fn clear(&self, _clearing: &Clearing) {}
}

#[test]
fn copied_buffers_of_handlers_touch_no_heap() {
    let device = device(Policy::Deferred, IovaOptions::default());
    let cpus = Arc::new(Machine);
    let pool = Pool::new(cpus.clone(), slots(), PoolOptions::for_cpus(&cpus)).unwrap();
    let device = device.with_copies(Copying {
        pool: Arc::new(PoolMemory::new(pool, Nothing)),
        when: CopyWhen::Always,
    });
    let space = device.space().unwrap().clone();
    let mut deferred = Vec::with_capacity(64);
    uses("making it");
    for round in 0..100 {
        deferred.extend((0..24).map(|number| take(&device, number, 1).unwrap()));
        assert_eq!(uses("mapping"), 0, "round {round}: a handler maps copies");
        space.flush().unwrap();
        uses("flushing");
        for one in deferred.drain(..) {
            assert!(one.try_reclaim().is_ok(), "round {round}");
        }
        let used = uses("reclaiming");
        assert_eq!(used, 0, "round {round}: a handler gives copies back");
    }
}

/// The space, the pool and all records go with a task.
#[test]
fn a_handler_that_is_the_last_to_have_a_buffer_frees_no_heap() {
    let device = device(Policy::Deferred, IovaOptions::default());
    let space = device.space().unwrap().clone();
    let first = take(&device, 1, 1).unwrap();
    // Its settings are another device's than those of the buffer before.
    let cpus = Arc::new(Machine);
    let pool = Pool::new(cpus.clone(), slots(), PoolOptions::for_cpus(&cpus)).unwrap();
    let device = device.with_copies(Copying {
        pool: Arc::new(PoolMemory::new(pool, Nothing)),
        when: CopyWhen::Always,
    });
    let second = take(&device, 2, 1).unwrap();
    let third = device.map(buffer(3, 1), FromDevice).ok().unwrap();
    space.flush().unwrap();
    let alive = Arc::downgrade(&space);
    drop((space, device));
    uses("a task lets the device go");
    assert!(first.try_reclaim().is_ok());
    drop(second);
    drop(third);
    assert_eq!(uses("handlers"), 0, "a handler is the last");
    assert_eq!(alive.strong_count(), 2);
    assert_eq!(drop_left(), 2);
    assert_eq!(alive.strong_count(), 0);
    assert!(uses("a worker") > 0);
}
