//! Errors of finding units and of opening devices.

use portolan::addr::{PciFunction, PhysRange, StreamId};
use portolan::dma::{DeviceError, SpaceError};
use portolan::iommu::IommuError;
use thiserror::Error;

use super::PlatformDevice;
use super::pci::VirtualFunctions;
use crate::interrupt::ApicMode;
use portolan_tables::TableError;
use portolan_tables::describe::UnitKind;
use portolan_tables::viot::Viommu;

/// Error of firmware's tables of units.
///
/// *Context.* Interrupt: a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// No table describes units.
    #[error("there is no DMAR, IORT, IVRS, VIOT or RIMT table")]
    NoTable,
    /// The bytes that should be a device tree are none.
    #[error("it is no device tree")]
    NoTree,
    /// The table or the device tree has no unit that a topology enables.
    #[error("firmware's table has no unit that can be enabled")]
    NoUnit,
    /// Two tables describe units: a machine has units of one architecture.
    #[error("two tables describe units; a machine has one of DMAR, IORT, IVRS, VIOT and RIMT")]
    TwoTables,
    /// A table is damaged.
    #[error(transparent)]
    Table(#[from] TableError),
    /// The function may be a virtual one, and which unit serves it cannot be told.
    #[error("virtual functions of {} make no sense", .0.physical)]
    VirtualFunctions(VirtualFunctions),
}

/// Error of enabling a unit.
///
/// *Context.* Interrupt: a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum EnableError {
    /// The table.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// The platform does not give the registers.
    #[error("the registers at {window} cannot be mapped")]
    NoRegisters {
        /// Range of the registers.
        window: PhysRange,
    },
    /// Firmware says that the unit's power or clocks have to be switched on, and the platform has not done it
    /// ([`Platform::power_on`](portolan::platform::Platform::power_on)). No register was touched.
    #[error("the unit at {start} has no power: the platform has not switched it on", start = window.start())]
    NoPower {
        /// Range of the registers.
        window: PhysRange,
    },
    /// The PCI function that is the unit has no window of registers, or one that its bus does not reach.
    #[error("{function} has no registers where processors reach them")]
    NoWindow {
        /// The function.
        function: PciFunction,
    },
    /// Two units have registers in common: neither is enabled.
    #[error("units {one} and {other} are said to have the same registers")]
    SameRegisters {
        /// One, by its number in the table.
        one: usize,
        /// The other.
        other: usize,
    },
    /// No driver for the unit is compiled in: it is a feature of this crate.
    #[error("no driver for {} is compiled in", kind.name())]
    NoDriver {
        /// Its register interface.
        kind: UnitKind,
    },
    /// An SMMU of version 1 or 2 of a model that is not known.
    #[error("the SMMU at {start} is of the unknown model {model}", start = window.start())]
    UnknownModel {
        /// Range of its registers.
        window: PhysRange,
        /// The model, as IORT has it.
        model: u32,
    },
    /// Firmware says that the unit does not translate by host tables (HATDis), and no others are made.
    #[error("the unit at {start} translates by guests' tables alone (HATDis)", start = window.start())]
    NoHostTables {
        /// Its registers.
        window: PhysRange,
    },
    /// The unit's own PCI function has no capability block where the table says.
    #[error("{function}: {header:#x} is not the header of an IOMMU's capability block")]
    NoCapability {
        /// The function.
        function: PciFunction,
        /// The first word that is there.
        header: u32,
    },
    /// The unit.
    #[error("the unit at {start}: {error}", start = window.start())]
    Iommu {
        /// Its registers.
        window: PhysRange,
        /// Error of the unit.
        error: IommuError,
    },
    /// A virtio-iommu device.
    #[error("virtio-iommu, {place:?}: {error}")]
    Viommu {
        /// Place of the device in the table.
        place: Viommu,
        /// Error of the device, or of its transport; [`IommuError::Unsupported`] if that is
        /// missing.
        error: IommuError,
    },
    /// Firmware does not offer the remapping of interrupts that was asked for.
    #[error("firmware offers {offered:?} for the remapping of interrupts")]
    NoRemapping {
        /// Mode that it offers, if any.
        offered: Option<ApicMode>,
    },
    /// No memory to remember the unit.
    #[error("no memory to remember a unit")]
    Memory,
}

impl From<TableError> for EnableError {
    fn from(error: TableError) -> Self {
        Self::Topology(error.into())
    }
}

/// Error of finding the sender of a controller's interrupts.
///
/// *Context.* Interrupt: a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SenderError {
    /// The table.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// The unit that they go through was not enabled.
    #[error("unit {unit}, through which they go, was not enabled: {error}")]
    NotEnabled {
        /// The unit, by its number in the table.
        unit: usize,
        /// Reason.
        error: EnableError,
    },
}

/// Error of opening a device.
///
/// *Context.* Interrupt: a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The table.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// The unit that serves the function was not enabled: it reaches all memory, or none.
    #[error("unit {unit}, which serves {function}, was not enabled: {error}")]
    NotEnabled {
        /// The function.
        function: PciFunction,
        /// The unit, by its number in the table.
        unit: usize,
        /// Reason.
        error: EnableError,
    },
    /// No unit serves the function: it reaches all memory, or none.
    #[error("no IOMMU serves {function}")]
    NotServed {
        /// The function.
        function: PciFunction,
    },
    /// No unit serves the device: it reaches all memory, or none.
    #[error("no IOMMU serves {device}")]
    NoDevice {
        /// The device.
        device: PlatformDevice,
    },
    /// The unit that serves the device was not enabled: it reaches all memory, or none.
    #[error("unit {unit}, which serves {device}, was not enabled: {error}")]
    NoUnitOfDevice {
        /// The device.
        device: PlatformDevice,
        /// The unit, by its number in the table.
        unit: usize,
        /// Reason.
        error: EnableError,
    },
    /// Accesses of the device go to several units, or carry a stream that another device has too.
    #[error("stream {stream:#x} of {device} is another unit's, or another device's as well", stream = stream.get())]
    NotAlone {
        /// The device.
        device: PlatformDevice,
        /// The stream.
        stream: StreamId,
    },
    /// Firmware says that the device's bus passes no addresses on, or none that were asked for.
    #[error("no address that {device} may use gets past its bus")]
    NoAddressOfDevice {
        /// The device.
        device: PlatformDevice,
    },
    /// The device, or another one of its group, is open in an address space of its own.
    #[error("the device, or another one of its group, is open in an address space of its own")]
    OtherSpace,
    /// Firmware says that its root complex or bus passes no addresses on, or none that were asked for.
    #[error("no address that {function} may use gets past its root complex")]
    NoAddress {
        /// The function.
        function: PciFunction,
    },
    /// The device is below a port that leads out of the machine, so it reaches its buffers and
    /// nothing else: no pass-through, no translations of its own.
    #[error("{function} is not trusted: it may have been plugged in, below {port}")]
    Untrusted {
        /// The function.
        function: PciFunction,
        /// The external-facing port above it, or above another function of its group.
        port: PciFunction,
    },
    /// The unit refused to let the device use translations of its own.
    #[error("no translations of the device's own: {0}")]
    DeviceTlb(IommuError),
    /// The unit has no domain for it.
    #[error("no domain for the device: {0}")]
    Domain(IommuError),
    /// Another caller opens a device, and does not end.
    #[error("another device is being opened: {0}")]
    Turn(IommuError),
    /// The address space.
    #[error(transparent)]
    Space(#[from] SpaceError),
    /// The device was not attached.
    #[error(transparent)]
    Device(#[from] DeviceError),
}
