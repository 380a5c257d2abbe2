//! Mapping scatter lists.

use portolan::platform::DmaMemory;
use std::hint::black_box;
use std::sync::Arc;

use portolan::addr::{IovaRange, PhysRange};
use portolan::inval::Gather;
use portolan::iommu::{Domain, PagedDomain};

use crate::commands::Commands;
use crate::raw::{WrittenBack, promised};
use crate::rig::{
    BASE, CAPS, CONTEXT, Evictor, LIST_PAGES, QUIRKS, access, contiguous, scattered, table,
};
use crate::space::written_back;
use crate::workload::{Cache, Failure, Workload};

/// A scatter list through a domain whose format and queue are erased, as a driver's reaches it.
pub(crate) struct MapList {
    domain: Box<dyn Domain>,
    /// Tables whose lines are written back, if the walker does not snoop.
    memory: Option<Arc<WrittenBack>>,
    list: Vec<DmaMemory>,
    mapped: Option<IovaRange>,
    evictor: Evictor,
}

/// A page, to be mapped.
fn whole(page: PhysRange) -> DmaMemory {
    promised(page.start(), page.len_minus_one() + 1)
}

impl MapList {
    pub(crate) fn new(cache: Cache) -> Result<Self, Failure> {
        let domain = PagedDomain::new(table(64)?, CONTEXT, CAPS, QUIRKS, Commands::new());
        Ok(Self {
            domain: black_box(Box::new(domain)),
            memory: None,
            list: scattered().into_iter().map(whole).collect(),
            mapped: None,
            evictor: Evictor::new(cache),
        })
    }

    /// Makes a list of contiguous memory.
    pub(crate) fn contiguous() -> Result<Self, Failure> {
        let list = contiguous().into_iter().map(whole).collect();
        Ok(Self { list, ..Self::new(Cache::Hot)? })
    }

    /// Makes a list for a walker that does not snoop: a map is complete when its lines are in memory.
    pub(crate) fn written_back() -> Result<Self, Failure> {
        let memory = Arc::new(WrittenBack::new(64));
        let domain = written_back(&memory)?;
        Ok(Self {
            domain: black_box(Box::new(domain)),
            memory: Some(memory),
            ..Self::new(Cache::Hot)?
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
        if self.memory.is_some() {
            self.domain.sync(&mut owed).map_err(|_| Failure::Queue)?;
        }
        black_box(&owed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_of_entries_is_written_back_once() {
        let mut work = MapList::written_back().unwrap();
        for _ in 0..2 {
            work.prepare().unwrap();
            let memory = work.memory.clone().unwrap();
            let before = memory.lines();
            work.run().unwrap();
            let lines = memory.lines() - before;
            // Eight entries a line; a line for each of the sixteen tables' own entries, at least, and
            // a page of zeroes is not written back but where its entries are.
            let entries = LIST_PAGES / 8;
            assert!((entries..=entries + 2 * 17).contains(&lines), "{lines} lines");
        }
    }
}
