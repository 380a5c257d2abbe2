//! Memory that devices behind the model of VT-d reach, where their drivers share some of it, by
//! `virtio-drivers` and by `dma-api`; and the queues of a virtio-iommu.
#![allow(unsafe_code)]

mod disks;
mod dma_api;
mod foreign;
#[path = "../../../portolan/tests/support/promised.rs"]
mod promised;
mod rings;
mod space_hal;
mod transport;
mod viommu;

#[allow(dead_code)]
#[path = "../../../portolan-hw/tests/topology/machine.rs"]
mod machine;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use portolan::addr::{Iova, PhysAddr, PhysRange, StreamId};
use portolan::bounce::{PoolMemory, PoolOptions};
use portolan::dma::{CopyWhen, Copying, Device, Trust, Unowned};
use portolan::platform::Platform;
use portolan_chips::chips::SKYLAKE_SP;
use portolan_chips::vtd::VtdRegisters;
use portolan_hw::topology::{DeviceOptions, Iommus, Options, Topology};
use portolan_sim::decode::AccessKind;
use portolan_virtio::Addresses;

use machine::{DEVICE, Kernel, REGISTERS, described, dmar, vtd};

const PAGE: usize = 4096;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

/// The allocator of the process, which counts for each thread.
struct Counting;

// SAFETY: it is the system's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static HEAP: Counting = Counting;

/// Number of blocks that this thread has taken from the heap.
fn allocations() -> usize {
    ALLOCATIONS.get()
}

/// Value of the bytes beside a buffer, which the device must not read.
const SECRET: u8 = 0x5e;
/// Memory for copies.
const POOL: usize = 128 * 1024;

/// Pages of all tests, by where they see them.
static PAGES: Pages = Pages(Mutex::new(BTreeMap::new()));

struct Pages(Mutex<BTreeMap<usize, PhysAddr>>);

// SAFETY: the machine's memory never moves, and no registers are given out.
unsafe impl Addresses for Pages {
    fn phys(&self, at: NonNull<u8>) -> Option<PhysAddr> {
        // The model's pages are not aligned where the test sees them.
        let pages = self.0.lock().unwrap();
        let (first, page) = pages.range(..=at.addr().get()).next_back()?;
        let inside = at.addr().get() - first;
        (inside < PAGE).then(|| PhysAddr::new(page.get() + inside as u64))
    }

    fn mmio(&self, _window: PhysRange) -> Option<NonNull<u8>> {
        None
    }
}

/// A machine with one device, and memory of its driver's.
struct Bench {
    unit: Arc<VtdRegisters>,
    kernel: Kernel,
    iommus: Iommus<Kernel>,
}

impl Bench {
    fn new() -> Self {
        let machine = vtd(SKYLAKE_SP.identification);
        let table = dmar(REGISTERS);
        let topology = Topology::from_acpi([&table[..]]).unwrap();
        let kernel = machine.kernel();
        let iommus = topology.enable(kernel.clone(), Options::default(), described()).unwrap();
        // Its pages stay known, so its memory is no other machine's later.
        std::mem::forget(kernel.clone());
        Self { unit: machine.unit, kernel, iommus }
    }

    /// The device, without a pool for copies.
    fn plain(&self, trust: Trust) -> Device<Kernel> {
        let mut options = DeviceOptions::trusted();
        options.constraints.trust = trust;
        self.iommus.device_with(DEVICE, &options).unwrap()
    }

    /// The device, with one.
    fn device(&self, trust: Trust) -> Arc<Device<Kernel>> {
        let layout = Layout::from_size_align(POOL, PAGE).unwrap();
        let at = self.kernel.alloc(layout).unwrap();
        let memory = PhysRange::from_len(at, POOL as u64).unwrap();
        let options = PoolOptions::for_cpus(&self.kernel);
        // SAFETY: the memory is the pool's, and is never freed.
        let memory = unsafe { Unowned::new(memory) };
        let pool = PoolMemory::of(self.kernel.clone(), memory, options).unwrap();
        Arc::new(
            self.plain(trust).with_copies(Copying { pool: Arc::new(pool), when: CopyWhen::Needed }),
        )
    }

    /// A page of the driver's, full of secrets.
    fn page(&self) -> NonNull<[u8]> {
        let layout = Layout::from_size_align(PAGE, PAGE).unwrap();
        let at = self.kernel.alloc(layout).unwrap();
        // SAFETY: it has just been allocated, and is never freed.
        let first = unsafe { self.kernel.virt(at) };
        PAGES.0.lock().unwrap().insert(first.addr().get(), at);
        // SAFETY: as above.
        unsafe { first.as_ptr().write_bytes(SECRET, PAGE) };
        NonNull::slice_from_raw_parts(first, PAGE)
    }

    /// Memory of the machine, as the test sees it.
    fn seen(&self, at: PhysAddr) -> NonNull<u8> {
        // SAFETY: it is never freed while the machine is.
        unsafe { self.kernel.virt(at) }
    }

    fn stream(&self) -> StreamId {
        self.iommus.unit_of(DEVICE).unwrap().1
    }

    fn at(&self, stream: StreamId, iova: u64, access: AccessKind) -> Option<NonNull<u8>> {
        let pieces = self.unit.dma(stream, None, Iova::new(iova), access, 1).ok()?;
        Some(self.seen(pieces[0].pa))
    }

    /// Byte that the device reads; `None` if it is refused.
    fn read(&self, iova: u64) -> Option<u8> {
        self.read_as(self.stream(), iova)
    }

    /// Byte that the device with that stream reads.
    fn read_as(&self, stream: StreamId, iova: u64) -> Option<u8> {
        let byte = self.at(stream, iova, AccessKind::Read)?;
        // SAFETY: it is memory of the machine.
        Some(unsafe { byte.as_ptr().read_volatile() })
    }

    /// Has the device write a byte, unless it is refused.
    fn write(&self, iova: u64, value: u8) -> Option<()> {
        let byte = self.at(self.stream(), iova, AccessKind::Write)?;
        // SAFETY: it is memory of the machine.
        unsafe { byte.as_ptr().write_volatile(value) };
        Some(())
    }

    /// Tells if the device reads a secret in the page of `iova`.
    fn finds_secrets(&self, iova: u64) -> bool {
        let page = iova & !(PAGE as u64 - 1);
        (page..page + PAGE as u64).any(|at| self.read(at) == Some(SECRET))
    }
}

/// Defines a type that names a memory of its own.
macro_rules! memory {
    ($name:ident) => {
        struct $name;

        impl portolan_virtio::HalMemory for $name {
            type Platform = $crate::machine::Kernel;

            fn memory() -> &'static portolan_virtio::VirtioMemory<$crate::machine::Kernel> {
                static MEMORY: portolan_virtio::VirtioMemory<$crate::machine::Kernel> =
                    portolan_virtio::VirtioMemory::new(&$crate::PAGES);
                &MEMORY
            }
        }
    };
}
use memory;

/// `bytes` bytes of a page, from `at` on.
fn part(page: NonNull<[u8]>, at: usize, bytes: usize) -> NonNull<[u8]> {
    assert!(at + bytes <= page.len());
    // SAFETY: it is inside.
    let first = unsafe { page.cast::<u8>().add(at) };
    NonNull::slice_from_raw_parts(first, bytes)
}

/// The bytes as the CPU sees them.
fn bytes<'m>(of: NonNull<[u8]>) -> &'m mut [u8] {
    // SAFETY: no other code looks at them during the test's statement.
    unsafe { &mut *of.as_ptr() }
}
