//! Pages and runs of 256 pages, in the formats of VT-d, AMD-Vi and RISC-V.
//!
//! Both sides do the same: each page or run lies in a leaf table that stays, a map or an unmap is one call through a
//! pointer, and an unmap builds its commands, the smallest power of two of pages that covers it and a wait.

use std::hint::black_box;

use portolan::addr::{InvalTag, Iova, IovaRange, PageSize, PhysAddr};
use portolan::inval::{Capabilities, Gather, PageForm, RangeForm};
use portolan::iommu::{Domain, PagedDomain};
use portolan::table::PageTable;
use portolan::table::format::{
    AmdLevels, AmdV1, DirtyTracking, Format, RiscvContiguity, RiscvFirstStage, RiscvLevels,
    RiscvMemoryTypes, VtdFirstLevels, VtdFirstStage, VtdLevels, VtdSecondStage,
};

use crate::commands::Commands;
use crate::plain::{StoreRun, WalkStore};
use crate::raw::{LinuxFormat, promised, tables};
use crate::rig::{BASE, BLOCK, MEMORY, PAGE, QUIRKS, SINGLES, Span, Timed, access};
use crate::workload::{Failure, Workload};

/// A format of both sides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BothFormats {
    pub(crate) theirs: LinuxFormat,
    pub(crate) levels: u32,
    ours: fn() -> Result<OurTables, Failure>,
}

impl BothFormats {
    pub(crate) const VTD: Self = Self {
        theirs: LinuxFormat::VtdSecond,
        levels: 4,
        ours: || {
            let format = VtdSecondStage::new(VtdLevels::Four, OUTPUT_BITS);
            OurTables::new(format, Capabilities { page: PageForm::Whole, ..CAPS })
        },
    };
    /// Three levels, with which Linux's driver begins.
    pub(crate) const AMD: Self = Self {
        theirs: LinuxFormat::Amd,
        levels: 3,
        ours: || OurTables::new(AmdV1::new(AmdLevels::Three, OUTPUT_BITS), CAPS),
    };
    pub(crate) const X86: Self = Self {
        theirs: LinuxFormat::X86,
        levels: 4,
        ours: || {
            let format = VtdFirstStage {
                levels: VtdFirstLevels::Four,
                output_lg2: OUTPUT_BITS,
                dirty: DirtyTracking::Off,
            };
            OurTables::new(format, Capabilities { page: PageForm::Whole, ..CAPS })
        },
    };
    pub(crate) const RISCV: Self = Self {
        theirs: LinuxFormat::Riscv,
        levels: 4,
        ours: || {
            let format = RiscvFirstStage {
                levels: RiscvLevels::Four,
                output_lg2: OUTPUT_BITS,
                memory_types: RiscvMemoryTypes::Absent,
                contiguity: RiscvContiguity::Absent,
                dirty: DirtyTracking::Off,
            };
            OurTables::new(format, CAPS)
        },
    };

    /// Our tables, empty.
    ///
    /// # Errors
    /// If there is no memory.
    pub(crate) fn ours(self) -> Result<OurTables, Failure> {
        (self.ours)()
    }
}

pub(crate) const OUTPUT_BITS: u32 = 46;

/// Hardware that takes powers of two of pages.
pub(crate) const CAPS: Capabilities = Capabilities {
    range: RangeForm::PowerOfTwo { max_lg2_pages: 36 },
    ..Capabilities::new(PageSize::SIZE_4K)
};

/// A table that is mapped and unmapped by address.
pub(crate) trait Mapper {
    /// Maps contiguous memory.
    fn map(&self, iova: u64, pa: u64, bytes: u64) -> Result<(), Failure>;

    /// Unmaps, builds the commands and frees tables.
    fn unmap(&self, iova: u64, bytes: u64) -> Result<(), Failure>;

    /// Fails if the code has warned.
    fn check(&self) -> Result<(), Failure> {
        Ok(())
    }
}

/// Our tables behind an erased domain, as a driver reaches them.
pub(crate) struct OurTables(Box<dyn Domain>);

impl OurTables {
    fn new<F: Format<Word = std::sync::atomic::AtomicU64> + 'static>(
        format: F,
        caps: Capabilities,
    ) -> Result<Self, Failure> {
        let table = PageTable::new(format, tables(2 * RUNS as u32 + 64))?;
        let tag = InvalTag::new(1);
        let domain = PagedDomain::new(table, tag, caps, QUIRKS, Commands::new());
        Ok(Self(black_box(Box::new(domain))))
    }
}

