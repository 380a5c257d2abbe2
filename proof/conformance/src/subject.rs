//! A table together with its oracle: each operation is done to both.

use portolan::addr::{InvalTag, Iova, IovaRange, PageSize, PhysAddr};
use portolan::inval::{
    Capabilities, Gather, InvalidationQueue, LeafOnly, PageForm, Quiesced, Quirks, Step, TablesLeft,
};
use portolan::platform::TableMem;
use portolan::table::format::{Format, SplitRule};
use portolan::table::{Access, PageTable, Segment, TableMapError, TableUnmapError};
use portolan_sim::decode::TableFormat;

use crate::audit::{Audited, WaitingTables, audit};
use crate::format::FormatName;
use crate::memory::CheckedTables;
use crate::oracle::Oracle;

/// A queue that completes at once: for tests that look at tables only.
#[derive(Clone, Copy, Debug, Default)]
pub struct Prompt;

impl InvalidationQueue for Prompt {
    type Error = std::convert::Infallible;

    fn pay(&self, steps: &mut dyn Iterator<Item = Step>, _: TablesLeft) -> Result<(), Self::Error> {
        steps.for_each(drop);
        Ok(())
    }
}

/// Capabilities for [`Prompt`], which does not care.
pub const fn any_capabilities(granule: PageSize) -> Capabilities {
    Capabilities {
        page: PageForm::Absent,
        leaf_only: LeafOnly::Absent,
        ..Capabilities::new(granule)
    }
}

/// Pays a debt of `table` through [`Prompt`].
///
/// # Panics
/// If the debt is of another table.
pub fn pay<F: Format, M: TableMem<F::Word>>(
    table: &PageTable<F, M>,
    mut gather: Gather,
) -> Quiesced {
    let caps = any_capabilities(F::GRANULE);
    let paid = table.sync(&Prompt, InvalTag::new(1), &caps, &Quirks::default(), &mut gather);
    paid.expect("a debt of this table")
}

/// A table with its oracle and its debt.
pub struct Subject<'m, F: Format> {
    /// The format.
    pub name: FormatName,
    /// The format for the independent decoder.
    pub model: TableFormat,
    /// The table.
    pub table: PageTable<F, &'m CheckedTables<F>>,
    pub(crate) memory: &'m CheckedTables<F>,
    /// Expected mappings.
    pub oracle: Oracle,
    /// Invalidations that are owed.
    pub owed: Gather,
}

impl<'m, F: Format> Subject<'m, F> {
    /// An empty table in `memory`.
    ///
    /// # Panics
    /// If there is no memory for the root.
    pub fn new(
        name: FormatName,
        format: F,
        model: TableFormat,
        memory: &'m CheckedTables<F>,
    ) -> Self {
        let table = PageTable::new(format, memory).expect("memory for the root");
        Self { name, model, table, memory, oracle: Oracle::new(), owed: Gather::new() }
    }

    /// Maps a list in both; returns the range that it takes.
    ///
    /// # Errors
    /// The table's error; the oracle then stays as it was.
    pub fn map_sg(
        &mut self,
        iova: Iova,
        list: &[Segment],
        access: Access,
    ) -> Result<IovaRange, TableMapError> {
        let segments = list.iter().copied();
        let mapped = self.table.map_sg(iova, segments, access, &mut self.owed)?;
        // An access that cannot be expressed is one that the audit does not find.
        let effective = self.name.effective(access).unwrap_or(access);
        let mut at = iova;
        for segment in list {
            let Some(range) = IovaRange::from_len(at, segment.bytes) else {
                continue;
            };
            self.oracle.map(range, segment.pa, effective);
            at = Iova::new(at.get() + segment.bytes);
        }
        Ok(mapped)
    }

    /// Maps one piece in both.
    ///
    /// # Errors
    /// As [`Subject::map_sg`].
    pub fn map(
        &mut self,
        iova: u64,
        pa: u64,
        bytes: u64,
        access: Access,
    ) -> Result<IovaRange, TableMapError> {
        let pa = PhysAddr::new(pa);
        self.map_sg(Iova::new(iova), &[Segment { pa, bytes }], access)
    }

