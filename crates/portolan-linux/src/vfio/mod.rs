//! Devices that the kernel hands to this process: VFIO.
//!
//! linux/vfio.h, linux/iommufd.h, Documentation/driver-api/vfio.rst. [`open`] opens a PCI function by its own
//! node and binds it to iommufd; where the kernel has none, it finds the function's group and joins it to a
//! container of type 1 (version 2). It returns a [`UserUnit`], to which its domains are attached, and a
//! [`VfioDevice`]: registers, configuration space, interrupts, reset.
//!
//! Not supported: two functions of one group in one unit, devices that are not PCI functions, groups
//! without an IOMMU (`noiommu`).

mod bar;
mod bound;
mod container;
mod device;
mod error;
mod faults;
mod interrupts;
mod ioas;
mod iommufd;
mod port;
mod sysfs;
mod unit;

pub use bar::Bar;
pub use device::VfioDevice;
pub use error::{OpenError, Step, VfioError};
pub use faults::FaultQueue;
pub use interrupts::{InterruptKind, Interrupts, Removal};
pub use ioas::DomainOptions;
pub use port::RawSpace;
pub use sysfs::{bind, unbind};
pub use unit::{Interface, Opened, UserUnit, open, open_by};
