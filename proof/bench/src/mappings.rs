//! Buffers through the DMA layer, and slots of a bounce pool, with hardware that costs nothing.

use std::hint::black_box;
use std::sync::Arc;

use portolan::addr::{PageSize, PhysAddr, PhysRange};
use portolan::bounce::{Need, PoolOptions, Slots};
use portolan::dma::{Constraints, Policy};
use portolan::inval::Walker;
use portolan_sim::swiotlb::{self, AnyPool, Strategy};

use crate::raw::unowned;
use crate::rig::{PAGE, access};
use crate::space::{Space, space};
use crate::threads::{Threads, Together};
use crate::{Failure, Workload};

/// Buffers or slots in one pass.
const PAIRS: u64 = 2048;
/// Slots of each thread in one pass of several.
const PAIRS_EACH: u64 = 50_000;

/// A buffer of 4 KiB mapped and unmapped.
pub(crate) struct Buffers {
    space: Space,
}

impl Buffers {
    pub(crate) fn new(policy: Policy, walker: Walker) -> Result<Self, Failure> {
        let space = space(&Arc::new(Threads), policy, walker)?;
        Ok(Self { space })
    }

    /// Runs `count` threads at once in one space.
    pub(crate) fn threads(count: u32, policy: Policy) -> Result<Together, Failure> {
        let buffers = Arc::new(Self::new(policy, Walker::Coherent)?);
        Ok(Together::new(count, PAIRS_EACH, move |_| {
            let buffers = Arc::clone(&buffers);
            Ok(Box::new(move |pairs| buffers.cycle(pairs)))
        }))
    }

    fn cycle(&self, pairs: u64) -> Result<(), Failure> {
        let constraints = black_box(Constraints::trusted());
        for i in 0..pairs {
            let memory = PhysRange::page(PhysAddr::new(black_box(i << 12)), PageSize::SIZE_4K);
            let mapped = self.space.map_range(unowned(memory), access(), &constraints);
            let (range, iova) = mapped.map_err(|_| Failure::Addresses)?;
            black_box(iova);
            self.space.unmap_range(range).map_err(|_| Failure::NotPrepared)?;
        }
        Ok(())
    }
}

impl Workload for Buffers {
    fn units(&self) -> u64 {
        PAIRS
    }

    fn run(&mut self) -> Result<(), Failure> {
        self.cycle(PAIRS)
    }
}

/// A slot is taken and given back, with so many per cent of the others in use.
pub(crate) struct PoolSlots {
    pool: AnyPool<Arc<Threads>>,
    held: Vec<Slots>,
}

/// A slot taken and given back, so many times.
fn pairs(pool: &AnyPool<Arc<Threads>>, count: u64) -> Result<(), Failure> {
    for _ in 0..count {
        let need = Need::bytes(black_box(PAGE / 2));
        let slots = pool.take(&need).map_err(|_| Failure::Addresses)?;
        let slots = black_box(slots);
        pool.give(slots).map_err(|_| Failure::NotPrepared)?;
    }
    Ok(())
}

impl PoolSlots {
    pub(crate) fn new(strategy: Strategy, percent: usize) -> Result<Self, Failure> {
        let memory = PhysRange::from_len(PhysAddr::new(1 << 30), 64 << 20);
        let options = PoolOptions::of_areas(2);
        let memory = memory.ok_or(Failure::Addresses)?;
        let pool = swiotlb::pool(Arc::new(Threads), unowned(memory), options, strategy)
            .map_err(|_| Failure::Addresses)?;
        let take = |pool: &AnyPool<_>| pool.take(&Need::bytes(2048)).ok();
        let mut held: Vec<Slots> = std::iter::from_fn(|| take(&pool)).collect();
        let mut random = fastrand::Rng::with_seed(7);
        let most = held.len() * percent / 100;
        while held.len() > most {
            let slots = held.swap_remove(random.usize(..held.len()));
            pool.give(slots).map_err(|_| Failure::Addresses)?;
        }
        Ok(Self { pool, held })
    }

    /// Runs two threads at once.
    pub(crate) fn two(percent: usize) -> Result<Together, Failure> {
        let slots = Arc::new(Self::new(Strategy::LockFree, percent)?);
        Ok(Together::new(2, PAIRS_EACH, move |_| {
            let slots = Arc::clone(&slots);
            Ok(Box::new(move |count| {
                black_box(&slots.held);
                pairs(&slots.pool, count)
            }))
        }))
    }
}

impl Workload for PoolSlots {
    fn units(&self) -> u64 {
        PAIRS
    }

    fn prepare(&mut self) -> Result<(), Failure> {
        black_box(&self.held);
        Ok(())
    }

    fn run(&mut self) -> Result<(), Failure> {
        pairs(&self.pool, PAIRS)
    }
}
