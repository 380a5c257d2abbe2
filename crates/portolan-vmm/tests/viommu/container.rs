//! A device that is passed through: the tables that its host keeps for it, as a listener.

use std::io;
use std::sync::{Mutex, MutexGuard};

use portolan_vmm::viommu::{Grant, Listener, MemoryKind};
use vm_memory::Permissions;

use crate::granted::Mapping;

/// Tables of one device, as a plain list.
#[derive(Debug, Default)]
pub struct Container(Mutex<Tables>);

#[derive(Debug, Default)]
struct Tables {
    grants: Vec<Grant>,
    /// Calls so far, and those that fail, each by its number.
    calls: usize,
    failing: Vec<usize>,
}

impl Container {
    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.0.lock().unwrap()
    }

    /// The calls with these numbers from now on fail; the next call is 0.
    pub fn fail_at(&self, calls: &[usize]) {
        let mut tables = self.tables();
        tables.calls = 0;
        tables.failing = calls.to_vec();
    }

    /// Calls since [`Container::fail_at`].
    pub fn calls(&self) -> usize {
        self.tables().calls
    }

    /// Memory that the device may access, as [`Granted`](crate::granted::Granted) says it.
    pub fn grants(&self) -> (bool, Vec<Mapping>) {
        let tables = self.tables();
        let flags = |access, kind| {
            let access = match access {
                Permissions::No => panic!("a grant without access"),
                Permissions::Read => 1,
                Permissions::Write => 2,
                Permissions::ReadWrite => 3,
            };
            access | if kind == MemoryKind::Device { 4 } else { 0 }
        };
        let mapping = |grant: &Grant| match grant {
            Grant::PassThrough => None,
            Grant::Mapping(of) => Some(Mapping {
                start: of.iova.start().get(),
                last: of.iova.last().get(),
                phys: of.target.get(),
                flags: flags(of.access, of.kind),
            }),
        };
        let mut mappings: Vec<_> = tables.grants.iter().filter_map(mapping).collect();
        mappings.sort();
        (tables.grants.contains(&Grant::PassThrough), mappings)
    }

    /// Address in the guest's memory that an access of the device to `at` reaches.
    pub fn reach(&self, at: u64, flag: u32) -> Option<u64> {
        let (all, mappings) = self.grants();
        let found = mappings.iter().find(|of| (of.start..=of.last).contains(&at));
        let found = found.filter(|of| of.flags & flag != 0);
        found.map(|of| of.phys + (at - of.start)).or(all.then_some(at))
    }
}

impl Tables {
    fn call(&mut self) -> io::Result<()> {
        let number = self.calls;
        self.calls += 1;
        match self.failing.contains(&number) {
            true => Err(io::Error::other("it was asked to")),
            false => Ok(()),
        }
    }
}

impl Listener for Container {
    fn map(&self, grant: &Grant) -> io::Result<()> {
        let mut tables = self.tables();
        tables.call()?;
        // As hosts do: nothing is mapped twice.
        let overlaps = |other: &Grant| match (other, grant) {
            (Grant::Mapping(of), Grant::Mapping(new)) => of.iova.overlaps(new.iova),
            _ => true,
        };
        assert!(!tables.grants.iter().any(overlaps), "{grant:?} over {:?}", tables.grants);
        tables.grants.push(*grant);
        Ok(())
    }

    fn unmap(&self, grant: &Grant) -> io::Result<()> {
        let mut tables = self.tables();
        tables.call()?;
        let at = tables.grants.iter().position(|of| of == grant);
        tables.grants.remove(at.expect("it was mapped"));
        Ok(())
    }
}
