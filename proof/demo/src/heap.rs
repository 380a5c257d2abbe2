//! The kernel's heap, and the number of its uses.

use core::alloc::{GlobalAlloc, Layout};
use core::sync::atomic::{AtomicU64, Ordering};

use portolan_bare::{DirectMap, Heap};

use crate::arch;

/// The kernel's memory. Devices and units have theirs from it as well, without being counted.
// SAFETY: `boot.s` maps all of it one to one, RAM cached and registers not, for good.
pub static HEAP: Heap = Heap::new(unsafe { DirectMap::new(0, arch::LAST_MAPPED) });

/// Blocks that the kernel's own code has taken and given back.
static USES: AtomicU64 = AtomicU64::new(0);

/// [`HEAP`] for the kernel's own code, counted.
struct CountedHeap;

// SAFETY: all memory is the heap's, with the layout that the caller gave.
unsafe impl GlobalAlloc for CountedHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        USES.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's duties are the same.
        unsafe { HEAP.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        USES.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's duties are the same.
        unsafe { HEAP.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: CountedHeap = CountedHeap;

/// State of the heap: its uses so far, and its free bytes, of which tables are taken too.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HeapUse {
    pub uses: u64,
    pub free: u64,
}

impl HeapUse {
    pub fn now() -> Self {
        Self { uses: USES.load(Ordering::Relaxed), free: HEAP.free_bytes() }
    }
}
