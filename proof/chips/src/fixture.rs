//! Pieces that tests, scenarios and benchmarks are put together from.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use portolan::addr::StreamId;
use portolan::iommu::{Attach, AttachError, Domain, FaultEvent, Iommu, IommuError};
use portolan::platform::{AllMemory, Clock, Nanos};

/// Seed of a random test, which the test prints: `PORTOLAN_SEED`, or a new one.
pub fn seed() -> u64 {
    let wanted = std::env::var("PORTOLAN_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = wanted.unwrap_or_else(|| fastrand::u64(..));
    println!("PORTOLAN_SEED={seed}");
    seed
}

/// A CPU whose clock never moves.
#[derive(Clone, Copy, Debug, Default)]
pub struct Still;

portolan::one_cpu!(Still);

impl Clock for Still {
    fn now(&self) -> Nanos {
        Nanos::new(0)
    }
}

/// A CPU whose time goes on by a microsecond a look.
#[derive(Debug, Default)]
pub struct Ticks(AtomicU64);

portolan::one_cpu!(Ticks);

impl Clock for Ticks {
    fn now(&self) -> Nanos {
        Nanos::new(self.0.fetch_add(1_000, Ordering::Relaxed))
    }
}

/// A unit whose streams are where the scenario has put them: it moves none and refuses nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Attached;

impl Iommu for Attached {
    fn block(&self, _stream: StreamId) -> Result<(), AttachError> {
        Ok(())
    }

    fn pass_through(&self, _stream: StreamId, _all: AllMemory) -> Result<(), AttachError> {
        Ok(())
    }

    fn next_fault(&self) -> Result<Option<FaultEvent>, IommuError> {
        Ok(None)
    }

    fn reserved(&self, _: StreamId, _: &mut dyn FnMut(portolan::iommu::ReservedRegion)) {}
}

impl<D: Domain> Attach<D> for Attached {
    fn attach(&self, _stream: StreamId, _domain: &Arc<D>) -> Result<(), AttachError> {
        Ok(())
    }
}
