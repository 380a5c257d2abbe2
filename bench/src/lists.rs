//! Mapping scatter lists and runs.

use std::hint::black_box;

use portolan::addr::{IovaRange, PhysAddr, PhysRange};
use portolan::inval::Gather;
use portolan::iommu::{Domain, PagedDomain};

use crate::mappings::Free;
use crate::rig::{
    BASE, BLOCK, CAPS, CONTEXT, Evictor, LIST_PAGES, MEMORY, PAGE, QUIRKS, Table, access,
    scattered, table, unmap_and_pay,
};
use crate::{Cache, Failure, Workload};

/// A scatter list through a domain whose format and queue are erased, as a driver's reaches it.
pub(crate) struct MapList {
    domain: Box<dyn Domain>,
    list: Vec<PhysRange>,
    mapped: Option<IovaRange>,
    evictor: Evictor,
}

impl MapList {
    pub(crate) fn new(cache: Cache) -> Result<Self, Failure> {
        let domain = PagedDomain::new(table(64)?, CONTEXT, CAPS, QUIRKS, Free);
        Ok(Self {
            domain: black_box(Box::new(domain)),
            list: scattered(),
            mapped: None,
            evictor: Evictor::new(cache),
        })
    }
}

impl Workload for MapList {
    fn units(&self) -> u64 {
        LIST_PAGES
    }

    fn prepare(&mut self) -> Result<(), Failure> {
        if let Some(range) = self.mapped.take() {
            let mut owed = Gather::new();
            let unmapped = self.domain.unmap(range, &mut owed);
            unmapped.map_err(|_| Failure::NotPrepared)?;
            self.domain.sync(&mut owed).map_err(|_| Failure::Queue)?;
        }
        self.evictor.evict();
        Ok(())
    }

    fn run(&mut self) -> Result<(), Failure> {
        let mut owed = Gather::new();
        let mapped = self.domain.map_sg(BASE, &self.list, access(), &mut owed);
        self.mapped = Some(mapped?);
        black_box(&owed);
        Ok(())
    }
}

pub(crate) struct MapRun {
    table: Table,
    mapped: Option<IovaRange>,
}

impl MapRun {
    pub(crate) fn new() -> Result<Self, Failure> {
        Ok(Self {
            table: table(64)?,
            mapped: None,
        })
    }
}

impl Workload for MapRun {
    fn units(&self) -> u64 {
        BLOCK / PAGE
    }

    fn prepare(&mut self) -> Result<(), Failure> {
        match self.mapped.take() {
            Some(range) => unmap_and_pay(&self.table, range),
            None => Ok(()),
        }
    }

    fn run(&mut self) -> Result<(), Failure> {
        let mut owed = Gather::new();
        let pa = PhysAddr::new(black_box(MEMORY.get() + PAGE));
        self.mapped = Some(self.table.map(BASE, pa, BLOCK, access(), &mut owed)?);
        black_box(&owed);
        Ok(())
    }
}
