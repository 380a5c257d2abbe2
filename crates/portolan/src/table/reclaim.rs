//! Giving table pages back once they are quiet, and pruning.

use core::sync::atomic::Ordering;

use thiserror::Error;

use super::format::{Entry, Format, TAG_BITS};
use super::walking::Looked;
use super::{PageTable, Walk};
use crate::addr::{Iova, IovaRange, PhysAddr};
use crate::inval::{Depth, Gather, Quiesced, TableChain, Vacancy, WrongTable};
use crate::platform::{TableMem, Word};

/// Table pages that were not given back, because the proof is one for another table.
#[derive(Debug, Error)]
#[error("the table pages were not given back: {error}")]
pub struct NotReclaimed {
    /// Tables that were mixed up.
    pub error: WrongTable,
    /// The proof, with the pages.
    pub quiesced: Quiesced,
}

impl<F: Format, M: TableMem<F::Word>> PageTable<F, M> {
    /// Frees the table pages of a debt that has been paid, or leaves that to walks of callers that
    /// merely look, if some are under way. An emptied leaf table that a map took back meanwhile
    /// stays, and one stays, empty, where many pages wait for walks already.
    ///
    /// *Context.* Interrupt, if the table memory's `free` may be called there.
    ///
    /// # Errors
    /// With the proof, if it is one for another table.
    #[inline]
    pub fn reclaim(&self, quiesced: Quiesced) -> Result<(), NotReclaimed> {
        if let Err(error) = quiesced.check(self.id) {
            return Err(NotReclaimed { error, quiesced });
        }
        self.take_in(quiesced.tables, &quiesced.unlinked);
        Ok(())
    }

    /// Frees tables that are quiet, of a debt that this table has just settled: a chain of them, and
    /// emptied leaf tables.
    ///
    /// *Context.* Interrupt, on the terms of [`PageTable::reclaim`].
    pub(crate) fn take_in(&self, tables: TableChain, unlinked: &[Vacancy]) {
        for &vacancy in unlinked {
            let Some((entry, parent, raw, table)) = self.still_vacated(vacancy) else {
                continue;
            };
            if self.has_parked_enough() && self.looked() == Looked::AtNow {
                self.link_again(entry, parent, vacancy.slot, raw, table);
            } else if entry.compare_exchange(raw, 0).is_ok() {
                self.give_back(table);
            }
        }
        self.free_chain(tables);
    }

    /// The entry of an emptied leaf table with its own table, value and target, if it is still out
    /// of use since that very event.
    ///
    /// A table may have been taken back and emptied again, and its later debt may be open: the tag
    /// tells the events apart. Where so many events have passed that it no longer can, the table
    /// is linked again, empty as it is, and left to a later unmap or prune. A CPU that is held up between
    /// this and its exchange, while others empty 2^17 tables or a multiple of that, the last of them this
    /// one, would still give it back before its time.
    fn still_vacated(&self, vacancy: Vacancy) -> Option<(&F::Word, PhysAddr, u64, PhysAddr)> {
        let Walk::At(entry, parent) = self.walk(vacancy.slot, 1) else {
            return None;
        };
        let raw = entry.load();
        let Entry::Unlinked(table) = F::classify(raw, 1) else {
            return None;
        };
        if F::tag(raw) != vacancy.event & ((1 << TAG_BITS) - 1) {
            return None;
        }
        let passed = self.vacancies.load(Ordering::Relaxed).wrapping_sub(vacancy.event);
        if passed > 1 << TAG_BITS {
            self.link_again(entry, parent, vacancy.slot, raw, table);
            return None;
        }
        Some((entry, parent, raw, table))
    }

    /// Links an emptied leaf table that nothing remembers any more.
    fn link_again(&self, entry: &F::Word, parent: PhysAddr, slot: Iova, raw: u64, table: PhysAddr) {
        if entry.compare_exchange(raw, F::table(table, 0, 1)).is_ok() {
            self.publish(parent, self.index(slot, 1));
        }
    }

