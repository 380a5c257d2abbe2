//! A vhost-user back-end behind its guest's IOMMU: one connection to a front-end, a thread for each ring.
//!
//! `vhost-user-backend` 0.24 cannot be one (`docs/vmm.md` names the parts that it lacks), so here is a message
//! loop for the needs of such a device. `wire` has messages, `request` their numbers, `session` answers them, `ring`
//! serves rings.

mod request;
mod ring;
mod session;
mod wire;

pub use ring::{DeviceMemory, Request};
pub use session::{Backend, BackendOptions, Invalidations, ServeError, Served};
pub use wire::WireError;
pub(crate) use wire::{receive, reply};

/// A virtio device.
pub trait Device: Send + Sync + 'static {
    /// Its feature bits, without those of the transport and of the ring.
    fn features(&self) -> u64;

    /// Its configuration space, of at most 256 bytes.
    fn config(&self) -> &[u8];

    /// Number of rings that it has, 1 to 64.
    fn queues(&self) -> u16;

    /// Carries out a request; returns the number of bytes of the guest's memory that were written. May be
    /// called by several threads, one for each ring. Memory of the guest that it reads may have changed
    /// when it is read again.
    fn request(&self, memory: &DeviceMemory, request: &Request) -> u32;
}
