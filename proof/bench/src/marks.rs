//! Marks of written pages: read and cleared over 32 MiB of pages, of which every fourth is marked.
//!
//! Both sides set a bit of a bitmap for each marked page, as a monitor that migrates a guest has it, and build the
//! command that makes the unit forget what it knew as written. Linux's own bitmap lies in pages of the monitor, which
//! it pins and maps; here it is an array on both sides.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};

use portolan::addr::{InvalTag, Iova, IovaRange, PageSize, PhysAddr};
use portolan::inval::{Capabilities, Gather, PageForm};
use portolan::iommu::{Domain, PagedDomain};
use portolan::platform::TableMem;
use portolan::table::PageTable;
use portolan::table::format::{AmdLevels, AmdV1, DirtyTracking, Format, VtdLevels, VtdSecondStage};

use crate::commands::Commands;
use crate::formats::{CAPS, OUTPUT_BITS};
use crate::raw::{LinuxFormat, Tables, promised, tables};
use crate::rig::{BASE, BLOCK, MEMORY, PAGE, QUIRKS, access};
use crate::workload::{Failure, Workload};

/// Pages that are mapped.
pub(crate) const PAGES: u64 = 8192;
/// Distance of two marked pages.
const APART: u64 = 4;
/// Address in an entry of either format (AMD-Vi table 18, VT-d 9.8).
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// A format with marks that the hardware sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MarkedFormat {
    /// AMD-Vi host tables of three levels.
    Amd,
    /// VT-d's second stage of four levels.
    Vtd,
}

impl MarkedFormat {
    /// Linux's name for it.
    pub(crate) const fn theirs(self) -> LinuxFormat {
        match self {
            Self::Amd => LinuxFormat::Amd,
            Self::Vtd => LinuxFormat::VtdSecond,
        }
    }

    /// Number of levels.
    pub(crate) const fn levels(self) -> u32 {
        match self {
            Self::Amd => 3,
            Self::Vtd => 4,
        }
    }

    /// Bit of an entry that the hardware sets.
    const fn mark(self) -> u64 {
        match self {
            Self::Amd => 1 << 6,
            Self::Vtd => 1 << 9,
        }
    }
}

/// A table whose pages are marked by hardware.
pub(crate) trait Marked {
    /// Maps contiguous memory page by page.
    fn map(&self, iova: u64, pa: u64, bytes: u64) -> Result<(), Failure>;

    /// Marks a page, as hardware does.
    fn mark(&self, iova: u64) -> Result<(), Failure>;

    /// Sets the bit of each marked page from `iova` on, clears the marks, and makes the unit forget them.
    fn read_and_clear(&self, iova: u64, bitmap: &mut [u64]) -> Result<(), Failure>;
}

/// Our tables behind an erased domain, as a driver reaches them.
pub(crate) struct OurMarks {
    domain: Box<dyn Domain>,
    memory: Tables,
    root: PhysAddr,
    format: MarkedFormat,
}

impl OurMarks {
    /// An empty table.
    ///
    /// # Errors
    /// If there is no memory.
    pub(crate) fn new(format: MarkedFormat) -> Result<Self, Failure> {
        let dirty = DirtyTracking::Hardware;
        match format {
            MarkedFormat::Amd => {
                let amd = AmdV1 { dirty, ..AmdV1::new(AmdLevels::Three, OUTPUT_BITS) };
                Self::of(format, amd, CAPS)
            }
            MarkedFormat::Vtd => {
                let vtd =
                    VtdSecondStage { dirty, ..VtdSecondStage::new(VtdLevels::Four, OUTPUT_BITS) };
                Self::of(format, vtd, Capabilities { page: PageForm::Whole, ..CAPS })
            }
        }
    }

    fn of<F: Format<Word = AtomicU64> + 'static>(
        format: MarkedFormat,
        made: F,
        caps: Capabilities,
    ) -> Result<Self, Failure> {
        let memory = tables((PAGES * PAGE / BLOCK) as u32 + 64);
        let table = PageTable::new(made, memory.clone())?;
        let root = table.root();
        let domain = PagedDomain::new(table, InvalTag::new(1), caps, QUIRKS, Commands::new());
        Ok(Self { domain: black_box(Box::new(domain)), memory, root, format })
    }

    /// Leaf of an address that is mapped, found as the hardware finds it.
    fn leaf(&self, iova: u64) -> Option<&AtomicU64> {
        let mut at = self.root;
        for level in (0..self.format.levels()).rev() {
            let words = self.memory.table(at, PageSize::SIZE_4K);
            let word = words.get((iova >> (12 + 9 * level)) as usize % 512)?;
            if level == 0 {
                return Some(word);
            }
            at = PhysAddr::new(word.load(Ordering::Acquire) & ADDRESS);
        }
        None
    }
}

