//! Reserved and detached table pages, linked through a word of each: no heap, no bound.

use super::PageTable;
use super::format::Format;
use super::walking::Looked;
use crate::addr::PhysAddr;
use crate::inval::TableChain;
use crate::platform::{OutOfTableMemory, ProtocolStep, TableMem, Word};
use core::sync::atomic::Ordering;

/// Exponent of the bytes of a cache line.
const LINE_LG2: u32 = 6;

/// Pages set aside before the first visible write.
pub(super) struct Reserve<'t, F: Format, M: TableMem<F::Word>> {
    table: &'t PageTable<F, M>,
    head: Option<PhysAddr>,
    /// Pages with any contents but for their links.
    unfilled: Option<PhysAddr>,
    /// Number of pages that were taken from the memory.
    taken: usize,
}

impl<'t, F: Format, M: TableMem<F::Word>> Reserve<'t, F, M> {
    /// No pages.
    pub(super) fn empty(table: &'t PageTable<F, M>) -> Self {
        Self { table, head: None, unfilled: None, taken: 0 }
    }

    /// `pages` pages that are zeroed and `unfilled` with any contents, all or none.
    pub(super) fn of(
        table: &'t PageTable<F, M>,
        pages: u64,
        unfilled: u64,
    ) -> Result<Self, OutOfTableMemory> {
        let mut reserve = Self::empty(table);
        let all = reserve.take(pages, unfilled);
        if reserve.taken != 0 {
            table.pages.0.fetch_add(reserve.taken, Ordering::Relaxed);
        }
        all.map(|()| reserve)
    }

    fn take(&mut self, pages: u64, unfilled: u64) -> Result<(), OutOfTableMemory> {
        let table = self.table;
        for _ in 0..unfilled {
            let page = table.mem.alloc_unfilled(F::GRANULE)?;
            self.taken += 1;
            if let Some(first) = table.link_word(page) {
                first.store(self.unfilled.map_or(0, F::link));
            }
            self.unfilled = Some(page);
        }
        for _ in 0..pages {
            let page = table.mem.alloc(F::GRANULE)?;
            self.taken += 1;
            self.push(page);
        }
        Ok(())
    }

    fn push(&mut self, page: PhysAddr) {
        if let (Some(first), Some(head)) = (self.table.link_word(page), self.head) {
            first.store(F::link(head));
        }
        self.head = Some(page);
    }

    /// A page, zeroed.
    pub(super) fn pop(&mut self) -> Option<PhysAddr> {
        let page = self.head?;
        let first = self.table.link_word(page)?;
        let raw = first.load();
        self.head = (raw != 0).then(|| F::unlink(raw));
        first.store(0);
        Some(page)
    }

    /// A page with any contents.
    pub(super) fn pop_unfilled(&mut self) -> Option<PhysAddr> {
        let page = self.unfilled?;
        let raw = self.table.link_word(page)?.load();
        self.unfilled = (raw != 0).then(|| F::unlink(raw));
        Some(page)
    }

    /// Takes back a page that was not used.
    pub(super) fn put_back(&mut self, page: PhysAddr) {
        self.push(page);
    }
}

impl<F: Format, M: TableMem<F::Word>> Drop for Reserve<'_, F, M> {
    fn drop(&mut self) {
        while let Some(page) = self.pop().or_else(|| self.pop_unfilled()) {
            self.table.free_page(page);
        }
    }
}

impl<F: Format, M: TableMem<F::Word>> PageTable<F, M> {
    /// Word of a page that links it to another. Pages that follow each other in memory have it in different
    /// lines: a processor's cache has few places for lines that lie a page's size apart.
    #[inline]
    pub(super) fn link_word(&self, page: PhysAddr) -> Option<&F::Word> {
        let words = self.words(page);
        let line = (page.get() >> F::GRANULE.lg2()) << LINE_LG2 >> F::Word::LG2_BYTES;
        words.get(line as usize & words.len().wrapping_sub(1))
    }

    /// Adds a page that left the tree. The link in each but the last is a word that the hardware takes
    /// for an empty entry, so a walk that still comes by faults there at worst.
    pub(super) fn detach(&self, chain: &mut TableChain, page: PhysAddr) {
        self.tell(ProtocolStep::TakeOut { table: page });
        let tail = match chain.ends {
            None => page,
            Some((head, tail)) => {
                if let Some(first) = self.link_word(page) {
                    first.store(F::link(head));
                }
                tail
            }
        };
        chain.ends = Some((page, tail));
        chain.pages += 1;
    }

    /// Moves all pages of `from` to `into`.
    pub(super) fn join(&self, into: &mut TableChain, from: TableChain) {
        let Some((head, tail)) = from.ends else {
            return;
        };
        into.ends = match into.ends {
            None => Some((head, tail)),
            Some((old_head, old_tail)) => {
                if let Some(first) = self.link_word(tail) {
                    first.store(F::link(old_head));
                }
                Some((head, old_tail))
            }
        };
        into.pages += from.pages;
    }

    /// Gives back all pages of a chain, which left the tree and are quiet, or parks them.
    pub(crate) fn free_chain(&self, chain: &TableChain) {
        let Some((mut page, _)) = chain.ends else {
            return;
        };
        if self.looked(chain.pages) == Looked::AtNow {
            return self.park(chain);
        }
        for _ in 1..chain.pages {
            let raw = self.link_word(page).map_or(0, Word::load);
            self.give_back(page);
            page = F::unlink(raw);
        }
        self.give_back(page);
    }

    /// Gives a page back to its memory that left the tree, is quiet and is not counted any more.
    #[inline]
    pub(super) fn give_back(&self, page: PhysAddr) {
        self.tell(ProtocolStep::Free { table: page });
        self.mem.free(page, F::GRANULE);
    }
}
