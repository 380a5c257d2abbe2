//! Tables to look at: those of a domain, which are mapped in through it alone.

use super::format::Format;
use super::{DirtyError, Mappings, PageTable, Translation};
use crate::addr::{Iova, IovaRange, PhysAddr, TableId};
use crate::inval::Gather;
use crate::platform::TableMem;

/// Page tables that can be read.
///
/// *Context.* Interrupt, as the methods of [`PageTable`] that have the same names.
#[derive(Debug)]
pub struct TableView<'t, F: Format, M: TableMem<F::Word>>(&'t PageTable<F, M>);

impl<'t, F: Format, M: TableMem<F::Word>> TableView<'t, F, M> {
    /// A view of `table`.
    pub fn new(table: &'t PageTable<F, M>) -> Self {
        Self(table)
    }

    /// Its name, which debts and proofs carry.
    pub fn id(&self) -> TableId {
        self.0.id()
    }

    /// Physical address of the root table.
    pub fn root(&self) -> PhysAddr {
        self.0.root()
    }

    /// The format.
    pub fn format(&self) -> &'t F {
        self.0.format()
    }

    /// Number of table pages, those that wait for quiet included.
    pub fn pages(&self) -> usize {
        self.0.pages()
    }

    /// Translation of `iova`, if it is mapped.
    pub fn translate(&self, iova: Iova) -> Option<Translation> {
        self.0.translate(iova)
    }

    /// The leaves in `range`, in order of address.
    pub fn mappings(&self, range: IovaRange) -> Mappings<'t, F, M> {
        self.0.mappings(range)
    }

    /// As [`PageTable::begin_walk`].
    #[cfg(test)]
    pub(crate) fn begin_walk(&self) -> super::walking::Walking<'t, F, M> {
        self.0.begin_walk()
    }

    /// As [`PageTable::read_and_clear_dirty`].
    ///
    /// *Context.* Task: the time it takes grows with the range.
    ///
    /// # Errors
    /// As there.
    pub fn read_and_clear_dirty(
        &self,
        range: IovaRange,
        gather: &mut Gather,
        visit: impl FnMut(IovaRange),
    ) -> Result<(), DirtyError> {
        self.0.read_and_clear_dirty(range, gather, visit)
    }
    /// As [`PageTable::read_dirty`].
    ///
    /// *Context.* Task: the time it takes grows with the range.
    ///
    /// # Errors
    /// As there.
    pub fn read_dirty(
        &self,
        range: IovaRange,
        visit: impl FnMut(IovaRange),
    ) -> Result<(), DirtyError> {
        self.0.read_dirty(range, visit)
    }
}
