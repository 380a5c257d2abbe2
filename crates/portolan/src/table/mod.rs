//! Page tables: one walker over many formats.
//!
//! Callers on different CPUs may work at once, without a lock, on ranges that do not overlap; an
//! IOVA may be mapped again once the debt of its unmap has been synced and reclaimed.
//!
//! *Life of a table.* A missing table is installed by one compare-exchange. It leaves when an unmap
//! covers all that it spans, or through [`PageTable::prune`]; in both cases the caller owns all that
//! it spans, so no other can be on its way into it. A map or unmap of less than a table spans
//! writes its own leaves and nothing else: neither takes a table out that it empties, nor counts.
//!
//! *Looking.* A caller that merely looks ([`PageTable::translate`], [`PageTable::mappings`],
//! [`PageTable::read_and_clear_dirty`]) need own nothing: pages that are reclaimed while a walk is
//! under way are given back when that has ended, even if others begin meanwhile.
//!
//! *Failure.* Everything that can fail is done before the first visible write: pages are reserved,
//! and entries are checked, then entries are written.
//!
//! *Context.* Interrupt, where a method does not say otherwise; making and dropping a table is for
//! tasks.

mod adopt;
mod chain;
mod clusters;
mod dirty;
mod error;
pub mod format;
mod former;
mod map;
mod pieces;
mod query;
mod reclaim;
mod slot;
mod split;
mod sync;
mod unmap;
mod view;
mod walking;
mod words;

pub use adopt::{AdoptTableError, AdoptedTable, FormerTable};
pub use error::{DirtyError, SplitError, TableAccessError, TableMapError, TableUnmapError};
pub use format::Format;
pub use query::{MappedRun, Mappings, Translation};
pub use reclaim::NotReclaimed;
pub use split::{PendingSplit, SplitNotCompleted};
pub use view::TableView;

use core::sync::atomic::{AtomicUsize, Ordering};

use self::format::{Entry, span_lg2};
use self::walking::Walks;
use crate::addr::{Iova, IovaRange, PageSize, PageSizes, PhysAddr, PhysRange, TableId};
use crate::inval::Gather;
use crate::platform::{CachePadded, ForeignTables, OutOfTableMemory, ProtocolStep, TableMem, Word};

bitflags::bitflags! {
    /// Access of a device, and kind of the memory.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Access: u8 {
        /// Read.
        const READ = 1;
        /// Write.
        const WRITE = 2;
        /// Fetch instructions.
        const EXECUTE = 4;
        /// The target is a device, not memory.
        const DEVICE = 8;
    }
}

impl Access {
    /// Read and write.
    pub const READ_WRITE: Self = Self::READ.union(Self::WRITE);
}

/// A physically contiguous piece of a scatter list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// First address.
    pub pa: PhysAddr,
    /// Length in bytes.
    pub bytes: u64,
}

impl Segment {
    /// The bytes of `memory`; one less than all of 64 bits, which no table maps.
    #[inline]
    pub const fn of(memory: PhysRange) -> Self {
        Self { pa: memory.start(), bytes: memory.len_minus_one().saturating_add(1) }
    }

    /// The whole granules around `memory`.
    #[inline]
    pub const fn around(memory: PhysRange, granule: PageSize) -> Self {
        let inside = granule.bytes() - 1;
        let start = memory.start().get() & !inside;
        // Zero if it is all of 64 bits: no table maps that.
        let bytes = (memory.last().get() | inside).wrapping_sub(start).wrapping_add(1);
        let pa = PhysAddr::new(start);
        Self { pa, bytes }
    }
}

/// Page tables of one address space, in format `F` and memory `M`.
///
/// ```
/// use portolan::addr::{Iova, PageSize, PhysAddr};
/// use portolan::inval::Gather;
/// use portolan::platform::HostTables;
/// use portolan::table::{Access, PageTable, format::{VtdLevels, VtdSecondStage}};
///
/// let format = VtdSecondStage::new(VtdLevels::Four, 46);
/// let table = PageTable::new(format, HostTables::new(PageSize::SIZE_4K, 8))?;
/// let (at, memory) = (Iova::new(0x20_0000), PhysAddr::new(0x4000_0000));
/// let mut owed = Gather::new();
/// let mapped = table.map(at, memory, 0x20_0000, Access::READ, &mut owed)?;
/// let found = table.translate(at).expect("it was mapped");
/// assert_eq!((found.pa, found.size), (memory, PageSize::SIZE_2M));
/// table.unmap(mapped, &mut owed)?; // `owed` says what the hardware has to forget now
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct PageTable<F: Format, M: TableMem<F::Word>> {
    id: TableId,
    format: F,
    /// Of the format, which may have to compute it.
    levels: u32,
    /// Of the format, or less.
    input_lg2: u32,
    sizes: PageSizes,
    /// Largest of them that a leaf of level 0 can be, as an unmap asks for it.
    largest_small: PageSize,
    mem: M,
    root: PhysAddr,
    /// Number of pages but for those that are parked. On a line of its own: a CPU that makes a table
    /// writes it, and every map reads the data beside it.
    pages: CachePadded<AtomicUsize>,
    when_dropped: TablesWhenDropped,
    noted: NotedDebts,
    walks: Walks,
}

