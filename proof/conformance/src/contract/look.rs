//! Checks of one leaf: the address that it leads to, and the access that a device has.

use portolan::addr::Iova;
use portolan::table::format::Format;
use portolan::table::{Access, MappedRun, TableAccessError, TableMapError, Translation};

use super::ground::{BOTH, Ground, pa, range};

impl<F: Format> Ground<'_, F> {
    pub(super) fn translate(&mut self) {
        for leaf in self.leaves() {
            let bytes = leaf.size.bytes();
            let targets = [0, 3 * bytes, self.output() - bytes];
            for (iova, to) in self.places(leaf, 1).into_iter().zip(targets) {
                self.map(iova, to, bytes, BOTH);
                let access = self.subject.name.effective(BOTH).unwrap_or(BOTH);
                let size = leaf.size;
                for offset in [0, 1, bytes / 2, bytes - 1] {
                    let found = self.subject.table.translate(Iova::new(iova + offset));
                    let pa = pa(to + offset);
                    assert_eq!(found, Some(Translation { pa, size, access }));
                }
                let beside = [iova.checked_sub(1), iova.checked_add(bytes)];
                for beside in beside.into_iter().flatten() {
                    assert_eq!(self.subject.table.translate(Iova::new(beside)), None);
                }
                let all = self.subject.table.input_range();
                let runs: Vec<MappedRun> = self.subject.table.mappings(all).collect();
                let one = MappedRun { range: range(iova, bytes), pa: pa(to), size, access };
                assert_eq!(runs, [one]);
                self.clipped(one);
                self.subject.clear();
            }
        }
        let past = [self.input(), u64::MAX];
        assert!(past.map(|iova| self.subject.table.translate(Iova::new(iova))) == [None; 2]);
    }

    /// Checks that the cursor shows only the part within its range.
    fn clipped(&self, one: MappedRun) {
        let half = one.range.len_minus_one().div_ceil(2);
        let high = range(one.range.start().get() + half, half);
        let runs: Vec<MappedRun> = self.subject.table.mappings(high).collect();
        let clipped = MappedRun { range: high, pa: pa(one.pa.get() + half), ..one };
        assert_eq!(runs, [clipped]);
    }

    pub(super) fn access(&mut self) {
        for leaf in self.leaves() {
            let bytes = leaf.size.bytes();
            for access in (0..16).map(Access::from_bits_retain) {
                match self.subject.name.effective(access) {
                    Some(effective) => {
                        self.map(bytes, bytes, bytes, access);
                        let found = self.subject.table.translate(Iova::new(bytes));
                        assert_eq!(found.map(|found| found.access), Some(effective));
                        self.subject.clear();
                    }
                    None => {
                        let error = self.refused(|s| s.map(bytes, bytes, bytes, access));
                        assert_eq!(error, TableMapError::Access(TableAccessError { access }));
                    }
                }
            }
        }
    }
}
