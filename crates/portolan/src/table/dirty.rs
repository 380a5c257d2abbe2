//! Dirty state: which pages a device wrote since the last dirty read.

use super::format::{DirtyTracking, Entry, Format};
use super::{DirtyError, PageTable, Walk};
use crate::addr::{IovaRange, PageSize};
use crate::inval::{Depth, Gather};
use crate::platform::{TableMem, Word};

impl<F: Format, M: TableMem<F::Word>> PageTable<F, M> {
    /// Hands every leaf in `range` that was written through to `visit`, and marks it clean; a leaf
    /// that `range` cuts is handed over whole, since its mark stands for all of it. Until the debt
    /// added to `gather` is paid, a write through a cached translation may go unmarked. Maps and
    /// unmaps of other CPUs meanwhile are seen or not; `visit` is called between walks.
    ///
    /// *Context.* Task: it looks at every leaf.
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
        if self.format.dirty_tracking() == DirtyTracking::Off {
            return Err(DirtyError::NotTracked);
        }
        if range.last().get() >> self.input_lg2 != 0 {
            return Err(DirtyError::OutOfRange { range });
        }
        for run in self.mappings(range) {
            let leaf = IovaRange::page(run.range.start(), run.size);
            if self.clean_leaf(leaf, run.size, gather) {
                visit(leaf);
            }
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
}
