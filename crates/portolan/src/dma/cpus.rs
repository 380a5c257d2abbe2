//! Spaces made of parts for which the caller has made a promise.
//!
//! *Context.* Task.

use super::error::SpaceError;
use super::space::{DmaSpace, SpaceOptions};
use crate::iommu::BoundDomain;
use crate::platform::{Cpus, Platform, TrustedBase};

impl<P: Platform> DmaSpace<P> {
    /// A space over `bound`, of which nothing is mapped.
    ///
    /// # Errors
    /// See [`SpaceError`].
    pub fn new(bound: BoundDomain, cpus: P, options: &SpaceOptions) -> Result<Self, SpaceError> {
        Self::on(bound, cpus, options)
    }
}

impl<P: Cpus + Clone> DmaSpace<P> {
    /// As [`DmaSpace::new`], on CPUs that are no [`Platform`]'s. `_base` is the promise for them.
    ///
    /// # Errors
    /// See [`SpaceError`].
    pub fn with_cpus(
        bound: BoundDomain,
        cpus: P,
        options: &SpaceOptions,
        _base: TrustedBase,
    ) -> Result<Self, SpaceError> {
        Self::on(bound, cpus, options)
    }
}
