//! Registers, identifiers, and the state of the page-table cache, which a unit and its domains
//! share.
//!
//! Tegra X1 Technical Reference Manual, chapter 17.5. Writes to the flush registers take effect in
//! order; a read of the same block returns after them.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::AtomicU32;

use portolan::addr::{InvalTag, PhysAddr};
use portolan::inval::{
    Caching, Capabilities, LeafOnly, PageForm, RangeForm, Ranges, Walker, WriteBuffer,
};
use portolan::iommu::{IommuError, TagPool};
use portolan::platform::{Guarded, Held, Mmio, Nanos, UnitPlatform};
use portolan::table::Format;
use portolan::table::format::Tegra;

use super::config::Chip;
use super::config::Config;
use super::config::{Counters, WriteKind};
use super::tables::{Noted, Stale};
use crate::chassis::{Operation, Present, Submitters};
use crate::ids::Ids;
use portolan_spec::tegra_smmu::reg::{self, asid, config, directory, ptc_flush, tlb_flush};

/// The address space of streams that are blocked: nothing is mapped in it.
pub(super) const BLOCKED: u32 = 0;

/// Exponents of the pages that one write drops at most: a section.
const SECTION_LG2_PAGES: u8 = (tlb_flush::SECTION_LG2 - 12) as u8;

/// Shared by the unit, its handles and its domains.
///
/// *Locking.* Both locks are held for a few writes to registers, never while something is awaited.
pub(super) struct TegraShared<P: UnitPlatform<AtomicU32>> {
    pub(super) regs: P::Registers,
    pub(super) mem: P::Memory,
    pub(super) clock: P,
    pub(super) limit: Nanos,
    pub(super) chip: Chip,
    pub(super) counters: Counters,
    pub(super) ids: Ids<P>,
    /// The empty directory of [`BLOCKED`].
    pub(super) nothing: PhysAddr,
    /// Lines flushed one by one; with more, all of them at once.
    pub(super) lines_at_most: u64,
    /// Held while the page-table cache is flushed, whose lines of 34 bits take two writes.
    pub(super) noted: Noted<P>,
    /// Directories of the address spaces that have one. Held from the choice of an address space to the
    /// write of its directory.
    directories: Guarded<P, Vec<Option<PhysAddr>>>,
    pub(super) operation: Operation,
    pub(super) submitters: Submitters<P>,
}

impl<P: UnitPlatform<AtomicU32>> TegraShared<P> {
    /// The CPUs that submit.
    pub(super) fn cpus(&self) -> &P {
        &self.clock
    }

    pub(super) fn new(
        regs: P::Registers,
        mem: P::Memory,
        clock: P,
        config: &Config,
        nothing: PhysAddr,
        counters: Counters,
    ) -> Self {
        let chip = config.chip;
        let ranges = Ranges::of(&capabilities());
        Self {
            submitters: Submitters::new(&clock, ranges, config.combining),
            regs,
            mem,
            clock,
            limit: config.limit,
            chip,
            counters,
            ids: Ids::new(BLOCKED + 1, chip.asids() - 1),
            nothing,
            lines_at_most: config.lines_at_most,
            noted: Arc::new(Guarded::default()),
            directories: Guarded::new(alloc::vec![None; chip.asids() as usize]),
            operation: Operation::default(),
        }
    }

    pub(super) fn operation(&self) -> &Operation {
        &self.operation
    }

    pub(super) fn write(&self, kind: WriteKind, offset: usize, value: u32) {
        self.counters.add(kind);
        self.regs.write32(offset, value);
    }

    /// A register that never reads as all ones.
    pub(super) fn read(&self, offset: usize) -> Result<u32, IommuError> {
        self.regs.present32(offset)
    }

    /// Returns once everything written before is complete.
    pub(super) fn read_back(&self) -> Result<(), IommuError> {
        self.counters.add(WriteKind::ReadBack);
        let value = self.read(reg::PTB_ASID)?;
        if value >= self.chip.asids() {
            return Err(IommuError::Nonsense { offset: reg::PTB_ASID, value: value.into() });
        }
        Ok(())
    }

    /// Checks that the bits of `mask` of a register are `wanted`: that it took the value that was
    /// written.
    pub(super) fn must_hold(
        &self,
        offset: usize,
        mask: u32,
        wanted: u32,
    ) -> Result<(), IommuError> {
        let value = self.read(offset)?;
        if value & mask != wanted {
            let value = value.into();
            return Err(IommuError::Nonsense { offset, value });
        }
        Ok(())
    }

