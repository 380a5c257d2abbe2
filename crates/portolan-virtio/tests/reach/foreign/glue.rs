//! All that the other kernel adds: Portolan's platform of its own parts, and the opening of a device.

use std::alloc::Layout;
use std::ptr::{NonNull, with_exposed_provenance_mut};
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

use portolan::addr::{PciFunction, PhysAddr, PhysRange};
use portolan::platform::{AllMemory, Interrupts, IrqLock, Leavings, LeftBehind, Nanos, Platform};
use portolan_hw::TrustedDescription;
use portolan_hw::topology::{EnableError, Iommus, Options, Topology, TopologyError};
use portolan_virtio::{
    Addresses, HalMemory, OpenedDevice, SpaceHal, VirtioMemory, VirtioOpenError,
};
use virtio_drivers::transport::Transport;

use super::os::{self, NoPreemptIrqSave, PAGE_SIZE};
use super::{Board, Window};

#[derive(Clone)]
pub(crate) struct OtherOs(pub Board);

impl Interrupts for OtherOs {
    fn disable() -> usize {
        NoPreemptIrqSave::acquire()
    }

    fn restore(before: usize) {
        NoPreemptIrqSave::release(before);
    }
}

/// Values that handlers left, for the next task that opens a device.
static LEFT: Mutex<Leavings> = Mutex::new(Leavings::new());

// SAFETY: pages of the kernel's allocator, zeroed, in the linear mapping; its guard keeps interrupts out.
unsafe impl Platform for OtherOs {
    type Word = AtomicU64;
    type Lock<T: Send> = IrqLock<T, Self>;
    type Registers = Window;

    fn now(&self) -> Nanos {
        self.0.now()
    }

    fn relax(&self) {
        self.0.relax();
    }

    fn alloc(&self, layout: Layout) -> Option<PhysAddr> {
        let pages = layout.size().div_ceil(PAGE_SIZE);
        let virt = os::alloc_pages(pages, layout.align())?;
        // SAFETY: the pages have just been allocated.
        unsafe { with_exposed_provenance_mut::<u8>(virt).write_bytes(0, pages * PAGE_SIZE) };
        os::virt_to_phys(virt).map(|at| PhysAddr::new(at as u64))
    }

    unsafe fn free(&self, at: PhysAddr, layout: Layout) {
        os::dealloc_pages(os::phys_to_virt(at.get() as usize), layout.size().div_ceil(PAGE_SIZE));
    }

    unsafe fn virt(&self, at: PhysAddr) -> NonNull<u8> {
        let virt = with_exposed_provenance_mut(os::phys_to_virt(at.get() as usize));
        NonNull::new(virt).expect("the linear mapping is not at 0")
    }

    unsafe fn registers(&self, window: PhysRange) -> Option<Window> {
        self.0.ioremap(window)
    }

    fn clean(&self, _: PhysRange) {}
    fn clean_barrier(&self) {}
    fn invalidate(&self, _: PhysRange) {}
    fn flush_wanted(&self) {}

    fn drop_later(&self, left: LeftBehind) {
        LEFT.lock().unwrap().push(left);
    }
}

struct Linear;

// SAFETY: the kernel's memory is in the linear mapping; it asks for no registers.
unsafe impl Addresses for Linear {
    fn phys(&self, at: NonNull<u8>) -> Option<PhysAddr> {
        let at = os::virt_to_phys(at.as_ptr().expose_provenance())?;
        Some(PhysAddr::new(at as u64))
    }

    fn mmio(&self, _: PhysRange) -> Option<NonNull<u8>> {
        None
    }
}

/// The kernel's `Hal`, for all of its virtio devices.
pub(crate) type VirtIoHal = SpaceHal<Virtio>;

pub(crate) struct Virtio;

impl HalMemory for Virtio {
    type Platform = OtherOs;

    fn memory() -> &'static VirtioMemory<OtherOs> {
        static MEMORY: VirtioMemory<OtherOs> = VirtioMemory::new(&Linear);
        &MEMORY
    }
}

/// Enables the IOMMUs of firmware's tables, before the bus is probed.
pub(crate) fn init(board: Board, tables: &[&[u8]]) -> Result<Iommus<OtherOs>, EnableError> {
    // SAFETY: the boot loader hands the tables over.
    let described = unsafe { TrustedDescription::new() };
    match Topology::from_acpi(tables.iter().copied()) {
        Ok(topology) => topology.enable(OtherOs(board), Options::default(), described),
        Err(TopologyError::NoTable) => {
            // SAFETY: drivers hand their devices addresses of what they share alone.
            let all = unsafe { AllMemory::new() };
            Ok(Iommus::none(OtherOs(board), all))
        }
        Err(error) => Err(error.into()),
    }
}

/// Opens a function of the bus.
pub(crate) fn open<T: Transport>(
    iommus: &Iommus<OtherOs>,
    at: PciFunction,
    transport: T,
) -> Result<OpenedDevice<OtherOs, T>, VirtioOpenError> {
    drop(LEFT.lock().unwrap().take());
    Virtio::memory().open(iommus, at, transport)
}
