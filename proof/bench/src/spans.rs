//! Mapping and unmapping long stretches of addresses, tables allocated and freed.

use crate::raw::promised;
use portolan::iommu::Domain;
use std::hint::black_box;

use portolan::addr::{Iova, IovaRange, PhysAddr};
use portolan::inval::{Gather, Quirks};

use crate::rig::{PAGE, Paged, Span, Timed, access, paged, unmap_and_pay};
use crate::{Failure, Workload};

/// Contiguous memory off the alignment of blocks, as pages of 4 KiB.
pub(crate) struct OfSpan {
    domain: Paged,
    span: Span,
    timed: Timed,
    mapped: bool,
}

impl OfSpan {
    pub(crate) fn new(span: Span, timed: Timed, quirks: Quirks) -> Result<Self, Failure> {
        Ok(Self { domain: paged(span.tables() + 64, quirks)?, span, timed, mapped: false })
    }

    fn map(&mut self) -> Result<(), Failure> {
        let pa = PhysAddr::new(black_box(self.span.memory()));
        for start in self.span.starts() {
            let mut owed = Gather::new();
            let start = Iova::new(start);
            self.domain.map(start, promised(pa, self.span.bytes), access(), &mut owed)?;
            black_box(&owed);
        }
        self.mapped = true;
        Ok(())
    }

    fn unmap(&mut self) -> Result<(), Failure> {
        for start in self.span.starts() {
            let range = IovaRange::from_len(Iova::new(start), self.span.bytes);
            let range = black_box(range.ok_or(Failure::Addresses)?);
            unmap_and_pay(&self.domain, range)?;
        }
        self.mapped = false;
        Ok(())
    }
}

impl Workload for OfSpan {
    fn units(&self) -> u64 {
        match self.timed {
            Timed::Map => self.span.count * self.span.bytes / PAGE,
            Timed::Unmap => self.span.count,
        }
    }

    fn prepare(&mut self) -> Result<(), Failure> {
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
