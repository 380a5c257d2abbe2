//! A virtio-iommu as a device: for monitors that offer one to their guests.
//!
//! [`VirtioIommu`] carries out a guest's requests; a device behind it uses an [`Endpoint`](crate::Endpoint), as
//! `vm_memory`'s `Iommu`, or is passed through and has a [`Listener`]. The monitor has the transport: it takes
//! requests from queue 0, and gives [`VirtioIommu::next_fault`] to queue 1. `device` is what the monitor calls,
//! `inner` carries out requests, `listener` tells listeners, `options` has the monitor's choices, `saved` state
//! that is saved and restored, `state` endpoints and faults, `domains` mappings, `requests` reads the guest's
//! requests.
//!
//! ```
//! use portolan_spec::virtio::Request;
//! use portolan_vmm::EndpointId;
//! use portolan_vmm::viommu::{Grant, Listener, ViommuOptions, VirtioIommu};
//! use std::io;
//! use std::sync::{Arc, Mutex};
//!
//! /// Tables of the host for a device that is passed through; a monitor calls VFIO here.
//! #[derive(Debug, Default)]
//! struct Container(Mutex<Vec<Grant>>);
//!
//! impl Listener for Container {
//!     fn map(&self, grant: &Grant) -> io::Result<()> {
//!         self.0.lock().unwrap().push(*grant);
//!         Ok(())
//!     }
//!
//!     fn unmap(&self, grant: &Grant) -> io::Result<()> {
//!         self.0.lock().unwrap().retain(|of| of != grant);
//!         Ok(())
//!     }
//! }
//!
//! /// A device with one endpoint, which is passed through.
//! fn machine() -> Result<(VirtioIommu, Arc<Container>), Box<dyn std::error::Error>> {
//!     let (device, disk) = (VirtioIommu::new(ViommuOptions::default()), EndpointId::new(8));
//!     device.add(disk, &[])?;
//!     let container = Arc::new(Container::default());
//!     device.listen(disk, container.clone())?;
//!     Ok((device, container))
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // The guest attaches the disk to domain 1, and maps a page for it.
//! let (device, container) = machine()?;
//! let attach = Request::Attach { domain: 1, endpoint: 8, flags: 0 };
//! let map = Request::Map { domain: 1, start: 0, last: 4095, phys: 0x8000, flags: 3 };
//! for request in [attach, map] {
//!     let mut status = [0xff; 4];
//!     device.request(request.encode().as_slice(), &mut status);
//!     assert_eq!(status, [0; 4]);
//! }
//! assert_eq!(container.0.lock().unwrap().len(), 1);
//!
//! // The machine moves to another host, whose container hears of the page.
//! let (moved, container) = machine()?;
//! moved.restore(&device.save())?;
//! assert_eq!(container.0.lock().unwrap().len(), 1);
//! # Ok(())
//! # }
//! ```

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
