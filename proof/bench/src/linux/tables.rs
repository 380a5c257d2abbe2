//! Linux's page tables: maps and unmaps through `iommu.c` and `io-pgtable-arm.c`, with commands built
//! by the shim's driver.

use std::hint::black_box;

use super::{Domain, LinuxDomainKind, List, OnCpu, linux, succeeded};
use crate::rig::{
    BASE, Evictor, INPUT_BITS, LIST_PAGES, MEMORY, PAGE, SINGLES, Span, Timed, as_pieces,
    contiguous, pieces,
};
use crate::workload::{Cache, Failure, Workload};

fn domain(kind: LinuxDomainKind) -> Result<Domain, Failure> {
    let cpu = linux()?.on_cpu(0);
    cpu.domain(kind, INPUT_BITS).ok_or(Failure::HostMemory)
}

/// Fails if a call did not go well, or if Linux warned.
fn checked(cpu: &OnCpu, well: bool) -> Result<(), Failure> {
    succeeded(well && cpu.warnings() == 0)
}

/// A scatter list, mapped by `iommu_map_sg`.
pub(crate) struct LinuxMapList {
    list: List,
    domain: Domain,
    mapped: bool,
    evictor: Evictor,
}

impl LinuxMapList {
    pub(crate) fn new(kind: LinuxDomainKind, cache: Cache) -> Result<Self, Failure> {
        Self::of(&pieces(LIST_PAGES as usize), kind, cache)
    }

    /// A list of contiguous memory.
    pub(crate) fn contiguous(kind: LinuxDomainKind) -> Result<Self, Failure> {
        Self::of(&as_pieces(contiguous()), kind, Cache::Hot)
    }

    fn of(pieces: &[(u64, u32)], kind: LinuxDomainKind, cache: Cache) -> Result<Self, Failure> {
        let domain = domain(kind)?;
        let list = domain.cpu().list(pieces).ok_or(Failure::HostMemory)?;
        Ok(Self { list, domain, mapped: false, evictor: Evictor::new(cache) })
    }
}

impl Workload for LinuxMapList {
    fn units(&self) -> u64 {
        LIST_PAGES
    }

    fn prepare(&mut self) -> Result<(), Failure> {
        if std::mem::take(&mut self.mapped) {
            let bytes = LIST_PAGES * PAGE;
            let well = self.domain.unmap(BASE.get(), bytes) == bytes;
            checked(self.domain.cpu(), well)?;
        }
        self.evictor.evict();
        Ok(())
    }

    fn run(&mut self) -> Result<(), Failure> {
        let mapped = self.domain.map_sg(BASE.get(), &self.list);
        self.mapped = mapped == (LIST_PAGES * PAGE) as i64;
        succeeded(self.mapped)
    }
}

/// Contiguous memory off the alignment of blocks, as pages of 4 KiB.
pub(crate) struct LinuxOfSpan {
    domain: Domain,
    span: Span,
    timed: Timed,
    mapped: bool,
}

impl LinuxOfSpan {
    pub(crate) fn new(span: Span, timed: Timed, kind: LinuxDomainKind) -> Result<Self, Failure> {
        Ok(Self { domain: domain(kind)?, span, timed, mapped: false })
    }

    fn map(&mut self) -> Result<(), Failure> {
        let pa = black_box(self.span.memory());
        for start in self.span.starts() {
            let mapped = self.domain.map(start, pa, self.span.bytes);
            succeeded(mapped)?;
        }
        self.mapped = true;
        Ok(())
    }

    fn unmap(&mut self) -> Result<(), Failure> {
        for start in self.span.starts() {
            let unmapped = self.domain.unmap(start, self.span.bytes);
            succeeded(unmapped == self.span.bytes)?;
        }
        self.mapped = false;
        Ok(())
    }
}

impl Workload for LinuxOfSpan {
    fn units(&self) -> u64 {
        match self.timed {
            Timed::Map => self.span.count * self.span.bytes / PAGE,
            Timed::Unmap => self.span.count,
        }
    }

    fn prepare(&mut self) -> Result<(), Failure> {
        match (self.timed, self.mapped) {
            (Timed::Map, true) => self.unmap()?,
            (Timed::Unmap, false) => self.map()?,
            _ => {}
        }
        checked(self.domain.cpu(), true)
    }

    fn run(&mut self) -> Result<(), Failure> {
        match self.timed {
            Timed::Map => self.map(),
            Timed::Unmap => self.unmap(),
        }
    }
}

/// Layer of Linux that is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layer {
    /// `iommu.c`, which chooses the sizes of pages.
    Domain,
    /// Calls of `io-pgtable-arm.c` only.
    Tables,
}

/// Single pages; every second page of the leaf table stays mapped.
pub(crate) struct LinuxSingles {
    domain: Domain,
    layer: Layer,
    timed: Timed,
    mapped: bool,
}

impl LinuxSingles {
    pub(crate) fn new(layer: Layer, timed: Timed) -> Result<Self, Failure> {
        let domain = domain(LinuxDomainKind::SNOOPS)?;
        for i in 0..SINGLES {
            let iova = BASE.get() + (2 * i + 1) * PAGE;
            succeeded(domain.map(iova, MEMORY.get(), PAGE))?;
        }
        Ok(Self { domain, layer, timed, mapped: false })
    }

    fn map(&mut self) -> Result<(), Failure> {
        self.mapped = true;
        for i in 0..SINGLES {
            let (iova, pa) = black_box((BASE.get() + 2 * i * PAGE, MEMORY.get() + i * PAGE));
            let mapped = match self.layer {
                Layer::Domain => self.domain.map(iova, pa, PAGE),
                Layer::Tables => self.domain.tables_map(iova, pa, PAGE, 1),
            };
            succeeded(mapped)?;
        }
        Ok(())
    }

    fn unmap(&mut self) -> Result<(), Failure> {
        self.mapped = false;
        for i in 0..SINGLES {
            let iova = black_box(BASE.get() + 2 * i * PAGE);
            let unmapped = match self.layer {
                Layer::Domain => self.domain.unmap(iova, PAGE),
                Layer::Tables => self.domain.tables_unmap(iova, PAGE, 1),
            };
            succeeded(unmapped == PAGE)?;
        }
        Ok(())
    }
}

impl Workload for LinuxSingles {
    fn units(&self) -> u64 {
        SINGLES
    }

    fn prepare(&mut self) -> Result<(), Failure> {
        match (self.timed, self.mapped) {
            (Timed::Map, true) => self.unmap()?,
            (Timed::Unmap, false) => self.map()?,
            _ => {}
        }
        checked(self.domain.cpu(), true)
    }

    fn run(&mut self) -> Result<(), Failure> {
        match self.timed {
            Timed::Map => self.map(),
            Timed::Unmap => self.unmap(),
        }
    }
}
