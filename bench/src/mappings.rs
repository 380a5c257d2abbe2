//! Buffers through the DMA layer, and slots of a bounce pool, with hardware that costs nothing.

use std::hint::black_box;
use std::sync::Arc;

use portolan::addr::{InvalTag, IovaRange, PageSize, PhysAddr, PhysRange};
use portolan::bounce::{Need, PoolOptions, Slots};
use portolan::dma::{Bounds, Constraints, DmaSpace, Policy, SpaceOptions};
use portolan::inval::Quirks;
use portolan::iommu::{BoundDomain, PagedDomain};
use portolan::platform::Nanos;
use portolan::table::PageTable;

use crate::commands::Commands;
use crate::raw::unowned;
use crate::threads::{Threads, Together};
use portolan_model::fixture::Attached;
use portolan_model::swiotlb::{self, AnyPool, Strategy};

use crate::rig::{CAPS, PAGE, QUIRKS, access, table};
use crate::{Failure, Workload};

/// Buffers or slots in one pass.
const PAIRS: u64 = 2048;
/// Slots of each thread in one pass of several.
const PAIRS_EACH: u64 = 50_000;

type Space = DmaSpace<Arc<Threads>>;

/// A buffer of 4 KiB mapped and unmapped.
pub(crate) struct Buffers {
    space: Space,
    constraints: Constraints,
}

impl Buffers {
    pub(crate) fn new(policy: Policy) -> Result<Self, Failure> {
        let table: PageTable<_, _> = table(1 << 14)?;
        let context = InvalTag::new(1);
        let quirks = Quirks { ..QUIRKS };
        let domain = PagedDomain::new(table, context, CAPS, quirks, Commands::new());
        let window = IovaRange::from_len(crate::rig::BASE, 1 << 32);
        let mut options = SpaceOptions::default();
        options.window = window.ok_or(Failure::Addresses)?;
        options.policy = policy;
        options.bounds = Bounds {
            age: Nanos::new(u64::MAX),
            ..Bounds::default()
        };
        let space = DmaSpace::new(
            BoundDomain::new(Arc::new(Attached), Arc::new(domain)),
            Arc::new(Threads),
            &options,
        );
        Ok(Self {
            space: space.map_err(|_| Failure::Addresses)?,
            constraints: Constraints::default(),
        })
    }
}

impl Workload for Buffers {
    fn units(&self) -> u64 {
        PAIRS
    }

    fn prepare(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    fn run(&mut self) -> Result<(), Failure> {
        for i in 0..PAIRS {
            let memory = PhysRange::page(PhysAddr::new(black_box(i << 12)), PageSize::SIZE_4K);
            let mapped = self
                .space
                .map_range(unowned(memory), access(), &self.constraints);
            let (range, iova) = mapped.map_err(|_| Failure::Addresses)?;
            black_box(iova);
            self.space
                .unmap_range(range)
                .map_err(|_| Failure::NotPrepared)?;
        }
        Ok(())
    }
}

/// A slot taken and given back, with so many percent of the others in use.
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
        let pool = swiotlb::pool(Arc::new(Threads), memory, options, strategy);
        let pool = pool.map_err(|_| Failure::Addresses)?;
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

    /// The same by two threads at once.
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