    /// Detaches the empty tables that lie in `range` whole, which the caller must own. For tables
    /// that small unmaps leave behind: upper tables, and leaf tables of formats without live
    /// counts.
    ///
    /// Returns the number of tables detached; they come back through `gather`.
    ///
    /// *Context.* Task: looks at every entry of the tables in `range`.
    ///
    /// # Errors
    /// If `gather` is of another table.
    pub fn prune(&self, range: IovaRange, gather: &mut Gather) -> Result<usize, WrongTable> {
        gather.claim(self.id)?;
        let before = gather.tables.pages;
        let mut input = self.input_range();
        if let Some(inside) = input.intersection(range) {
            input = inside;
            self.prune_level(self.root, self.levels - 1, Iova::new(0), input, gather);
        }
        Ok(gather.tables.pages - before)
    }

    /// Detaches the table behind the entry of `level` for `iova`, and those below it, if they are empty.
    /// The caller owns all that it spans.
    pub(super) fn prune_below(&self, iova: Iova, level: u32, gather: &mut Gather) {
        let Walk::At(entry, parent) = self.walk(iova, level) else {
            return;
        };
        let raw = entry.load();
        let detached = match F::classify(raw, level) {
            Entry::Table(below) => {
                if level > 1 {
                    let spanned = IovaRange::page(iova, Self::span(level));
                    self.prune_level(below, level - 1, spanned.start(), spanned, gather);
                }
                self.detach_if_empty(iova, level - 1, gather)
            }
            // Its debt, which is another caller's, finds it gone.
            Entry::Unlinked(below) => {
                let taken = entry.compare_exchange(raw, 0).is_ok();
                if taken {
                    self.owe_lines(gather, parent, self.index(iova, level), 1);
                    self.detach(&mut gather.tables, below);
                }
                taken
            }
            Entry::Empty | Entry::Broken(_) | Entry::Leaf(_) => false,
        };
        if detached {
            let probe = IovaRange::page(iova, F::GRANULE);
            gather.add_unmapped(probe, F::GRANULE, Depth::AllLevels);
        }
    }

    /// Prunes below `table` of `level`, whose first address is `base`.
    fn prune_level(
        &self,
        table: PhysAddr,
        level: u32,
        base: Iova,
        range: IovaRange,
        gather: &mut Gather,
    ) {
        let span = Self::span(level);
        for (word, i) in self.words(table).iter().zip(0u64..) {
            let Entry::Table(below) = F::classify(word.load(), level) else {
                continue;
            };
            let spanned = IovaRange::page(Iova::new(base.get() + (i << span.lg2())), span);
            if !spanned.overlaps(range) {
                continue;
            }
            if level > 1 {
                self.prune_level(below, level - 1, spanned.start(), range, gather);
            }
            if range.covers(spanned) && self.detach_if_empty(spanned.start(), level - 1, gather) {
                let probe = IovaRange::page(spanned.start(), F::GRANULE);
                gather.add_unmapped(probe, F::GRANULE, Depth::AllLevels);
            }
        }
    }

    /// Moves the debt `other` into `into`; `other` is empty afterwards.
    ///
    /// *Context.* Interrupt.
    ///
    /// # Errors
    /// If one of them is of another table; both are as they were.
    pub fn absorb(&self, into: &mut Gather, other: &mut Gather) -> Result<(), WrongTable> {
        other.check(self.id)?;
        into.claim(self.id)?;
        let other = core::mem::take(other);
        into.add_spans(&other);
        for &lines in other.lines() {
            if let Some(full) = into.add_lines(lines) {
                self.mem.clean(full);
            }
        }
        self.join(&mut into.tables, other.tables);
        for &vacancy in &other.unlinked {
            if into.unlinked.try_push(vacancy).is_ok() {
                continue;
            }
            // The debt can remember no more: link the table again, empty as it is.
            if let Some((entry, parent, raw, table)) = self.still_vacated(vacancy) {
                self.link_again(entry, parent, vacancy.slot, raw, table);
            }
        }
        Ok(())
    }
}
