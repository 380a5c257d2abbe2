//! A virtio-iommu as a device: for monitors that offer one to their guests.
//!
//! [`VirtioIommu`] carries out a guest's requests; a device behind it uses an [`Endpoint`](crate::Endpoint), as
//! `vm_memory`'s `Iommu`. The monitor has the transport: it takes requests from queue 0, and gives
//! [`VirtioIommu::next_fault`] to queue 1. `device` carries out, `state` has endpoints and faults, `domains`
//! mappings, `requests` reads the guest's requests.

mod device;
mod domains;
mod requests;
mod state;

pub use device::{NotAdded, ViommuOptions, VirtioIommu};
