//! Devices that the kernel hands to this process: VFIO.
//!
//! linux/vfio.h, linux/iommufd.h, Documentation/driver-api/vfio.rst. [`open`] opens a PCI function by its own
//! node and binds it to iommufd; where the kernel has none, it finds the function's group and joins it to a
//! container of type 1 (version 2). It returns a [`UserUnit`], to which its domains are attached, and a
//! [`VfioDevice`]: registers, configuration space, interrupts, reset. [`open_from`] does the same of descriptors that
//! others opened, of virtual functions with a token, and of platform devices. [`open_unprotected`] opens a
//! device behind no IOMMU, by a promise.
//!
//! Not supported: two functions of one group in one unit, maps for a device behind no IOMMU.

/// Bodies of a fuzzer, and the tests that replay its corpus.
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
#[path = "../../../../proof/fuzz/bodies/kernel.rs"]
pub mod answers;
mod bar;
mod bound;
mod charge;
mod combined;
mod container;
mod device;
mod error;
mod faults;
#[cfg(test)]
mod fuzzed;
mod handed;
mod hardware;
mod interrupts;
mod ioas;
mod iommufd;
#[cfg(test)]
mod mock;
mod name;
mod nested;
mod port;
mod sysfs;
mod unit;

pub use bar::Bar;
pub use charge::ChargeError;
pub use combined::CombinedBar;
pub use device::VfioDevice;
pub use error::{OpenError, Step, VfioError};
pub use faults::FaultQueue;
pub use handed::{
    BoundDeviceFile, Candidate, ContainerFile, DescriptorKind, DeviceFile, GroupFile, Interface,
    IommufdFile, Through, WrongDescriptor,
};
pub use hardware::{Hardware, HardwareRegisters};
pub use interrupts::{InterruptKind, Interrupts, Line, Removal};
pub use ioas::DomainOptions;
pub use name::{
    BadPlatformName, BadVfToken, BoundNumber, DeviceName, IoasId, PlatformName, VfToken,
};
pub use nested::{
    AboveTables, CmdqvErrors, CommandQueue, EventKind, EventQueue, FirstStage, GuestStream,
    InvalidateError, NestedOptions, NestedTables, PassedDevice, QueueKind, QueueRegisters,
    SmmuFirstStage, VirtualCmdqv, VirtualDevice, VirtualEvents, VirtualIommu, VirtualKind,
    VirtualSmmu, VtdFirstStage, VtdInvalidation,
};
pub use port::RawSpace;
pub use sysfs::{bind, unbind};
pub use unit::{Opened, UserUnit, open, open_by, open_from, open_unprotected};
