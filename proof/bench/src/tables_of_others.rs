//! Page tables of other crates, which are made for CPUs: no commands, no counts, one caller at a time.
//!
//! Each starts from an empty tree of three levels, as our own scenarios do; neither frees tables that
//! become empty.

use std::cell::RefCell;
use std::hint::black_box;

use aarch64_paging::descriptor::{El1Attributes, PhysicalAddress};
use aarch64_paging::linearmap::LinearTranslation;
use aarch64_paging::paging::{Constraints, El1And0, MemoryRegion, RootTable, VaRange};
use memory_addr::{PhysAddr, VirtAddr};
use page_table_multiarch::{MappingFlags, PageSize, PageTable64, PagingHandler, PagingMetaData};

use crate::rig::{BASE, LIST_PAGES, MEMORY, PAGE, SINGLES, Span, scattered};
use crate::workload::{Failure, Workload};

/// Ranges to map: pieces of contiguous memory, each with its address and the address of its memory.
struct Pieces {
    pieces: Vec<(usize, usize)>,
    bytes: usize,
    units: u64,
}

impl Pieces {
    fn list() -> Self {
        let pages = scattered().into_iter().zip(0..);
        let at = |i: u64| (BASE.get() + i * PAGE) as usize;
        Self {
            pieces: pages.map(|(page, i)| (at(i), page.start().get() as usize)).collect(),
            bytes: PAGE as usize,
            units: LIST_PAGES,
        }
    }

    fn run(span: Span) -> Self {
        let starts = span.starts().map(|start| (start as usize, span.memory() as usize));
        Self {
            pieces: starts.collect(),
            bytes: span.bytes as usize,
            units: span.count * span.bytes / PAGE,
        }
    }

    /// Every second page of a leaf table.
    fn pages() -> Self {
        let page = |i: u64| (BASE.get() + 2 * i * PAGE, MEMORY.get() + i * PAGE);
        let pieces = (0..SINGLES).map(page).map(|(iova, pa)| (iova as usize, pa as usize));
        Self { pieces: pieces.collect(), bytes: PAGE as usize, units: SINGLES }
    }

    /// Maps a neighbouring page, so that the leaf table exists before the clock starts.
    fn neighbour(&self) -> Option<(usize, usize)> {
        let single = self.units == SINGLES;
        single.then(|| (BASE.get() as usize + PAGE as usize, MEMORY.get() as usize))
    }
}

/// `aarch64-paging`.
pub(crate) struct Paging {
    table: Option<RootTable<El1And0, LinearTranslation<El1Attributes>>>,
    pieces: Pieces,
}

impl Paging {
    pub(crate) fn list() -> Result<Self, Failure> {
        Ok(Self::of(Pieces::list()))
    }

    pub(crate) fn run(span: Span) -> Result<Self, Failure> {
        Ok(Self::of(Pieces::run(span)))
    }

    pub(crate) fn pages() -> Result<Self, Failure> {
        Ok(Self::of(Pieces::pages()))
    }

    fn of(pieces: Pieces) -> Self {
        Self { table: None, pieces }
    }

    fn map(&mut self, iova: usize, pa: usize, bytes: usize) -> Result<(), Failure> {
        let region = MemoryRegion::new(iova, iova + bytes);
        let flags = El1Attributes::VALID | El1Attributes::ACCESSED | El1Attributes::NON_GLOBAL;
        let table = self.table.as_mut().ok_or(Failure::NotPrepared)?;
        let alone = Constraints::NO_BLOCK_MAPPINGS | Constraints::NO_CONTIGUOUS_HINT;
        let mapped = table.map_range(&region, PhysicalAddress(pa), flags, alone);
        mapped.map_err(|_| Failure::NotPrepared)
    }
}

impl Workload for Paging {
    fn units(&self) -> u64 {
        self.pieces.units
    }

    fn prepare(&mut self) -> Result<(), Failure> {
        let linear = LinearTranslation::new(0);
        self.table = Some(RootTable::with_va_range(linear, 1, El1And0, VaRange::Lower));
        match self.pieces.neighbour() {
            Some((iova, pa)) => self.map(iova, pa, PAGE as usize),
            None => Ok(()),
        }
    }

