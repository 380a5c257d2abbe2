//! Walks through tables that other CPUs may take out of the tree meanwhile.
//!
//! A CPU that maps or unmaps owns the range, and with it the tables on the way. One that merely looks does
//! not: a leaf table that it has just found may be taken out, invalidated and reclaimed while it reads
//! there. So walks are counted, and a page that would be given back while there is one is *parked*.
//!
//! There are two counters, and each walk is counted in one of them, the *open* one as it finds it.
//! A parked page is given back once each of the two was seen to be zero, at any times: all walks
//! that could find it have ended by then. When the one that is not open is zero, the two change
//! roles: so there may always be a walk, as long as each of them ends (sleepable RCU's grace
//! periods, without a thread that waits). A walk that begins after a page was parked cannot find
//! it, since it was taken out before; two fences, one on each side, see to that.
//!
//! Pages that have nowhere to wait but here are parked without a bound. Where many are, those who look
//! for empty tables to take out find none ([`PageTable::next_empty_table`]).

use super::PageTable;
use super::format::Format;
use crate::addr::PhysAddr;
use crate::inval::TableChain;
use crate::platform::atomic::{AtomicU64, AtomicUsize, Ordering, fence, fence_after_exchange};
use crate::platform::{CachePadded, TableMem, Word};

/// Parked pages beyond which empty tables are left in the tree.
const ENOUGH: usize = 64;

/// Walks under way, and the pages that wait for their end. On lines of its own: walks write here,
/// and every map reads the data beside it.
#[derive(Default)]
pub(super) struct Walks(CachePadded<Counted>);

#[derive(Default)]
struct Counted {
    walking: [AtomicUsize; 2],
    /// The lowest bit says which counter is open.
    phase: AtomicUsize,
    /// Pages in all three lists.
    waiting: AtomicUsize,
    /// The first page that was parked since `first` was taken, as a link; the others are linked behind it.
    parked: AtomicU64,
    /// Pages that have seen neither counter at zero. Like `second`, its that advances.
    first: AtomicU64,
    /// Pages that have yet to see the counter at zero that is not open.
    second: AtomicU64,
    /// Number of requests to look at the lists since it was last zero: the caller that finds it
    /// zero advances for all.
    wanted: AtomicUsize,
}

impl Walks {
    /// Number of pages that are parked.
    pub(super) fn parked(&self) -> usize {
        self.0.0.waiting.load(Ordering::Relaxed)
    }
}

impl core::fmt::Debug for Walks {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Walks").field("waiting", &self.parked()).finish()
    }
}

impl Counted {
    /// Tells if no walk is counted there. Pages that are taken out before the fence that the caller
    /// has passed are found by no walk that is counted later.
    #[inline]
    fn is_over(&self, counter: usize) -> bool {
        self.walking[counter & 1].load(Ordering::Acquire) == 0
    }
}

/// A walk under way: no table that it finds is given back.
pub(crate) struct Walking<'t, F: Format, M: TableMem<F::Word>> {
    table: &'t PageTable<F, M>,
    counter: usize,
}

/// Presence of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Looked {
    NotNow,
    AtNow,
}

