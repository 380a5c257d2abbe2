//! Mapping and unmapping single pages.

use std::hint::black_box;

use portolan::addr::{Iova, IovaRange, PageSize, PhysAddr};
use portolan::inval::Gather;

use crate::rig::{
    BASE, MEMORY, PAGE, Table, access, count_commands, table, take_steps, unmap_and_pay,
};
use crate::{Failure, Workload};

/// Single pages per pass: every second page of one leaf table.
pub(crate) const SINGLES: u64 = 256;

/// What is done with each of many single pages.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Single {
    Map,
    MapIntoOne,
    Unmap,
    UnmapCounted,
    UnmapSteps,
    Cycle,
}

pub(crate) struct Singles {
    table: Table,
    operation: Single,
    mapped: bool,
}

impl Singles {
    /// Every second page of a leaf table is mapped for good.
    pub(crate) fn new(operation: Single) -> Result<Self, Failure> {
        let this = Self {
            table: table(64)?,
            operation,
            mapped: false,
        };
        for i in 0..SINGLES {
            let mut owed = Gather::new();
            let iova = Iova::new(Self::page(i).get() + PAGE);
            this.table.map(iova, MEMORY, PAGE, access(), &mut owed)?;
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
        Ok(self.table.map(iova, pa, black_box(PAGE), access(), owed)?)
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
            unmap_and_pay(&self.table, range)?;
        }
        Ok(())
    }
}

impl Workload for Singles {
    fn units(&self) -> u64 {
        SINGLES
    }

    fn prepare(&mut self) -> Result<(), Failure> {
        let wanted = matches!(
            self.operation,
            Single::Unmap | Single::UnmapCounted | Single::UnmapSteps
        );
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
            Single::Unmap | Single::UnmapCounted | Single::UnmapSteps => {
                for i in 0..SINGLES {
                    let mut owed = Gather::new();
                    let range = black_box(IovaRange::page(Self::page(i), PageSize::SIZE_4K));
                    self.table.unmap(range, &mut owed)?;
                    match self.operation {
                        Single::UnmapCounted => count_commands(&owed),
                        Single::UnmapSteps => take_steps(&owed),
                        _ => {}
                    }
                    black_box(&owed);
                }
            }
            Single::Cycle => {
                for i in 0..SINGLES {
                    let mut owed = Gather::new();
                    let range = self.map(i, &mut owed)?;
                    take_steps(&owed);
                    unmap_and_pay(&self.table, range)?;
                }
                return Ok(());
            }
        }
        self.mapped = !self.mapped;
        Ok(())
    }
}
