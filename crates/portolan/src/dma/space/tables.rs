//! Tables without entries: some stay in the tree, and the others go once no address in them is out.
//!
//! Maps and unmaps count nothing, so that CPUs which work in one leaf table write no line in common.
//! When there are more table pages than may stay, a look at the tables finds the empty ones. One that
//! is found empty may be about to get an entry: another CPU has addresses there and is on its way. So
//! the space first takes all addresses that the table spans from its allocator, as if it were to map
//! them: then no mapping has any of them or gets one, and none waits for its invalidation. They go
//! back once the walk caches are invalidated, since a device may still walk through the old table
//! until then, and would not find what is mapped in a new one.
//!
//! *Bound.* After ticks that have looked at all tables, while nothing was mapped or unmapped, a space has
//! at most [`SpaceOptions::keep_tables`](super::SpaceOptions::keep_tables) table pages more than hold
//! entries. A table at an end of the window, which spans addresses beyond it, stays.

use arrayvec::ArrayVec;
use core::sync::atomic::Ordering;

use super::DmaSpace;
use crate::addr::IovaRange;
use crate::dma::error::UnmapError;
use crate::dma::flush_queue::{Chosen, HeldRange};
use crate::inval::Gather;
use crate::platform::{Cpus, ProtocolStep, SharedWord};

/// Table pages that one tick looks at, on average: where there are more, fewer ticks look at all.
const LOOKED_AT: u64 = 1024;

/// Most looks at all tables in a row: for each level one, before and after CPUs have given their
/// addresses back. Other CPUs may empty tables all the time.
const LOOKS: usize = 12;

/// Ranges that are taken for one invalidation; tables next to each other have one.
const RANGES: usize = 16;

/// Number of table pages that may stay, and the time of the next look.
#[derive(Debug)]
pub(super) struct TablesThatStay<W> {
    keep: usize,
    /// Ticks since the last look, times [`LOOKED_AT`].
    credit: W,
}

impl<W: SharedWord> TablesThatStay<W> {
    pub(super) fn new(keep: usize) -> Self {
        Self { keep, credit: W::new(0) }
    }

    /// Tells if this tick looks at `pages` table pages. Of two ticks at once, both may.
    fn is_due(&self, pages: usize) -> bool {
        let credit = self.credit.load(Ordering::Relaxed).saturating_add(LOOKED_AT);
        let due = credit >= pages as u64;
        self.credit.store(if due { 0 } else { credit }, Ordering::Relaxed);
        due
    }
}

/// Addresses of empty tables that were taken from the allocator, and the debt of the tables.
#[derive(Default)]
struct TakenTables {
    ranges: ArrayVec<IovaRange, RANGES>,
    owed: Gather,
    tables: usize,
}

impl TakenTables {
    /// Adds a range, for which there is room.
    fn add(&mut self, range: IovaRange, tables: usize) {
        self.tables += tables;
        match self.ranges.last_mut() {
            Some(below) if below.last().checked_add(1) == Some(range.start()) => {
                *below = below.hull(range);
            }
            _ => self.ranges.push(range),
        }
    }
}

/// Results of a look at all tables of a space.
#[derive(Default)]
struct EmptyTables {
    given_back: usize,
    /// Those of which an address is out or in a cache.
    in_use: usize,
}

impl<P: Cpus + Clone> DmaSpace<P> {
    /// Gives table pages back if there are more than may stay, unless the space is broken.
    pub(super) fn tick_tables(&self) -> Result<(), UnmapError> {
        let pages = self.domain.table_pages();
        if pages <= self.tables.keep || self.failure().is_some() || !self.tables.is_due(pages) {
            return Ok(());
        }
        self.give_back_tables(self.tables.keep)
    }

    /// Takes empty tables out until there are no more than `keep` table pages, and gives them back.
    #[cold]
    pub(super) fn give_back_tables(&self, keep: usize) -> Result<(), UnmapError> {
        let mut trimmed = false;
        // The tables above those that have left may be empty then.
        for _ in 0..LOOKS {
            let found = self.give_back_once(keep)?;
            if found.given_back > 0 {
                continue;
            }
            if trimmed || found.in_use <= keep {
                break;
            }
            self.iova.trim_all();
            trimmed = true;
        }
        Ok(())
    }

    /// Looks at all tables once.
    fn give_back_once(&self, keep: usize) -> Result<EmptyTables, UnmapError> {
        let window = self.iova.window();
        let (mut found, mut taken) = (EmptyTables::default(), TakenTables::default());
        let mut surplus = self.domain.table_pages().saturating_sub(keep);
        let mut next = Some(window.start());
        while let Some(from) = next.filter(|_| surplus > 0) {
            let Some(range) = self.domain.next_empty_table(from) else {
                break;
            };
            next = range.last().checked_add(1);
            if !window.covers(range) {
                continue;
            }
            if self.iova.take_free(range).is_err() {
                found.in_use += 1;
                continue;
            }
            self.tell(ProtocolStep::Take { range });
            // The debt is of this domain.
            let tables = self.domain.prune(range, &mut taken.owed).unwrap_or(0);
            surplus = surplus.saturating_sub(tables);
            taken.add(range, tables);
            if taken.ranges.is_full() {
                found.given_back += self.pay_for_tables(core::mem::take(&mut taken))?;
            }
        }
        found.given_back += self.pay_for_tables(taken)?;
        Ok(found)
    }

    /// Pays for tables that were taken out, and gives their addresses back; returns their number. If the
    /// hardware fails, the addresses stay out of use until it has made them quiet.
    fn pay_for_tables(&self, mut taken: TakenTables) -> Result<usize, UnmapError> {
        if taken.ranges.is_empty() {
            return Ok(0);
        }
        match self.pay_rarely(&mut taken.owed, None) {
            Ok(flushed) => {
                for range in taken.ranges {
                    self.give_back_chosen(range, &flushed);
                }
                Ok(taken.tables)
            }
            Err(error) => {
                let ticket = self.owe(taken.owed);
                for range in taken.ranges {
                    let chosen = Chosen::Caller;
                    self.hold_until_quiet(HeldRange { ticket, range, chosen });
                }
                self.fail_by(error);
                Err(error)
            }
        }
    }
}
