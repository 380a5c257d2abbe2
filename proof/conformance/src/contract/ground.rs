//! Ground of all checks: a table with its oracle, and the comparison of before and after.

use std::fmt::Debug;

use portolan::addr::{Iova, IovaRange, PageSize, PhysAddr};
use portolan::table::format::Format;
use portolan::table::{Access, MappedRun};
use portolan_sim::decode::TableFormat;

use crate::format::FormatName;
use crate::memory::CheckedTables;
use crate::subject::Subject;

/// The access that every format can express exactly.
pub(super) const BOTH: Access = Access::READ.union(Access::WRITE);

/// A leaf that the format can hold.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leaf {
    /// Its size.
    pub(super) size: PageSize,
    /// The level of its table.
    pub(super) level: u32,
}

/// State that a refused operation must not change.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Dump {
    runs: Vec<MappedRun>,
    pages: usize,
    live: usize,
}

/// A table under test.
pub(super) struct Ground<'m, F: Format> {
    pub(super) subject: Subject<'m, F>,
    pub(super) memory: &'m CheckedTables<F>,
}

impl<'m, F: Format> Ground<'m, F> {
    pub(super) fn new(
        name: FormatName,
        format: F,
        model: TableFormat,
        memory: &'m CheckedTables<F>,
    ) -> Self {
        let subject = Subject::new(name, format, model, memory);
        Self { subject, memory }
    }

    /// The format.
    pub(super) fn format(&self) -> F {
        *self.subject.table.format()
    }

    /// Every leaf that the format can hold, smallest first.
    pub(super) fn leaves(&self) -> Vec<Leaf> {
        let levels = self.format().levels();
        let sizes = self.format().page_sizes();
        // Leaves in a row that are one page are sizes of their own.
        let leaves = (0..levels).flat_map(|level| {
            let span = F::GRANULE.lg2() + level * F::INDEX_LG2;
            (0..=F::CLUSTER_LG2)
                .map(move |more| Leaf { size: PageSize::of_lg2(span + more), level })
        });
        let leaves: Vec<Leaf> = leaves.filter(|leaf| sizes.contains(leaf.size)).collect();
        assert_eq!(leaves.len(), sizes.iter().count(), "a size without a level");
        leaves
    }

    /// Every leaf larger than the granule.
    pub(super) fn blocks(&self) -> Vec<Leaf> {
        let mut leaves = self.leaves();
        leaves.retain(|leaf| leaf.size > F::GRANULE);
        leaves
    }

    /// The next smaller size than `leaf`, or its own.
    pub(super) fn below(&self, leaf: Leaf) -> PageSize {
        let sizes = self.leaves();
        let smaller = sizes.iter().rev().find(|other| other.size < leaf.size);
        smaller.map_or(leaf.size, |other| other.size)
    }

    /// Number of bytes that can be mapped.
    pub(super) fn input(&self) -> u64 {
        1 << self.format().input_lg2()
    }

    /// First address past all memory that the format can point at.
    pub(super) fn output(&self) -> u64 {
        1 << self.format().output_lg2()
    }

    /// Places for `leaves` leaves of `leaf` in a row: the bottom, the middle and the top.
    pub(super) fn places(&self, leaf: Leaf, leaves: u64) -> [u64; 3] {
        let bytes = leaf.size.bytes();
        [0, self.input() / 2, self.input() - leaves * bytes]
    }

    /// Reads the whole table.
    pub(super) fn dump(&self) -> Dump {
        let table = &self.subject.table;
        Dump {
            runs: table.mappings(table.input_range()).collect(),
            pages: table.pages(),
            live: self.memory.live(),
        }
    }

    /// Maps in table and oracle, and audits.
    #[track_caller]
    pub(super) fn map(&mut self, iova: u64, pa: u64, bytes: u64, access: Access) {
        let mapped = self.subject.map(iova, pa, bytes, access);
        mapped.unwrap_or_else(|error| panic!("{iova:#x} to {pa:#x}, {bytes:#x} bytes: {error}"));
        self.subject.audit_open();
    }

    /// The error of an operation that must be refused, after which all must be as before.
    #[track_caller]
    pub(super) fn refused<T: Debug, E: Debug>(
        &mut self,
        act: impl FnOnce(&mut Subject<'m, F>) -> Result<T, E>,
    ) -> E {
        let before = self.dump();
        let open = std::mem::take(&mut self.subject.owed);
        let error = act(&mut self.subject).expect_err("it was not refused");
        let owed = std::mem::replace(&mut self.subject.owed, open);
        assert!(owed.is_empty(), "{error:?}, and it owes {owed:?}");
        assert_eq!(self.dump(), before, "{error:?}, and the table changed");
        self.subject.audit_open();
        error
    }
}

/// The range of `bytes` bytes from `start`.
#[track_caller]
pub(super) fn range(start: u64, bytes: u64) -> IovaRange {
    IovaRange::from_len(Iova::new(start), bytes).expect("a range in the address space")
}

/// The physical address.
pub(super) fn pa(at: u64) -> PhysAddr {
    PhysAddr::new(at)
}
