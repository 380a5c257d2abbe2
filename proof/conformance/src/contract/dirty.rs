//! Dirty state: which leaves were written through, and a typed error where the format has none.

use std::collections::BTreeSet;

use portolan::addr::{Iova, IovaRange};
use portolan::platform::{TableMem, Word};
use portolan::table::format::{DirtyTracking, Format};
use portolan::table::{Access, DirtyError};
use portolan_sim::decode::Decoded;

use super::ground::{BOTH, Ground, range};

impl<F: Format> Ground<'_, F> {
    pub(super) fn dirty(&mut self) {
        let on = self.format().dirty_tracking() == DirtyTracking::Hardware;
        match self.subject.name.dirty_mark().filter(|_| on) {
            Some(mark) => {
                self.marks(mark);
                self.marks_of_a_cut_block(mark);
                self.mark_seen_in_part(mark);
                self.marks_returned(mark);
            }
            None => {
                let granule = F::GRANULE.bytes();
                self.map(0, granule, granule, BOTH);
                let all = self.subject.table.input_range();
                let error =
                    self.refused(|s| s.table.read_and_clear_dirty(all, &mut s.owed, |_| ()));
                assert_eq!(error, DirtyError::NotTracked);
                let error = self.refused(|s| s.table.read_dirty(all, |_| ()));
                assert_eq!(error, DirtyError::NotTracked);
                let page = range(0, granule);
                assert_eq!(self.unmap_and_read_dirty(page), [page], "it may have been written");
                self.subject.settle();
            }
        }
    }

    /// Every second leaf of a row is written to.
    fn marks(&mut self, mark: (u64, u64)) {
        for leaf in self.leaves() {
            let size = leaf.size.bytes();
            for at in self.places(leaf, 6) {
                for page in 0..6 {
                    let access = if page < 4 { BOTH } else { Access::READ };
                    // CachePadded in memory, so that they stay leaves of this size.
                    self.map(at + page * size, (12 + 2 * page) * size, size, access);
                }
                assert_eq!(
                    self.read_and_clear_dirty(range(at, 6 * size)),
                    [],
                    "new leaves are clean"
                );
                let written = [range(at + size, size), range(at + 3 * size, size)];
                for page in written {
                    self.write(page.start(), mark);
                }
                self.subject.audit_open();
                self.subject.settle();
                assert_eq!(
                    self.read_and_clear_dirty(range(at, size)),
                    [],
                    "next to what was written"
                );
                for _ in 0..2 {
                    assert_eq!(self.read_dirty(range(at, 6 * size)), written, "marks stay");
                    assert!(self.subject.owed.is_empty(), "a look owes nothing");
                }
                assert_eq!(self.read_and_clear_dirty(range(at, 6 * size)), written);
                for page in written {
                    let owed = self.subject.owed.unmapped();
                    assert!(owed.iter().any(|span| span.range.covers(page)), "{owed:?}");
                }
                self.subject.audit_open();
                assert_eq!(self.read_and_clear_dirty(range(at, 6 * size)), [], "the second time");
                self.write(written[0].start(), mark);
                assert_eq!(self.read_and_clear_dirty(range(at, 6 * size)), written[..1]);
                self.subject.clear();
            }
        }
        let past = [range(self.input(), 1), range(self.input() - 1, 2)];
        for range in past {
            let error = self.refused(|s| s.table.read_and_clear_dirty(range, &mut s.owed, |_| ()));
            assert_eq!(error, DirtyError::OutOfRange { range });
        }
    }

    /// The pages of a block that was written to are as dirty as the block was.
    fn marks_of_a_cut_block(&mut self, mark: (u64, u64)) {
        let granule = F::GRANULE.bytes();
        for leaf in self.blocks() {
            let size = leaf.size.bytes();
            self.map(size, 12 * size, size, BOTH);
            self.write(Iova::new(size), mark);
            let cut = self.subject.unmap_with_breaks(range(size, granule));
            cut.expect("it is mapped");
            let dirty = self.read_and_clear_dirty(range(size, size));
            let bytes: u64 = dirty.iter().map(|leaf| leaf.len_minus_one() + 1).sum();
            assert_eq!(bytes, size - granule, "what is left of the block");
            self.subject.clear();
        }
    }

    /// A dirty read of a part of a leaf may not forget the rest.
    fn mark_seen_in_part(&mut self, mark: (u64, u64)) {
        for leaf in self.leaves() {
            let size = leaf.size.bytes();
            self.map(size, 12 * size, size, BOTH);
            self.write(Iova::new(size), mark);
            let mut seen: BTreeSet<u64> = BTreeSet::new();
            for part in [range(size, size / 2), range(size + size / 2, size / 2)] {
                for leaf in self.read_and_clear_dirty(part) {
                    seen.extend([leaf.start().get(), leaf.last().get()]);
                }
            }
            assert!(seen.contains(&size), "the first half of a leaf that was written to");
            assert!(seen.contains(&(2 * size - 1)), "the last half of a leaf that was written to");
            self.subject.clear();
        }
    }

    /// An unmap hands over the marks of the leaves that it takes out, whole tables of them and others, and owes the
    /// same as another.
    fn marks_returned(&mut self, mark: (u64, u64)) {
        let step = 1 << F::INDEX_LG2;
        for leaf in self.leaves() {
            let size = leaf.size.bytes();
            let most = self.input() / size;
            for (first, count) in [(step, step), (step + 1, 4), (0, 2)] {
                if first + count > most {
                    continue;
                }
                let at = first * size;
                for page in 0..count {
                    // Apart in memory, so that they stay leaves of this size.
                    let pa = (2 * page + 12) * size % self.output();
                    let mapped = self.subject.map(at + page * size, pa, size, BOTH);
                    mapped.expect("nothing is there");
                }
                let written = [range(at, size), range(at + (count - 1) * size, size)];
                written.iter().for_each(|page| self.write(page.start(), mark));
                let all = range(at, count * size);
                assert_eq!(self.unmap_and_read_dirty(all), written);
                let owed = self.subject.owed.unmapped();
                assert!(owed.iter().any(|span| span.range.covers(all)), "{owed:?}");
                self.subject.audit_open();
                self.subject.settle();
                self.subject.clear();
            }
        }
        let hole = range(0, 2 * F::GRANULE.bytes());
        self.map(0, 0, F::GRANULE.bytes(), BOTH);
        self.write(Iova::new(0), mark);
        let mut handed = 0;
        self.refused(|s| s.table.unmap_and_read_dirty(hole, &mut s.owed, |_| handed += 1));
        assert_eq!((handed, self.read_dirty(hole).len()), (0, 1), "nothing was taken out");
        self.subject.clear();
    }

    #[track_caller]
    fn unmap_and_read_dirty(&mut self, range: IovaRange) -> Vec<IovaRange> {
        let mut found = Vec::new();
        let (table, owed) = (&self.subject.table, &mut self.subject.owed);
        let unmapped = table.unmap_and_read_dirty(range, owed, |leaf| found.push(leaf));
        unmapped.expect("it is mapped");
        self.subject.oracle.unmap(range);
        found
    }

    #[track_caller]
    fn read_dirty(&self, range: IovaRange) -> Vec<IovaRange> {
        let mut found = Vec::new();
        let found_dirty = self.subject.table.read_dirty(range, |leaf| found.push(leaf));
        found_dirty.expect("the format keeps dirty state");
        found
    }

    #[track_caller]
    fn read_and_clear_dirty(&mut self, range: IovaRange) -> Vec<IovaRange> {
        let mut found = Vec::new();
        let (table, owed) = (&self.subject.table, &mut self.subject.owed);
        let found_dirty = table.read_and_clear_dirty(range, owed, |leaf| found.push(leaf));
        found_dirty.expect("the format keeps dirty state");
        found
    }

    /// Marks the leaf at `iova` as the hardware does for a write; found with the independent decoder.
    fn write(&self, iova: Iova, (bit, value): (u64, u64)) {
        let model = self.subject.model;
        let mut table = self.subject.table.root();
        for level in (0..model.levels()).rev() {
            let words = self.memory.table(table, model.table_size(level));
            let word = &words[model.index(iova, level) as usize];
            let raw = word.load();
            match model.decode(raw, level) {
                Decoded::Table { next, .. } => table = next,
                Decoded::Leaf { .. } | Decoded::Part { .. } => {
                    word.store(raw & !bit | value);
                    return;
                }
                other => panic!("{iova} leads to {other:?}"),
            }
        }
    }
}