impl<F: Format, M: TableMem<F::Word>> PageTable<F, M> {
    /// Begins a walk by a caller that may own nothing. It is to be short: no callback runs during
    /// it.
    #[inline]
    pub(crate) fn begin_walk(&self) -> Walking<'_, F, M> {
        let walks = &self.walks.0.0;
        let counter = walks.phase.load(Ordering::Relaxed) & 1;
        walks.walking[counter].fetch_add(1, Ordering::Relaxed);
        // Before anything is read: a CPU that does not see this walk has taken its pages out before.
        fence_after_exchange();
        let table = self;
        Walking { table, counter }
    }

    /// Counts `pages` pages less that were taken out by now, and tells if they may be read by a walk.
    #[inline]
    pub(super) fn looked(&self, pages: usize) -> Looked {
        self.pages.0.fetch_sub(pages, Ordering::Relaxed);
        fence_after_exchange();
        let walks = &self.walks.0.0;
        match walks.is_over(0) && walks.is_over(1) {
            true => Looked::NotNow,
            false => Looked::AtNow,
        }
    }

    /// Tells if so many pages are parked that tables that can be left in the tree had better be.
    pub(super) fn has_parked_enough(&self) -> bool {
        self.walks.parked() >= ENOUGH
    }

    /// Parks the pages of a chain until the walks that may read them have ended.
    #[cold]
    pub(super) fn park(&self, chain: &TableChain) {
        let Some((first, last)) = chain.ends else {
            return;
        };
        let walks = &self.walks.0.0;
        // Before the list: the end of a walk looks here if there is one.
        walks.waiting.fetch_add(chain.pages, Ordering::Relaxed);
        let mut head = walks.parked.load(Ordering::Relaxed);
        loop {
            if let Some(word) = self.link_word(last) {
                word.store(head);
            }
            let link = F::link(first);
            let pushed = walks.parked.compare_exchange_weak(
                head,
                link,
                Ordering::Release,
                Ordering::Relaxed,
            );
            match pushed {
                Ok(_) => break,
                Err(now) => head = now,
            }
        }
        // The last walk may have ended before it could see them.
        self.give_back_parked();
    }

    /// Gives back the parked pages that no walk can read any more. One CPU at a time does, for all
    /// that want it meanwhile: the code that a handler has interrupted may be at it.
    #[cold]
    pub(super) fn give_back_parked(&self) {
        let walks = &self.walks.0.0;
        // After what the caller parked: the CPU that finds this request finds the page.
        if walks.wanted.fetch_add(1, Ordering::Release) != 0 {
            return;
        }
        let mut seen = 1;
        loop {
            self.advance();
            let done = walks.wanted.compare_exchange(seen, 0, Ordering::Relaxed, Ordering::Relaxed);
            match done {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }

    /// Moves pages from list to list, as far as the counters let them. The caller alone does.
    fn advance(&self) {
        let walks = &self.walks.0.0;
        loop {
            // After all that was parked before, and before the counters are read.
            fence(Ordering::SeqCst);
            let closed = walks.phase.load(Ordering::Relaxed) + 1;
            if !walks.is_over(closed) {
                return;
            }
            let seen_both = walks.second.swap(0, Ordering::Relaxed);
            if seen_both != 0 {
                let freed = self.free_linked(F::unlink(seen_both));
                walks.waiting.fetch_sub(freed, Ordering::Relaxed);
            }
            let seen_one = walks.first.swap(0, Ordering::Relaxed);
            if seen_one != 0 {
                // Walks are counted in the other one from now on, and this one's come to an end.
                walks.second.store(seen_one, Ordering::Relaxed);
                walks.phase.store(closed & 1, Ordering::Relaxed);
                continue;
            }
            let parked = walks.parked.swap(0, Ordering::Relaxed);
            if parked == 0 {
                return;
            }
            walks.first.store(parked, Ordering::Relaxed);
        }
    }

    /// The page that follows `page` in a chain that ends with it, or goes on.
    fn linked(&self, page: PhysAddr) -> Option<PhysAddr> {
        let raw = self.link_word(page).map_or(0, Word::load);
        (raw != 0).then(|| F::unlink(raw))
    }

    /// Frees the pages from `first` on; their number.
    fn free_linked(&self, first: PhysAddr) -> usize {
        let mut freed = 0;
        let mut at = Some(first);
        while let Some(page) = at {
            at = self.linked(page);
            self.give_back(page);
            freed += 1;
        }
        freed
    }
}

impl<F: Format, M: TableMem<F::Word>> Drop for Walking<'_, F, M> {
    #[inline]
    fn drop(&mut self) {
        let walks = &self.table.walks.0.0;
        if walks.walking[self.counter].fetch_sub(1, Ordering::Release) != 1 {
            return;
        }
        // A CPU that parks afterwards sees that this walk is over.
        fence_after_exchange();
        if walks.waiting.load(Ordering::Relaxed) != 0 {
            self.table.give_back_parked();
        }
    }
}
