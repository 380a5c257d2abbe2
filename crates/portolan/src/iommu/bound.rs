//! A domain together with its unit, of any types.
//!
//! *Context.* Task.

use alloc::boxed::Box;
use alloc::sync::Arc;

use super::{Attach, AttachError, Domain, Iommu};
use crate::addr::{Pasid, StreamId};
use crate::platform::TrustedBase;

/// A domain and its unit. Here the types of a driver are erased: users of it, such as a
/// [`DmaSpace`](crate::dma::DmaSpace), do not name them.
///
/// ```no_run
/// # use portolan::iommu::{Attach, BoundDomain, Domain};
/// # use portolan::platform::TrustedBase;
/// # use std::sync::Arc;
/// # fn bind<U: Attach<D> + 'static, D: Domain + 'static>(unit: Arc<U>, domain: D) -> BoundDomain {
/// // SAFETY: this driver and its domains do what their traits say.
/// let base = unsafe { TrustedBase::new() };
/// BoundDomain::new(unit, Arc::new(domain), base)
/// # }
/// ```
pub struct BoundDomain {
    unit: Arc<dyn Iommu>,
    domain: Arc<dyn Domain>,
    attach: Box<dyn AttachTo>,
}

/// Attaches streams of one unit to one domain.
trait AttachTo: Send + Sync {
    fn attach(&self, stream: StreamId, pasid: Option<Pasid>) -> Result<(), AttachError>;
}

struct Pair<U, D> {
    unit: Arc<U>,
    domain: Arc<D>,
}

impl<U: Attach<D>, D: Domain> AttachTo for Pair<U, D> {
    fn attach(&self, stream: StreamId, pasid: Option<Pasid>) -> Result<(), AttachError> {
        match pasid {
            None => self.unit.attach(stream, &self.domain),
            Some(pasid) => self.unit.attach_pasid(stream, pasid, &self.domain),
        }
    }
}

impl BoundDomain {
    /// `domain`, to which streams of `unit` are attached. `_base` is the promise for both.
    pub fn new<U, D>(unit: Arc<U>, domain: Arc<D>, _base: TrustedBase) -> Self
    where
        U: Attach<D> + 'static,
        D: Domain + 'static,
    {
        Self { unit: unit.clone(), domain: domain.clone(), attach: Box::new(Pair { unit, domain }) }
    }

    /// The unit.
    pub fn unit(&self) -> &Arc<dyn Iommu> {
        &self.unit
    }

    /// The domain.
    pub fn domain(&self) -> &Arc<dyn Domain> {
        &self.domain
    }

    /// Attaches a stream of the unit to the domain.
    ///
    /// # Errors
    /// As [`Attach::attach`].
    pub fn attach(&self, stream: StreamId) -> Result<(), AttachError> {
        self.attach.attach(stream, None)
    }

    /// Attaches the requests of a stream that have `pasid`.
    ///
    /// # Errors
    /// As [`Attach::attach_pasid`].
    pub fn attach_pasid(&self, stream: StreamId, pasid: Pasid) -> Result<(), AttachError> {
        self.attach.attach(stream, Some(pasid))
    }
}
