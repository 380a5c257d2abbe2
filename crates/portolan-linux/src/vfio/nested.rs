//! Page tables of a guest in the hardware: its first stage above the tables of a domain.
//!
//! linux/iommufd.h (`IOMMU_HWPT_ALLOC`, `IOMMU_HWPT_INVALIDATE`, `IOMMU_VIOMMU_ALLOC`, `IOMMU_VDEVICE_ALLOC`,
//! `IOMMU_VEVENTQ_ALLOC`, `IOMMU_HW_QUEUE_ALLOC`), as of Linux 7.3. The domain is the guest's memory
//! ([`DomainOptions::second_stage`](super::DomainOptions)): a monitor maps it once. The hardware walks the guest's
//! tables, and the monitor forwards the guest's invalidations.

use std::marker::PhantomData;
use std::sync::Arc;

use portolan::iommu::{AttachError, IommuError};
use thiserror::Error;

use super::faults::FaultQueue;
use super::ioas::ALLOC_PASID;
use super::iommufd::{Iommufd, Object};
use crate::calls::refused;
use crate::domain::UserDomain;
use crate::sys::iommufd::nested as call;

pub(super) mod events;
pub(super) mod kinds;
mod passed;
mod queues;
mod unit;
mod viommu;

pub use events::{EventQueue, VirtualEvents};
pub use kinds::{
    AboveTables, CmdqvErrors, EventKind, FirstStage, QueueKind, SmmuFirstStage, VirtualCmdqv,
    VirtualKind, VirtualSmmu, VtdFirstStage, VtdInvalidation,
};
pub use passed::PassedDevice;
pub use queues::{CommandQueue, QueueRegisters};
pub use viommu::{GuestStream, VirtualDevice, VirtualIommu};

use kinds::sealed::{Requests, Stage};

/// Stage below a guest's tables.
#[derive(Debug)]
struct Below {
    /// Number of its object.
    id: u32,
    _kept: Kept,
}

/// Owner of that object.
#[derive(Debug)]
enum Kept {
    Domain { _domain: Arc<UserDomain> },
    Viommu { _viommu: Arc<viommu::Inner> },
}

/// Tables of a guest, and what they need.
#[derive(Debug)]
pub(super) struct Table {
    // Destroyed before what it lies above, and before its queue.
    object: Object,
    _below: Below,
    faults: Option<Arc<FaultQueue>>,
}

impl Table {
    pub(super) fn id(&self) -> u32 {
        self.object.id
    }

    /// Tells if page requests of its devices go to a queue.
    pub(super) fn has_queue(&self) -> bool {
        self.faults.is_some()
    }

    /// Tells if it is one of `iommufd`'s objects.
    pub(super) fn is_of(&self, iommufd: &Arc<Iommufd>) -> bool {
        Arc::ptr_eq(&self.object.iommufd, iommufd)
    }
}

/// Services of a guest's tables.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct NestedOptions {
    /// Queue of requests for pages that the guest's tables do not map; without it they are faults.
    pub faults: Option<Arc<FaultQueue>>,
    /// Use by requests with a PASID. The domain below has to allow PASIDs as well.
    pub pasids: bool,
}

/// A guest's first stage, known to the hardware.
///
/// It keeps the stage below. A device that is attached to it keeps it.
#[derive(Clone, Debug)]
pub struct NestedTables<S> {
    table: Arc<Table>,
    stage: PhantomData<fn(S)>,
}

/// Error of an invalidation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{error}, after {done} requests")]
pub struct InvalidateError {
    /// Number of requests that the hardware has carried out.
    pub done: usize,
    /// Error of the next one.
    pub error: IommuError,
}

fn invalidate<const N: usize>(
    object: &Object,
    kind: u32,
    requests: &[[u64; N]],
) -> Result<(), InvalidateError> {
    let done = call::invalidate(object.iommufd.descriptor(), object.id, kind, requests);
    done.map_err(|(done, error)| InvalidateError { done: done as usize, error: refused(&error) })
}

/// A device with the objects that it is given tables of.
#[derive(Clone, Debug)]
pub(super) struct Site {
    pub(super) iommufd: Arc<Iommufd>,
    /// The number of the device.
    pub(super) device: u32,
}

impl<S: FirstStage> NestedTables<S> {
    fn new(
        site: &Site,
        below: Below,
        stage: &S,
        options: NestedOptions,
    ) -> Result<Self, AttachError> {
        if options.faults.as_ref().is_some_and(|queue| !queue.is_of(&site.iommufd)) {
            return Err(AttachError::Mismatch);
        }
        let nested = call::Nested {
            device: site.device,
            parent: below.id,
            flags: if options.pasids { ALLOC_PASID } else { 0 },
            kind: <S as Stage>::KIND,
            words: &stage.words(),
            fault_queue: options.faults.as_ref().map(|queue| queue.id()),
        };
        let id = call::new_nested(site.iommufd.descriptor(), nested);
        let id = id.map_err(|error| refused(&error))?;
        let object = Object { iommufd: site.iommufd.clone(), id };
        let table = Table { object, _below: below, faults: options.faults };
        Ok(Self { table: Arc::new(table), stage: PhantomData })
    }

    /// Above the tables that the device has in `domain`.
    pub(super) fn above(
        site: &Site,
        domain: &Arc<UserDomain>,
        stage: &S,
        options: NestedOptions,
    ) -> Result<Self, AttachError>
    where
        S: AboveTables,
    {
        let id = domain.placed()?.second_stage(site.device)?;
        let below = Below { id, _kept: Kept::Domain { _domain: domain.clone() } };
        Self::new(site, below, stage, options)
    }

    pub(super) fn table(&self) -> &Arc<Table> {
        &self.table
    }

    /// Carries out requests of a kind, in their order.
    fn requests<const N: usize>(&self, requests: &[[u64; N]]) -> Result<(), InvalidateError>
    where
        S: Requests,
    {
        invalidate(&self.table.object, <S as Requests>::KIND, requests)
    }
}

impl NestedTables<VtdFirstStage> {
    /// Invalidates what the hardware keeps of the tables, in the order of `requests`.
    ///
    /// *Context.* Task: a system call that waits for the hardware.
    ///
    /// # Errors
    /// The first request that was refused; those before it are carried out.
    pub fn invalidate(&self, requests: &[VtdInvalidation]) -> Result<(), InvalidateError> {
        let words: Vec<[u64; 3]> = requests.iter().map(|request| request.words()).collect();
        self.requests(&words)
    }
}

#[cfg(test)]
mod tests;