/// Debts that are noted in a gather, for the one unit that walks the table: others are never paid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotedDebts {
    /// Lines of tables, for a walker that does not snoop.
    pub(crate) lines: bool,
    /// Ranges that were mapped, for hardware that keeps what was not there.
    pub(crate) maps: bool,
}

/// Treatment of the table pages when the table is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TablesWhenDropped {
    Free,
    /// The hardware may still walk them.
    Keep,
}

/// End of a walk down to an entry of some level.
enum Walk<'t, W> {
    /// At the entry.
    At(&'t W, PhysAddr),
    /// Above it, at an entry of this level that points at no table.
    Stopped { level: u32, raw: u64 },
}

impl<F: Format, M: TableMem<F::Word>> PageTable<F, M> {
    /// An empty table: a root and nothing else.
    ///
    /// # Errors
    /// If there is no memory for the root.
    pub fn new(format: F, mem: M) -> Result<Self, OutOfTableMemory> {
        let root = mem.alloc(F::ROOT)?;
        Ok(Self::at(format, mem, root))
    }

    fn at(format: F, mem: M, root: PhysAddr) -> Self {
        Self {
            id: TableId::fresh(),
            levels: format.levels(),
            input_lg2: format.input_lg2(),
            sizes: format.page_sizes(),
            largest_small: Self::largest_of(format.page_sizes(), 0),
            format,
            mem,
            root,
            pages: CachePadded(AtomicUsize::new(1)),
            when_dropped: TablesWhenDropped::Free,
            noted: NotedDebts { lines: true, maps: true },
            walks: Walks::default(),
        }
    }

    /// The same table for hardware that does less than its format can say: it takes addresses of at most
    /// `input_lg2` bits, and knows only leaves of `sizes`, of which the granule is always one. For a
    /// table of which nothing is mapped yet.
    #[must_use]
    pub fn limited(mut self, input_lg2: u32, sizes: PageSizes) -> Self {
        self.input_lg2 = self.input_lg2.min(input_lg2);
        self.sizes = self.sizes.intersection(sizes).with(F::GRANULE);
        self.largest_small = Self::largest_of(self.sizes, 0);
        self
    }

    /// Notes only the debts `noted`; a new table notes all of them.
    pub(crate) fn note_only(&mut self, noted: NotedDebts) {
        self.noted = noted;
    }

    /// Its name, which debts and proofs carry.
    #[inline]
    pub fn id(&self) -> TableId {
        self.id
    }

    /// Physical address of the root table.
    pub fn root(&self) -> PhysAddr {
        self.root
    }

    /// The format.
    pub fn format(&self) -> &F {
        &self.format
    }

    /// The memory that the tables live in, which leads to more than tables.
    #[cfg(test)]
    pub(crate) fn memory(&self) -> &M {
        &self.mem
    }

    /// Number of table pages, those that wait for quiet included.
    pub fn pages(&self) -> usize {
        self.pages.0.load(Ordering::Relaxed) + self.walks.parked()
    }

    /// Leaves all table pages allocated for good when the table is dropped: for hardware that did
    /// not say that it has stopped using them.
    pub fn keep(&mut self) {
        self.when_dropped = TablesWhenDropped::Keep;
    }

    /// Takes out all that is mapped, of a table that no walker has yet.
    pub(crate) fn clear(&mut self) {
        self.tell(ProtocolStep::End);
        self.give_back_parked();
        self.free_below(self.root, self.levels - 1);
        let root = self.words(self.root);
        if root.iter().any(|word| word.load() != 0) {
            words::clear(root);
            self.publish_all(self.root, 0, root.len());
        }
    }

    /// The addresses that can be mapped.
    pub fn input_range(&self) -> IovaRange {
        let size = PageSize::of_lg2(self.input_lg2);
        IovaRange::page(Iova::new(0), size)
    }

    /// Bits by which the root's index is wider than that of other tables; a constant, so that
    /// formats whose root is a table like others pay nothing for it.
    const ROOT_MORE_LG2: u32 = F::ROOT.lg2() - F::GRANULE.lg2();

    #[inline]
    fn words(&self, table: PhysAddr) -> &[F::Word] {
        let size = match Self::ROOT_MORE_LG2 > 0 && table == self.root {
            true => F::ROOT,
            false => F::GRANULE,
        };
        self.mem.table(table, size)
    }

    #[inline]
    fn index(&self, iova: Iova, level: u32) -> usize {
        let width = match Self::ROOT_MORE_LG2 > 0 && level + 1 == self.levels {
            true => F::INDEX_LG2 + Self::ROOT_MORE_LG2,
            false => F::INDEX_LG2,
        };
        ((iova.get() >> span_lg2::<F>(level)) & ((1 << width) - 1)) as usize
    }

