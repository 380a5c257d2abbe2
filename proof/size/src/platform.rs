//! A platform whose memory is never given back, seen at its physical addresses.

use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use portolan::addr::{PciFunction, PhysAddr, PhysRange};
use portolan::platform::{LeftBehind, Mmio, Nanos, Platform, SpinLock};

/// Bytes of memory.
const BYTES: usize = 1 << 20;

/// Memory from which blocks are taken one behind the other.
#[repr(C, align(4096))]
struct Memory {
    bytes: UnsafeCell<[u8; BYTES]>,
    taken: AtomicUsize,
}

// SAFETY: each byte is handed out once.
unsafe impl Sync for Memory {}

#[global_allocator]
static MEMORY: Memory = Memory { bytes: UnsafeCell::new([0; BYTES]), taken: AtomicUsize::new(0) };

// SAFETY: the blocks are zeroed, aligned as their layout says, and none overlaps another.
unsafe impl GlobalAlloc for Memory {
    // A kernel's allocator is a call.
    #[inline(never)]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let room = layout.size().saturating_add(layout.align());
        let at = self.taken.fetch_add(room, Ordering::Relaxed);
        if at.saturating_add(room) > BYTES {
            return core::ptr::null_mut();
        }
        let first = self.bytes.get().cast::<u8>().wrapping_add(at);
        first.wrapping_add(first.align_offset(layout.align()))
    }

    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}

/// A window of registers.
pub struct Registers(usize);

impl Mmio for Registers {
    fn read32(&self, offset: usize) -> u32 {
        // SAFETY: `Kernel::registers` has the promise that registers are there.
        unsafe { ((self.0 + offset) as *const u32).read_volatile() }
    }

    fn write32(&self, offset: usize, value: u32) {
        // SAFETY: as above.
        unsafe { ((self.0 + offset) as *mut u32).write_volatile(value) }
    }
}

/// The machine.
#[derive(Clone)]
pub struct Kernel;

// SAFETY: memory comes from `MEMORY`, each block once, and is seen at its physical address.
unsafe impl Platform for Kernel {
    type Word = AtomicU64;
    type Lock<T: Send> = SpinLock<T>;
    type Registers = Registers;

    fn now(&self) -> Nanos {
        static TICKS: AtomicU64 = AtomicU64::new(0);
        Nanos::new(TICKS.fetch_add(1, Ordering::Relaxed))
    }

    fn alloc(&self, layout: Layout) -> Option<PhysAddr> {
        // SAFETY: no layout that the library asks for is empty.
        let block = NonNull::new(unsafe { MEMORY.alloc(layout) })?;
        Some(PhysAddr::new(block.as_ptr() as u64))
    }

    unsafe fn free(&self, _: PhysAddr, _: Layout) {}

    unsafe fn virt(&self, at: PhysAddr) -> NonNull<u8> {
        // SAFETY: no memory is at address 0, which the caller has none of.
        unsafe { NonNull::new_unchecked(at.get() as *mut u8) }
    }

    fn clean(&self, _: PhysRange) {}

    fn clean_barrier(&self) {}

    fn invalidate(&self, _: PhysRange) {}

    unsafe fn registers(&self, window: PhysRange) -> Option<Registers> {
        Some(Registers(window.start().get() as usize))
    }

    fn pci_config(&self, function: PciFunction, offset: u16) -> Option<u32> {
        /// Address of the configuration space of segment 0.
        static ECAM: AtomicUsize = AtomicUsize::new(0);
        let at = ECAM.load(Ordering::Relaxed) + (usize::from(function.requester.get()) << 12);
        // SAFETY: configuration space is mapped there.
        Some(unsafe { ((at + usize::from(offset)) as *const u32).read_volatile() })
    }

    fn flush_wanted(&self) {}

    fn drop_later(&self, _: LeftBehind) {}
}
