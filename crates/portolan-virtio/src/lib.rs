//! Devices of `virtio-drivers` behind an IOMMU, or on machines that have none.
//!
//! * [`SpaceHal`]: its `Hal`, for all devices of an address space: they reach the memory that their drivers
//!   share, and nothing else.
//! * [`VirtioMemory`]: the devices, and the memory that is shared with them; [`HalMemory`] names it by a type.
//! * [`AccessPlatform`]: a transport that accepts `VIRTIO_F_ACCESS_PLATFORM` where its device offers it,
//!   without which a device goes past the IOMMU.
//! * [`ViommuQueues`]: a virtio-iommu's queues, for `portolan_hw::topology::Topology::enable_with`.
//! * `DmaApi`, with the feature `dma-api`: the operations that drivers of the crate `dma-api` call.
//! * [`Addresses`]: functions that `virtio-drivers` asks of a kernel beyond `portolan`'s platform.
//!
//! A device that is not trusted ([`Trust::Untrusted`](portolan::dma::Trust)) reaches the bytes of a buffer and
//! no others: a buffer that does not fill its pages is copied, if the device has a pool
//! ([`Device::with_copies`](portolan::dma::Device::with_copies)). Short ones need none.
//!
//! Written for `virtio-drivers` 0.13. With its feature `alloc` its queues take heap memory in each request, if the
//! device offers indirect descriptors: a handler does not call them then.
#![no_std]
#![deny(unsafe_code)]

extern crate alloc;

mod address_table;
#[cfg(feature = "dma-api")]
mod dma_api;
mod hal;
mod lent;
mod open;
mod shared;
mod short_slots;
mod transport;
mod viommu;

#[cfg(feature = "dma-api")]
pub use dma_api::DmaApi;
pub use hal::{AddError, Addresses, HalMemory, RemoveError, SpaceHal, VirtioMemory};
pub use open::{OpenedDevice, VirtioOpenError};
pub use transport::{AccessPlatform, NotTranslated};
pub use viommu::ViommuQueues;

/// The crate's page, whose example is compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
