//! A monitor as small as can be: `portolan_vmm`'s virtio-iommu over a virtqueue in the guest's memory, and devices of
//! other processes that are passed through behind it.
//!
//! * [`monitor`]: the monitor; its virtual CPU is another process, which sends it exits ([`wire`]).
//! * [`link`](mod@link): its connection to a device, as the listener of the device's endpoint.
//! * [`vhost`]: the virtio-iommu and its device for a machine of QEMU.
//! * [`edu`]: the device, a vfio-user server on the crate `vfio_user`.
//!
//! Of the guest's memory the device's process has what the monitor has mapped for it, and nothing else.

#![forbid(unsafe_code)]

pub mod edu;
pub mod link;
pub mod monitor;
pub mod vhost;
pub mod wire;
