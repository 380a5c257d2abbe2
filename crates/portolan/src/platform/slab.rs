//! Table memory of fixed capacity with made-up physical addresses.
//!
//! Safe throughout. Because the addresses are not host addresses, code that confuses the two fails
//! at once. One size of page only; the words are of one width.
//!
//! *Context.* Interrupt, but for constructors, which take heap memory (task): a free list without a
//! lock.

use alloc::boxed::Box;

use super::free_list::FreeList;
use super::{OutOfTableMemory, TableMem, Word};
use crate::addr::{PageSize, PhysAddr, PhysRange};

/// A fixed number of table pages at consecutive physical addresses.
#[derive(Debug)]
pub struct SlabTables<W> {
    base: u64,
    page: PageSize,
    words_per_page: usize,
    /// Index of the first page's first word.
    first: usize,
    words: Box<[W]>,
    free: FreeList,
}

impl<W: Word> SlabTables<W> {
    /// `pages` pages of `page` bytes, the first at `base`, which is rounded down to a page.
    pub fn new(base: PhysAddr, page: PageSize, pages: u32) -> Self {
        let words = Self::zeroed(page, pages.saturating_add(1));
        let first = Self::first_page(&words, page);
        Self::over(words, first, base.align_down(page), page, pages)
    }

    /// As [`SlabTables::new`], but each page's physical address is its host address.
    pub(super) fn at_host_addresses(page: PageSize, pages: u32) -> Self {
        let words = Self::zeroed(page, pages.saturating_add(1));
        let first = Self::first_page(&words, page);
        let host = words.as_ptr().addr() as u64;
        let base = PhysAddr::new(host.next_multiple_of(page.bytes()));
        Self::over(words, first, base, page, pages)
    }

    /// Index of the first word at the start of a page, so that tables begin with a cache line.
    fn first_page(words: &[W], page: PageSize) -> usize {
        let host = words.as_ptr().addr() as u64;
        ((host.next_multiple_of(page.bytes()) - host) >> W::LG2_BYTES) as usize
    }

    fn zeroed(page: PageSize, pages: u32) -> Box<[W]> {
        let per_page = 1usize << (page.lg2() - W::LG2_BYTES);
        (0..per_page * pages as usize).map(|_| W::new(0)).collect()
    }

    fn over(words: Box<[W]>, first: usize, base: PhysAddr, page: PageSize, pages: u32) -> Self {
        Self {
            base: base.get(),
            page,
            words_per_page: 1 << (page.lg2() - W::LG2_BYTES),
            first,
            words,
            free: FreeList::try_new(pages).expect("memory for a list of pages, as for the pages"),
        }
    }

    /// Number of pages handed out and not yet taken back: those that are not in the free list, so
    /// for when no CPU takes or frees one.
    pub fn live(&self) -> usize {
        self.free.taken()
    }

    #[inline]
    fn words_at(&self, table: PhysAddr, size: PageSize) -> &[W] {
        let words = (size.bytes() >> W::LG2_BYTES) as usize;
        let offset = (table.get().wrapping_sub(self.base) >> W::LG2_BYTES) as usize;
        let start = self.first.wrapping_add(offset);
        self.words
            .get(start..)
            .and_then(|rest| rest.get(..words.min(self.words_per_page)))
            .unwrap_or(&[])
    }
}

impl<W: Word> TableMem<W> for SlabTables<W> {
    fn alloc(&self, size: PageSize) -> Result<PhysAddr, OutOfTableMemory> {
        let table = self.alloc_unfilled(size)?;
        // A chunk of constant length is cleared without a branch for each word.
        for line in self.words_at(table, size).chunks(16) {
            match <&[W; 16]>::try_from(line) {
                Ok(line) => line.iter().for_each(|word| word.store(0)),
                Err(_) => line.iter().for_each(|word| word.store(0)),
            }
        }
        Ok(table)
    }

    fn alloc_unfilled(&self, size: PageSize) -> Result<PhysAddr, OutOfTableMemory> {
        if size > self.page {
            return Err(OutOfTableMemory { size });
        }
        let index = self.free.take().ok_or(OutOfTableMemory { size })?;
        Ok(PhysAddr::new(self.base + (u64::from(index) << self.page.lg2())))
    }

    fn free(&self, table: PhysAddr, _size: PageSize) {
        let offset = table.get().wrapping_sub(self.base) >> self.page.lg2();
        if let Ok(index) = usize::try_from(offset) {
            self.free.give(index);
        }
    }

    #[inline]
    fn table(&self, table: PhysAddr, size: PageSize) -> &[W] {
        self.words_at(table, size)
    }

    // An owner of a walker that does not snoop puts its own memory in front (`TableMem::clean`).
    fn clean(&self, _: PhysRange) {}

    fn clean_barrier(&self) {}

    fn invalidate(&self, _: PhysRange) {}
}