impl Marked for OurMarks {
    fn map(&self, iova: u64, pa: u64, bytes: u64) -> Result<(), Failure> {
        let memory = promised(PhysAddr::new(pa), bytes);
        self.domain.map(Iova::new(iova), memory, access(), &mut Gather::new())?;
        Ok(())
    }

    fn mark(&self, iova: u64) -> Result<(), Failure> {
        let leaf = self.leaf(iova).ok_or(Failure::Addresses)?;
        leaf.fetch_or(self.format.mark(), Ordering::AcqRel);
        Ok(())
    }

    #[inline]
    fn read_and_clear(&self, iova: u64, bitmap: &mut [u64]) -> Result<(), Failure> {
        let bytes = bitmap.len() as u64 * 64 * PAGE;
        let range = IovaRange::from_len(Iova::new(iova), bytes).ok_or(Failure::Addresses)?;
        let mut owed = Gather::new();
        let mut set = |leaf: IovaRange| {
            let page = (leaf.start().get() - iova) / PAGE;
            if let Some(word) = bitmap.get_mut((page / 64) as usize) {
                *word |= 1 << (page % 64);
            }
        };
        let read = self.domain.read_and_clear_dirty(range, &mut owed, &mut set);
        read.map_err(|_| Failure::Addresses)?;
        self.domain.sync(&mut owed).map(drop).map_err(|_| Failure::Queue)
    }
}

/// The reads of marks of one table.
pub(crate) struct Marks<M> {
    tables: M,
    bitmap: Vec<u64>,
}

impl<M: Marked> Marks<M> {
    /// Maps the pages.
    ///
    /// # Errors
    /// If there is no memory.
    pub(crate) fn new(tables: M) -> Result<Self, Failure> {
        // Off the alignment of larger pages.
        tables.map(BASE.get(), MEMORY.get() + PAGE, PAGES * PAGE)?;
        Ok(Self { tables, bitmap: vec![0; (PAGES / 64) as usize] })
    }

    /// The bit of each page, as the last read left them.
    #[cfg(test)]
    pub(crate) fn bitmap(&mut self) -> &mut [u64] {
        &mut self.bitmap
    }

    fn marked() -> impl Iterator<Item = u64> {
        (0..PAGES / APART).map(|n| BASE.get() + n * APART * PAGE)
    }
}

impl<M: Marked> Workload for Marks<M> {
    fn units(&self) -> u64 {
        PAGES
    }

    fn prepare(&mut self) -> Result<(), Failure> {
        self.bitmap.fill(0);
        Self::marked().try_for_each(|iova| self.tables.mark(iova))
    }

    fn run(&mut self) -> Result<(), Failure> {
        self.tables.read_and_clear(black_box(BASE.get()), &mut self.bitmap)?;
        let found: u32 = self.bitmap.iter().map(|word| word.count_ones()).sum();
        match u64::from(found) == PAGES / APART {
            true => Ok(()),
            false => Err(Failure::Marks),
        }
    }
}

/// Loads of all entries in order, and stores to those that are marked.
pub(crate) struct PlainMarks {
    words: Vec<AtomicU64>,
    bitmap: Vec<u64>,
}

impl PlainMarks {
    pub(crate) fn new() -> Self {
        let words = (0..PAGES).map(|_| AtomicU64::new(0)).collect();
        Self { words, bitmap: vec![0; (PAGES / 64) as usize] }
    }
}

impl Workload for PlainMarks {
    fn units(&self) -> u64 {
        PAGES
    }

    fn prepare(&mut self) -> Result<(), Failure> {
        self.bitmap.fill(0);
        for word in self.words.iter().step_by(APART as usize) {
            word.store(MarkedFormat::Amd.mark(), Ordering::Relaxed);
        }
        Ok(())
    }

    fn run(&mut self) -> Result<(), Failure> {
        let mark = black_box(MarkedFormat::Amd.mark());
        for (words, bits) in self.words.chunks(64).zip(&mut self.bitmap) {
            for (word, bit) in words.iter().zip(0..) {
                if word.load(Ordering::Relaxed) & mark != 0 {
                    word.fetch_and(!mark, Ordering::Relaxed);
                    *bits |= 1 << bit;
                }
            }
        }
        black_box(&self.bitmap);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mark_is_read_once() {
        for format in [MarkedFormat::Amd, MarkedFormat::Vtd] {
            let mut marks = Marks::new(OurMarks::new(format).unwrap()).unwrap();
            for _ in 0..2 {
                marks.prepare().unwrap();
                marks.run().unwrap();
                assert!(marks.bitmap().iter().all(|&word| word == 0x1111_1111_1111_1111));
            }
            marks.bitmap().fill(0);
            assert!(matches!(marks.run(), Err(Failure::Marks)), "{format:?}");
        }
    }
}
