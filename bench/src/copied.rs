//! A buffer through the DMA layer as a copy in a pool that stays mapped, with hardware that costs
//! nothing.

use std::hint::black_box;
use std::sync::Arc;

use portolan::addr::{InvalTag, IovaRange, PageSize, PhysAddr, PhysRange, StreamId};
use portolan::bounce::{Fill, Pool, PoolMemory, PoolOptions};
use portolan::dma::{
    Constraints, CopyWhen, Copying, Device, DmaSpace, Policy, SpaceOptions, ToDevice,
};
use portolan::iommu::{BoundDomain, PagedDomain};
use portolan_linux::memory::{Backing, Base, HostMemory};

use crate::addresses::{Threads, cpus};
use crate::buffers::unowned;
use crate::mappings::Free;
use portolan_model::fixture::Attached;

use crate::rig::{CAPS, PAGE, QUIRKS, table};
use crate::{Failure, Workload};

/// Buffers in one pass.
const PAIRS: u64 = 2048;
/// Bytes of the pool; the buffers lie behind it.
const POOL: u64 = 4 << 20;

/// A buffer of 4 KiB handed over and taken back.
pub(crate) struct Handed {
    device: Device<Arc<Threads>>,
    buffers: PhysAddr,
}

impl Handed {
    /// In place, or copied to a pool that stays mapped.
    pub(crate) fn new(when: CopyWhen) -> Result<Self, Failure> {
        let domain = PagedDomain::new(table(1 << 14)?, InvalTag::new(1), CAPS, QUIRKS, Free);
        let window = IovaRange::from_len(crate::rig::BASE, 1 << 32);
        let mut options = SpaceOptions::default();
        options.window = window.ok_or(Failure::Addresses)?;
        options.policy = Policy::Strict;
        let cpus = Arc::new(cpus());
        let space = DmaSpace::new(
            BoundDomain::new(Arc::new(Attached), Arc::new(domain)),
            cpus.clone(),
            &options,
        );
        let space = Arc::new(space.map_err(|_| Failure::Addresses)?);
        let base = Base::At(PhysAddr::new(1 << 32));
        let memory = HostMemory::new(2 * POOL, Backing::Anonymous, base);
        let memory = memory.map_err(|_| Failure::HostMemory)?;
        memory.populate();
        let start = memory.range().start();
        let range = PhysRange::from_len(start, POOL).ok_or(Failure::Addresses)?;
        let options = PoolOptions::for_cpus(&*cpus);
        let pool = Pool::new(cpus, range, options).map_err(|_| Failure::Addresses)?;
        let copying = Copying {
            pool: Arc::new(PoolMemory::new(pool, memory)),
            when,
            fill: Fill::Buffer,
        };
        let limits = Constraints::default();
        let device = Device::translated(space, StreamId::new(1), limits);
        let device = device.map_err(|_| Failure::Addresses)?;
        let device = device
            .with_copies(copying)
            .with_premapped_pool(unowned(range));
        Ok(Self {
            device: device.map_err(|_| Failure::Addresses)?,
            buffers: start.checked_add(POOL).ok_or(Failure::Addresses)?,
        })
    }
}

impl Workload for Handed {
    fn units(&self) -> u64 {
        PAIRS
    }

    fn prepare(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    fn run(&mut self) -> Result<(), Failure> {
        for i in 0..PAIRS {
            // A few buffers in turn, as a driver's own are.
            let at = PhysAddr::new(self.buffers.get() + black_box(i % 8) * PAGE);
            let memory = PhysRange::page(at, PageSize::SIZE_4K);
            let mapped = self.device.map(unowned(memory), ToDevice);
            let mapping = mapped.map_err(|_| Failure::Addresses)?;
            black_box(mapping.iova());
            mapping.unmap().map_err(|_| Failure::NotPrepared)?;
        }
        Ok(())
    }
}
