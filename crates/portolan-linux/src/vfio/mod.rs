//! Devices that the kernel hands to this process: VFIO.
//!
//! linux/vfio.h, Documentation/driver-api/vfio.rst. [`open`] finds a PCI function's group, joins it to a
//! container of type 1 (version 2), and opens the device. What comes back is a [`UserUnit`], to which its
//! domains are attached, and a [`VfioDevice`]: registers, configuration space, interrupts, reset.
//!
//! Not supported: two functions of one group in one unit, devices that are not PCI functions, groups
//! without an IOMMU (`noiommu`).

mod bar;
mod container;
mod device;
mod error;
mod interrupts;
mod sysfs;
mod unit;

pub use bar::Bar;
pub use device::VfioDevice;
pub use error::{OpenError, Step, VfioError};
pub use interrupts::{InterruptKind, Interrupts, Removal};
pub use sysfs::{bind, unbind};
pub use unit::{Opened, UserUnit, open};
