//! Heap memory of a space on a machine of many CPUs: little before its first buffer, and then for the CPUs
//! that use it.
#![allow(missing_docs)]

#[path = "support/attached.rs"]
mod attached;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use attached::{Attached, Quick, simulated, unowned};
use portolan::addr::{CpuId, InvalTag, PageSize, PhysAddr, PhysRange, StreamId};
use portolan::dma::{Constraints, Device, DmaSpace, FromDevice, Policy, SpaceOptions};
use portolan::inval::{Capabilities, Quirks};
use portolan::iommu::{BoundDomain, PagedDomain};
use portolan::platform::{Clock, Cpus, LeftBehind, Nanos, SlabTables};
use portolan::table::PageTable;
use portolan::table::format::{VtdLevels, VtdSecondStage};

thread_local! {
    /// Bytes of this thread's that are not freed, and pieces of memory taken so far.
    static BYTES: Cell<isize> = const { Cell::new(0) };
    static TAKEN: Cell<usize> = const { Cell::new(0) };
    /// The CPU that calls.
    static CPU: Cell<u32> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: all memory is the system allocator's, with the layout that the caller gave.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.set(BYTES.get() + layout.size() as isize);
        TAKEN.set(TAKEN.get() + 1);
        // SAFETY: the caller's duties are the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        BYTES.set(BYTES.get() - layout.size() as isize);
        // SAFETY: the caller's duties are the same.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static MEMORY: Counting = Counting;

/// CPUs of a large server.
const CPUS: u32 = 256;

struct Server;

impl Clock for Server {
    fn now(&self) -> Nanos {
        Nanos::new(0)
    }
}

impl Cpus for Server {
    type Word = AtomicU64;
    type Lock<T: Send> = portolan::platform::SpinLock<T>;

    fn count(&self) -> usize {
        CPUS as usize
    }

    fn current(&self) -> CpuId {
        CpuId::new(CPU.get())
    }

    fn flush_wanted(&self) {}

    fn drop_later(&self, left: LeftBehind) {
        drop(left);
    }
}

type Space = Arc<DmaSpace<Arc<Server>>>;

/// A space, and the bytes that it took beside its domain.
fn space(policy: Policy) -> (Space, isize) {
    let format = VtdSecondStage::new(VtdLevels::Four, 46);
    let memory = SlabTables::<AtomicU64>::new(PhysAddr::new(1 << 40), PageSize::SIZE_4K, 256);
    let table = PageTable::new(format, memory).unwrap();
    let caps = Capabilities::new(PageSize::SIZE_4K);
    let domain = PagedDomain::new(table, InvalTag::new(1), caps, Quirks::default(), Quick);
    let bound = BoundDomain::new(Arc::new(Attached), Arc::new(domain), simulated());
    let mut options = SpaceOptions::default();
    options.policy = policy;
    let cpus = Arc::new(Server);
    let before = BYTES.get();
    let space = Arc::new(DmaSpace::with_cpus(bound, cpus, &options, simulated()).unwrap());
    (space, BYTES.get() - before)
}

fn device(space: &Space) -> Device<Arc<Server>> {
    Device::translated(space.clone(), StreamId::new(1), Constraints::trusted()).unwrap()
}

/// A buffer that comes and goes on `cpu`, as a handler's: `try_map`, or as a task's.
fn use_on(device: &Device<Arc<Server>>, cpu: u32, handler: bool) {
    CPU.set(cpu);
    let start = PhysAddr::new(u64::from(cpu) << 12);
    let buffer = unowned(PhysRange::from_len(start, 0x1000).unwrap());
    let mapped = match handler {
        true => device.try_map(buffer, FromDevice),
        false => device.map(buffer, FromDevice),
    };
    let mapping = mapped.map_err(|failed| failed.error).unwrap();
    drop(mapping.defer().unwrap());
}

#[test]
fn before_its_first_buffer_a_space_takes_64_kib_whatever_the_cpus() {
    for policy in [Policy::Strict, Policy::Deferred, Policy::Lazy] {
        let (_space, bytes) = space(policy);
        println!("{policy:?}: {bytes} bytes for {CPUS} CPUs");
        assert!(bytes <= 64 << 10, "{policy:?}: {bytes} bytes");
    }
}

#[test]
fn a_cpu_takes_its_memory_at_first_use_and_only_then() {
    let (space, _) = space(Policy::Deferred);
    let device = device(&space);
    // The first CPU's table pages, records and magazines.
    use_on(&device, 0, false);
    space.flush().unwrap();
    let before = BYTES.get();
    for turn in 0..8 {
        use_on(&device, 5, false);
        space.flush().unwrap();
        assert!(turn > 0 || BYTES.get() - before > 16 << 10, "a cache and a queue");
    }
    // A queue of twice 512 ranges, a front and magazines of each size.
    let bytes = BYTES.get() - before;
    println!("{bytes} bytes for one CPU more");
    assert!(bytes <= 48 << 10, "{bytes} bytes");
}

#[test]
fn a_handler_on_a_new_cpu_takes_no_heap_memory_and_a_task_makes_its_own() {
    let (space, _) = space(Policy::Deferred);
    let device = device(&space);
    use_on(&device, 0, false);
    let taken = TAKEN.get();
    use_on(&device, 9, true);
    assert_eq!(TAKEN.get(), taken, "a handler took heap memory");
    let before = BYTES.get();
    space.tick().unwrap();
    assert!(BYTES.get() - before > 16 << 10, "a cache and a queue");
    let taken = TAKEN.get();
    use_on(&device, 9, true);
    assert_eq!(TAKEN.get(), taken);
}

/// Addresses that were many at once do not stay where only one size can use them.
#[test]
fn ticks_give_idle_addresses_back() {
    let (space, _) = space(Policy::Strict);
    let device = device(&space);
    let map = |page: u64| {
        let start = PhysAddr::new(page << 12);
        let buffer = unowned(PhysRange::from_len(start, 0x1000).unwrap());
        device.map(buffer, FromDevice).map_err(|failed| failed.error).unwrap()
    };
    let held: Vec<_> = (0..8000).map(map).collect();
    for mapping in held {
        let _ = mapping.unmap().unwrap();
    }
    let before = space.address_stats();
    (0..3).for_each(|_| space.tick().unwrap());
    let after = space.address_stats();
    // 32 magazines of 127 stay.
    assert!(before.in_depots > 6000 && after.in_depots == 32 * 127, "{before:?} {after:?}");
    assert_eq!(before.free + before.in_depots, after.free + after.in_depots);
}
