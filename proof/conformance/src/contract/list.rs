//! Scatter lists: merged, with the largest pages, at consecutive addresses.

use portolan::addr::Iova;
use portolan::table::Segment;
use portolan::table::format::Format;

use super::ground::{BOTH, Ground, Leaf, pa, range};

/// Address of a leaf, the address it leads to, and its size.
type Wanted = (u64, u64, u64);

impl<F: Format> Ground<'_, F> {
    pub(super) fn largest_pages(&mut self) {
        for leaf in self.leaves() {
            for list in self.lists(leaf) {
                let (at, segments) = list;
                self.list(at, &segments);
            }
        }
    }

    /// Lists around one size of leaf: whole, in pieces, too short, out of step, and too long.
    fn lists(&self, leaf: Leaf) -> Vec<(u64, Vec<Segment>)> {
        let size = leaf.size.bytes();
        let step = self.below(leaf).bytes();
        let piece = |at: u64, bytes: u64| Segment { pa: pa(at), bytes };
        let far = 12 * size;
        let mut lists = vec![
            (size, vec![piece(far, size)]),
            (size, vec![piece(far, 3 * size)]),
            (size, vec![piece(far, size + step)]),
            (size + step, vec![piece(far + step, 2 * size)]),
            (size + step, vec![piece(far, 2 * size)]),
            (size, vec![piece(far + step, 2 * size)]),
            // Neighbours that only together fill a page of the size.
            (size, vec![piece(far, step), piece(far + step, 2 * size)]),
            (
                size,
                vec![
                    piece(far, size / 2),
                    piece(far + size / 2, 0),
                    piece(far + size / 2, size / 2),
                ],
            ),
            // The same in the wrong order: no page of the size.
            (size, vec![piece(far + size, size), piece(far, size)]),
            (size, vec![piece(far, size), piece(far, size)]),
        ];
        if size > step {
            lists.push((size, vec![piece(far, size - step)]));
            let swapped = [piece(far + step, size - step), piece(far, step)];
            lists.push((size, swapped.to_vec()));
        }
        let granule = F::GRANULE.bytes();
        lists.retain(|(_, list)| {
            let mut odd = list.iter().map(|s| (s.pa.get() | s.bytes) % granule);
            odd.all(|odd| odd == 0)
        });
        lists
    }

    /// Maps a list and compares the leaves with those of a naive greedy rule.
    fn list(&mut self, at: u64, list: &[Segment]) {
        let mapped = self.subject.map_sg(Iova::new(at), list, BOTH);
        mapped.unwrap_or_else(|error| panic!("{list:x?} at {at:#x}: {error}"));
        self.subject.audit_open();
        let all = self.subject.table.input_range();
        let found: Vec<Wanted> = self
            .subject
            .table
            .mappings(all)
            .map(|run| {
                let bytes = run.range.len_minus_one() + 1;
                assert_eq!(bytes, run.size.bytes(), "a leaf in part");
                (run.range.start().get(), run.pa.get(), bytes)
            })
            .collect();
        let wanted = self.greedy(at, list);
        assert_eq!(found.len(), wanted.len(), "{list:x?} at {at:#x}");
        for (found, wanted) in found.into_iter().zip(wanted) {
            assert_eq!(found, wanted, "{list:x?} at {at:#x}");
        }
        self.subject.clear();
    }

    /// The leaves for a list: at each address the largest that alignment and the run allow.
    fn greedy(&self, at: u64, list: &[Segment]) -> Vec<Wanted> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for segment in list.iter().filter(|segment| segment.bytes > 0) {
            match runs.last_mut() {
                Some((start, bytes)) if *start + *bytes == segment.pa.get() => {
                    *bytes += segment.bytes;
                }
                _ => runs.push((segment.pa.get(), segment.bytes)),
            }
        }
        let sizes: Vec<u64> = self.leaves().iter().map(|leaf| leaf.size.bytes()).collect();
        let mut leaves = Vec::new();
        let mut iova = at;
        for (mut to, mut left) in runs {
            while left > 0 {
                let fits = |size: &&u64| (iova | to).is_multiple_of(**size) && left >= **size;
                let size = *sizes.iter().rev().find(fits).expect("the granule fits");
                leaves.push((iova, to, size));
                iova += size;
                to += size;
                left -= size;
            }
        }
        leaves
    }

    pub(super) fn contiguous(&mut self) {
        let granule = F::GRANULE.bytes();
        let table = granule << F::INDEX_LG2;
        let top = self.input();
        // Within one leaf table, across two, and up to the last address.
        for at in [0, granule, table - 3 * granule, top / 2 - granule, top - 16 * granule] {
            let mut list = Vec::new();
            // Lengths 1, 2, 3, 4, 5 and 1 pages: 16 in all; descending in memory.
            for (bytes, slot) in [1, 2, 3, 4, 5, 1].into_iter().zip((10..20).rev()) {
                let to = slot * 8 * granule;
                list.push(Segment { pa: pa(to), bytes: bytes * granule });
            }
            self.list(at, &list);
            let mapped = self.subject.map_sg(Iova::new(at), &list, BOTH);
            mapped.expect("the same list again");
            let mut iova = at;
            for segment in &list {
                for offset in [0, segment.bytes - 1] {
                    let found = self.subject.table.translate(Iova::new(iova + offset));
                    let wanted = segment.pa.get() + offset;
                    assert_eq!(found.map(|found| found.pa.get()), Some(wanted));
                }
                iova += segment.bytes;
            }
            self.subject.unmap(range(at, iova - at)).expect("all is mapped");
            self.subject.settle();
        }
    }
}