    /// Unmaps in both.
    ///
    /// # Errors
    /// The table's error; the oracle then stays as it was.
    pub fn unmap(&mut self, range: IovaRange) -> Result<(), TableUnmapError> {
        self.table.unmap(range, &mut self.owed)?;
        self.oracle.unmap(range);
        Ok(())
    }

    /// Unmaps in both, splitting the blocks that `range` cuts.
    ///
    /// # Panics
    /// If a split that the table asked for fails.
    ///
    /// # Errors
    /// As [`Subject::unmap`], but never [`TableUnmapError::NeedsSplit`].
    pub fn unmap_with_breaks(&mut self, range: IovaRange) -> Result<(), TableUnmapError> {
        loop {
            match self.unmap(range) {
                Err(TableUnmapError::NeedsSplit { block }) => {
                    let mut split = Gather::new();
                    let at = block.start();
                    let pending = self.table.split(at, &mut split).expect("a block is there");
                    assert_eq!(pending.block(), block);
                    let owed = split.unmapped().iter();
                    let whole = owed.map(|span| span.range).any(|range| range.covers(block));
                    assert!(whole, "{block:x?} may stay cached: {split:?}");
                    if self.table.format().split_rule() == SplitRule::BreakBeforeMake {
                        assert_eq!(self.table.translate(at), None, "translated while broken");
                        let part = IovaRange::page(at, F::GRANULE);
                        let cut = self.unmap(part);
                        assert_eq!(cut, Err(TableUnmapError::Splitting { block }));
                    }
                    let quiesced = pay(&self.table, split);
                    let completed = self.table.complete_split(pending, &quiesced, &mut self.owed);
                    completed.expect("a proof of this table");
                    self.table.reclaim(quiesced).expect("a proof of this table");
                    self.audit_open();
                }
                other => return other,
            }
        }
    }

    /// Differences between table and oracle, in words.
    pub fn differences(&self, waiting: WaitingTables) -> Vec<String> {
        let Self { name, model, ref table, memory, ref oracle, .. } = *self;
        audit(Audited { name, model, table, memory, oracle }, waiting)
    }

    /// Compares table and oracle.
    ///
    /// # Panics
    /// If they differ.
    #[track_caller]
    pub fn audit(&self, waiting: WaitingTables) {
        let found = self.differences(waiting);
        assert!(found.is_empty(), "{}: {found:#?}", self.name);
    }

    /// Compares table and oracle while the subject's own debt is open.
    ///
    /// # Panics
    /// If they differ.
    #[track_caller]
    pub fn audit_open(&self) {
        self.audit(WaitingTables::AtMost(self.owed.table_pages()));
    }

    /// Pays everything.
    pub(crate) fn pay(&mut self) {
        let quiesced = pay(&self.table, std::mem::take(&mut self.owed));
        self.table.reclaim(quiesced).expect("a proof of this table");
    }

    /// Takes empty tables out, and pays.
    pub(crate) fn prune(&mut self) {
        let all = self.table.input_range();
        let pruned = self.table.prune(all, &mut self.owed);
        pruned.expect("a debt of this table");
        self.pay();
    }

    /// Pays everything, takes empty tables out, and audits.
    ///
    /// # Panics
    /// If table and oracle differ.
    #[track_caller]
    pub fn settle(&mut self) {
        self.pay();
        self.prune();
        self.prune();
        self.audit(WaitingTables::Nothing);
        if self.oracle.is_empty() {
            assert_eq!(self.table.pages(), 1, "{}: tables stayed", self.name);
        }
    }

    /// Unmaps everything that the oracle knows, and settles.
    ///
    /// # Panics
    /// If something cannot be unmapped or is left over.
    #[track_caller]
    pub fn clear(&mut self) {
        while let Some(piece) = self.oracle.next_from(Iova::new(0)) {
            self.unmap_with_breaks(piece.range).expect("it is mapped");
        }
        self.settle();
    }
}
