//! Table memory of fixed capacity with made-up physical addresses.
//!
//! Safe throughout. Because the addresses are not host addresses, code that confuses the two fails
//! at once. The free list is a lock-free stack with a tag against reuse between load and exchange.
//! One size of page only; the words are of one width.
//!
//! *Context.* Interrupt, but for constructors, which take heap memory (task): a free list without a
//! lock.

use alloc::boxed::Box;

use super::atomic::{AtomicU32, AtomicU64, Ordering};
use super::{OutOfTableMemory, TableMem, Word};
use crate::addr::{PageSize, PhysAddr, PhysRange};

const NIL: u32 = u32::MAX;

/// A fixed number of table pages at consecutive physical addresses.
#[derive(Debug)]
pub struct SlabTables<W> {
    base: u64,
    page: PageSize,
    words_per_page: usize,
    /// Index of the first page's first word.
    first: usize,
    words: Box<[W]>,
    next: Box<[AtomicU32]>,
    /// Index of the first free page, and above it a tag that every change steps.
    free: AtomicU64,
}

impl<W: Word> SlabTables<W> {
    /// `pages` pages of `page` bytes, the first at `base`, which is rounded down to a page.
    pub fn new(base: PhysAddr, page: PageSize, pages: u32) -> Self {
        let words = Self::zeroed(page, pages);
        Self::over(words, 0, base.align_down(page), page, pages)
    }

    /// As [`SlabTables::new`], but each page's physical address is its host address.
    pub(super) fn at_host_addresses(page: PageSize, pages: u32) -> Self {
        let words = Self::zeroed(page, pages.saturating_add(1));
        let host = words.as_ptr().addr() as u64;
        let base = PhysAddr::new(host.next_multiple_of(page.bytes()));
        let first = ((base.get() - host) >> W::LG2_BYTES) as usize;
        Self::over(words, first, base, page, pages)
    }

    fn zeroed(page: PageSize, pages: u32) -> Box<[W]> {
        let per_page = 1usize << (page.lg2() - W::LG2_BYTES);
        (0..per_page * pages as usize).map(|_| W::new(0)).collect()
    }

    fn over(words: Box<[W]>, first: usize, base: PhysAddr, page: PageSize, pages: u32) -> Self {
        let pages = pages.min(NIL - 1);
        let next = |i: u32| AtomicU32::new(if i + 1 < pages { i + 1 } else { NIL });
        Self {
            base: base.get(),
            page,
            words_per_page: 1 << (page.lg2() - W::LG2_BYTES),
            first,
            words,
            next: (0..pages).map(next).collect(),
            free: AtomicU64::new(u64::from(if pages == 0 { NIL } else { 0 })),
        }
    }

    /// Number of pages handed out and not yet taken back: those that are not in the free list, so
    /// for when no CPU takes or frees one.
    pub fn live(&self) -> usize {
        let mut left = self.next.len();
        let mut at = self.free.load(Ordering::Relaxed) as u32;
        while let Some(next) = self.next.get(at as usize).filter(|_| left > 0) {
            left -= 1;
            at = next.load(Ordering::Relaxed);
        }
        left
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

    fn step(tagged: u64, index: u32) -> u64 {
        ((tagged >> 32).wrapping_add(1) << 32) | u64::from(index)
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
        // Acquire: the last owner's writes to the page are seen. The exchange takes the value that was
        // seen here or nothing, since each change has a tag of its own.
        let mut head = self.free.load(Ordering::Acquire);
        let index = loop {
            let index = head as u32;
            let Some(next) = self.next.get(index as usize) else {
                return Err(OutOfTableMemory { size });
            };
            let new = Self::step(head, next.load(Ordering::Relaxed));
            match self.free.compare_exchange_weak(head, new, Ordering::Relaxed, Ordering::Acquire) {
                Ok(_) => break index,
                Err(now) => head = now,
            }
        };
        Ok(PhysAddr::new(self.base + (u64::from(index) << self.page.lg2())))
    }

    fn free(&self, table: PhysAddr, _size: PageSize) {
        let offset = table.get().wrapping_sub(self.base) >> self.page.lg2();
        let Some(next) = usize::try_from(offset).ok().and_then(|i| self.next.get(i)) else {
            return;
        };
        let mut head = self.free.load(Ordering::Relaxed);
        loop {
            next.store(head as u32, Ordering::Relaxed);
            let new = Self::step(head, offset as u32);
            match self.free.compare_exchange_weak(head, new, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => head = now,
            }
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
