//! A walker's view of memory.

use std::marker::PhantomData;

use portolan::addr::{PageSize, PhysAddr};
use portolan::platform::{TableMem, Word};

/// Memory as a table walker sees it.
pub trait WalkMemory {
    /// The eight bytes at `pa`, little-endian; `None` if `pa` is not in memory.
    fn read_u64(&self, pa: PhysAddr) -> Option<u64>;

    /// The four bytes at `pa`, little-endian; `None` if `pa` is not in memory.
    fn read_u32(&self, pa: PhysAddr) -> Option<u32>;

    /// Empties the IOMMU's write buffer, so that a walker sees its contents.
    fn drain_write_buffer(&self) {}
}

impl<T: WalkMemory + ?Sized> WalkMemory for &T {
    fn read_u64(&self, pa: PhysAddr) -> Option<u64> {
        (**self).read_u64(pa)
    }

    fn read_u32(&self, pa: PhysAddr) -> Option<u32> {
        (**self).read_u32(pa)
    }

    fn drain_write_buffer(&self) {
        (**self).drain_write_buffer();
    }
}

/// Table memory of one page size, read by a walker that sees each write at once.
#[derive(Clone, Copy, Debug)]
pub struct TableReader<W, M> {
    memory: M,
    page: PageSize,
    word: PhantomData<fn() -> W>,
}

impl<W: Word, M: TableMem<W>> TableReader<W, M> {
    /// A reader of `memory`, whose pages are of size `page`.
    pub const fn new(memory: M, page: PageSize) -> Self {
        Self { memory, page, word: PhantomData }
    }

    /// The word that holds the byte at `pa`.
    fn word(&self, pa: PhysAddr) -> Option<u64> {
        let table = pa.align_down(self.page);
        let index = (pa.get() - table.get()) >> W::LG2_BYTES;
        let words = self.memory.table(table, self.page);
        words.get(usize::try_from(index).ok()?).map(Word::load)
    }
}

impl<W: Word, M: TableMem<W>> WalkMemory for TableReader<W, M> {
    fn read_u64(&self, pa: PhysAddr) -> Option<u64> {
        read_u64(W::LG2_BYTES, pa, |pa| self.word(pa))
    }

    fn read_u32(&self, pa: PhysAddr) -> Option<u32> {
        read_u32(W::LG2_BYTES, pa, |pa| self.word(pa))
    }
}

/// Eight aligned bytes out of words of `2^lg2` bytes.
pub fn read_u64(lg2: u32, pa: PhysAddr, word: impl Fn(PhysAddr) -> Option<u64>) -> Option<u64> {
    if !pa.is_aligned(PageSize::of_lg2(3)) {
        return None;
    }
    match lg2 {
        3 => word(pa),
        2 => Some(word(pa)? | word(pa.checked_add(4)?)? << 32),
        _ => None,
    }
}

/// Four aligned bytes out of words of `2^lg2` bytes.
pub fn read_u32(lg2: u32, pa: PhysAddr, word: impl Fn(PhysAddr) -> Option<u64>) -> Option<u32> {
    if !pa.is_aligned(PageSize::of_lg2(2)) {
        return None;
    }
    match lg2 {
        3 => Some((word(pa)? >> (8 * (pa.get() & 4))) as u32),
        2 => Some(word(pa)? as u32),
        _ => None,
    }
}
