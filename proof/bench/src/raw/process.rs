//! The platform of a process whose hardware sees memory at the process's own addresses: page tables are
//! reached as a kernel reaches them that has all memory mapped, as Linux's side of the benchmarks does.

use alloc::sync::Arc;
use core::alloc::Layout;
use core::ptr::{NonNull, with_exposed_provenance_mut};
use core::sync::atomic::{AtomicU64, Ordering};

use portolan::addr::{PageSize, PhysAddr, PhysRange};
use portolan::platform::{HostTables, Mmio, Nanos, Platform, RawMemory, SpinLock, TableMem};

use crate::threads::{CPUS, cpu};

/// Memory for tables, by the library's own way from a platform to it.
pub(crate) type Tables = RawMemory<Process>;

/// A number of pages, and nothing else.
#[derive(Clone, Debug)]
pub(crate) struct Process(Arc<Pages>);

/// Pages that a CPU frees go to a list of its own, without a lock, as on Linux's side.
#[derive(Debug)]
struct Pages {
    fresh: HostTables,
    free: [FreePages; CPUS],
}

/// Address of the first page of a list, which has that of the next in its first word; 0 ends it.
#[derive(Debug, Default)]
#[repr(align(64))]
struct FreePages(AtomicU64);

/// Memory for `pages` tables.
pub(crate) fn tables(pages: u32) -> Tables {
    let memory: HostTables = HostTables::new(PageSize::SIZE_4K, pages);
    if let Ok(first) = memory.alloc(PageSize::SIZE_4K) {
        // All pages are parts of one allocation.
        let words = memory.table(first, PageSize::SIZE_4K);
        words.as_ptr().expose_provenance();
        memory.free(first, PageSize::SIZE_4K);
    }
    let pages = Pages { fresh: memory, free: Default::default() };
    // SAFETY: page tables alone get it, which keep its contract.
    unsafe { RawMemory::new(Process(Arc::new(pages))) }
}

/// There are no devices.
pub(crate) enum NoRegisters {}

impl Mmio for NoRegisters {
    fn read32(&self, _offset: usize) -> u32 {
        match *self {}
    }

    fn write32(&self, _offset: usize, _value: u32) {
        match *self {}
    }
}

fn is_page(layout: Layout) -> bool {
    layout.size() as u64 == PageSize::SIZE_4K.bytes()
}

impl Process {
    fn free_pages(&self) -> &AtomicU64 {
        &self.0.free[cpu() as usize % CPUS].0
    }

    /// First word of a page that is allocated or in a list.
    fn first_word(&self, page: PhysAddr) -> &AtomicU64 {
        // SAFETY: the page is part of the allocation, aligned, and its words are atomic.
        unsafe { self.virt(page).cast().as_ref() }
    }
}

// SAFETY: pages are handed out once, at the addresses of the process, which are `virt`'s; no other
// code has them; the lock lets one holder in, and there are no handlers of interrupts.
unsafe impl Platform for Process {
    type Word = AtomicU64;
    type Lock<T: Send> = SpinLock<T>;
    type Registers = NoRegisters;

    fn now(&self) -> Nanos {
        Nanos::new(0)
    }

    /// Cleared by `memset`, as Linux's side does it.
    fn alloc(&self, layout: Layout) -> Option<PhysAddr> {
        let page = self.alloc_unfilled(layout)?;
        // SAFETY: the page is one of the allocation, and no other code has it yet.
        unsafe { self.virt(page).write_bytes(0, layout.size()) };
        Some(page)
    }

    fn alloc_unfilled(&self, layout: Layout) -> Option<PhysAddr> {
        if !is_page(layout) {
            return None;
        }
        let free = self.free_pages();
        match free.load(Ordering::Relaxed) {
            0 => self.0.fresh.alloc_unfilled(PageSize::SIZE_4K).ok(),
            first => {
                let page = PhysAddr::new(first);
                free.store(self.first_word(page).load(Ordering::Relaxed), Ordering::Relaxed);
                Some(page)
            }
        }
    }

    unsafe fn free(&self, at: PhysAddr, _layout: Layout) {
        let free = self.free_pages();
        self.first_word(at).store(free.load(Ordering::Relaxed), Ordering::Relaxed);
        free.store(at.get(), Ordering::Relaxed);
    }

    #[inline]
    unsafe fn virt(&self, at: PhysAddr) -> NonNull<u8> {
        // SAFETY: the caller names memory that is allocated, which is not at 0.
        unsafe { NonNull::new_unchecked(with_exposed_provenance_mut(at.get() as usize)) }
    }

    unsafe fn registers(&self, _window: PhysRange) -> Option<NoRegisters> {
        None
    }

    fn clean(&self, _: PhysRange) {}

    fn clean_barrier(&self) {}

    fn invalidate(&self, _: PhysRange) {}

    fn flush_wanted(&self) {}

    fn drop_later(&self, left: portolan::platform::LeftBehind) {
        drop(left);
    }
}
