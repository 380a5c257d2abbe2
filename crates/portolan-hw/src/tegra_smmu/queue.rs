//! The steps of a plan as flushes of the page-table cache (PTC) and the translation buffer (TLB).
//!
//! The PTC comes first, so that the TLB is not filled again from stale lines. Equal flushes that
//! follow one another are made once: four pages share a line of the TLB.

use core::sync::atomic::AtomicU32;

use portolan::addr::Iova;
use portolan::inval::{Command, Depth, InvalidationQueue, Run, Step, TablesLeft};
use portolan::iommu::IommuError;
use portolan::platform::UnitPlatform;

use super::config::WriteKind;
use super::shared::TegraShared;
use portolan_spec::tegra_smmu::reg::{self, tlb_flush};

/// Part of the PTC that has been flushed for this plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ptc {
    Nothing,
    Lines,
    All,
}

/// One plan on its way to the registers.
struct Flush<'a, P: UnitPlatform<AtomicU32>> {
    shared: &'a TegraShared<P>,
    tables: TablesLeft,
    ptc: Ptc,
    /// Value that was last written to TLB_FLUSH since the last sync.
    last: Option<u32>,
}

impl<P: UnitPlatform<AtomicU32>> Flush<'_, P> {
    fn step(&mut self, step: Step) -> Result<(), IommuError> {
        match step {
            // There is no such buffer.
            Step::FlushWriteBuffer => {}
            Step::Invalidate(command) => self.invalidate(command),
            Step::Sync => {
                self.last = None;
                self.shared.read_back()?;
            }
        }
        Ok(())
    }

    fn forget_tables(&mut self, depth: Depth) {
        let all = match self.tables {
            TablesLeft::Yes => true,
            TablesLeft::No => false,
            TablesLeft::ByDepth => depth == Depth::AllLevels,
        };
        match (self.ptc, all) {
            (Ptc::All, _) | (Ptc::Lines, false) => {}
            (_, true) => {
                self.shared.forget_tables();
                self.ptc = Ptc::All;
            }
            (Ptc::Nothing, false) => {
                self.shared.forget_lines();
                self.ptc = Ptc::Lines;
            }
        }
    }

    fn invalidate(&mut self, command: Command) {
        let chip = self.shared.chip;
        let (value, kind) = match command {
            Command::Page { context, iova, size, depth } => {
                self.forget_tables(depth);
                let (place, kind) = place(iova, size.lg2());
                (chip.flush_asid(context.get()) | place, kind)
            }
            Command::Range { context, run, granule, depth } => {
                self.forget_tables(depth);
                let (start, lg2) = match run {
                    Run::PowerOfTwo { start, lg2_pages } => {
                        (start, granule.lg2().saturating_add(lg2_pages.into()))
                    }
                    // Not a form that the plan knows of here: all of the address space.
                    Run::NumScale { start, .. } => (start, u64::BITS),
                };
                let (place, kind) = place(start, lg2);
                (chip.flush_asid(context.get()) | place, kind)
            }
            Command::Context { context } => {
                self.tables = TablesLeft::Yes;
                self.forget_tables(Depth::AllLevels);
                (chip.flush_asid(context.get()), WriteKind::TlbAsid)
            }
            Command::Global | Command::Configuration { .. } => {
                self.tables = TablesLeft::Yes;
                self.forget_tables(Depth::AllLevels);
                (tlb_flush::ALL, WriteKind::TlbAll)
            }
        };
        if self.last != Some(value) {
            self.shared.write(kind, reg::TLB_FLUSH, value);
            self.last = Some(value);
        }
    }
}

/// The smallest piece that the TLB can forget that holds `2^lg2` bytes, aligned to their size.
fn place(start: Iova, lg2: u32) -> (u32, WriteKind) {
    let at = |span_lg2: u32| {
        let start = start.get() as u32 >> span_lg2 << span_lg2;
        start >> tlb_flush::ADDRESS_LG2
    };
    if lg2 <= tlb_flush::GROUP_LG2 {
        let value = at(tlb_flush::GROUP_LG2) | tlb_flush::GROUP;
        (value, WriteKind::TlbGroup)
    } else if lg2 <= tlb_flush::SECTION_LG2 {
        let value = at(tlb_flush::SECTION_LG2) | tlb_flush::SECTION;
        (value, WriteKind::TlbSection)
    } else {
        (tlb_flush::ALL, WriteKind::TlbAsid)
    }
}

impl<P: UnitPlatform<AtomicU32>> InvalidationQueue for TegraShared<P> {
    type Error = IommuError;

    /// A debt without tables flushes the lines of the page-table cache that have changed and not
    /// all of them.
    fn pay(
        &self,
        steps: &mut dyn Iterator<Item = Step>,
        tables: TablesLeft,
    ) -> Result<(), IommuError> {
        if self.operation.is_off() {
            return Ok(());
        }
        let mut flush = Flush { shared: self, tables, ptc: Ptc::Nothing, last: None };
        let carry_out = || {
            for step in steps {
                flush.step(step)?;
            }
            Ok(())
        };
        carry_out().inspect_err(|_| self.forget_was_lost())
    }
}
