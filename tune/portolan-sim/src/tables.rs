//! Table memory that a walker sees late.
//!
//! Table pages come from a slab; beside it is the content of memory, which is all that the walker reads.
//! A write gets there when its cache line is cleaned, or when the IOMMU's write buffer is drained.

use std::sync::atomic::{AtomicU32, AtomicU64};

use portolan::addr::{PageSize, PhysAddr, PhysRange};
use portolan::platform::{OutOfTableMemory, SlabTables, TableMem, Word};

use crate::decode::{TableReader, WalkMemory};

/// Obstacle between writes and the walker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lag {
    /// CPU caches that the walker does not snoop: until the line is cleaned.
    CacheLines,
    /// A write buffer in the IOMMU: until it is drained.
    WriteBuffer,
}

/// Bytes of a cache line.
pub const LINE: PageSize = PageSize::of_lg2(6);

/// A slab of table pages, and the words of it that have reached memory.
#[derive(Debug)]
pub struct NonCoherentTables<W> {
    slab: SlabTables<W>,
    base: PhysAddr,
    page: PageSize,
    lag: Lag,
    dram: Box<[W]>,
}

impl<W: Word> NonCoherentTables<W> {
    /// `pages` pages of `page` bytes from `base`, which is rounded down to a page.
    pub fn new(base: PhysAddr, page: PageSize, pages: u32, lag: Lag) -> Self {
        let base = base.align_down(page);
        let words = (pages as usize) << (page.lg2() - W::LG2_BYTES);
        Self {
            slab: SlabTables::new(base, page, pages),
            base,
            page,
            lag,
            dram: (0..words).map(|_| W::new(0)).collect(),
        }
    }

    /// Number of pages handed out and not yet taken back.
    pub fn live(&self) -> usize {
        self.slab.live()
    }

    /// Memory as the walker reads it.
    pub fn walker(&self) -> MemoryView<'_, W> {
        MemoryView { tables: self }
    }

    /// A reader that sees each write at once: for comparing the two.
    pub fn coherent(&self) -> TableReader<W, &SlabTables<W>> {
        TableReader::new(&self.slab, self.page)
    }

    /// Brings every write to memory.
    pub fn write_back_all(&self) {
        let bytes = (self.dram.len() as u64) << W::LG2_BYTES;
        if let Some(all) = PhysRange::from_len(self.base, bytes) {
            self.write_back(all);
        }
    }

    /// Brings the lines that hold `bytes` to memory.
    fn write_back(&self, bytes: PhysRange) {
        let first = bytes.start().align_down(LINE).get() >> W::LG2_BYTES;
        let last = (bytes.last().get() | (LINE.bytes() - 1)) >> W::LG2_BYTES;
        let base = self.base.get() >> W::LG2_BYTES;
        let Some(end) = base.checked_add(self.dram.len() as u64) else {
            return;
        };
        for word in first.max(base)..last.saturating_add(1).min(end) {
            let pa = PhysAddr::new(word << W::LG2_BYTES);
            if let (Some(from), Some(to)) = (self.cached(pa), self.dram.get((word - base) as usize))
            {
                to.store(from);
            }
        }
    }

    fn cached(&self, pa: PhysAddr) -> Option<u64> {
        let table = pa.align_down(self.page);
        let index = (pa.get() - table.get()) >> W::LG2_BYTES;
        self.slab.table(table, self.page).get(index as usize).map(Word::load)
    }

    fn remembered(&self, pa: PhysAddr) -> Option<u64> {
        let index = pa.get().checked_sub(self.base.get())? >> W::LG2_BYTES;
        self.dram.get(usize::try_from(index).ok()?).map(Word::load)
    }
}

impl<W: Word> TableMem<W> for NonCoherentTables<W> {
    fn alloc(&self, size: PageSize) -> Result<PhysAddr, OutOfTableMemory> {
        let table = self.slab.alloc(size)?;
        self.write_back(PhysRange::page(table, self.page));
        Ok(table)
    }

    fn free(&self, table: PhysAddr, size: PageSize) {
        self.slab.free(table, size);
    }

    fn table(&self, table: PhysAddr, size: PageSize) -> &[W] {
        self.slab.table(table, size)
    }

    fn clean(&self, bytes: PhysRange) {
        match self.lag {
            Lag::CacheLines => self.write_back(bytes),
            Lag::WriteBuffer => {}
        }
    }

