//! Dirty state: which pages a device wrote since the last dirty read.
//!
//! An unmap that returns the marks exchanges each leaf for nothing in one step: the hardware marks a leaf that is
//! there, or finds none. It writes leaf by leaf where another unmap takes whole tables out, since the hardware may
//! still walk into a table that has left.

use super::format::{DirtyTracking, Entry, Format};
use super::{DirtyError, PageTable, TableUnmapError, Walk};
use crate::addr::{IovaRange, PageSize};
use crate::inval::{Depth, Gather};
use crate::platform::{ProtocolStep, TableMem, Word};

impl<F: Format, M: TableMem<F::Word>> PageTable<F, M> {
    /// Hands every leaf in `range` that was written through to `visit`, and marks it clean; a leaf
    /// that `range` cuts is handed over whole, since its mark stands for all of it. Until the debt
    /// added to `gather` is paid, a write through a cached translation may go unmarked. Maps and
    /// unmaps of other CPUs meanwhile are seen or not; `visit` is called between walks.
    ///
    /// *Context.* Task: the time it takes grows with the range.
    ///
    /// # Errors
    /// If the format keeps no dirty state, or the range is too high.
    pub fn read_and_clear_dirty(
        &self,
        range: IovaRange,
        gather: &mut Gather,
        mut visit: impl FnMut(IovaRange),
    ) -> Result<(), DirtyError> {
        gather.claim(self.id)?;
        self.each_leaf(range, |leaf, size| {
            if self.clean_leaf(leaf, size, gather) {
                visit(leaf);
            }
        })
    }

    /// As [`PageTable::read_and_clear_dirty`], and leaves the marks: nothing is owed.
    ///
    /// *Context.* Task: the time it takes grows with the range.
    ///
    /// # Errors
    /// If the format keeps no dirty state, or the range is too high.
    pub fn read_dirty(
        &self,
        range: IovaRange,
        mut visit: impl FnMut(IovaRange),
    ) -> Result<(), DirtyError> {
        self.each_leaf(range, |leaf, _| {
            let found = {
                let _walking = self.begin_walk();
                self.entry_at(leaf.start())
            };
            if found.is_ok_and(|(raw, _)| self.format.is_dirty(raw)) {
                visit(leaf);
            }
        })
    }

    /// As [`PageTable::unmap`], and hands every leaf to `visit` that was written through since it was marked clean:
    /// no mark is set after that, and none is lost. Where the format keeps no dirty state, it hands over `range`.
    /// Marks that a read has cleared, and whose debt is not paid yet, may be missing.
    ///
    /// *Locking.* As [`PageTable::unmap`].
    ///
    /// *Context.* Task: one walk for each leaf. Takes no memory.
    ///
    /// # Errors
    /// See [`TableUnmapError`]; the table is as it was, and nothing was handed over.
    pub fn unmap_and_read_dirty(
        &self,
        range: IovaRange,
        gather: &mut Gather,
        mut visit: impl FnMut(IovaRange),
    ) -> Result<(), TableUnmapError> {
        if self.format.dirty_tracking() == DirtyTracking::Off {
            self.unmap(range, gather)?;
            visit(range);
            return Ok(());
        }
        gather.claim(self.id)?;
        self.check_ends(range)?;
        self.check(range)?;
        let (mut least, mut largest) = (PageSize::of_lg2(self.input_lg2), F::GRANULE);
        let mut at = Some(range.start());
        while let Some(iova) = at.filter(|&iova| iova <= range.last()) {
            let level = match self.walk(iova, 0) {
                Walk::At(..) => 0,
                Walk::Stopped { level, .. } => level,
            };
            let size = Self::span(level);
            let leaf = IovaRange::page(iova, size);
            if self.take_leaf(leaf, level, gather) {
                visit(leaf);
            }
            least = least.min(size);
            largest = largest.max(self.largest_leaf(level));
            at = leaf.last().checked_add(1);
        }
        gather.add_unmapped_mixed(range, least, largest, Depth::LeafOnly);
        if range.len_minus_one() >= Self::span(1).bytes() - 1 {
            // The caller owns the range, and with it the tables that it covers.
            self.prune(range, gather)?;
        }
        Ok(())
    }

    /// Hands over the leaves in `range`, each whole.
    fn each_leaf(
        &self,
        range: IovaRange,
        mut each: impl FnMut(IovaRange, PageSize),
    ) -> Result<(), DirtyError> {
        if self.format.dirty_tracking() == DirtyTracking::Off {
            return Err(DirtyError::NotTracked);
        }
        if range.last().get() >> self.input_lg2 != 0 {
            return Err(DirtyError::OutOfRange { range });
        }
        for run in self.mappings(range) {
            each(IovaRange::page(run.range.start(), run.size), run.size);
        }
        Ok(())
    }

    /// Marks one leaf clean; returns `true` if it was dirty.
    fn clean_leaf(&self, range: IovaRange, size: PageSize, gather: &mut Gather) -> bool {
        let _walking = self.begin_walk();
        let Ok((_, level)) = self.entry_at(range.start()) else {
            return false;
        };
        let Walk::At(word, table) = self.walk(range.start(), level) else {
            return false;
        };
        let mut raw = word.load();
        while self.format.is_dirty(raw) && matches!(F::classify(raw, level), Entry::Leaf(_)) {
            match word.compare_exchange(raw, self.format.cleaned(raw)) {
                Ok(_) => {
                    self.owe_lines(gather, table, self.index(range.start(), level), 1);
                    gather.add_unmapped(range, size, Depth::LeafOnly);
                    return true;
                }
                Err(now) => raw = now,
            }
        }
        false
    }

    /// Takes the leaf `leaf` of `level` out, which the caller owns; returns `true` if it was dirty, and of a block
    /// that is being split.
    fn take_leaf(&self, leaf: IovaRange, level: u32, gather: &mut Gather) -> bool {
        if let (0, Walk::At(entry, _)) = (level, self.walk(leaf.start(), 1)) {
            if entry.load() & F::FILLED != 0 {
                Self::mark(entry, false);
            }
        }
        let Walk::At(word, table) = self.walk(leaf.start(), level) else {
            return false;
        };
        let mut raw = word.load();
        while let Err(now) = word.compare_exchange(raw, 0) {
            raw = now;
        }
        self.tell(ProtocolStep::Clear { range: leaf });
        self.owe_lines(gather, table, self.index(leaf.start(), level), 1);
        match F::classify(raw, level) {
            Entry::Leaf(_) => self.format.is_dirty(raw),
            Entry::Broken(unused) => {
                self.detach(&mut gather.tables, unused);
                true
            }
            Entry::Table(_) | Entry::Empty => false,
        }
    }
}
