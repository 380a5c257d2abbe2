//! Each allocation of an operation fails once: the table stays as it was, and the operation can be
//! repeated.

use std::fmt::Debug;

use portolan::addr::Iova;
use portolan::inval::Gather;
use portolan::platform::OutOfTableMemory;
use portolan::table::format::Format;
use portolan::table::{Segment, SplitError, TableMapError};

use super::ground::{BOTH, Ground, Leaf, pa};
use crate::subject::{Subject, pay};

/// More allocations than any operation here makes.
const ENDLESS: u64 = 100;

impl<'m, F: Format> Ground<'m, F> {
    pub(super) fn starve(&mut self) {
        let granule = F::GRANULE.bytes();
        for leaf in self.leaves() {
            let size = leaf.size.bytes();
            let levels = u64::from(self.format().levels());
            for at in self.places(leaf, 4) {
                // Every table between the root and the leaf is missing.
                let needed = levels - 1 - u64::from(leaf.level);
                let made = self.sweep_map(at, &[(12 * size, size)]);
                assert_eq!(made, needed, "{size:#x} bytes at {at:#x}");
                self.subject.clear();
                // Neighbours of the range, so that some tables exist.
                self.map(at + 3 * size, 12 * size, size, BOTH);
                self.sweep_map(at, &[(20 * size, size + granule), (30 * size, granule)]);
                self.subject.clear();
            }
            // Over the border of a table.
            let table = size << F::INDEX_LG2;
            if table < self.input() {
                let list = [(20 * size, size), (30 * size, granule), (22 * size, granule)];
                let made = self.sweep_map(table - size, &list);
                assert!(made > 0, "two tables were not asked for");
                self.subject.clear();
                // Only one of the two exists, and other entries are in use in it.
                for neighbour in [table - 4 * size, table + 3 * size] {
                    self.map(neighbour, 12 * size, size, BOTH);
                    let made = self.sweep_map(table - size, &list);
                    assert!(made > 0, "a table was not asked for");
                    self.subject.clear();
                }
            }
        }
        self.starve_cuts();
    }

    /// Maps a list with each allocation failing in turn; returns the number of allocations.
    #[track_caller]
    fn sweep_map(&mut self, at: u64, list: &[(u64, u64)]) -> u64 {
        let list: Vec<Segment> =
            list.iter().map(|&(to, bytes)| Segment { pa: pa(to), bytes }).collect();
        self.sweep(
            |s| s.map_sg(Iova::new(at), &list, BOTH),
            |error| matches!(error, TableMapError::Memory(OutOfTableMemory { size }) if *size == F::GRANULE),
        )
    }

    /// Repeats `act` with the first, second, ... allocation failing until it succeeds.
    #[track_caller]
    fn sweep<T: Debug, E: Debug>(
        &mut self,
        act: impl Fn(&mut Subject<'m, F>) -> Result<T, E>,
        expected: impl Fn(&E) -> bool,
    ) -> u64 {
        let memory = self.memory;
        for n in 1..ENDLESS {
            memory.fail_at(n);
            let before = self.dump();
            let open = std::mem::take(&mut self.subject.owed);
            let outcome = act(&mut self.subject);
            let mut owed = std::mem::replace(&mut self.subject.owed, open);
            match (memory.disarm(), outcome) {
                (true, Err(error)) => {
                    assert!(expected(&error), "allocation {n}: {error:?}");
                    assert!(owed.is_empty(), "allocation {n}: {owed:?}");
                    assert_eq!(self.dump(), before, "allocation {n}");
                    self.subject.audit_open();
                }
                (false, Ok(_)) => {
                    self.subject
                        .table
                        .absorb(&mut self.subject.owed, &mut owed)
                        .expect("debts of this table");
                    self.subject.audit_open();
                    return n - 1;
                }
                (fired, outcome) => panic!("allocation {n}, failed {fired:?}: {outcome:?}"),
            }
        }
        panic!("more than {ENDLESS} allocations")
    }

    fn starve_cuts(&mut self) {
        // Leaves in a row are split without memory.
        let span = |level| F::GRANULE.lg2() + level * F::INDEX_LG2;
        let single = |leaf: &Leaf| leaf.level > 0 && leaf.size.lg2() == span(leaf.level);
        for leaf in self.blocks().into_iter().filter(single) {
            let size = leaf.size.bytes();
            self.map(size, 12 * size, size, BOTH);
            self.starve_split(Iova::new(size));
            self.subject.clear();
        }
    }

    /// Makes the only allocation of a split fail.
    fn starve_split(&mut self, at: Iova) {
        self.memory.fail_at(1);
        let error = self.refused(|s| {
            let mut gather = Gather::new();
            let split = s.table.split(at, &mut gather);
            assert!(gather.is_empty(), "a split that failed owes {gather:?}");
            split
        });
        assert!(matches!(error, SplitError::Memory(_)), "{error}");
        assert!(self.memory.disarm());
        let mut gather = Gather::new();
        let pending = self.subject.table.split(at, &mut gather).expect("there is memory again");
        let quiesced = pay(&self.subject.table, gather);
        let table = &self.subject.table;
        let completed = table.complete_split(pending, &quiesced, &mut self.subject.owed);
        completed.expect("a proof of this table");
        table.reclaim(quiesced).expect("a proof of this table");
        self.subject.audit_open();
    }
}
