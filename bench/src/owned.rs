//! Buffers that their mappings own, with hardware that costs nothing: in place or copied, unmapped one
//! by one or deferred and reclaimed by many.

use std::hint::black_box;
use std::sync::Arc;

use portolan::addr::{InvalTag, IovaRange, PageSize, PhysAddr, PhysRange, StreamId};
use portolan::bounce::{Fill, Pool, PoolMemory, PoolOptions};
use portolan::dma::{
    Buffer, Constraints, CopyWhen, Copying, Deferred, Device, DmaSpace, Policy, SpaceOptions,
    ToDevice, reclaim_all,
};
use portolan::iommu::{BoundDomain, PagedDomain};
use portolan_linux::memory::{Backing, Base, HostMemory};
use portolan_model::fixture::Attached;

use crate::commands::Commands;
use crate::raw::{Scattered, unowned};
use crate::rig::{CAPS, PAGE, QUIRKS, scattered, table};
use crate::threads::Threads;
use crate::workload::{Failure, Workload};

/// Buffers in one pass.
const PAIRS: u64 = 2048;
/// Buffers that are deferred before all of them are reclaimed.
const TOGETHER: usize = 64;
/// Bytes of the pool; the buffers lie behind it.
const POOL: u64 = 4 << 20;

type Cpu = Arc<Threads>;

/// How a buffer comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Return {
    /// Each unmap invalidates and waits.
    AtOnce,
    /// Unmapped buffers are deferred, and many reclaimed together.
    Deferred,
}

fn space(cpus: &Cpu) -> Result<Arc<DmaSpace<Cpu>>, Failure> {
    let queue = Commands::new();
    let domain = PagedDomain::new(table(1 << 14)?, InvalTag::new(1), CAPS, QUIRKS, queue);
    let window = IovaRange::from_len(crate::rig::BASE, 1 << 32);
    let mut options = SpaceOptions::default();
    options.window = window.ok_or(Failure::Addresses)?;
    options.policy = Policy::Strict;
    let bound = BoundDomain::new(Arc::new(Attached), Arc::new(domain));
    let space = DmaSpace::new(bound, Arc::clone(cpus), &options);
    Ok(Arc::new(space.map_err(|_| Failure::Addresses)?))
}

fn device(cpus: &Cpu) -> Result<Device<Cpu>, Failure> {
    let device = Device::translated(space(cpus)?, StreamId::new(1), Constraints::default());
    device.map_err(|_| Failure::Addresses)
}

/// Buffers handed over and taken back.
pub(crate) struct Owned<B: Buffer> {
    device: Device<Cpu>,
    /// Those that are the driver's at the moment.
    free: Vec<B>,
    waiting: Vec<Deferred<Cpu, B>>,
    how: Return,
    passes: u64,
}

impl Owned<portolan::dma::Unowned> {
    /// Of 4 KiB, in place.
    pub(crate) fn pages(how: Return) -> Result<Self, Failure> {
        let pages = scattered().into_iter().map(unowned);
        let free = pages.take(2 * TOGETHER).collect();
        Ok(Self::new(device(&Arc::new(Threads))?, free, how, PAIRS))
    }

    /// Of 4 KiB, copied to a pool that stays mapped.
    pub(crate) fn copied() -> Result<Self, Failure> {
        let cpus = Arc::new(Threads);
        let memory = HostMemory::new(
            2 * POOL,
            Backing::Anonymous,
            Base::At(PhysAddr::new(1 << 32)),
        );
        let memory = memory.map_err(|_| Failure::HostMemory)?;
        memory.populate();
        let start = memory.range().start();
        let range = PhysRange::from_len(start, POOL).ok_or(Failure::Addresses)?;
        let options = PoolOptions::for_cpus(&*cpus);
        let pool = Pool::new(Arc::clone(&cpus), range, options);
        let pool = pool.map_err(|_| Failure::Addresses)?;
        let copying = Copying {
            pool: Arc::new(PoolMemory::new(pool, memory)),
            when: CopyWhen::UpTo(PAGE),
            fill: Fill::Buffer,
        };
        let device = device(&cpus)?.with_copies(copying);
        let device = device.with_premapped_pool(unowned(range));
        let device = device.map_err(|_| Failure::Addresses)?;
        // A few in turn, as a driver's own are.
        let page = |i: u64| {
            let at = start.checked_add(POOL + i * PAGE)?;
            Some(unowned(PhysRange::page(at, PageSize::SIZE_4K)))
        };
        let free: Option<Vec<_>> = (0..8).map(page).collect();
        let free = free.ok_or(Failure::Addresses)?;
        Ok(Self::new(device, free, Return::AtOnce, PAIRS))
    }
}

impl Owned<Scattered> {
    /// Scatter lists of `pieces` pages, in place.
    pub(crate) fn lists(pieces: usize, how: Return) -> Result<Self, Failure> {
        let all = scattered();
        let lists = all.chunks_exact(pieces).map(|list| Scattered(list.into()));
        let free = lists.take(2 * TOGETHER).collect();
        Ok(Self::new(device(&Arc::new(Threads))?, free, how, PAIRS / 8))
    }
}

impl<B: Buffer> Owned<B> {
    fn new(device: Device<Cpu>, free: Vec<B>, how: Return, passes: u64) -> Self {
        Self {
            device,
            free,
            waiting: Vec::with_capacity(TOGETHER),
            how,
            passes,
        }
    }

    #[inline]
    fn one(&mut self) -> Result<(), Failure> {
        let buffer = self.free.pop().ok_or(Failure::NotPrepared)?;
        let mapped = self.device.map(black_box(buffer), ToDevice);
        let mapping = mapped.map_err(|_| Failure::Addresses)?;
        black_box(mapping.iova());
        match self.how {
            Return::AtOnce => {
                let buffer = mapping.unmap().map_err(|_| Failure::NotPrepared)?;
                self.free.push(buffer);
            }
            Return::Deferred => {
                let deferred = mapping.defer().map_err(|_| Failure::NotPrepared)?;
                self.waiting.push(deferred);
                if self.waiting.len() == TOGETHER {
                    self.reclaim()?;
                }
            }
        }
        Ok(())
    }

    fn reclaim(&mut self) -> Result<(), Failure> {
        let free = &mut self.free;
        let all = reclaim_all(self.waiting.drain(..), |buffer| free.push(buffer), drop);
        all.map_err(|_| Failure::Queue)
    }
}

impl<B: Buffer> Workload for Owned<B> {
    fn units(&self) -> u64 {
        self.passes
    }

    fn prepare(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    fn run(&mut self) -> Result<(), Failure> {
        (0..self.passes).try_for_each(|_| self.one())
    }
}

impl<B: Buffer> Drop for Owned<B> {
    fn drop(&mut self) {
        let _ = self.reclaim();
    }
}
