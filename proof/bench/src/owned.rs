//! Buffers that their mappings own, with hardware that costs nothing: in place or copied, unmapped one
//! by one or deferred and reclaimed by many.

use std::collections::VecDeque;
use std::hint::black_box;
use std::sync::Arc;

use portolan::addr::{PageSize, PhysAddr, PhysRange, StreamId};
use portolan::bounce::{Pool, PoolMemory, PoolOptions};
use portolan::dma::{
    Buffer, Constraints, CopyWhen, Copying, Deferred, Device, Policy, ToDevice, reclaim_all,
};
use portolan::inval::Walker;
use portolan_linux::memory::{Backing, Base, HostMemory};

use crate::raw::{Scattered, unowned};
use crate::rig::{PAGE, scattered};
use crate::space::space;
use crate::threads::{Threads, Together};
use crate::workload::{Failure, Workload};

/// Buffers in one pass.
const PAIRS: u64 = 2048;
/// Buffers of each thread in one pass of several.
const PAIRS_EACH: u64 = 50_000;
/// Buffers that are deferred before all of them are reclaimed.
const TOGETHER: usize = 64;
/// Bytes of the pool; the buffers lie behind it.
const POOL: u64 = 4 << 20;

type Cpu = Arc<Threads>;

/// Way in which buffers are unmapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Return {
    /// Each unmap invalidates and waits.
    AtOnce,
    /// Unmapped buffers are deferred, and many reclaimed together.
    Deferred,
}

/// Options of handing over buffers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct How {
    pub(crate) policy: Policy,
    pub(crate) walker: Walker,
    pub(crate) back: Return,
}

impl How {
    /// Strict, one by one.
    pub(crate) const STRICT: Self =
        Self { policy: Policy::Strict, walker: Walker::Coherent, back: Return::AtOnce };
    /// Lazy, one by one.
    pub(crate) const LAZY: Self = Self { policy: Policy::Lazy, ..Self::STRICT };
    /// Strict, deferred and reclaimed by many.
    pub(crate) const DEFERRED: Self = Self { back: Return::Deferred, ..Self::STRICT };

    /// Changes the walker to one that does not snoop.
    pub(crate) const fn noncoherent(self) -> Self {
        Self { walker: Walker::NonCoherent, ..self }
    }
}

fn device(cpus: &Cpu, how: How) -> Result<Device<Cpu>, Failure> {
    let space = Arc::new(space(cpus, how.policy, how.walker)?);
    let device = Device::translated(space, StreamId::new(1), Constraints::trusted());
    device.map_err(|_| Failure::Addresses)
}

/// Buffers handed over and taken back.
pub(crate) struct Owned<B: Buffer> {
    device: Arc<Device<Cpu>>,
    /// Buffers that the driver owns at the moment, which it hands over in turn, as a ring does.
    free: VecDeque<B>,
    waiting: Vec<Deferred<Cpu, B>>,
    back: Return,
    passes: u64,
}

impl Owned<portolan::dma::Unowned> {
    /// Makes buffers of 4 KiB that are mapped in place.
    pub(crate) fn pages(how: How) -> Result<Self, Failure> {
        let pages = scattered().into_iter().map(unowned);
        let free = pages.take(2 * TOGETHER).collect();
        let device = device(&Arc::new(Threads), how)?;
        Ok(Self::new(Arc::new(device), free, how.back, PAIRS))
    }

    /// Runs `count` threads at once, each with buffers of its own of one device.
    pub(crate) fn threads(count: u32, how: How) -> Result<Together, Failure> {
        let device = Arc::new(device(&Arc::new(Threads), how)?);
        Ok(Together::new(count, PAIRS_EACH, move |cpu| {
            let own = scattered().into_iter().skip(cpu as usize * 2 * TOGETHER).take(2 * TOGETHER);
            let free = own.map(unowned).collect();
            let mut owned = Self::new(Arc::clone(&device), free, how.back, PAIRS_EACH);
            Ok(Box::new(move |pairs| (0..pairs).try_for_each(|_| owned.one())))
        }))
    }

    /// Makes buffers of 4 KiB that are copied to a pool that stays mapped.
    pub(crate) fn copied() -> Result<Self, Failure> {
        let cpus = Arc::new(Threads);
        let memory =
            HostMemory::new(2 * POOL, Backing::Anonymous, Base::At(PhysAddr::new(1 << 32)));
        let memory = memory.map_err(|_| Failure::HostMemory)?;
        memory.populate();
        let start = memory.range().start();
        let range = PhysRange::from_len(start, POOL).ok_or(Failure::Addresses)?;
        let options = PoolOptions::for_cpus(&*cpus);
        let pool = Pool::new(Arc::clone(&cpus), unowned(range), options)
            .map_err(|_| Failure::Addresses)?;
        let copying =
            Copying { pool: Arc::new(PoolMemory::new(pool, memory)), when: CopyWhen::UpTo(PAGE) };
        let device = device(&cpus, How::STRICT)?
            .with_copies(copying)
            .with_premapped_pool()
            .map_err(|_| Failure::Addresses)?;
        // A few in turn, as a driver's own are.
        let page = |i: u64| {
            let at = start.checked_add(POOL + i * PAGE)?;
            Some(unowned(PhysRange::page(at, PageSize::SIZE_4K)))
        };
        let free: Option<VecDeque<_>> = (0..8).map(page).collect();
        let free = free.ok_or(Failure::Addresses)?;
        Ok(Self::new(Arc::new(device), free, Return::AtOnce, PAIRS))
    }
}

impl Owned<Scattered> {
    /// Scatter lists of `pieces` pages, in place.
    pub(crate) fn lists(pieces: usize, how: How) -> Result<Self, Failure> {
        let all = scattered();
        // Long ones are handed over again and again.
        let lists = all.chunks_exact(pieces).cycle().map(|list| Scattered(list.into()));
        let free = lists.take(2 * TOGETHER).collect();
        let device = device(&Arc::new(Threads), how)?;
        Ok(Self::new(Arc::new(device), free, how.back, PAIRS / 8))
    }
}

impl<B: Buffer> Owned<B> {
    fn new(device: Arc<Device<Cpu>>, free: VecDeque<B>, back: Return, passes: u64) -> Self {
        Self { device, free, waiting: Vec::with_capacity(TOGETHER), back, passes }
    }

    #[inline]
    fn one(&mut self) -> Result<(), Failure> {
        let buffer = self.free.pop_front().ok_or(Failure::NotPrepared)?;
        let mapped = self.device.map(black_box(buffer), ToDevice);
        let mapping = mapped.map_err(|_| Failure::Addresses)?;
        black_box(mapping.iova());
        match self.back {
            Return::AtOnce => {
                let buffer = mapping.unmap().map_err(|_| Failure::NotPrepared)?;
                self.free.push_back(buffer);
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
        let all = reclaim_all(self.waiting.drain(..), |buffer| free.push_back(buffer), drop);
        all.map_err(|_| Failure::Queue)
    }
}

impl<B: Buffer> Workload for Owned<B> {
    fn units(&self) -> u64 {
        self.passes
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
