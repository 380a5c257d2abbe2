//! A domain: two-level tables, an address space, and what of the page-table cache it owes.

use core::sync::atomic::AtomicU32;

use portolan::addr::{InvalTag, Iova, IovaRange, PageSize, PhysAddr, PhysRange, TableId};
use portolan::inval::{Gather, SyncError, WrongTable, sync};
use portolan::iommu::{Domain, DomainError, IommuError, PagedDomain, UnmapFailed};
use portolan::platform::{Cpus, Mmio, TableMem};
use portolan::table::format::Tegra;
use portolan::table::{Access, PageTable, Translation};

use super::queue::{Knowing, TablesLeft};
use super::shared::TegraQueue;
use super::tables::TegraTables;

/// What it is made of.
type Paged<R, M, C> = PagedDomain<Tegra, TegraTables<M, C>, TegraQueue<R, M, C>>;

/// One address space of a unit.
///
/// As [`PagedDomain`], but a debt without tables flushes the lines of the page-table cache that
/// have changed and not all of them.
///
/// *Context.* That of each method of [`Domain`]; the methods of its own are for interrupts as well.
/// Made and dropped by tasks.
#[derive(Debug)]
pub struct TegraDomain<R: Mmio, M: TableMem<AtomicU32>, C: Cpus> {
    paged: Paged<R, M, C>,
}

impl<R: Mmio, M: TableMem<AtomicU32>, C: Cpus> TegraDomain<R, M, C> {
    pub(super) fn new(paged: Paged<R, M, C>) -> Self {
        Self { paged }
    }

    /// The page tables.
    pub fn table(&self) -> &PageTable<Tegra, TegraTables<M, C>> {
        self.paged.table()
    }

    /// The number of the address space.
    pub fn context(&self) -> InvalTag {
        self.paged.context()
    }

    /// The unit's flushes.
    pub fn queue(&self) -> &TegraQueue<R, M, C> {
        self.paged.queue()
    }
}

impl<R: Mmio, M: TableMem<AtomicU32>, C: Cpus> Domain for TegraDomain<R, M, C> {
    fn id(&self) -> TableId {
        self.paged.id()
    }

    fn input_range(&self) -> IovaRange {
        self.paged.input_range()
    }

    fn granule(&self) -> PageSize {
        self.paged.granule()
    }

    fn grants(&self, access: Access) -> Option<Access> {
        self.paged.grants(access)
    }

    fn map_sg(
        &self,
        iova: Iova,
        pieces: &[PhysRange],
        access: Access,
        owed: &mut Gather,
    ) -> Result<IovaRange, DomainError> {
        self.paged.map_sg(iova, pieces, access, owed)
    }

    fn absorb(&self, into: &mut Gather, from: &mut Gather) -> Result<(), WrongTable> {
        self.paged.absorb(into, from)
    }

    fn map(
        &self,
        iova: Iova,
        pa: PhysAddr,
        bytes: u64,
        access: Access,
        owed: &mut Gather,
    ) -> Result<IovaRange, DomainError> {
        self.paged.map(iova, pa, bytes, access, owed)
    }

    fn unmap(&self, range: IovaRange, owed: &mut Gather) -> Result<(), UnmapFailed> {
        self.paged.unmap(range, owed)
    }

    fn sync(&self, owed: &mut Gather) -> Result<(), SyncError<IommuError>> {
        let tables = match owed.holds_tables() {
            true => TablesLeft::Yes,
            false => TablesLeft::No,
        };
        let shared = &*self.queue().0;
        let (caps, quirks) = (self.paged.capabilities(), self.paged.quirks());
        let queue = Knowing { shared, tables };
        let of = self.table().tagged(self.context());
        let quiesced = sync(&queue, of, caps, quirks, owed)?;
        // The proof is of this table: it was made for it.
        let taken_back = self.table().reclaim(quiesced);
        taken_back.map_err(|wrong| wrong.error.into())
    }

    fn is_due(&self, owed: &Gather) -> bool {
        self.paged.is_due(owed)
    }

    fn keep_empty_tables(&self, pages: usize) {
        self.paged.keep_empty_tables(pages);
    }

    fn translate(&self, iova: Iova) -> Option<Translation> {
        self.paged.translate(iova)
    }
}
