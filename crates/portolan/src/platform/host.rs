//! Table memory on the heap: a table's physical address is its host address.
//!
//! For user-space drivers whose device reaches tables at the addresses of the process, and for
//! benchmarks. Of fixed capacity; safe throughout.
//!
//! *Context.* Interrupt, but for [`HostTables::new`], which takes heap memory (task).

use core::sync::atomic::AtomicU64;

use super::{OutOfTableMemory, SlabTables, TableMem, Word};
use crate::addr::{PageSize, PhysAddr};

/// A fixed number of table pages, each found at its own host address.
#[derive(Debug)]
pub struct HostTables<W = AtomicU64> {
    slab: SlabTables<W>,
}

impl<W: Word> HostTables<W> {
    /// `pages` pages of `page` bytes.
    pub fn new(page: PageSize, pages: u32) -> Self {
        Self { slab: SlabTables::at_host_addresses(page, pages) }
    }

    /// Number of pages handed out and not yet taken back.
    pub fn live(&self) -> usize {
        self.slab.live()
    }
}

impl<W: Word> TableMem<W> for HostTables<W> {
    fn alloc(&self, size: PageSize) -> Result<PhysAddr, OutOfTableMemory> {
        self.slab.alloc(size)
    }

    fn alloc_unfilled(&self, size: PageSize) -> Result<PhysAddr, OutOfTableMemory> {
        self.slab.alloc_unfilled(size)
    }

    fn free(&self, table: PhysAddr, size: PageSize) {
        self.slab.free(table, size);
    }

    #[inline]
    fn table(&self, table: PhysAddr, size: PageSize) -> &[W] {
        self.slab.table(table, size)
    }

    // Walkers are code of the same process.
    fn clean(&self, _: crate::addr::PhysRange) {}

    fn clean_barrier(&self) {}

    fn invalidate(&self, _: crate::addr::PhysRange) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn physical_is_host() {
        let mem = HostTables::<AtomicU64>::new(PageSize::SIZE_4K, 2);
        let a = mem.alloc(PageSize::SIZE_4K).unwrap();
        assert!(a.is_aligned(PageSize::SIZE_4K));
        let words = mem.table(a, PageSize::SIZE_4K);
        assert_eq!(words.as_ptr().addr() as u64, a.get());
        assert_eq!(words.len(), 512);
        mem.free(a, PageSize::SIZE_4K);
        assert_eq!(mem.live(), 0);
    }
}
