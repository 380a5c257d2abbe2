//! Mapping and unmapping single pages.

use crate::raw::promised;
use portolan::iommu::Domain;
use std::hint::black_box;
use std::sync::Arc;

use portolan::addr::{Iova, IovaRange, PageSize, PhysAddr};
use portolan::inval::Gather;

use crate::commands::Commands;
use crate::rig::{
    BASE, BLOCK, MEMORY, PAGE, Paged, QUIRKS, SINGLES, access, build_commands, count_commands,
    paged, table, unmap_and_pay,
};
use crate::threads::Together;
use crate::{Failure, Workload};

/// Operation on each of many single pages.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Single {
    Map,
    MapIntoOne,
    /// Unmaps only, without a plan.
    UnmapAlone,
    /// Planned, and commands counted.
    UnmapPlanned,
    /// Planned, and commands built.
    Unmap,
    /// Mapped, and unmapped with its commands built and tables freed.
    Cycle,
}

pub(crate) struct Singles {
    domain: Paged,
    operation: Single,
    mapped: bool,
}

impl Singles {
    /// Maps every second page of a leaf table permanently.
    pub(crate) fn new(operation: Single) -> Result<Self, Failure> {
        let this = Self { domain: paged(64, QUIRKS)?, operation, mapped: false };
        for i in 0..SINGLES {
            let mut owed = Gather::new();
            let iova = Iova::new(Self::page(i).get() + PAGE);
            this.domain.map(iova, promised(MEMORY, PAGE), access(), &mut owed)?;
        }
        Ok(this)
    }

    fn page(i: u64) -> Iova {
        Iova::new(BASE.get() + i * 2 * PAGE)
    }

    #[inline]
    fn map(&self, i: u64, owed: &mut Gather) -> Result<IovaRange, Failure> {
        let pa = PhysAddr::new(black_box(MEMORY.get() + i * PAGE));
        let iova = black_box(Self::page(i));
        Ok(self.domain.map(iova, promised(pa, black_box(PAGE)), access(), owed)?)
    }

    fn map_all(&self) -> Result<(), Failure> {
        for i in 0..SINGLES {
            let mut owed = Gather::new();
            self.map(i, &mut owed)?;
            black_box(&owed);
        }
        Ok(())
    }

    fn unmap_all(&self) -> Result<(), Failure> {
        for i in 0..SINGLES {
            let range = black_box(IovaRange::page(Self::page(i), PageSize::SIZE_4K));
            unmap_and_pay(&self.domain, range)?;
        }
        Ok(())
    }
}

impl Workload for Singles {
    fn units(&self) -> u64 {
        SINGLES
    }

    fn prepare(&mut self) -> Result<(), Failure> {
        let wanted =
            matches!(self.operation, Single::UnmapAlone | Single::UnmapPlanned | Single::Unmap);
        match (self.mapped, wanted) {
            (false, true) => self.map_all()?,
            (true, false) => self.unmap_all()?,
            _ => {}
        }
        self.mapped = wanted;
        Ok(())
    }

    fn run(&mut self) -> Result<(), Failure> {
        match self.operation {
            Single::Map => self.map_all()?,
            Single::MapIntoOne => {
                let mut owed = Gather::new();
                for i in 0..SINGLES {
                    self.map(i, &mut owed)?;
                }
                black_box(&owed);
            }
            Single::UnmapAlone | Single::UnmapPlanned => {
                for i in 0..SINGLES {
                    let mut owed = Gather::new();
                    let range = black_box(IovaRange::page(Self::page(i), PageSize::SIZE_4K));
                    self.domain.unmap(range, &mut owed)?;
                    if self.operation == Single::UnmapPlanned {
                        count_commands(&owed);
                    }
                    black_box(&owed);
                }
            }
            Single::Unmap => self.unmap_all()?,
            Single::Cycle => {
                for i in 0..SINGLES {
                    let mut owed = Gather::new();
                    let range = self.map(i, &mut owed)?;
                    build_commands(self.domain.queue(), &owed);
                    unmap_and_pay(&self.domain, range)?;
                }
                return Ok(());
            }
        }
        self.mapped = !self.mapped;
        Ok(())
    }
}

/// Pairs of each thread in one pass.
const PAIRS_EACH: u64 = 50_000;

/// Pages of ranges of 2 MiB in one table, mapped and unmapped by so many threads at once, commands
/// built; the ranges begin `apart` bytes apart.
pub(crate) fn threads(count: u32, apart: u64) -> Result<Together, Failure> {
    let table = Arc::new(table(64)?);
    Ok(Together::new(count, PAIRS_EACH, move |cpu| {
        let table = Arc::clone(&table);
        let queue = Commands::new();
        let first = BASE.get() + u64::from(cpu) * apart;
        // Pages that stay mapped keep the leaf table in place.
        let mut owed = Gather::new();
        table.map(Iova::new(first + BLOCK - PAGE), MEMORY, PAGE, access(), &mut owed)?;
        Ok(Box::new(move |pairs| {
            for i in 0..pairs {
                let mut owed = Gather::new();
                let iova = black_box(Iova::new(first + i % SINGLES * PAGE));
                table.map(iova, MEMORY, PAGE, access(), &mut owed)?;
                black_box(&owed);
                let mut owed = Gather::new();
                table.unmap(IovaRange::page(iova, PageSize::SIZE_4K), &mut owed)?;
                build_commands(&queue, &owed);
            }
            Ok(())
        }))
    }))
}
