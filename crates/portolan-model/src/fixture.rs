//! Pieces that scenarios and benchmarks are put together from.

use std::sync::Arc;

use portolan::addr::StreamId;
use portolan::iommu::{Attach, AttachError, Domain, FaultEvent, Iommu, IommuError};

/// A unit whose streams are where the scenario has put them: it moves none and refuses nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Attached;

impl Iommu for Attached {
    fn block(&self, _stream: StreamId) -> Result<(), AttachError> {
        Ok(())
    }

    fn pass_through(&self, _stream: StreamId) -> Result<(), AttachError> {
        Ok(())
    }

    fn next_fault(&self) -> Result<Option<FaultEvent>, IommuError> {
        Ok(None)
    }
}

impl<D: Domain> Attach<D> for Attached {
    fn attach(&self, _stream: StreamId, _domain: &Arc<D>) -> Result<(), AttachError> {
        Ok(())
    }
}
