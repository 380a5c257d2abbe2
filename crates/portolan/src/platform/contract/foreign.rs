//! Page tables that a kernel built itself and keeps: those of a process, which a device shares with its
//! CPUs (shared virtual addressing, SVA).

use crate::addr::{PageSize, PhysAddr};
use crate::platform::{OutOfTableMemory, TableMem, Word};

/// The tables of a process, as its kernel built them: the library hands their root to an IOMMU, and
/// neither reads, writes nor frees them. As table memory it has no pages, so that mapping through a domain
/// over it fails for want of one, and unmapping finds nothing.
///
/// ```no_run
/// # use portolan::addr::{IovaRange, PhysAddr};
/// # use portolan::iommu::{IommuError, PagedDomain, TagPool};
/// # use portolan::platform::ForeignTables;
/// # use portolan::table::Format;
/// /// For a driver's `foreign_first_stage`.
/// ///
/// /// # Safety
/// /// As [`ForeignTables::at`].
/// unsafe fn of_process(root: PhysAddr) -> ForeignTables {
///     // SAFETY: the caller's promise.
///     unsafe { ForeignTables::at(root) }
/// }
///
/// /// What the process's MMU notifier calls; an error means that its memory is not used again.
/// fn notify<F: Format, Q: TagPool>(
///     process: &PagedDomain<F, ForeignTables, Q>, gone: IovaRange,
/// ) -> Result<(), IommuError> {
///     Ok(process.invalidate(gone)?)
/// }
/// ```
///
/// *Context.* Interrupt: a value.
#[derive(Debug, PartialEq, Eq)]
pub struct ForeignTables {
    root: PhysAddr,
}

impl ForeignTables {
    /// The tables whose root is at `root`.
    ///
    /// # Safety
    /// From the attachment of a domain over them until that domain has been dropped,
    ///
    /// * at `root` there is a root in the layout of the domain's format: its granule, its widths, its
    ///   meaning of memory attributes;
    /// * the device may reach all that the tables map;
    /// * once an entry was taken out, or grants less, the kernel calls
    ///   [`PagedDomain::invalidate`](crate::iommu::PagedDomain::invalidate) for its addresses, as its
    ///   CPUs' TLBs are invalidated (Linux: an MMU notifier), and the memory, or the table, that it led to
    ///   is used for nothing else before that has returned without an error;
    /// * that holds for every table that a walk from the root can reach, the kernel's own half of a process's
    ///   tables on x86 included: a unit may walk and keep it though devices are given addresses of the lower half
    ///   alone, so a kernel that frees tables of its half invalidates each domain over a root that shares them;
    /// * where the unit does not snoop, lines of tables are written back before that call, and
    ///   before a device is told of new entries.
    pub const unsafe fn at(root: PhysAddr) -> Self {
        Self { root }
    }

    /// Physical address of the root.
    pub(crate) const fn root(&self) -> PhysAddr {
        self.root
    }
}

impl<W: Word> TableMem<W> for ForeignTables {
    fn alloc(&self, size: PageSize) -> Result<PhysAddr, OutOfTableMemory> {
        Err(OutOfTableMemory { size })
    }

    fn free(&self, _table: PhysAddr, _size: PageSize) {}

    fn table(&self, _table: PhysAddr, _size: PageSize) -> &[W] {
        &[]
    }

    // The kernel that has the tables writes them back.
    fn clean(&self, _: crate::addr::PhysRange) {}

    fn clean_barrier(&self) {}

    fn invalidate(&self, _: crate::addr::PhysRange) {}
}
