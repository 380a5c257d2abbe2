//! The memory of the kernel and of its devices.

use core::alloc::{GlobalAlloc, Layout};
use core::ptr::{NonNull, null_mut};

use portolan::addr::{PageSize, PhysAddr, PhysRange};
use portolan::platform::Lock;
use spin::Once;
use thiserror::Error;

use super::uncached::Uncached;
use super::{CpuLock, DirectMap};
use crate::arena::Arena;

/// Reason why a heap has no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum HeapError {
    /// It has some already.
    #[error("the heap has its memory already")]
    Twice,
    /// The direct map does not reach all of it.
    #[error("not all of {0} is in the direct map")]
    NotMapped(PhysRange),
    /// There is no room for the heap's own records.
    #[error("{0} has no room for the records of a heap")]
    TooSmall(PhysRange),
    /// Memory that CPUs do not cache is the heap's.
    #[error("{memory} is not to be cached, and {heap} is the heap's")]
    Overlaps {
        /// Memory that CPUs do not cache.
        memory: PhysRange,
        /// The heap's own.
        heap: PhysRange,
    },
}

/// A page, as [`Heap::keep`] takes it.
const PAGE: Layout = match Layout::from_size_align(4096, 4096) {
    Ok(page) => page,
    Err(_) => Layout::new::<u64>(),
};

/// One region of RAM, lent out in blocks of any power of two. It can be the kernel's
/// `#[global_allocator]`; [`Machine`](super::Machine) takes memory for devices from it.
///
/// *Context.* Interrupt, but for [`Heap::init`] (task).
pub struct Heap {
    map: DirectMap,
    arena: Once<CpuLock<Arena<'static>>>,
    pub(super) uncached: Once<Uncached>,
}

impl Heap {
    /// A heap without memory.
    pub const fn new(map: DirectMap) -> Self {
        let arena = Once::new();
        let uncached = Once::new();
        Self { map, arena, uncached }
    }

    /// Gives the heap its memory, of which it takes about a 250th for its own records.
    ///
    /// # Errors
    /// See [`HeapError`]; the heap is as it was.
    ///
    /// # Safety
    /// `memory` is RAM that belongs to the heap alone, for good. No other CPU calls at the same time.
    pub unsafe fn init(&self, memory: PhysRange) -> Result<(), HeapError> {
        if self.arena.is_completed() {
            return Err(HeapError::Twice);
        }
        let (small, page) = (HeapError::TooSmall(memory), PageSize::SIZE_4K);
        let below_next = memory.start().checked_add(page.bytes() - 1).ok_or(small)?;
        let start = below_next.align_down(page);
        let memory = PhysRange::new(start, memory.last()).ok_or(small)?;
        let words = Arena::records(memory);
        let bytes = (words as u64 * 8).next_multiple_of(page.bytes());
        let rest = start.checked_add(bytes);
        let rest = rest.and_then(|start| PhysRange::new(start, memory.last()));
        let rest = rest.ok_or(small)?;
        let first = self.map.virt(memory).ok_or(HeapError::NotMapped(memory))?;
        // SAFETY: the memory is mapped and the heap's alone; so many words lie below `rest`, which
        // alone is lent out; it is aligned to a page, and any bits are a word once they are written.
        let records = unsafe {
            let first = first.cast::<u64>().as_ptr();
            first.write_bytes(0, words);
            core::slice::from_raw_parts_mut(first, words)
        };
        // A smaller region needs no more words.
        let arena = Arena::new(rest, records).ok_or(small)?;
        self.arena.call_once(|| Lock::new(arena));
        Ok(())
    }

    /// The memory that the heap lends out; `None` before it has memory.
    pub fn memory(&self) -> Option<PhysRange> {
        self.arena.get().map(|arena| arena.lock().memory())
    }

    /// Bytes that are free.
    pub fn free_bytes(&self) -> u64 {
        self.arena.get().map_or(0, |arena| arena.lock().free_bytes())
    }

    /// Takes the page at `at` out of the free memory; returns if all of it was free. A kernel that follows another
    /// one sets aside so what devices and units still use, as it was; to give it back is to free a page.
    pub fn keep(&self, at: PhysAddr) -> bool {
        self.arena.get().is_some_and(|arena| arena.lock().take(at, PAGE))
    }

    /// The direct map by which it sees physical memory.
    pub fn map(&self) -> DirectMap {
        self.map
    }

    /// The physical address of the byte that the CPU sees at `at`; `None` if it is outside of the
    /// direct map.
    pub fn phys(&self, at: NonNull<u8>) -> Option<PhysAddr> {
        self.map.phys(at)
    }

    /// Address at which the CPU sees the registers at `window`; `None` if they cannot be mapped.
    /// Memory of the heap is no register.
    pub fn mmio(&self, window: PhysRange) -> Option<NonNull<u8>> {
        let memory = self.memory()?;
        let first = self.map.virt(window)?;
        let uncached = self.uncached.get().map(Uncached::memory);
        let is_memory =
            [Some(memory), uncached].into_iter().flatten().any(|of| of.overlaps(window));
        (!is_memory).then_some(first)
    }

    pub(super) fn take(&self, layout: Layout) -> Option<PhysAddr> {
        self.arena.get()?.lock().alloc(layout)
    }

    /// As [`Heap::take`], zeroed.
    pub(super) fn take_zeroed(&self, layout: Layout) -> Option<PhysAddr> {
        let at = self.take(layout)?;
        let range = PhysRange::from_len(at, layout.size().max(1) as u64)?;
        let first = self.map.virt(range)?;
        // SAFETY: the block is the caller's alone, and `init` has checked that it is mapped.
        unsafe { first.as_ptr().write_bytes(0, layout.size()) };
        Some(at)
    }

    pub(super) fn give(&self, at: PhysAddr, layout: Layout) {
        if let Some(arena) = self.arena.get() {
            arena.lock().free(at, layout);
        }
    }
}

// SAFETY: blocks are aligned, apart from each other, and stay until they are given back: the arena
// sees to that, under a lock. Nothing here panics or allocates.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let block = self.take(layout);
        let range = block.map(|at| PhysRange::page(at, PageSize::of_lg2(0)));
        let first = range.and_then(|range| self.map.virt(range));
        first.map_or(null_mut(), NonNull::as_ptr)
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        let at = NonNull::new(at).and_then(|at| self.map.phys(at));
        if let Some(at) = at {
            self.give(at, layout);
        }
    }
}
