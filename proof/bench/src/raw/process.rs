//! The platform of a process whose hardware sees memory at the process's own addresses: page tables are
//! reached as a kernel reaches them that has all memory mapped, as Linux's side of the benchmarks does.

use core::alloc::Layout;
use core::ptr::{NonNull, with_exposed_provenance_mut};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use portolan::addr::{PageSize, PhysAddr, PhysRange};
use portolan::platform::{HostTables, Mmio, Nanos, Platform, RawMemory, SpinLock, TableMem};

/// Memory for tables, by the library's own way from a platform to it.
pub(crate) type Tables = RawMemory<Process>;

/// A number of pages, and nothing else.
#[derive(Clone, Debug)]
pub(crate) struct Process(Arc<HostTables>);

/// Memory for `pages` tables.
pub(crate) fn tables(pages: u32) -> Tables {
    let memory: HostTables = HostTables::new(PageSize::SIZE_4K, pages);
    if let Ok(first) = memory.alloc(PageSize::SIZE_4K) {
        // All pages are parts of one allocation.
        let words = memory.table(first, PageSize::SIZE_4K);
        words.as_ptr().expose_provenance();
        memory.free(first, PageSize::SIZE_4K);
    }
    // SAFETY: page tables alone get it, which keep its contract.
    unsafe { RawMemory::new(Process(Arc::new(memory))) }
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
        let page = is_page(layout).then(|| self.0.alloc_unfilled(PageSize::SIZE_4K));
        page?.ok()
    }

    unsafe fn free(&self, at: PhysAddr, _layout: Layout) {
        self.0.free(at, PageSize::SIZE_4K);
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
