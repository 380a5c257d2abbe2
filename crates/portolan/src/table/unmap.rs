//! Unmapping: check everything first, then make the clears that cannot fail. Takes no memory.

use super::format::{Entry, Format};
use super::{PageTable, TableUnmapError, Walk, words};
use crate::addr::{Iova, IovaRange, PageSize, PhysAddr};
use crate::inval::{Depth, Gather};
use crate::platform::{ProtocolStep, TableMem, Word};

/// The entry that points at a leaf table, and the table that it is in.
type Found<'t, W> = (&'t W, PhysAddr);

/// A part of a leaf table.
struct FoundSlot<'t, W> {
    found: Found<'t, W>,
    /// Value of the entry when it was found.
    raw: u64,
    table: PhysAddr,
    /// The entries of the part.
    words: &'t [W],
    /// Addresses that they translate.
    range: IovaRange,
}

impl<F: Format, M: TableMem<F::Word>> PageTable<F, M> {
    /// Unmaps `range`, all of which must be mapped. Where it begins or ends inside a block, that
    /// block has to be split before ([`PageTable::split`]). Tables of which `range` covers all that
    /// they span leave the tree. Adds the debt of an unmap to `gather`.
    ///
    /// *Locking.* None; no other CPU may map or unmap in the same range meanwhile.
    ///
    /// *Context.* Interrupt: takes no memory; the time it takes grows with the range.
    ///
    /// *Ordering.* A device may go on using the old translations until the debt is paid.
    ///
    /// # Errors
    /// See [`TableUnmapError`]; the table is as it was.
    #[inline]
    pub fn unmap(&self, range: IovaRange, gather: &mut Gather) -> Result<(), TableUnmapError> {
        gather.claim(self.id)?;
        self.check_ends(range)?;
        let mask = F::GRANULE.bytes() - 1;
        let differ = range.start().get() ^ range.last().get();
        if differ >> Self::span(1).lg2() == 0 {
            if let Walk::At(entry, parent) = self.walk_inline(range.start(), 1) {
                let raw = entry.load();
                if let (0, Entry::Table(table)) = (differ & !mask, F::classify(raw, 1)) {
                    return self.unmap_page(entry, raw, table, range, gather);
                }
                return self.unmap_in_slot((entry, parent), range, gather);
            }
        }
        self.unmap_many(range, gather)
    }

    /// Checks that `range` is whole granules that the table can translate.
    #[inline(always)]
    pub(super) fn check_ends(&self, range: IovaRange) -> Result<(), TableUnmapError> {
        let mask = F::GRANULE.bytes() - 1;
        if range.start().get() & mask != 0 || range.last().get() & mask != mask {
            return Err(TableUnmapError::Unaligned { range });
        }
        if range.last().get() >> self.input_lg2 != 0 {
            return Err(TableUnmapError::OutOfRange { range });
        }
        Ok(())
    }

    /// Unmaps `range`, which lies in what the entry `found` spans.
    #[inline(never)]
    fn unmap_in_slot(
        &self,
        found: Found<'_, F::Word>,
        range: IovaRange,
        gather: &mut Gather,
    ) -> Result<(), TableUnmapError> {
        let Some(slot) = self.leaf_slot(found, found.0.load(), range) else {
            return self.unmap_many(range, gather);
        };
        self.check_slot(&slot)?;
        let depth = self.clear_slot(&slot, gather);
        gather.add_unmapped_mixed(range, F::GRANULE, self.largest_leaf(0), depth);
        Ok(())
    }

    #[inline(never)]
    fn unmap_many(&self, range: IovaRange, gather: &mut Gather) -> Result<(), TableUnmapError> {
        match self.unmap_tables(range, gather) {
            true => Ok(()),
            false => self.unmap_pieces(range, gather),
        }
    }

    /// Unmaps one page of the leaf table `table`, behind an entry with its value. In line despite its
    /// length, as all of this way: the calls would cost a fifth of it.
    #[inline(always)]
    fn unmap_page(
        &self,
        entry: &F::Word,
        raw: u64,
        table: PhysAddr,
        range: IovaRange,
        gather: &mut Gather,
    ) -> Result<(), TableUnmapError> {
        let iova = range.start();
        let index = self.index(iova, 0);
        let word = self.words(table).get(index);
        let word = word.filter(|word| word.load() != 0);
        let word = word.ok_or(TableUnmapError::NotMapped { iova })?;
        if F::CLUSTER_LG2 > 0 {
            Self::check_cluster(word.load(), iova, range)?;
        }
        if raw & F::FILLED != 0 {
            Self::mark(entry, false);
        }
        word.store(0);
        self.tell(ProtocolStep::Clear { range });
        self.owe_lines(gather, table, index, 1);
        gather.add_unmapped(range, F::GRANULE, Depth::LeafOnly);
        Ok(())
    }

