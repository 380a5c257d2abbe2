//! A device of a virtual machine, in a process of its own or in the monitor, behind the guest's IOMMU.
//!
//! * [`VhostIotlb`]: the translations that a vhost-user front-end (QEMU) sends, as `vm_memory`'s `Iommu`. The
//!   device reaches memory that the guest has mapped for it, and nothing else of the guest's.
//! * [`Message`]: the messages by which a front-end speaks of translations.
//! * [`backend`]: a vhost-user back-end around it: the connection, the rings, their threads. The example
//!   `vhost-user-blk` is a disk on it.
//! * [`viommu`]: a virtio-iommu as a device, for monitors that offer one.
//! * [`frontend`]: the front-end's half of a vhost-user device behind it.
//! * [`emulated`]: page tables in the guest's memory, for monitors that emulate VT-d, AMD-Vi, SMMUv3 or a RISC-V IOMMU.
//! * [`Endpoint`]: the guest's memory as a device behind either sees it, as `vm_memory`'s `Iommu`.
//!
//! Written for `vm-memory` 0.18 and `virtio-queue` 0.18, and for the vhost-user protocol as QEMU documents it
//! (`vhost-user.rst`, sections "IOMMU support" and "Front-end message types").
//!
//! Calling contexts are those of a process: everything here may take heap memory and locks, so it is for
//! tasks. [`VhostIotlb`]'s look-ups take no lock as long as they hit.

#![warn(missing_docs)]
#![forbid(unsafe_code)]

#[cfg(not(all(target_os = "linux", target_endian = "little", target_pointer_width = "64")))]
compile_error!("portolan-vmm needs a little-endian 64-bit Linux");

pub mod backend;
pub mod emulated;
mod endpoint;
mod faults;
pub mod frontend;
mod iotlb;
mod message;
mod regions;
pub mod viommu;

pub use endpoint::{Contiguous, Endpoint, EndpointId, NotContiguous};
pub use iotlb::{
    ApplyError, Counts, IotlbGuard, IotlbOptions, Replacement, SetMemoryError, StillHeld,
    VhostIotlb,
};
pub use message::{Message, MessageError, Miss};
pub use regions::{FrontendAddr, MemoryRegion, RegionsError};

/// The crate's page, whose example is compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
