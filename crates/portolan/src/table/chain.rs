//! Reserved and detached table pages, linked through their first words: no heap, no bound.

use super::PageTable;
use super::format::Format;
use super::walking::Looked;
use crate::addr::PhysAddr;
use crate::inval::TableChain;
use crate::platform::{OutOfTableMemory, ProtocolStep, TableMem, Word};
use core::sync::atomic::Ordering;

/// Pages set aside before the first visible write.
pub(super) struct Reserve<'t, F: Format, M: TableMem<F::Word>> {
    table: &'t PageTable<F, M>,
    head: Option<PhysAddr>,
    /// Pages with any contents but for their links.
    unfilled: Option<PhysAddr>,
}

impl<'t, F: Format, M: TableMem<F::Word>> Reserve<'t, F, M> {
    /// No pages.
    pub(super) fn empty(table: &'t PageTable<F, M>) -> Self {
        Self { table, head: None, unfilled: None }
    }

    /// `pages` pages that are zeroed and `unfilled` with any contents, all or none.
    pub(super) fn of(
        table: &'t PageTable<F, M>,
        pages: u64,
        unfilled: u64,
    ) -> Result<Self, OutOfTableMemory> {
        let mut reserve = Self::empty(table);
        for _ in 0..unfilled {
            let page = table.mem.alloc_unfilled(F::GRANULE)?;
            table.pages.0.fetch_add(1, Ordering::Relaxed);
            if let Some(first) = table.words(page).first() {
                first.store(reserve.unfilled.map_or(0, F::link));
            }
            reserve.unfilled = Some(page);
        }
        for _ in 0..pages {
            let page = table.mem.alloc(F::GRANULE)?;
            table.pages.0.fetch_add(1, Ordering::Relaxed);
            reserve.push(page);
        }
        Ok(reserve)
    }

    fn push(&mut self, page: PhysAddr) {
        if let (Some(first), Some(head)) = (self.table.words(page).first(), self.head) {
            first.store(F::link(head));
        }
        self.head = Some(page);
    }

    /// A page, zeroed.
    pub(super) fn pop(&mut self) -> Option<PhysAddr> {
        let page = self.head?;
        let first = self.table.words(page).first()?;
        let raw = first.load();
        self.head = (raw != 0).then(|| F::unlink(raw));
        first.store(0);
        Some(page)
    }

    /// A page with any contents.
    pub(super) fn pop_unfilled(&mut self) -> Option<PhysAddr> {
        let page = self.unfilled?;
        let raw = self.table.words(page).first()?.load();
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
    /// Adds a page that left the tree. Its first word becomes a link that the hardware takes for an
    /// empty entry, so a walk that still comes by faults there at worst.
    pub(super) fn detach(&self, chain: &mut TableChain, page: PhysAddr) {
        self.tell(ProtocolStep::TakeOut { table: page });
        let tail = match chain.ends {
            None => page,
            Some((head, tail)) => {
                if let Some(first) = self.words(page).first() {
                    first.store(F::link(head));
                }
                tail
            }
        };
        if chain.ends.is_none() {
            if let Some(first) = self.words(page).first() {
                first.store(0);
            }
        }
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
                if let Some(first) = self.words(tail).first() {
                    first.store(F::link(old_head));
                }
                Some((head, old_tail))
            }
        };
        into.pages += from.pages;
    }

    /// Gives back all pages of a chain, which left the tree and are quiet, or parks them.
    pub(crate) fn free_chain(&self, chain: TableChain) {
        if chain.ends.is_some() && self.looked() == Looked::AtNow {
            return self.park(chain);
        }
        let mut next = chain.ends.map(|(head, _)| head);
        let mut freed = 0;
        while let Some(page) = next.filter(|_| freed < chain.pages) {
            let raw = self.words(page).first().map_or(0, Word::load);
            next = (raw != 0).then(|| F::unlink(raw));
            self.tell(ProtocolStep::Free { table: page });
            self.mem.free(page, F::GRANULE);
            freed += 1;
        }
        if freed > 0 {
            self.pages.0.fetch_sub(freed, Ordering::Relaxed);
        }
    }
}
