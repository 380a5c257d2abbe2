//! Giving table pages back once they are quiet, and pruning.

use thiserror::Error;

use super::format::{Entry, Format};
use super::{PageTable, Walk};
use crate::addr::{Iova, IovaRange, PhysAddr};
use crate::inval::{Depth, Gather, Quiesced, WrongTable};
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

/// Result of a look for a table without entries.
enum EmptyTable {
    /// All that it spans.
    Found(IovaRange),
    /// There is none before this address; or none at all.
    NoneBefore(Option<Iova>),
}

impl<F: Format, M: TableMem<F::Word>> PageTable<F, M> {
    /// Frees the table pages of a debt that has been paid, or leaves that to walks of callers that
    /// merely look, if some are under way.
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
        self.free_chain(&quiesced.tables);
        Ok(())
    }

    /// The range of the first table at or after `from` that has no entries: all that it spans. It may
    /// have some by the time that the caller knows. A table of empty tables comes once those were
    /// pruned. While many pages wait for walks to end, there is none to take out.
    ///
    /// *Context.* Task: looks at the entries of all tables on the way.
    pub fn next_empty_table(&self, from: Iova) -> Option<IovaRange> {
        let last = self.input_range().last();
        let mut next = Some(from).filter(|_| !self.has_parked_enough());
        while let Some(iova) = next.filter(|iova| *iova <= last) {
            match self.look_for_empty(iova) {
                EmptyTable::Found(range) => return Some(range),
                EmptyTable::NoneBefore(after) => next = after,
            }
        }
        None
    }

    /// Goes down from the root for `iova`, to a table without entries or to an entry that says where to
    /// go on.
    fn look_for_empty(&self, iova: Iova) -> EmptyTable {
        let _walking = self.begin_walk();
        let (mut table, mut level) = (self.root, self.levels - 1);
        loop {
            let words = self.words(table);
            let spanned = IovaRange::page(iova, Self::span(level + 1));
            let index = self.index(iova, level);
            let raw = words.get(index).map_or(0, Word::load);
            match F::classify(raw, level) {
                Entry::Table(below) if level > 0 => {
                    (table, level) = (below, level - 1);
                    continue;
                }
                _ if table != self.root && words.iter().all(|word| word.load() == 0) => {
                    return EmptyTable::Found(spanned);
                }
                _ => {}
            }
            let after = match level {
                // Of a leaf table, one entry in use is enough.
                0 => None,
                _ => words.iter().skip(index + 1).position(|word| word.load() != 0),
            };
            let entry = IovaRange::page(iova, Self::span(level));
            return EmptyTable::NoneBefore(match after {
                Some(between) => {
                    let bytes = (between as u64 + 1) << Self::span(level).lg2();
                    entry.start().checked_add(bytes)
                }
                None if table == self.root && level > 0 => None,
                None => spanned.last().checked_add(1),
            });
        }
    }

    /// Detaches the empty tables that lie in `range` whole, which the caller must own. For tables
    /// that unmaps of less than they span leave behind.
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
        let Walk::At(entry, _) = self.walk(iova, level) else {
            return;
        };
        let Entry::Table(below) = F::classify(entry.load(), level) else {
            return;
        };
        if level > 1 {
            let spanned = IovaRange::page(iova, Self::span(level));
            self.prune_level(below, level - 1, spanned.start(), spanned, gather);
        }
        if self.detach_if_empty(iova, level - 1, gather) {
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
        Ok(())
    }
}