    /// Unmaps `range` if that is exactly the range of whole leaf tables behind one table, and all of
    /// them are marked as full: the tables are neither walked to one by one nor looked into. Returns
    /// `true` in that case.
    fn unmap_tables(&self, range: IovaRange, gather: &mut Gather) -> bool {
        let (start, last) = (range.start().get(), range.last().get());
        let inside = Self::span(1).bytes() - 1;
        let whole = start & inside == 0 && last & inside == inside;
        if !whole || (start ^ last) >> Self::span(2).lg2() != 0 || F::FILLED == 0 {
            return false;
        }
        let Walk::At(_, parent) = self.walk(range.start(), 1) else {
            return false;
        };
        let (at, count) = (self.index(range.start(), 1), range.pages(Self::span(1)) as usize);
        let Some(entries) = self.words(parent).get(at..at + count) else {
            return false;
        };
        if !entries.iter().all(|entry| Self::is_filled(entry.load())) {
            return false;
        }
        self.tell(ProtocolStep::Clear { range });
        for entry in entries {
            if let Entry::Table(table) = F::classify(entry.load(), 1) {
                entry.store(0);
                self.detach(&mut gather.tables, table);
            }
        }
        self.owe_lines(gather, parent, at, count);
        self.detach_upper(range.last(), range, gather);
        gather.add_unmapped_mixed(range, F::GRANULE, self.largest_leaf(0), Depth::AllLevels);
        true
    }

    #[cold]
    fn unmap_pieces(&self, range: IovaRange, gather: &mut Gather) -> Result<(), TableUnmapError> {
        self.check(range)?;
        let (mut leaf, mut largest) = (PageSize::of_lg2(self.input_lg2), F::GRANULE);
        let mut depth = Depth::LeafOnly;
        let mut at = Some(range.start());
        while let Some(iova) = at.filter(|&iova| iova <= range.last()) {
            let (cleared, level, reached) = self.clear_at(iova, range, gather);
            leaf = leaf.min(Self::span(level));
            largest = largest.max(self.largest_leaf(level));
            if reached == Depth::AllLevels {
                depth = Depth::AllLevels;
            }
            if self.detach_upper(cleared.last(), range, gather) {
                depth = Depth::AllLevels;
            }
            at = cleared.last().checked_add(1);
        }
        gather.add_unmapped_mixed(range, leaf, largest, depth);
        Ok(())
    }

    /// First pass: every address must be mapped, and no block cut.
    pub(super) fn check(&self, range: IovaRange) -> Result<(), TableUnmapError> {
        let mut at = Some(range.start());
        while let Some(iova) = at.filter(|&iova| iova <= range.last()) {
            let (level, raw) = match self.walk(iova, 1) {
                Walk::At(entry, parent) => {
                    let raw = entry.load();
                    let part = Self::slot_of(iova, range);
                    if let Some(slot) = self.leaf_slot((entry, parent), raw, part) {
                        self.check_slot(&slot)?;
                        at = part.last().checked_add(1);
                        continue;
                    }
                    (1, raw)
                }
                Walk::Stopped { level, raw } => (level, raw),
            };
            let lg2 = match F::classify(raw, level) {
                Entry::Leaf(_) => F::leaf_lg2(raw, level),
                Entry::Broken(_) => Self::span(level).lg2(),
                _ => return Err(TableUnmapError::NotMapped { iova }),
            };
            let block = IovaRange::page(iova, PageSize::of_lg2(lg2));
            if !range.covers(block) {
                return Err(match F::classify(raw, level) {
                    Entry::Broken(_) => TableUnmapError::Splitting { block },
                    _ => TableUnmapError::NeedsSplit { block },
                });
            }
            at = block.last().checked_add(1);
        }
        Ok(())
    }

    fn slot_of(iova: Iova, range: IovaRange) -> IovaRange {
        let slot = IovaRange::page(iova, Self::span(1));
        IovaRange::new(iova, slot.last().min(range.last())).unwrap_or(slot)
    }

