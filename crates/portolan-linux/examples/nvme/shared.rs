//! A disk's queues and data in memory of the driver's choice, and the account of pinned memory.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use anyhow::{Context as _, Result, ensure};
use portolan::addr::{Iova, PhysAddr};
use portolan::platform::Nanos;
use portolan_bare::nvme::spec::Command;
use portolan_bare::nvme::{Access, Controller, Ring, RingMemory};
use portolan_linux::memory::{HostMemory, Process as Platform};
use portolan_linux::vfio::Bar;
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use crate::controller::{PAGE, Transfer};

/// Pages that are read.
pub const COUNT: u16 = 16;
/// First pages of the parts of the memory: queues of the administrator's, a description, queues of requests, data, and
/// a copy of it.
pub const ADMIN: [u64; 2] = [0, 1];
pub const DESCRIPTION: u64 = 2;
pub const QUEUES: [u64; 2] = [3, 4];
pub const DATA: u64 = 8;
pub const COPY: u64 = DATA + COUNT as u64;
pub const BYTES: u64 = (COPY + COUNT as u64) * PAGE as u64;
pub const LIMIT: Nanos = Nanos::from_millis(30_000);

pub type Queue = Ring<Arc<Bar>, Platform, Part>;

/// A page of the memory.
pub struct Part {
    memory: HostMemory,
    at: PhysAddr,
    iova: Iova,
}

impl RingMemory for Part {
    fn iova(&self) -> Iova {
        self.iova
    }

    fn words(&self) -> &[AtomicU64] {
        self.memory.words64(self.at, PAGE / 8).unwrap_or_default()
    }
}

/// The memory, where the process and where the disk has it.
pub struct Shared {
    pub memory: HostMemory,
    pub iova: Iova,
}

impl Shared {
    pub fn at(&self, page: u64) -> PhysAddr {
        PhysAddr::new(self.memory.range().start().get() + page * PAGE as u64)
    }

    pub fn iova(&self, page: u64) -> Iova {
        Iova::new(self.iova.get() + page * PAGE as u64)
    }

    pub fn part(&self, page: u64) -> Part {
        Part { memory: self.memory.clone(), at: self.at(page), iova: self.iova(page) }
    }

    pub fn page(&self, page: u64) -> Result<Vec<u8>> {
        let mut bytes = vec![0; PAGE];
        self.memory.read(self.at(page), &mut bytes)?;
        Ok(bytes)
    }

    /// Puts a read of each page, into data without any of their bytes.
    pub fn begin(&self, queue: &mut Queue, block_lg2: u32) -> Result<()> {
        self.memory.fill(self.at(DATA), u64::from(COUNT) * PAGE as u64, 0xa5)?;
        let blocks = PAGE as u32 >> block_lg2;
        for page in 0..COUNT {
            let data = self.iova(DATA + u64::from(page)).get();
            let first = u64::from(page) * u64::from(blocks);
            queue.put(page, &Command::transfer(Transfer::Read, first, blocks, [data, 0]));
        }
        queue.announce();
        Ok(())
    }

    /// Copies the pages that were read.
    pub fn copy(&self) -> Result<()> {
        ensure!(self.page(DATA)? != self.page(DATA + 1)?, "pages of one content show nothing");
        for page in 0..u64::from(COUNT) {
            self.memory.write(self.at(COPY + page), &self.page(DATA + page)?)?;
        }
        Ok(())
    }

    /// Compares the pages that were read, from this one on, with the copy.
    pub fn compare(&self, first: u16) -> Result<()> {
        for page in u64::from(first)..u64::from(COUNT) {
            ensure!(self.page(DATA + page)? == self.page(COPY + page)?, "page {page} is another");
        }
        Ok(())
    }
}

pub fn wait(queue: &mut Queue) -> Result<()> {
    (0..COUNT).try_for_each(|_| Ok(queue.wait()?.result().map(drop)?))
}

/// Gives up the right to lock any amount of memory: what a process with it has pinned is on no account.
pub fn be_charged() -> Result<()> {
    let mut rights = capabilities(None)?;
    rights.effective.remove(CapabilitySet::IPC_LOCK);
    Ok(set_capabilities(None, rights)?)
}

/// Memory that is pinned on this process's account, in KiB.
pub fn pinned() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmPin:")).context("no VmPin")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

/// A controller with queues in such memory.
pub struct Started {
    pub driver: Controller<Arc<Bar>, Platform, Part>,
    pub queue: Queue,
    pub block_lg2: u32,
}

impl Shared {
    /// Resets a controller and gives it queues there.
    pub fn start(&self, bar: Bar) -> Result<Started> {
        let access = Access { registers: Arc::new(bar), clock: Platform, limit: LIMIT };
        let mut driver = Controller::start(access, ADMIN.map(|page| self.part(page)))?;
        let block_lg2 = driver.describe(&self.part(DESCRIPTION))?.block_lg2;
        let queue = driver.queue(1, QUEUES.map(|page| self.part(page)), None)?;
        Ok(Started { driver, queue, block_lg2 })
    }
}
