//! A device's address space over tables and a queue whose hardware costs nothing.

use std::sync::Arc;

use portolan::addr::IovaRange;
use portolan::dma::{DmaSpace, LazyBounds, Policy, SpaceOptions};
use portolan::inval::{Capabilities, Walker};
use portolan::iommu::{BoundDomain, Domain, PagedDomain};
use portolan::platform::{Cpus, Nanos};
use portolan::table::PageTable;
use portolan_chips::fixture::Attached;

use crate::commands::Commands;
use crate::raw::{WrittenBack, no_device};
use crate::rig::{CAPS, CONTEXT, QUIRKS, format, table};
use crate::threads::Threads;
use crate::workload::Failure;

pub(crate) type Space = DmaSpace<Arc<Threads>>;

/// Pages of tables of a space.
const PAGES: u32 = 1 << 14;

/// A space of 4 GiB. Nothing in it grows old.
pub(crate) fn space(cpus: &Arc<Threads>, policy: Policy, walker: Walker) -> Result<Space, Failure> {
    let bound = match walker {
        Walker::Coherent => snooped()?,
        Walker::NonCoherent => bound(written_back(&Arc::new(WrittenBack::new(PAGES)))?),
    };
    over(bound, cpus, policy)
}

/// A space over `bound` for any CPUs.
pub(crate) fn over<P: Cpus>(
    bound: BoundDomain,
    cpus: &Arc<P>,
    policy: Policy,
) -> Result<DmaSpace<Arc<P>>, Failure> {
    let window = IovaRange::from_len(crate::rig::BASE, 1 << 32);
    let mut options = SpaceOptions::default();
    options.window = window.ok_or(Failure::Addresses)?;
    options.policy = policy;
    options.bounds = LazyBounds { age: Nanos::new(u64::MAX), ..LazyBounds::default() };
    DmaSpace::with_cpus(bound, Arc::clone(cpus), &options, no_device())
        .map_err(|_| Failure::Addresses)
}

/// A domain of a walker that snoops.
pub(crate) fn snooped() -> Result<BoundDomain, Failure> {
    Ok(bound(PagedDomain::new(table(PAGES)?, CONTEXT, CAPS, QUIRKS, Commands::new())))
}

fn bound(domain: impl Domain + 'static) -> BoundDomain {
    BoundDomain::new(Arc::new(Attached), Arc::new(domain), no_device())
}

/// A domain of a walker that does not snoop: a map is complete when its lines are in `memory`.
pub(crate) fn written_back(memory: &Arc<WrittenBack>) -> Result<impl Domain + 'static, Failure> {
    let table = PageTable::new(format()?, Arc::clone(memory))?;
    let caps = Capabilities { walker: Walker::NonCoherent, ..CAPS };
    Ok(PagedDomain::new(table, CONTEXT, caps, QUIRKS, Commands::new()))
}
