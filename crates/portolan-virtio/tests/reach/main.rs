//! Memory that devices behind the model of VT-d reach, where their drivers share some of it, by
//! `virtio-drivers` and by `dma-api`; and the queues of a virtio-iommu.
#![allow(unsafe_code)]

mod dma_api;
#[path = "../../../portolan/tests/support/promised.rs"]
mod promised;
mod slots;
mod transport;
mod viommu;

#[allow(dead_code)]
#[path = "../../../portolan-hw/tests/topology/machine.rs"]
mod machine;

use std::alloc::Layout;
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use portolan::addr::{Iova, PhysAddr, PhysRange};
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
/// Value of the bytes beside a buffer, which the device must not read.
const SECRET: u8 = 0x5e;
/// Memory for copies.
const POOL: usize = 128 * 1024;

/// Pages of the test, by where it sees them.
#[derive(Default)]
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
    pages: Arc<Pages>,
}

impl Bench {
    fn new() -> Self {
        let machine = vtd(SKYLAKE_SP.identification);
        let table = dmar(REGISTERS);
        let topology = Topology::from_acpi([&table[..]]).unwrap();
        let kernel = machine.kernel();
        let iommus = topology.enable(kernel.clone(), Options::default(), described()).unwrap();
        let pages = Arc::default();
        Self { unit: machine.unit, kernel, iommus, pages }
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
        self.pages.0.lock().unwrap().insert(first.addr().get(), at);
        // SAFETY: as above.
        unsafe { first.as_ptr().write_bytes(SECRET, PAGE) };
        NonNull::slice_from_raw_parts(first, PAGE)
    }

    fn at(&self, iova: u64, access: AccessKind) -> Option<NonNull<u8>> {
        let (_, stream) = self.iommus.unit_of(DEVICE).unwrap();
        let pieces = self.unit.dma(stream, None, Iova::new(iova), access, 1).ok()?;
        // SAFETY: the device was led to memory of the machine, which is never freed while it is.
        Some(unsafe { self.kernel.virt(pieces[0].pa) })
    }

    /// Byte that the device reads; `None` if it is refused.
    fn read(&self, iova: u64) -> Option<u8> {
        let byte = self.at(iova, AccessKind::Read)?;
        // SAFETY: it is memory of the machine.
        Some(unsafe { byte.as_ptr().read_volatile() })
    }

    /// Has the device write a byte, unless it is refused.
    fn write(&self, iova: u64, value: u8) -> Option<()> {
        let byte = self.at(iova, AccessKind::Write)?;
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
