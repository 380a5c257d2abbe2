//! Table pages leave the tree with the last entry, and come back after quiet, not before.

use portolan::addr::{Iova, IovaRange};
use portolan::table::format::Format;

use super::ground::{BOTH, Ground, range};
use crate::subject::pay;

impl<F: Format> Ground<'_, F> {
    pub(super) fn quiet(&mut self) {
        for leaf in self.leaves() {
            let size = leaf.size.bytes();
            // Over the border of two tables where the format is large enough.
            let border = (size << F::INDEX_LG2).min(self.input() / 2);
            for at in [border - 2 * size, self.input() - 4 * size] {
                let all = range(at, 4 * size);
                let pages: Vec<IovaRange> = (0..4).map(|i| range(at + i * size, size)).collect();
                self.emptied(all, &[all]);
                self.emptied(all, &pages);
                let mut backwards = pages;
                backwards.reverse();
                self.emptied(all, &backwards);
            }
        }
        self.whole_tables();
        self.taken_back();
    }

    /// Unmaps all that a table spans, of every level, so that it leaves the tree as a whole.
    fn whole_tables(&mut self) {
        for leaf in self.leaves() {
            let size = leaf.size.bytes();
            let table = 1 << (F::GRANULE.lg2() + (leaf.level + 1) * F::INDEX_LG2);
            // The root never leaves, however much it spans.
            let root = leaf.level + 1 == self.format().levels();
            if root || table >= self.input() {
                continue;
            }
            // Out of step in memory, so that it takes leaves of this size and no larger ones.
            for at in [table, self.input() - table] {
                self.subject.map(at, size, table, BOTH).expect("all is free");
                self.subject.settle();
                let live = self.memory.live();
                self.subject.unmap(range(at, table)).expect("all is mapped");
                self.subject.audit_open();
                assert!(self.subject.owed.table_pages() > 0, "no table waits for quiet");
                let now = self.memory.live();
                assert_eq!(now, live, "a table page came back before quiet");
                self.subject.settle();
                assert_eq!(self.memory.live(), 1);
            }
        }
    }

    /// Unmaps `all` in the given steps: nothing comes back until the debt is paid, then everything.
    fn emptied(&mut self, all: IovaRange, steps: &[IovaRange]) {
        let bytes = all.len_minus_one() + 1;
        // Out of step in memory, so that no two of its four leaves are one.
        self.map(all.start().get(), 3 * bytes + bytes / 4, bytes, BOTH);
        self.subject.settle();
        let live = self.memory.live();
        for &step in steps {
            self.subject.unmap(step).expect("it is mapped");
            self.subject.audit_open();
            let now = self.memory.live();
            assert_eq!(now, live, "a table page came back before quiet");
        }
        assert_eq!(self.subject.table.pages(), live);
        self.subject.settle();
        assert_eq!(self.subject.table.pages(), 1);
        assert_eq!(self.memory.live(), 1);
    }

    /// A table that was emptied and is wanted again before quiet: the earlier debt must not free it.
    fn taken_back(&mut self) {
        let granule = F::GRANULE.bytes();
        self.map(0, 8 * granule, granule, BOTH);
        self.subject.settle();
        self.subject.unmap(range(0, granule)).expect("it is mapped");
        let early = std::mem::take(&mut self.subject.owed);
        self.subject.audit(crate::audit::WaitingTables::AtMost(early.table_pages()));
        let next = self.subject.map(granule, 9 * granule, granule, BOTH);
        next.expect("its neighbour is free");
        let quiesced = pay(&self.subject.table, early);
        self.subject.table.reclaim(quiesced).expect("a proof of this table");
        self.subject.audit_open();
        assert!(self.subject.table.translate(Iova::new(granule)).is_some());
        self.subject.settle();
        self.subject.clear();
    }
}
