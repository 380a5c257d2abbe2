//! Portolan in a Linux process: devices that the kernel hands to it, and memory that they are given.
//!
//! * [`vfio`]: a device, opened: its unit, registers and interrupts.
//! * [`UserDomain`]: its address space, in which a map is a system call.
//! * [`memory`]: the process as a platform, buffers, and one mapping by physical or host address.
//! * [`guest`]: such memory as a guest's: populated by real page faults, taken back at any time, also by
//!   threads that know nothing of devices (userfaultfd).
//!
//! Unsafe code is confined to `memory` and `sys`, where each block names its guarantees.

#![warn(missing_docs)]
#![deny(unsafe_code)]

#[cfg(not(all(target_os = "linux", target_endian = "little", target_pointer_width = "64")))]
compile_error!("portolan-linux needs a little-endian 64-bit Linux");

mod calls;
mod chain;
mod dmabuf;
mod domain;
mod files;
pub mod guest;
pub mod memory;
#[cfg(test)]
#[path = "../../portolan/tests/support/promised.rs"]
mod promised;
mod sys;
pub mod vfio;

pub use calls::{CallCounts, Refusal};
pub use chain::InfoError;
pub use domain::UserDomain;

/// The crate's page, whose example is compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
