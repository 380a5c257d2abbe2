//! Mapping scatter lists.

use std::hint::black_box;
use std::sync::Arc;

use portolan::addr::{IovaRange, PhysRange};
use portolan::inval::{Capabilities, Gather, InvalidationQueue, Step, Walker};
use portolan::iommu::{Domain, IommuError, PagedDomain, TagPool};
use portolan::platform::TableMem;
use portolan::table::PageTable;

use crate::commands::Commands;
use crate::raw::WrittenBack;
use crate::rig::{
    BASE, CAPS, CONTEXT, Evictor, LIST_PAGES, QUIRKS, access, format, scattered, table,
};
use crate::workload::{Cache, Failure, Workload};

/// A scatter list through a domain whose format and queue are erased, as a driver's reaches it.
pub(crate) struct MapList {
    domain: Box<dyn Domain>,
    /// Tables whose lines are written back, if the walker does not snoop.
    memory: Option<Arc<WrittenBack>>,
    list: Vec<PhysRange>,
    mapped: Option<IovaRange>,
    evictor: Evictor,
}

impl MapList {
    pub(crate) fn new(cache: Cache) -> Result<Self, Failure> {
        let domain = PagedDomain::new(table(64)?, CONTEXT, CAPS, QUIRKS, Commands::new());
        Ok(Self {
            domain: black_box(Box::new(domain)),
            memory: None,
            list: scattered(),
            mapped: None,
            evictor: Evictor::new(cache),
        })
    }

    /// For a walker that does not snoop: a map is complete when its lines are in memory.
    pub(crate) fn written_back() -> Result<Self, Failure> {
        let memory = Arc::new(WrittenBack::new(64));
        let table = PageTable::new(format()?, Arc::clone(&memory))?;
        let caps = Capabilities {
            walker: Walker::NonCoherent,
            ..CAPS
        };
        let queue = WritingBack {
            commands: Commands::new(),
            memory: Arc::clone(&memory),
        };
        let domain = PagedDomain::new(table, CONTEXT, caps, QUIRKS, queue);
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

/// Writes back what a plan says, and builds commands.
#[derive(Debug)]
struct WritingBack {
    commands: Commands,
    memory: Arc<WrittenBack>,
}

impl InvalidationQueue for WritingBack {
    type Error = IommuError;

    fn execute(&self, steps: &mut dyn Iterator<Item = Step>) -> Result<(), IommuError> {
        for step in steps {
            match step {
                Step::Clean(bytes) => self.memory.clean(bytes),
                Step::CleanBarrier => self.memory.clean_barrier(),
                step => self.commands.build(step),
            }
        }
        Ok(())
    }
}

impl TagPool for WritingBack {
    fn release(&self, _context: portolan::addr::InvalTag) -> Result<(), IommuError> {
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
            assert!(
                (entries..=entries + 2 * 17).contains(&lines),
                "{lines} lines"
            );
        }
    }
}
