//! Devices of `virtio-drivers` behind an IOMMU.
//!
//! * [`SlotHal`]: its `Hal`, by numbered slots: a device that is bound to a slot reaches memory that its
//!   driver shares, and nothing else.
//! * [`Translated`]: a transport that accepts `VIRTIO_F_ACCESS_PLATFORM`, without which a device goes past
//!   the IOMMU.
//! * [`ViommuQueues`]: a virtio-iommu's queues, for `portolan_hw::topology::Topology::enable_with`.
//! * `DmaApi`, with the feature `dma-api`: the operations that drivers of the crate `dma-api` call.
//! * [`Addresses`]: functions that `virtio-drivers` asks of a kernel beyond `portolan`'s platform.
//!
//! A driver shares headers of 16 bytes that lie on a stack. A device that is not trusted
//! ([`Trust::Untrusted`](portolan::dma::Trust)) reaches the bytes of a buffer and no others: a buffer that
//! does not fill its pages is copied, if the device has a pool
//! ([`Device::with_copies`](portolan::dma::Device::with_copies)).
//!
//! Written for `virtio-drivers` 0.13. Not supported: interrupt handlers that call its drivers, since it
//! takes heap memory in each request.
#![no_std]
#![deny(unsafe_code)]

extern crate alloc;

#[cfg(feature = "dma-api")]
mod dma_api;
mod hal;
mod shared;
mod transport;
mod viommu;

#[cfg(feature = "dma-api")]
pub use dma_api::DmaApi;
pub use hal::{Addresses, BindError, ReleaseError, SLOTS, SlotHal};
pub use transport::{NotTranslated, Translated};
pub use viommu::ViommuQueues;

/// The crate's page, whose example is compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
