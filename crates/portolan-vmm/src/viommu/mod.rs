//! A virtio-iommu as a device: for monitors that offer one to their guests.
//!
//! [`VirtioIommu`] carries out a guest's requests; a device behind it uses an [`Endpoint`](crate::Endpoint), as
//! `vm_memory`'s `Iommu`, or is passed through and has a [`Listener`]. The monitor has the transport: it takes
//! requests from queue 0, and gives [`VirtioIommu::next_fault`] to queue 1. `device` is what the monitor calls,
//! `inner` carries out requests, `listener` tells listeners, `options` has the monitor's choices, `saved` state
//! that is saved and restored, `state` endpoints and faults, `domains` mappings, `requests` reads the guest's
//! requests.

mod device;
mod domains;
mod inner;
mod listener;
mod options;
mod requests;
mod saved;
mod state;

pub use device::VirtioIommu;
pub use listener::{Grant, Listener, ListenerCounts, Mapping, MemoryKind};
pub use options::{NotAdded, NotListening, NotTakenAway, Reset, ViommuOptions};
pub use saved::{RestoreError, SavedDomain, SavedMapping, SavedViommu};
