//! An NVMe disk behind the IOMMU, with many requests under way on each CPU, under each policy.
//!
//! Each CPU reads its part of the disk, inverts it, writes it elsewhere and reads it back, in requests of
//! one to ten pages. A check of the disk from outside knows the contents that each sector must have.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use portolan::dma::{Buffers, Deferred, Device, Direction, PolicyPreference, Trust, reclaim_all};
use portolan_bare::nvme::{Data, Nvme, Operation, Queue};
use portolan_bare::pci::Function;
use portolan_bare::{Machine, Pages};
use portolan_hw::topology::{DeviceOptions, Iommus};

use crate::commands::{self, Commands};
use crate::cpus::{self, Cpus};
use crate::{Outcome, say};

/// QEMU's NVMe controller.
pub const IDENTITY: (u16, u16) = (0x1b36, 0x0010);

const PAGE: u64 = 4096;
/// Pages of one request after the other.
const PAGES: [u64; 4] = [1, 2, 3, 10];
/// Pages that one CPU copies under one policy: eight times as many as those are.
const PART: u64 = 8 * 16;
/// Requests of one CPU that are under way at once.
const UNDER_WAY: u64 = 32;
/// Page that receives the copy of page 0.
pub const COPIES: u64 = 768;

/// Buffers, trust and preference of a driver: strict, deferred, lazy.
pub const POLICIES: [(Buffers, Trust, PolicyPreference); 3] = [
    (Buffers::Kept, Trust::Untrusted, PolicyPreference::Strict),
    (Buffers::Owned, Trust::Untrusted, PolicyPreference::None),
    (Buffers::Kept, Trust::Trusted, PolicyPreference::Lazy),
];

pub fn show(
    machine: Machine,
    iommus: &Iommus<Machine>,
    function: &Function,
    cpus: &Cpus,
) -> Outcome<()> {
    let mut first = 0;
    for (buffers, trust, preference) in POLICIES {
        let mut options = DeviceOptions::trusted();
        options.buffers = buffers;
        options.constraints.trust = commands::trust(iommus, trust);
        options.preference = preference;
        copy_pages(machine, iommus, function, cpus, &options, first)?;
        first += PART * cpus.count() as u64;
    }
    Ok(())
}

/// Opens the disk as `options` say, and has each CPU copy a part of it, from the page `first` on.
fn copy_pages(
    machine: Machine,
    iommus: &Iommus<Machine>,
    function: &Function,
    cpus: &Cpus,
    options: &DeviceOptions,
    first: u64,
) -> Outcome<()> {
    let device = Arc::new(iommus.device_with(function.at(), options)?);
    let mut nvme = Nvme::start(machine, function, device.clone(), cpus.count() as u32)?;

    let before = Commands::of(iommus);
    let mut tasks: Vec<cpus::Task<Outcome<Worker>>> = Vec::new();
    for cpu in 0..cpus.count() as u64 {
        let worker = Worker {
            machine,
            device: device.clone(),
            queue: nvme.queue()?,
            block_lg2: nvme.block_lg2(),
            buffers: options.buffers,
        };
        let first = first + cpu * PART;
        tasks.push(Box::new(move || worker.copy(first)));
    }
    let workers: Outcome<Vec<Worker>> = cpus.run(tasks)?.into_iter().collect();
    let workers = workers?;
    let sent = Commands::of(iommus).since(&before);

    let requests = 3 * PART / 16 * PAGES.len() as u64 * workers.len() as u64;
    let count = workers.len();
    let (policy, reason) = commands::policy(iommus, function, options);
    say!("NVMe on {count} CPUs, {policy}: {requests} requests");
    say!("  {reason}");
    sent.print_for(requests);

    // Nothing is under way any more: queues and rings are unmapped when they are dropped.
    nvme.stop()?;
    function.stop();
    Ok(())
}

/// Parts that one CPU needs.
struct Worker {
    machine: Machine,
    device: Arc<Device<Machine>>,
    queue: Queue,
    block_lg2: u32,
    buffers: Buffers,
}

/// A request: its first page on the disk, and its buffer.
type Request = (u64, Pages);

impl Worker {
    /// Copies [`PART`] pages from `first` on, inverted.
    fn copy(mut self, first: u64) -> Outcome<Self> {
        let mut places = Vec::new();
        let mut at = first;
        while at < first + PART {
            for pages in PAGES {
                places.push((at, pages));
                at += pages;
            }
        }
        for some in places.chunks(UNDER_WAY as usize) {
            let fresh = self.buffers(some, 0)?;
            let mut data = self.exchange(Operation::Read, fresh)?;
            for (at, pages) in &mut data {
                *at += COPIES;
                pages.bytes_mut().iter_mut().for_each(|byte| *byte = !*byte);
            }
            let data = self.exchange(Operation::Write, data)?;
            let fresh = self.buffers(some, COPIES)?;
            let again = self.exchange(Operation::Read, fresh)?;
            let same = |(one, other): (&Request, &Request)| one.1.bytes() == other.1.bytes();
            if !data.iter().zip(&again).all(same) {
                return Err("the disk returned something else than was written".into());
            }
        }
        Ok(self)
    }

    /// Buffers for these pages of the disk and those `further` on.
    fn buffers(&self, places: &[(u64, u64)], further: u64) -> Outcome<Vec<Request>> {
        let buffer = |&(at, pages): &(u64, u64)| {
            let memory = self.machine.pages((pages * PAGE) as usize);
            Ok((at + further, memory.ok_or("no memory")?))
        };
        places.iter().map(buffer).collect()
    }

    /// Reads or writes all of `requests` at once, and returns them in the order of the disk.
    fn exchange(&mut self, operation: Operation, requests: Vec<Request>) -> Outcome<Vec<Request>> {
        let direction = match operation {
            Operation::Read => Direction::FromDevice,
            Operation::Write => Direction::ToDevice,
        };
        let count = requests.len();
        for (at, pages) in requests {
            let mapping = self.device.map(pages, direction).map_err(|failed| failed.error)?;
            let block = (at * PAGE) >> self.block_lg2;
            let sent = self.queue.submit(operation, block, mapping);
            sent.map_err(|failed| failed.error)?;
        }
        let mut done = Vec::new();
        for _ in 0..count {
            let (block, data) = self.queue.wait()?;
            done.push(((block << self.block_lg2) / PAGE, data));
        }
        done.sort_by_key(|(at, _)| *at);
        self.take_back(done)
    }

    /// Ends the mappings: one by one if the driver wants each buffer at once, otherwise all together with as few
    /// invalidations as possible.
    fn take_back(&self, done: Vec<(u64, Data)>) -> Outcome<Vec<Request>> {
        if self.buffers == Buffers::Kept {
            let unmap = |(at, data): (u64, Data)| {
                let pages = data.unmap().map_err(|failed| failed.error)?;
                Ok((at, pages))
            };
            return done.into_iter().map(unmap).collect();
        }
        let mut places = Vec::new();
        let mut deferred: Vec<Deferred<Machine, Pages>> = Vec::new();
        for (at, data) in done {
            places.push(at);
            deferred.push(data.defer().map_err(|failed| failed.error)?);
        }
        let mut pages = Vec::new();
        reclaim_all(deferred, |one| pages.push(one), drop)?;
        Ok(places.into_iter().zip(pages).collect())
    }
}