impl Mapper for OurTables {
    #[inline]
    fn map(&self, iova: u64, pa: u64, bytes: u64) -> Result<(), Failure> {
        let mut owed = Gather::new();
        let memory = promised(PhysAddr::new(pa), bytes);
        self.0.map(Iova::new(iova), memory, access(), &mut owed)?;
        black_box(&owed);
        Ok(())
    }

    #[inline]
    fn unmap(&self, iova: u64, bytes: u64) -> Result<(), Failure> {
        let range = IovaRange::from_len(Iova::new(iova), bytes).ok_or(Failure::Addresses)?;
        let mut owed = Gather::new();
        self.0.unmap(range, &mut owed)?;
        self.0.sync(&mut owed).map(drop).map_err(|_| Failure::Queue)
    }
}

/// Runs of pages, each in a leaf table of its own.
const RUNS: u64 = 64;

/// Lengths that are mapped and unmapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Length {
    /// Every second page of a leaf table; the others stay mapped.
    Page,
    /// 256 pages, off the alignment of larger ones; the last page of each leaf table stays mapped.
    Run,
}

impl Length {
    /// Work of the plain loop that it is compared with.
    pub(crate) const fn limit(self) -> &'static str {
        match self {
            Self::Page => "bare walk and store",
            Self::Run => "stores in order",
        }
    }

    fn count(self) -> u64 {
        match self {
            Self::Page => SINGLES,
            Self::Run => RUNS,
        }
    }

    pub(crate) const fn bytes(self) -> u64 {
        match self {
            Self::Page => PAGE,
            Self::Run => 256 * PAGE,
        }
    }

    fn start(self, i: u64) -> u64 {
        match self {
            Self::Page => BASE.get() + i * 2 * PAGE,
            Self::Run => BASE.get() + i * BLOCK,
        }
    }

    /// Page that stays mapped beside it.
    fn beside(self, i: u64) -> u64 {
        match self {
            Self::Page => self.start(i) + PAGE,
            Self::Run => self.start(i) + BLOCK - PAGE,
        }
    }
}

/// Plain loop that a length is compared with.
pub(crate) fn limit(format: BothFormats, length: Length) -> Box<dyn Workload> {
    match length {
        Length::Page => Box::new(WalkStore::new(format.levels, SINGLES as usize, 2)),
        Length::Run => {
            Box::new(StoreRun::of_span(Span { count: RUNS, bytes: length.bytes(), shift: 0 }))
        }
    }
}

/// Pages or runs of one table, mapped and unmapped one after the other.
pub(crate) struct Lengths<M> {
    mapper: M,
    length: Length,
    timed: Timed,
    mapped: bool,
}

impl<M: Mapper> Lengths<M> {
    pub(crate) fn new(mapper: M, length: Length, timed: Timed) -> Result<Self, Failure> {
        for i in 0..length.count() {
            mapper.map(length.beside(i), MEMORY.get(), PAGE)?;
        }
        Ok(Self { mapper, length, timed, mapped: false })
    }

    fn map(&mut self) -> Result<(), Failure> {
        self.mapped = true;
        for i in 0..self.length.count() {
            let pa = black_box(MEMORY.get() + PAGE + i * self.length.bytes());
            self.mapper.map(black_box(self.length.start(i)), pa, black_box(self.length.bytes()))?;
        }
        Ok(())
    }

    fn unmap(&mut self) -> Result<(), Failure> {
        self.mapped = false;
        for i in 0..self.length.count() {
            self.mapper.unmap(black_box(self.length.start(i)), black_box(self.length.bytes()))?;
        }
        Ok(())
    }
}

impl<M: Mapper> Workload for Lengths<M> {
    fn units(&self) -> u64 {
        self.length.count()
    }

    fn prepare(&mut self) -> Result<(), Failure> {
        self.mapper.check()?;
        match (self.timed, self.mapped) {
            (Timed::Map, true) => self.unmap(),
            (Timed::Unmap, false) => self.map(),
            _ => Ok(()),
        }
    }

    fn run(&mut self) -> Result<(), Failure> {
        match self.timed {
            Timed::Map => self.map(),
            Timed::Unmap => self.unmap(),
        }
    }
}