    /// Sees that the unit is on: one that lost its power and is back lets every access pass.
    pub(super) fn must_be_on(&self) -> Result<(), IommuError> {
        match self.read(reg::SMMU_CONFIG)? & config::ENABLE {
            0 => Err(IommuError::Stopped),
            _ => Ok(()),
        }
    }

    /// Gives the address space `id` the directory at `root`, and checks that the register took it.
    pub(super) fn set_directory(&self, id: u32, root: PhysAddr) -> Result<(), IommuError> {
        const ALL: u32 = directory::READABLE | directory::WRITABLE | directory::NON_SECURE;
        let frame = (root.get() >> directory::ADDRESS_LG2) as u32;
        let mut directories = self.directories.lock();
        if let Some(of) = directories.get_mut(id as usize) {
            *of = Some(root);
        }
        self.write(WriteKind::SelectAsid, reg::PTB_ASID, id & asid::VALUE);
        self.write(WriteKind::Directory, reg::PTB_DATA, frame | ALL);
        let taken = self.must_hold(reg::PTB_DATA, u32::MAX, frame | ALL);
        drop(directories);
        taken
    }

    /// Gives each address space the directory that it had.
    pub(super) fn restore_directories(&self) -> Result<(), IommuError> {
        for id in 0..self.chip.asids() {
            let root = self.directories.lock().get(id as usize).copied().flatten();
            root.map_or(Ok(()), |root| self.set_directory(id, root))?;
        }
        Ok(())
    }

    /// Flushes the whole page-table cache.
    pub(super) fn forget_tables(&self) {
        self.forget_tables_with(self.noted.lock());
    }

    fn forget_tables_with(&self, mut noted: Held<'_, P, Stale>) {
        self.write(WriteKind::PtcAll, reg::PTC_FLUSH, ptc_flush::ALL);
        *noted = Stale::Nothing;
    }

    /// Flushes the lines that were noted, or the whole cache if they are many.
    pub(super) fn forget_lines(&self) {
        let noted = self.noted.lock();
        let size = self.chip.line();
        let Some(runs) = noted.runs() else {
            return self.forget_tables_with(noted);
        };
        let lines = runs.iter().fold(0u64, |sum, run| sum.saturating_add(run.pages(size)));
        if lines > self.lines_at_most {
            return self.forget_tables_with(noted);
        }
        for run in runs {
            let first = run.start().align_down(size).get();
            for line in 0..run.pages(size) {
                self.forget_line(first + line * size.bytes());
            }
        }
        let mut noted = noted;
        *noted = Stale::Nothing;
    }

    /// One line; the caller holds the lock.
    fn forget_line(&self, line: u64) {
        if self.chip.memory_lg2() > 32 {
            self.write(WriteKind::PtcHigh, reg::PTC_FLUSH_HI, (line >> 32) as u32);
        }
        let value = line as u32 | ptc_flush::ADDRESS;
        self.write(WriteKind::PtcLine, reg::PTC_FLUSH, value);
    }

    /// Makes the next caller flush all: the result of the last flush is not known.
    pub(super) fn forget_was_lost(&self) {
        *self.noted.lock() = Stale::Anything;
    }

    /// Drops all translations of an address space.
    pub(super) fn forget_asid(&self, id: u32) {
        let value = self.chip.flush_asid(id);
        self.write(WriteKind::TlbAsid, reg::TLB_FLUSH, value);
    }
}

/// Capabilities of the hardware for the plans of domains. A range is a group of four pages, or a
/// section of 1,024 if that does not hold it. The manual does not describe the buffer's copy of a
/// section, so one is forgotten as a whole.
pub(super) const fn capabilities() -> Capabilities {
    Capabilities {
        granule: Tegra::GRANULE,
        page: PageForm::Whole,
        range: RangeForm::PowerOfTwo { max_lg2_pages: SECTION_LG2_PAGES },
        leaf_only: LeafOnly::Present,
        walker: Walker::NonCoherent,
        caching: Caching::NotPresentToo,
        write_buffer: WriteBuffer::Absent,
    }
}

crate::chassis::handle!(TegraQueue of TegraShared, AtomicU32);

impl<P: UnitPlatform<AtomicU32>> TagPool for TegraQueue<P> {
    fn release(&self, context: InvalTag) -> Result<(), IommuError> {
        let shared = &*self.0;
        let id = context.get();
        if shared.operation.is_off() {
            if let Some(of) = shared.directories.lock().get_mut(id as usize) {
                *of = None;
            }
            shared.ids.give_back(id);
            return Ok(());
        }
        // Nothing that is cached again from here on leads into the tables.
        shared.set_directory(id, shared.nothing)?;
        shared.forget_tables();
        shared.forget_asid(id);
        shared.read_back()?;
        shared.ids.give_back(id);
        Ok(())
    }
}
