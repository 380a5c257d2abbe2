//! Unmapping: check everything first, then clear what cannot fail. Takes no memory.

use core::sync::atomic::Ordering;

use super::format::{Entry, Format};
use super::{PageTable, UnmapError, Walk};
use crate::addr::{Iova, IovaRange, PageSize, PhysAddr};
use crate::inval::{Depth, Gather, Vacancy};
use crate::platform::{TableMem, Word};

/// What became of a leaf table when entries were taken out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Release {
    /// Others are in use.
    Kept,
    /// It was the last: the table is out of the tree until it is reclaimed or wanted again. The
    /// number of the event.
    Unlinked(u64),
}

impl<F: Format, M: TableMem<F::Word>> PageTable<F, M> {
    /// Unmaps `range`, all of which must be mapped. Where it begins or ends inside a block, that
    /// block has to be split before ([`PageTable::split`]). Tables that become empty leave the
    /// tree. Adds what is owed after an unmap to `gather`.
    ///
    /// *Locking.* None; no other CPU may map or unmap in the same range meanwhile.
    ///
    /// *Context.* Interrupt: takes no memory; the time it takes grows with the range.
    ///
    /// *Ordering.* A device may go on using the old translations until the debt is paid.
    ///
    /// # Errors
    /// See [`UnmapError`]; the table is as it was.
    #[inline]
    pub fn unmap(&self, range: IovaRange, gather: &mut Gather) -> Result<(), UnmapError> {
        gather.claim(self.id)?;
        let mask = F::GRANULE.bytes() - 1;
        if range.start().get() & mask != 0 || range.last().get() & mask != mask {
            return Err(UnmapError::Unaligned { range });
        }
        if range.last().get() >> self.format.input_lg2() != 0 {
            return Err(UnmapError::OutOfRange { range });
        }
        if IovaRange::page(range.start(), Self::span(1)).covers(range) {
            if let Walk::At(entry, parent) = self.walk(range.start(), 1) {
                if let Entry::Table(table) = F::classify(entry.load(), 1) {
                    let words = self.slot_words(table, range);
                    self.check_slot(entry, words, range)?;
                    let depth = self.clear_slot(entry, parent, (table, words), range, gather);
                    gather.add_unmapped(range, F::GRANULE, depth);
                    return Ok(());
                }
            }
        }
        self.unmap_pieces(range, gather)
    }

    #[cold]
    fn unmap_pieces(&self, range: IovaRange, gather: &mut Gather) -> Result<(), UnmapError> {
        self.check(range)?;
        let (mut leaf, mut largest) = (PageSize::of_lg2(self.format.input_lg2()), F::GRANULE);
        let mut depth = Depth::LeafOnly;
        let mut at = Some(range.start());
        while let Some(iova) = at.filter(|&iova| iova <= range.last()) {
            let (cleared, size, reached) = self.clear_at(iova, range, gather);
            leaf = leaf.min(size);
            largest = largest.max(size);
            if reached == Depth::AllLevels {
                depth = Depth::AllLevels;
            }
            if self.detach_upper(cleared.last(), range, gather) {
                depth = Depth::AllLevels;
            }
            at = cleared.last().checked_add(1);
        }
        gather.add_unmapped_mixed(range, (leaf, largest), depth);
        Ok(())
    }

