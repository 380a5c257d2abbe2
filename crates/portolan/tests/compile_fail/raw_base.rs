//! A space of parts without a promise for them: a unit or CPUs that may say anything.

use std::sync::Arc;

use portolan::dma::{DmaSpace, SpaceError, SpaceOptions};
use portolan::iommu::{Attach, BoundDomain, Domain};
use portolan::platform::{Cpus, TrustedBase};

fn bound<U: Attach<D> + 'static, D: Domain + 'static>(unit: Arc<U>, domain: Arc<D>) -> BoundDomain {
    BoundDomain::new(unit, domain)
}

fn space<P: Cpus + Clone>(bound: BoundDomain, cpus: P) -> Result<DmaSpace<P>, SpaceError> {
    DmaSpace::new(bound, cpus, &SpaceOptions::default())
}

fn base() -> TrustedBase {
    TrustedBase::new()
}

fn other() -> TrustedBase {
    TrustedBase(())
}

fn main() {}
