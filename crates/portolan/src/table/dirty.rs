//! Dirty state: which pages a device wrote since the last dirty read.
//!
//! An unmap that returns the marks exchanges each leaf for nothing in one step: the hardware marks a leaf that is
//! there, or finds none. It writes leaf by leaf where another unmap takes whole tables out, since the hardware may
//! still walk into a table that has left.
//!
//! A read walks once for each table, and hands over what it found when the walk has ended. What it cleaned is owed by
//! parts of 64 entries, from the first marked leaf of a part to the last.

use super::format::{DirtyTracking, Entry, Format};
use super::{DirtyError, PageTable, TableUnmapError, Walk};
use crate::addr::{Iova, IovaRange, PageSize, PhysAddr};
use crate::inval::{Depth, Gather};
use crate::platform::{ProtocolStep, TableMem, Word};

/// Entries that a walk looks at; it is a multiple of 64. Larger tables take several walks.
const AT_ONCE: usize = 512;

/// The marked leaves among neighbouring entries of a table.
struct MarkedLeaves {
    /// A bit for each entry.
    bits: [u64; AT_ONCE / 64],
    /// Addresses of the first entry.
    first: IovaRange,
    /// First address that was not looked at; none behind the last that there is.
    next: Option<Iova>,
}

impl MarkedLeaves {
    /// Addresses of `count` entries from the `n`-th on.
    fn leaves(&self, n: usize, count: usize) -> Option<IovaRange> {
        let bytes = self.first.len_minus_one() + 1;
        let start = self.first.start().checked_add(bytes * n as u64)?;
        IovaRange::from_len(start, bytes * count as u64)
    }

    fn each(&self, visit: &mut impl FnMut(IovaRange)) {
        for (&part, n) in self.bits.iter().zip((0..).step_by(64)) {
            let mut left = part;
            while left != 0 {
                if let Some(leaf) = self.leaves(n + left.trailing_zeros() as usize, 1) {
                    visit(leaf);
                }
                left &= left - 1;
            }
        }
    }

    /// Calls `each` for each part that has marks: the addresses from its first marked leaf to its last, the number of
    /// the first one, and how many these are.
    fn each_part(&self, mut each: impl FnMut(IovaRange, usize, usize)) {
        for (&part, n) in self.bits.iter().zip((0..).step_by(64)).filter(|(part, _)| **part != 0) {
            let first = part.trailing_zeros() as usize;
            let count = 64 - part.leading_zeros() as usize - first;
            if let Some(leaves) = self.leaves(n + first, count) {
                each(leaves, n + first, count);
            }
        }
    }
}

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
        self.each_marked(range, Some(gather), &mut visit)
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
        self.each_marked(range, None, &mut visit)
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

    /// Hands over the marked leaves in `range`, each whole, and marks them clean where `gather` takes the debt.
    fn each_marked(
        &self,
        range: IovaRange,
        mut gather: Option<&mut Gather>,
        visit: &mut impl FnMut(IovaRange),
    ) -> Result<(), DirtyError> {
        if self.format.dirty_tracking() == DirtyTracking::Off {
            return Err(DirtyError::NotTracked);
        }
        if range.last().get() >> self.input_lg2 != 0 {
            return Err(DirtyError::OutOfRange { range });
        }
        let mut at = Some(range.start());
        while let Some(iova) = at.filter(|&iova| iova <= range.last()) {
            let found = self.look_at_table(iova, range.last(), gather.as_deref_mut());
            found.each(visit);
            at = found.next;
        }
        Ok(())
    }

    /// Looks at the entries from `iova` on in the lowest table that it has, up to `last` or to one that leads to a
    /// further table.
    fn look_at_table(&self, iova: Iova, last: Iova, gather: Option<&mut Gather>) -> MarkedLeaves {
        let _walking = self.begin_walk();
        let (table, level) = self.lowest_table(iova);
        let size = Self::span(level);
        let first = IovaRange::page(iova, size);
        let index = self.index(iova, level);
        let wanted = ((last.get() - first.start().get()) >> size.lg2()).saturating_add(1);
        let wanted = usize::try_from(wanted).unwrap_or(usize::MAX).min(AT_ONCE);
        let (mut bits, mut looked) = ([0; AT_ONCE / 64], 0);
        for (word, looked_at) in self.words(table).iter().skip(index).take(wanted).zip(1..) {
            let raw = word.load();
            if level > 0 && matches!(F::classify(raw, level), Entry::Table(_)) {
                break;
            }
            if self.format.is_dirty(raw) && self.is_marked(word, raw, level, gather.is_some()) {
                bits[looked / 64] |= 1 << (looked % 64);
            }
            looked = looked_at;
        }
        let next = first.start().checked_add((looked as u64) << size.lg2());
        let found = MarkedLeaves { bits, first, next };
        if let Some(gather) = gather {
            found.each_part(|leaves, n, count| {
                self.owe_lines(gather, table, index + n, count);
                gather.add_unmapped(leaves, size, Depth::LeafOnly);
            });
        }
        found
    }

    /// The table with the last entry on the way to `iova`, and its level.
    fn lowest_table(&self, iova: Iova) -> (PhysAddr, u32) {
        let (mut table, mut level) = (self.root, self.levels - 1);
        while level > 0 {
            let raw = self.words(table).get(self.index(iova, level)).map_or(0, Word::load);
            let Entry::Table(next) = F::classify(raw, level) else {
                break;
            };
            (table, level) = (next, level - 1);
        }
        (table, level)
    }

    /// Tells if `word`, which held `raw`, is a marked leaf, and marks it clean if that is wanted.
    fn is_marked(&self, word: &F::Word, mut raw: u64, level: u32, clean: bool) -> bool {
        while self.format.is_dirty(raw) && matches!(F::classify(raw, level), Entry::Leaf(_)) {
            if !clean {
                return true;
            }
            match word.compare_exchange(raw, self.format.cleaned(raw)) {
                Ok(_) => return true,
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