    /// First pass: every address must be mapped, and no block cut.
    fn check(&self, range: IovaRange) -> Result<(), UnmapError> {
        let mut at = Some(range.start());
        while let Some(iova) = at.filter(|&iova| iova <= range.last()) {
            let (level, raw) = match self.walk(iova, 1) {
                Walk::At(entry, _) => {
                    let raw = entry.load();
                    if let Entry::Table(table) = F::classify(raw, 1) {
                        let slot = Self::slot_of(iova, range);
                        self.check_slot(entry, self.slot_words(table, slot), slot)?;
                        at = slot.last().checked_add(1);
                        continue;
                    }
                    (1, raw)
                }
                Walk::Stopped { level, raw } => (level, raw),
            };
            match F::classify(raw, level) {
                Entry::Leaf(_) | Entry::Broken(_) => {}
                _ => return Err(UnmapError::NotMapped { iova }),
            }
            let block = IovaRange::page(iova, Self::span(level));
            if !range.covers(block) {
                return Err(match F::classify(raw, level) {
                    Entry::Broken(_) => UnmapError::Splitting { block },
                    _ => UnmapError::NeedsSplit { block },
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

    /// The entries of `slot` in the leaf table.
    #[inline]
    fn slot_words(&self, table: PhysAddr, slot: IovaRange) -> &[F::Word] {
        let index = Self::index(slot.start(), 0);
        let count = slot.pages(F::GRANULE) as usize;
        self.words(table).get(index..index + count).unwrap_or(&[])
    }

    /// Whether all entries of `slot`, `words` in its leaf table, are in use.
    #[inline]
    fn check_slot(
        &self,
        entry: &F::Word,
        words: &[F::Word],
        slot: IovaRange,
    ) -> Result<(), UnmapError> {
        let count = slot.pages(F::GRANULE);
        let all = 1u64 << F::INDEX_LG2;
        if count == all && Self::counted() && u64::from(F::live(entry.load())) == all {
            return Ok(());
        }
        match words.iter().position(|word| word.load() == 0) {
            None => Ok(()),
            Some(hole) => {
                let offset = (hole as u64) << F::GRANULE.lg2();
                let iova = Iova::new(slot.start().get() + offset);
                Err(UnmapError::NotMapped { iova })
            }
        }
    }

    /// Takes the entries of `slot`, with their words, out of the leaf table behind `entry`.
    #[inline]
    fn clear_slot(
        &self,
        entry: &F::Word,
        parent: PhysAddr,
        (table, words): (PhysAddr, &[F::Word]),
        slot: IovaRange,
        gather: &mut Gather,
    ) -> Depth {
        let count = slot.pages(F::GRANULE);
        let at = Self::index(slot.start(), 1);
        if count == 1 << F::INDEX_LG2 {
            // The caller owns all that the table spans: nobody else is in it.
            entry.store(0);
            self.owe_lines(gather, parent, at, 1);
            self.detach(&mut gather.tables, table);
            return Depth::AllLevels;
        }
        let index = Self::index(slot.start(), 0);
        for word in words {
            word.store(0);
        }
        self.owe_lines(gather, table, index, count as usize);
        match self.release(entry, count as u32, gather) {
            Release::Kept => Depth::LeafOnly,
            Release::Unlinked(event) => {
                self.owe_lines(gather, parent, at, 1);
                let slot = slot.start().align_down(Self::span(1));
                // There was room when the table was unlinked, and the gather is ours alone.
                let _ = gather.unlinked.try_push(Vacancy { slot, event });
                Depth::AllLevels
            }
        }
    }

    /// Lowers the live count; unlinks the table with the last entry if the gather can remember it.
    #[inline]
    fn release(&self, entry: &F::Word, count: u32, gather: &Gather) -> Release {
        if !Self::counted() {
            return Release::Kept;
        }
        let mut raw = entry.load();
        let leaves = |left| left == 0 && !gather.unlinked.is_full() && !self.keeps_empty();
        while let Entry::Table(table) = F::classify(raw, 1) {
            let left = F::live(raw).saturating_sub(count);
            let (new, done) = if leaves(left) {
                let event = self.vacancies.fetch_add(1, Ordering::Relaxed);
                (F::unlinked(table, event), Release::Unlinked(event))
            } else {
                (Self::with_live(raw, left), Release::Kept)
            };
            match entry.compare_exchange(raw, new) {
                Ok(_) => return done,
                Err(now) => raw = now,
            }
        }
        Release::Kept
    }

    #[inline]
    fn keeps_empty(&self) -> bool {
        self.pages.load(Ordering::Relaxed) <= self.keep_empty.load(Ordering::Relaxed)
    }

    /// Clears the leaf or the part of a leaf table at `iova`; what that covered, with which leaves.
    fn clear_at(
        &self,
        iova: Iova,
        range: IovaRange,
        gather: &mut Gather,
    ) -> (IovaRange, PageSize, Depth) {
        let mut level = self.format.levels() - 1;
        let mut table = self.root;
        loop {
            let index = Self::index(iova, level);
            let Some(word) = self.words(table).get(index) else {
                return (range, F::GRANULE, Depth::AllLevels);
            };
            match F::classify(word.load(), level) {
                Entry::Table(next) if level == 1 => {
                    let slot = Self::slot_of(iova, range);
                    let words = self.slot_words(next, slot);
                    let depth = self.clear_slot(word, table, (next, words), slot, gather);
                    return (slot, F::GRANULE, depth);
                }
                Entry::Table(next) => table = next,
                entry => {
                    word.store(0);
                    self.owe_lines(gather, table, index, 1);
                    if let Entry::Broken(unused) = entry {
                        self.detach(&mut gather.tables, unused);
                    }
                    let size = Self::span(level);
                    return (IovaRange::page(iova, size), size, Depth::LeafOnly);
                }
            }
            level -= 1;
        }
    }

    /// Detaches the upper tables that end at `last` and lie in `range` whole, from below. They are
    /// empty by now, unless a leaf table in them still waits for an earlier debt: then they stay.
    fn detach_upper(&self, last: Iova, range: IovaRange, gather: &mut Gather) -> bool {
        let mut detached = false;
        for level in 1..self.format.levels() - 1 {
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
        self.owe_lines(gather, parent, Self::index(iova, level + 1), 1);
        self.detach(&mut gather.tables, table);
        true
    }
}
