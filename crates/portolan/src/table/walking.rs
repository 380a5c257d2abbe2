//! Walks through tables that other CPUs may take out of the tree meanwhile.
//!
//! Who maps or unmaps owns the range, and with it the tables on the way. Who merely looks does not: a
//! leaf table that it has just found may be unlinked, invalidated and reclaimed while it reads
//! there. So lookers are counted, and a page that would be given back while there is one is *parked*
//! until none is left. A walk that begins later cannot find the page, since it was unlinked before;
//! two fences, one on each side, see to that.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};

use super::PageTable;
use super::format::Format;
use crate::addr::PhysAddr;
use crate::inval::TableChain;
use crate::platform::{TableMem, Word};

/// Walks under way, and the pages that wait for their end.
#[derive(Debug, Default)]
pub(super) struct Walks {
    walking: AtomicUsize,
    /// The first parked page, as a link; the others are linked through their first words.
    parked: AtomicU64,
}

/// A walk under way: no table that it finds is given back.
pub(crate) struct Walking<'t, F: Format, M: TableMem<F::Word>>(&'t PageTable<F, M>);

/// Whether a walk is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Looked {
    ByNobody,
    AtNow,
}

impl<F: Format, M: TableMem<F::Word>> PageTable<F, M> {
    /// Begins a walk by somebody who may own nothing. It is to be short: no callback runs during it.
    #[inline]
    pub(crate) fn begin_walk(&self) -> Walking<'_, F, M> {
        self.walks.walking.fetch_add(1, Ordering::Relaxed);
        // Before anything is read: whoever does not see this walk has unlinked its pages before.
        fence(Ordering::SeqCst);
        Walking(self)
    }

    /// Whether a page that is unlinked by now may be read by a walk.
    #[inline]
    pub(super) fn looked(&self) -> Looked {
        fence(Ordering::SeqCst);
        match self.walks.walking.load(Ordering::Acquire) {
            0 => Looked::ByNobody,
            _ => Looked::AtNow,
        }
    }

    /// Parks the pages of a chain until no walk is under way.
    #[cold]
    pub(super) fn park(&self, chain: TableChain) {
        let Some((first, last)) = chain.ends else {
            return;
        };
        self.push(first, last);
        // The last walk may have ended before it could see them.
        if self.looked() == Looked::ByNobody {
            self.free_parked();
        }
    }

    /// Adds pages that are linked from `first` to `last`.
    fn push(&self, first: PhysAddr, last: PhysAddr) {
        let parked = &self.walks.parked;
        let mut head = parked.load(Ordering::Relaxed);
        loop {
            if let Some(word) = self.words(last).first() {
                word.store(head);
            }
            let link = F::link(first);
            let pushed =
                parked.compare_exchange_weak(head, link, Ordering::AcqRel, Ordering::Relaxed);
            match pushed {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Frees what is parked, unless a walk is under way whose end does that.
    #[cold]
    pub(super) fn free_parked(&self) {
        loop {
            let head = self.walks.parked.swap(0, Ordering::AcqRel);
            if head == 0 {
                return;
            }
            let first = F::unlink(head);
            if self.looked() == Looked::ByNobody {
                self.free_linked(first);
                return;
            }
            self.push(first, self.last_linked(first));
            if self.looked() == Looked::AtNow {
                return;
            }
        }
    }

    /// The page that follows `page` in a chain that ends with it, or goes on.
    fn linked(&self, page: PhysAddr) -> Option<PhysAddr> {
        let raw = self.words(page).first().map_or(0, Word::load);
        (raw != 0).then(|| F::unlink(raw))
    }

    fn last_linked(&self, first: PhysAddr) -> PhysAddr {
        let mut last = first;
        while let Some(next) = self.linked(last) {
            last = next;
        }
        last
    }

    fn free_linked(&self, first: PhysAddr) {
        let mut at = Some(first);
        while let Some(page) = at {
            at = self.linked(page);
            self.free_page(page);
        }
    }
}

impl<F: Format, M: TableMem<F::Word>> Drop for Walking<'_, F, M> {
    #[inline]
    fn drop(&mut self) {
        let walks = &self.0.walks;
        if walks.walking.fetch_sub(1, Ordering::Release) != 1 {
            return;
        }
        // Whoever parks afterwards sees that nobody walks.
        fence(Ordering::SeqCst);
        if walks.parked.load(Ordering::Relaxed) != 0 {
            self.0.free_parked();
        }
    }
}
