//! A unit that attaches every stream and invalidates at once, and promises for machines of which no device reaches
//! memory.
#![allow(dead_code)] // Each test binary uses its part.

use std::sync::Arc;

use portolan::addr::{InvalTag, PhysRange, StreamId};
use portolan::dma::Unowned;
use portolan::inval::{InvalidationQueue, Step, TablesLeft};
use portolan::iommu::{
    Attach, AttachError, Domain, FaultEvent, Iommu, IommuError, ReservedRegion, TagPool,
};
use portolan::platform::{AllMemory, TrustedBase};

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

    fn reserved(&self, _: StreamId, _: &mut dyn FnMut(ReservedRegion)) {}
}

impl<D: Domain> Attach<D> for Attached {
    fn attach(&self, _stream: StreamId, _domain: &Arc<D>) -> Result<(), AttachError> {
        Ok(())
    }
}

/// A queue whose unit completes everything at once.
pub struct Quick;

impl InvalidationQueue for Quick {
    type Error = IommuError;

    fn pay(&self, steps: &mut dyn Iterator<Item = Step>, _: TablesLeft) -> Result<(), IommuError> {
        steps.for_each(drop);
        Ok(())
    }
}

impl TagPool for Quick {
    fn release(&self, _context: InvalTag) -> Result<(), IommuError> {
        Ok(())
    }
}

/// Parts of a simulated machine.
pub fn simulated() -> TrustedBase {
    // SAFETY: its devices reach no memory of the process.
    unsafe { TrustedBase::new() }
}

pub fn unowned(memory: PhysRange) -> Unowned {
    // SAFETY: the addresses are names: no memory of the test is behind them.
    unsafe { Unowned::new(memory) }
}
