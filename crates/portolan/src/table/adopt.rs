//! Tables that a former kernel built, and that this one goes on with: checked entry by entry before
//! anything else is done with them.
//!
//! The walk ends on any contents: each table is claimed once ([`TableClaims`]), which no loop and no shared
//! page survives.
//!
//! *Context.* Task: the time that it takes grows with the tables.

use super::format::{Entry, Format, span_lg2};
use super::{PageTable, TablesWhenDropped};
use crate::addr::{Iova, PageSize, PageSizes, PhysAddr, PhysRange};
use crate::platform::{ClaimError, TableClaims, TableMem, Word};

/// Tables of a former kernel, of which nothing was read yet.
#[derive(Debug)]
pub struct FormerTable<F: Format, M: TableMem<F::Word>>(PageTable<F, M>);

/// Tables of a former kernel that were checked. Dropped, they stay allocated: the hardware uses them.
#[derive(Debug)]
pub struct AdoptedTable<F: Format, M: TableMem<F::Word>>(PageTable<F, M>);

/// Reason for which tables of a former kernel are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdoptTableError {
    /// A table is where none can be.
    #[error(transparent)]
    Claim(#[from] ClaimError),
    /// An entry that this library does not make, or that is half-way.
    #[error("entry {raw:#x} of level {level} for {iova} makes no sense")]
    Entry {
        /// The first address that it translates.
        iova: Iova,
        /// Its level.
        level: u32,
        /// Its value.
        raw: u64,
    },
    /// A leaf leads to memory that devices may not reach.
    #[error("{iova} leads to {pa}, which was not preserved for devices")]
    Leaf {
        /// The first address that it translates.
        iova: Iova,
        /// The address that it leads to.
        pa: PhysAddr,
    },
}

impl<F: Format, M: TableMem<F::Word>> FormerTable<F, M> {
    /// The tables of `format` below `root`.
    pub fn new(format: F, mem: M, root: PhysAddr) -> Self {
        let mut table = PageTable::at(format, mem, root);
        table.when_dropped = TablesWhenDropped::Keep;
        Self(table)
    }

    /// As [`PageTable::limited`].
    #[must_use]
    pub fn limited(self, input_lg2: u32, sizes: PageSizes) -> Self {
        Self(self.0.limited(input_lg2, sizes))
    }

    /// Claims each table, and checks each entry.
    ///
    /// # Errors
    /// See [`AdoptTableError`]. Nothing was written.
    pub fn check(
        self,
        claims: &mut TableClaims<'_>,
    ) -> Result<AdoptedTable<F, M>, AdoptTableError> {
        let Self(mut table) = self;
        claims.claim(table.root, F::ROOT)?;
        let top = table.levels - 1;
        let below = table.adopt_below(claims, table.root, top, 0)?;
        *table.pages.0.get_mut() = below + 1;
        Ok(AdoptedTable(table))
    }
}

impl<F: Format, M: TableMem<F::Word>> AdoptedTable<F, M> {
    /// Number of table pages.
    pub fn pages(&self) -> usize {
        self.0.pages()
    }

    /// The table, which frees its pages when it is dropped.
    pub(crate) fn own(self) -> PageTable<F, M> {
        let Self(mut table) = self;
        table.when_dropped = TablesWhenDropped::Free;
        table
    }
}

impl<F: Format, M: TableMem<F::Word>> PageTable<F, M> {
    /// Checks the entries of the table at `at` of `level`, whose first one is for `first`, and all below;
    /// returns the number of tables below.
    fn adopt_below(
        &self,
        claims: &mut TableClaims<'_>,
        at: PhysAddr,
        level: u32,
        first: u64,
    ) -> Result<usize, AdoptTableError> {
        let mut pages = 0;
        for (index, word) in self.words(at).iter().enumerate() {
            let raw = word.load();
            let iova = first | (index as u64) << span_lg2::<F>(level);
            let wrong = AdoptTableError::Entry { iova: Iova::new(iova), level, raw };
            match F::classify(raw, level) {
                Entry::Empty if raw == 0 => continue,
                Entry::Empty | Entry::Broken(_) => return Err(wrong),
                _ if iova >> self.input_lg2 != 0 => return Err(wrong),
                _ if self.format.is_reserved(raw, level) => return Err(wrong),
                Entry::Table(next) if level > 0 => {
                    claims.claim(next, F::GRANULE)?;
                    pages += 1 + self.adopt_below(claims, next, level - 1, iova)?;
                    if raw & F::FILLED != 0 && !self.is_full(next, level - 1) {
                        return Err(wrong);
                    }
                }
                Entry::Table(_) => return Err(wrong),
                Entry::Leaf(leaf) => {
                    // A unit may use the entry of one leaf for the whole cluster.
                    let size = PageSize::of_lg2(F::leaf_lg2(raw, level));
                    if !self.sizes.contains(size) || !leaf.is_aligned(Self::span(level)) {
                        return Err(wrong);
                    }
                    let memory = PhysRange::page(leaf.align_down(size), size);
                    let past = memory.last().get() >> self.format.output_lg2() != 0;
                    if past || !claims.memory().lends(memory) {
                        return Err(AdoptTableError::Leaf { iova: Iova::new(iova), pa: leaf });
                    }
                }
            }
        }
        Ok(pages)
    }

    fn is_full(&self, table: PhysAddr, level: u32) -> bool {
        let used = |word: &F::Word| F::classify(word.load(), level) != Entry::Empty;
        self.words(table).iter().all(used)
    }
}

#[cfg(test)]
mod tests;