    /// Size of the addresses that one entry of `level` spans.
    #[inline]
    fn span(level: u32) -> PageSize {
        PageSize::of_lg2(span_lg2::<F>(level))
    }

    /// Walks from the root to the entry for `iova` in the table of `level`.
    fn walk(&self, iova: Iova, level: u32) -> Walk<'_, F::Word> {
        self.walk_inline(iova, level)
    }

    /// Walks likewise, for the callers that map and unmap single pages: a call costs a tenth of their time.
    #[inline(always)]
    fn walk_inline(&self, iova: Iova, level: u32) -> Walk<'_, F::Word> {
        let mut table = self.root;
        let mut at = self.levels - 1;
        loop {
            let Some(word) = self.words(table).get(self.index(iova, at)) else {
                return Walk::Stopped { level: at, raw: 0 };
            };
            if at == level {
                return Walk::At(word, table);
            }
            let raw = word.load();
            let Entry::Table(next) = F::classify(raw, at) else {
                return Walk::Stopped { level: at, raw };
            };
            table = next;
            at -= 1;
        }
    }

    /// Tells if a map in tables that exist owes nothing.
    #[inline]
    pub(crate) fn maps_owe_nothing(&self) -> bool {
        !self.noted.lines && !self.noted.maps
    }

    /// Adds `range` to the debt, which was mapped in leaves of `leaf` and larger ones.
    #[inline(always)]
    fn owe_map(&self, gather: &mut Gather, range: IovaRange, leaf: PageSize) {
        if self.noted.maps {
            gather.add_mapped(range, leaf);
        }
    }

    /// Adds the lines of `count` entries from `index` of `table` to the debt.
    #[inline(always)]
    fn owe_lines(&self, gather: &mut Gather, table: PhysAddr, index: usize, count: usize) {
        if self.noted.lines {
            self.note_lines(gather, table, index, count);
        }
    }

    #[inline(never)]
    fn note_lines(&self, gather: &mut Gather, table: PhysAddr, index: usize, count: usize) {
        let at = |index: usize| table.get() + ((index as u64) << F::Word::LG2_BYTES);
        let (first, last) = (at(index), at(index + count) - 1);
        if let Some(range) = PhysRange::new(PhysAddr::new(first), PhysAddr::new(last)) {
            if let Some(full) = gather.add_lines(range) {
                self.mem.clean(full);
            }
        }
    }

    /// Cleans the line of an entry that has come to point at a table, at once: others may map in that
    /// table and pay for their own entries long before the debt of this operation is paid.
    #[cold]
    fn publish(&self, table: PhysAddr, index: usize) {
        self.publish_all(table, index, 1);
    }

    /// As [`PageTable::publish`], of `count` entries from `index` on.
    fn publish_all(&self, table: PhysAddr, index: usize, count: usize) {
        let entry = table.get() + ((index as u64) << F::Word::LG2_BYTES);
        let len = (count as u64) << F::Word::LG2_BYTES;
        if let Some(bytes) = PhysRange::from_len(PhysAddr::new(entry), len) {
            self.mem.clean(bytes);
            self.mem.clean_barrier();
        }
    }

    /// Tells a checker of runs, if there is one.
    #[inline(always)]
    pub(crate) fn tell(&self, step: ProtocolStep) {
        self.mem.protocol_step(self.id, step);
    }

    fn free_page(&self, table: PhysAddr) {
        self.mem.free(table, F::GRANULE);
        self.pages.0.fetch_sub(1, Ordering::Relaxed);
    }

    /// Frees all that is below the table at `table` of `level`.
    fn free_below(&self, table: PhysAddr, level: u32) {
        if level == 0 {
            return;
        }
        for word in self.words(table) {
            match F::classify(word.load(), level) {
                Entry::Table(next) => {
                    self.free_below(next, level - 1);
                    self.free_page(next);
                }
                Entry::Broken(next) => self.free_page(next),
                Entry::Empty | Entry::Leaf(_) => {}
            }
        }
    }
}

impl<F: Format> PageTable<F, ForeignTables> {
    /// The tables that a kernel built itself, in the layout of `format`: for their root to be given to an
    /// IOMMU. Nothing can be mapped in them here, and nothing is found.
    pub fn foreign(format: F, tables: ForeignTables) -> Self {
        let root = tables.root();
        Self::at(format, tables, root)
    }
}

impl<F: Format, M: TableMem<F::Word>> Drop for PageTable<F, M> {
    /// Frees all tables, unless [`PageTable::keep`] was called; the hardware must no longer use them.
    fn drop(&mut self) {
        if self.when_dropped == TablesWhenDropped::Free {
            self.tell(ProtocolStep::End);
            self.give_back_parked();
            self.free_below(self.root, self.levels - 1);
            self.mem.free(self.root, F::ROOT);
        }
    }
}

#[cfg(test)]
mod tests;