    fn clean_barrier(&self) {}

    fn invalidate(&self, _: PhysRange) {}
}

/// [`NonCoherentTables`] as the walker sees them.
#[derive(Debug)]
pub struct MemoryView<'a, W> {
    tables: &'a NonCoherentTables<W>,
}

impl<W> Clone for MemoryView<'_, W> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<W> Copy for MemoryView<'_, W> {}

impl<W: Word> WalkMemory for MemoryView<'_, W> {
    fn read_u64(&self, pa: PhysAddr) -> Option<u64> {
        crate::decode::read_u64(W::LG2_BYTES, pa, |pa| self.tables.remembered(pa))
    }

    fn read_u32(&self, pa: PhysAddr) -> Option<u32> {
        crate::decode::read_u32(W::LG2_BYTES, pa, |pa| self.tables.remembered(pa))
    }

    fn drain_write_buffer(&self) {
        match self.tables.lag {
            Lag::WriteBuffer => self.tables.write_back_all(),
            Lag::CacheLines => {}
        }
    }
}

/// Table memory behind caches that the walker does not snoop, of 64-bit entries.
pub type NonCoherentTables64 = NonCoherentTables<AtomicU64>;
/// Table memory behind caches that the walker does not snoop, of 32-bit entries.
pub type NonCoherentTables32 = NonCoherentTables<AtomicU32>;

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: PhysAddr = PhysAddr::new(0x4000_0000);
    const PAGE: PageSize = PageSize::SIZE_4K;

    fn bytes(start: u64, len: u64) -> PhysRange {
        PhysRange::from_len(PhysAddr::new(start), len).unwrap()
    }

    #[test]
    fn a_write_is_seen_once_its_line_is_cleaned() {
        let mem = NonCoherentTables64::new(BASE, PAGE, 2, Lag::CacheLines);
        let table = mem.alloc(PAGE).unwrap();
        let words = mem.table(table, PAGE);
        for word in words.iter().take(16) {
            Word::store(word, 7);
        }
        let walker = mem.walker();
        assert_eq!(walker.read_u64(table), Some(0));
        assert_eq!(mem.coherent().read_u64(table), Some(7));
        mem.clean(bytes(table.get() + 8, 1));
        let seen = |i: u64| walker.read_u64(PhysAddr::new(table.get() + 8 * i));
        assert!((0..8).all(|i| seen(i) == Some(7)));
        assert!((8..16).all(|i| seen(i) == Some(0)));
        walker.drain_write_buffer();
        assert_eq!(seen(8), Some(0));
    }

    #[test]
    fn a_page_comes_zeroed_in_memory() {
        let mem = NonCoherentTables32::new(BASE, PAGE, 1, Lag::CacheLines);
        let table = mem.alloc(PAGE).unwrap();
        Word::store(&mem.table(table, PAGE)[3], 5);
        mem.clean(bytes(table.get(), 4096));
        let third = PhysAddr::new(table.get() + 12);
        assert_eq!(mem.walker().read_u32(third), Some(5));
        mem.free(table, PAGE);
        assert_eq!(mem.live(), 0);
        assert_eq!(mem.alloc(PAGE), Ok(table));
        assert_eq!(mem.walker().read_u32(third), Some(0));
    }

    #[test]
    fn a_write_buffer_is_drained_as_a_whole() {
        let mem = NonCoherentTables64::new(BASE, PAGE, 1, Lag::WriteBuffer);
        let table = mem.alloc(PAGE).unwrap();
        Word::store(&mem.table(table, PAGE)[0], 7);
        mem.clean(bytes(table.get(), 8));
        assert_eq!(mem.walker().read_u64(table), Some(0));
        mem.walker().drain_write_buffer();
        assert_eq!(mem.walker().read_u64(table), Some(7));
    }

    #[test]
    fn cleaning_elsewhere_does_nothing() {
        let mem = NonCoherentTables64::new(BASE, PAGE, 1, Lag::CacheLines);
        mem.clean(bytes(0, 4096));
        mem.clean(PhysRange::new(PhysAddr::new(0), PhysAddr::new(u64::MAX)).unwrap());
        assert_eq!(mem.walker().read_u64(PhysAddr::new(0)), None);
        assert_eq!(mem.walker().read_u64(PhysAddr::new(BASE.get() + 1)), None);
    }
}
