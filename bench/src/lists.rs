//! Mapping scatter lists and runs.

use std::hint::black_box;

use portolan::addr::{IovaRange, PhysAddr};
use portolan::inval::Gather;
use portolan::table::Segment;

use crate::rig::{
    BASE, BLOCK, Evictor, LIST_PAGES, MEMORY, PAGE, Table, access, scattered, table, unmap_and_pay,
};
use crate::scenarios::Cache;
use crate::{Failure, Workload};

pub(crate) struct MapList {
    table: Table,
    list: Vec<Segment>,
    mapped: Option<IovaRange>,
    evictor: Evictor,
}

impl MapList {
    pub(crate) fn new(cache: Cache) -> Result<Self, Failure> {
        Ok(Self {
            table: table(64)?,
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
            unmap_and_pay(&self.table, range)?;
        }
        self.evictor.evict();
        Ok(())
    }

    fn run(&mut self) -> Result<(), Failure> {
        let mut owed = Gather::new();
        let list = self.list.iter().copied();
        self.mapped = Some(self.table.map_sg(BASE, list, access(), &mut owed)?);
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
