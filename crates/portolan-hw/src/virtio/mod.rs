//! virtio-iommu.
//!
//! Virtual I/O Device (VIRTIO) 1.2, section 5.13. [`transport`] is the trait that an embedder
//! implements: a request queue, an event queue and the configuration; [`portolan_spec::virtio`] has the layouts.
//! [`Viommu`] drives one device, [`VirtioDomain`] is an address space of it.
//!
//! The device keeps no translation after an unmap has completed. A domain records maps and unmaps;
//! only a sync sends requests, in batches, and waits. The driver checks alignment and overlaps
//! itself, since devices are lax there.
//!
//! Not supported: page tables in guest memory (a feature of later drafts).

mod claim;
mod device;
mod domain;
mod power;
mod records;
mod settle;
#[cfg(test)]
mod tests;
pub mod transport;
mod unit;

pub use device::{Config, Counts};
pub use domain::VirtioDomain;
pub use transport::{Exchange, Transport};
pub use unit::Viommu;
