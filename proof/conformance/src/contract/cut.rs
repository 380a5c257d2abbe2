//! Unmaps of blocks whole and in part, and of ranges with a hole.

use portolan::addr::{Iova, IovaRange};
use portolan::inval::Gather;
use portolan::table::format::{Format, SplitRule};
use portolan::table::{Access, TableUnmapError};

use super::ground::{BOTH, Ground, range};

impl<F: Format> Ground<'_, F> {
    pub(super) fn cut(&mut self) {
        let granule = F::GRANULE.bytes();
        for leaf in self.leaves() {
            let size = leaf.size.bytes();
            let step = self.below(leaf).bytes();
            for access in [BOTH, Access::READ] {
                for at in self.places(leaf, 2) {
                    let parts = [
                        range(at, size),
                        range(at, granule),
                        range(at, step),
                        range(at + size - granule, granule),
                        range(at + size - step, step),
                        range(at + ((size / 2) & !(granule - 1)), granule),
                        range(at + ((size / 2) & !(step - 1)), step),
                        // The end of one and the beginning of the next.
                        range(at + size - granule, 2 * granule),
                        range(at + size - step, size),
                        range(at, 2 * size),
                    ];
                    for part in parts {
                        self.map(at, 12 * size, 2 * size, access);
                        self.take(part);
                        self.subject.clear();
                    }
                }
            }
        }
    }

    /// Unmaps a part of blocks, and the rest page by page from both ends.
    fn take(&mut self, part: IovaRange) {
        let table = &self.subject.table;
        let block = [part.start(), part.last()]
            .into_iter()
            .filter_map(|end| {
                let size = table.translate(end)?.size;
                Some(IovaRange::page(end, size))
            })
            .find(|&block| !part.covers(block));
        match block {
            Some(_) => {
                let error = self.refused(|s| s.unmap(part));
                let TableUnmapError::NeedsSplit { block } = error else {
                    panic!("{part:x?}: {error}");
                };
                assert!(block.overlaps(part) && !part.covers(block), "{part:x?} cuts {block:x?}");
                self.subject.unmap_with_breaks(part).expect("it is mapped");
            }
            None => self.subject.unmap(part).expect("it is mapped"),
        }
        self.subject.audit_open();
        for gone in [part.start(), part.last()] {
            assert_eq!(self.subject.table.translate(gone), None);
        }
        self.subject.settle();
        let error = self.refused(|s| s.unmap(part));
        let iova = part.start();
        assert_eq!(error, TableUnmapError::NotMapped { iova });
    }

    pub(super) fn hole(&mut self) {
        for leaf in self.leaves() {
            let size = leaf.size.bytes();
            for at in self.places(leaf, 5) {
                for hole in 0..5 {
                    for page in (0..5).filter(|&page| page != hole) {
                        self.map(at + page * size, (12 + page) * size, size, BOTH);
                    }
                    let error = self.refused(|s| s.unmap(range(at, 5 * size)));
                    let iova = Iova::new(at + hole * size);
                    assert_eq!(error, TableUnmapError::NotMapped { iova });
                    self.subject.clear();
                }
            }
        }
        self.hole_of_a_page();
        self.broken();
    }

    /// Leaves a hole of one page among blocks.
    fn hole_of_a_page(&mut self) {
        let granule = F::GRANULE.bytes();
        for leaf in self.blocks() {
            let size = leaf.size.bytes();
            let (at, all) = (size, range(size, 3 * size));
            for hole in [at + size, at + size + granule, at + 2 * size - granule] {
                self.map(at, 12 * size, 3 * size, BOTH);
                self.subject.unmap_with_breaks(range(hole, granule)).expect("it is mapped");
                let error = self.refused(|s| s.unmap(all));
                let iova = Iova::new(hole);
                assert_eq!(error, TableUnmapError::NotMapped { iova });
                self.subject.settle();
                self.subject.clear();
            }
        }
    }

    /// Splits by hand: twice, where the first was not completed.
    fn broken(&mut self) {
        for leaf in self.blocks() {
            let size = leaf.size.bytes();
            let at = Iova::new(3 * size);
            self.map(3 * size, 12 * size, size, BOTH);
            let mut gather = Gather::new();
            let table = &self.subject.table;
            let pending = table.split(at, &mut gather).expect("a block is there");
            assert_eq!(pending.block(), range(3 * size, size));
            if self.format().split_rule() == SplitRule::BreakBeforeMake {
                let again = table.split(at, &mut gather).expect("a broken block");
                assert_eq!(again, pending, "a split that was begun goes on");
                assert_eq!(table.translate(at), None, "translated while broken");
            }
            let inside = Iova::new(4 * size - 1);
            let over = self.subject.map(4 * size - F::GRANULE.bytes(), 0, F::GRANULE.bytes(), BOTH);
            assert!(over.is_err(), "mapped over {inside}, which is being split");
            let quiesced = crate::subject::pay(&self.subject.table, gather);
            let mut made = Gather::new();
            let table = &self.subject.table;
            let completed = table.complete_split(pending, &quiesced, &mut made);
            completed.expect("a proof of this table");
            if self.format().split_rule() == SplitRule::BreakBeforeMake {
                assert!(!made.mapped().is_empty(), "a completed split owes nothing");
            }
            table.reclaim(quiesced).expect("a proof of this table");
            table.absorb(&mut self.subject.owed, &mut made).expect("debts of this table");
            self.subject.settle();
            self.subject.clear();
        }
    }
}
