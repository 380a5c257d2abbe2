//! A device's address space over tables and a queue whose hardware costs nothing.

use std::sync::Arc;

use portolan::dma::{DmaSpace, Policy};
use portolan::inval::{Capabilities, Walker};
use portolan::iommu::{BoundDomain, Domain, PagedDomain};
use portolan::platform::Cpus;
use portolan::table::PageTable;
use portolan_chips::fixture::Attached;

use crate::commands::Commands;
use crate::raw::{WrittenBack, no_device};
use crate::rig::{CAPS, CONTEXT, QUIRKS, format, table};
use crate::threads::Threads;
use crate::unit::{self, TABLE_PAGES};
use crate::workload::Failure;

pub(crate) type Space = DmaSpace<Arc<Threads>>;

/// A space of 4 GiB. Nothing in it grows old.
pub(crate) fn space(cpus: &Arc<Threads>, policy: Policy, walker: Walker) -> Result<Space, Failure> {
    let bound = match walker {
        Walker::Coherent => snooped()?,
        Walker::NonCoherent => bound(written_back(&Arc::new(WrittenBack::new(TABLE_PAGES)))?),
    };
    over(bound, cpus, policy)
}

/// A space over `bound` for any CPUs.
pub(crate) fn over<P: Cpus>(
    bound: BoundDomain,
    cpus: &Arc<P>,
    policy: Policy,
) -> Result<DmaSpace<Arc<P>>, Failure> {
    let options = unit::space_options(policy);
    DmaSpace::with_cpus(bound, Arc::clone(cpus), &options, no_device())
        .map_err(|_| Failure::Addresses)
}

/// A domain of a walker that snoops.
pub(crate) fn snooped() -> Result<BoundDomain, Failure> {
    Ok(bound(PagedDomain::new(table(TABLE_PAGES)?, CONTEXT, CAPS, QUIRKS, Commands::new())))
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