    fn run(&mut self) -> Result<(), Failure> {
        for i in 0..self.pieces.pieces.len() {
            let (iova, pa) = black_box(self.pieces.pieces[i]);
            self.map(iova, pa, self.pieces.bytes)?;
        }
        Ok(())
    }
}

/// A page of a table.
#[repr(align(4096))]
struct Frame(#[expect(dead_code, reason = "what holds the memory")] [u64; 512]);

thread_local! {
    /// Pages of tables that are not in use; none is given back to the system.
    static FRAMES: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Pages on the heap, each at its own host address.
struct Heap;

impl PagingHandler for Heap {
    fn alloc_frames(count: usize, _align: usize) -> Option<PhysAddr> {
        let new = || Box::leak(Box::new(Frame([0; 512]))) as *mut Frame;
        let frame =
            || FRAMES.with_borrow_mut(Vec::pop).unwrap_or_else(|| new().expose_provenance());
        (count == 1).then(frame).map(PhysAddr::from)
    }

    fn dealloc_frames(page: PhysAddr, _count: usize) {
        FRAMES.with_borrow_mut(|free| free.push(page.into()));
    }

    fn phys_to_virt(page: PhysAddr) -> VirtAddr {
        VirtAddr::from(usize::from(page))
    }
}

/// Three levels, without a TLB to invalidate on changes.
struct ThreeLevels;

impl PagingMetaData for ThreeLevels {
    const LEVELS: usize = 3;
    const PA_MAX_BITS: usize = 48;
    const VA_MAX_BITS: usize = 39;

    type VirtAddr = VirtAddr;

    fn flush_tlb(_address: Option<VirtAddr>) {}
}

#[cfg(target_arch = "x86_64")]
type Entry = page_table_entry::x86_64::X64PTE;
#[cfg(target_arch = "aarch64")]
type Entry = page_table_entry::aarch64::A64PTE;

/// `page_table_multiarch`, with the entries of the machine that it runs on.
pub(crate) struct MultiArch {
    table: Option<PageTable64<ThreeLevels, Entry, Heap>>,
    pieces: Pieces,
}

impl MultiArch {
    pub(crate) fn list() -> Result<Self, Failure> {
        Ok(Self::of(Pieces::list()))
    }

    pub(crate) fn run(span: Span) -> Result<Self, Failure> {
        Ok(Self::of(Pieces::run(span)))
    }

    pub(crate) fn pages() -> Result<Self, Failure> {
        Ok(Self::of(Pieces::pages()))
    }

    fn of(pieces: Pieces) -> Self {
        Self { table: None, pieces }
    }

    fn map(&mut self, pieces: &[(usize, usize)], bytes: usize) -> Result<(), Failure> {
        let table = self.table.as_mut().ok_or(Failure::NotPrepared)?;
        let mut cursor = table.cursor();
        let flags = MappingFlags::READ | MappingFlags::WRITE;
        for &(iova, pa) in pieces {
            let (iova, pa) = black_box((iova, pa));
            let mapped = match bytes {
                4096 => cursor.map(iova.into(), pa.into(), PageSize::Size4K, flags),
                _ => {
                    let at = |address: VirtAddr| PhysAddr::from(usize::from(address) - iova + pa);
                    cursor.map_region(iova.into(), at, bytes, flags, false)
                }
            };
            mapped.map_err(|_| Failure::NotPrepared)?;
        }
        Ok(())
    }
}

impl Workload for MultiArch {
    fn units(&self) -> u64 {
        self.pieces.units
    }

    fn prepare(&mut self) -> Result<(), Failure> {
        // The old one's pages come back first.
        drop(self.table.take());
        self.table = Some(PageTable64::try_new().map_err(|_| Failure::HostMemory)?);
        match self.pieces.neighbour() {
            Some(page) => self.map(&[page], PAGE as usize),
            None => Ok(()),
        }
    }

    fn run(&mut self) -> Result<(), Failure> {
        let pieces = std::mem::take(&mut self.pieces.pieces);
        let mapped = self.map(&pieces, self.pieces.bytes);
        self.pieces.pieces = pieces;
        mapped
    }
}