    /// The part `range` of the leaf table behind `entry`, in the table `parent`; `None` if `raw`,
    /// the entry's value, is no table.
    #[inline]
    fn leaf_slot<'t>(
        &'t self,
        found: Found<'t, F::Word>,
        raw: u64,
        range: IovaRange,
    ) -> Option<FoundSlot<'t, F::Word>> {
        let Entry::Table(table) = F::classify(raw, 1) else {
            return None;
        };
        let index = self.index(range.start(), 0);
        let count = (range.len_minus_one() >> F::GRANULE.lg2()) as usize + 1;
        let words = self.words(table).get(index..index + count).unwrap_or(&[]);
        Some(FoundSlot { found, raw, table, words, range })
    }

    /// Tells if the entry `raw` points at a leaf table that is marked as full.
    #[inline]
    fn is_filled(raw: u64) -> bool {
        raw & F::FILLED != 0 && matches!(F::classify(raw, 1), Entry::Table(_))
    }

    /// Checks that all entries of `slot` are in use.
    #[inline(always)]
    fn check_slot(&self, slot: &FoundSlot<'_, F::Word>) -> Result<(), TableUnmapError> {
        if slot.words.len() == 1 << F::INDEX_LG2 && Self::is_filled(slot.raw) {
            return Ok(());
        }
        match words::first_empty(slot.words) {
            None => Self::check_clusters(slot.words, slot.range),
            Some(hole) => {
                let offset = (hole as u64) << F::GRANULE.lg2();
                let iova = Iova::new(slot.range.start().get() + offset);
                Err(TableUnmapError::NotMapped { iova })
            }
        }
    }

    /// Takes the entries of `slot` out. In line: the loop, which the entries of a part take, is a call.
    #[inline(always)]
    fn clear_slot(&self, slot: &FoundSlot<'_, F::Word>, gather: &mut Gather) -> Depth {
        let count = slot.words.len();
        if count == 1 << F::INDEX_LG2 {
            // The caller owns all that the table spans: no other is in it.
            slot.found.0.store(0);
            self.tell(ProtocolStep::Clear { range: slot.range });
            let at = self.index(slot.range.start(), 1);
            self.owe_lines(gather, slot.found.1, at, 1);
            self.detach(&mut gather.tables, slot.table);
            return Depth::AllLevels;
        }
        if slot.raw & F::FILLED != 0 {
            Self::mark(slot.found.0, false);
        }
        words::clear(slot.words);
        self.tell(ProtocolStep::Clear { range: slot.range });
        let index = self.index(slot.range.start(), 0);
        self.owe_lines(gather, slot.table, index, count);
        Depth::LeafOnly
    }

    /// Clears the leaf or the part of a leaf table at `iova`; returns the range that it covered,
    /// its level, and the depth of its debt.
    fn clear_at(
        &self,
        iova: Iova,
        range: IovaRange,
        gather: &mut Gather,
    ) -> (IovaRange, u32, Depth) {
        let mut level = self.levels - 1;
        let mut table = self.root;
        loop {
            let index = self.index(iova, level);
            let Some(word) = self.words(table).get(index) else {
                return (range, 0, Depth::AllLevels);
            };
            let raw = word.load();
            if level == 1 {
                let part = Self::slot_of(iova, range);
                if let Some(slot) = self.leaf_slot((word, table), raw, part) {
                    let depth = self.clear_slot(&slot, gather);
                    return (part, 0, depth);
                }
            }
            match F::classify(raw, level) {
                Entry::Table(next) => table = next,
                entry => {
                    word.store(0);
                    let range = IovaRange::page(iova, Self::span(level));
                    self.tell(ProtocolStep::Clear { range });
                    self.owe_lines(gather, table, index, 1);
                    if let Entry::Broken(unused) = entry {
                        self.detach(&mut gather.tables, unused);
                    }
                    return (range, level, Depth::LeafOnly);
                }
            }
            level -= 1;
        }
    }

    /// Detaches the upper tables that end at `last` and lie in `range` whole, from below. They are
    /// empty by now.
    fn detach_upper(&self, last: Iova, range: IovaRange, gather: &mut Gather) -> bool {
        let mut detached = false;
        for level in 1..self.levels - 1 {
            let spanned = IovaRange::page(last, Self::span(level + 1));
            if spanned.last() != last || !range.covers(spanned) {
                break;
            }
            // Where a block was, there is no table to detach, but there may be one above.
            detached |= self.detach_if_empty(spanned.start(), level, gather);
        }
        detached
    }

    /// Detaches the table of `level` that spans `iova` if it has no entries. The caller owns all
    /// that it spans.
    pub(super) fn detach_if_empty(&self, iova: Iova, level: u32, gather: &mut Gather) -> bool {
        let Walk::At(entry, parent) = self.walk(iova, level + 1) else {
            return false;
        };
        let Entry::Table(table) = F::classify(entry.load(), level + 1) else {
            return false;
        };
        if self.words(table).iter().any(|word| word.load() != 0) {
            return false;
        }
        entry.store(0);
        self.owe_lines(gather, parent, self.index(iova, level + 1), 1);
        self.detach(&mut gather.tables, table);
        true
    }
}
