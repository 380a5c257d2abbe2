//! Errors of devices, and their remedies.

use std::io;

use portolan::addr::StreamId;
use portolan::iommu::IommuError;
use rustix::io::Errno;
use thiserror::Error;

use super::name::DeviceName;
use crate::chain::InfoError;

/// The system's number of an error.
pub(super) fn errno(error: &io::Error) -> Option<Errno> {
    error.raw_os_error().map(Errno::from_raw_os_error)
}

/// Request that the kernel refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Step {
    /// Looking at the function in /sys.
    Sysfs,
    /// Opening /dev/vfio/vfio.
    Container,
    /// Opening /dev/iommu.
    Iommufd,
    /// Binding the device to iommufd.
    Bind,
    /// Opening the group's node below /dev/vfio.
    Group,
    /// Joining the group to the container.
    Join,
    /// Choosing type 1.
    Type1,
    /// Choosing no IOMMU.
    NoIommu,
    /// Opening the device.
    Device,
    /// Asking for its kind, and its parts.
    Info,
    /// Its configuration space.
    Config,
    /// Its registers.
    Registers,
    /// Its interrupts.
    Interrupts,
    /// Its reset.
    Reset,
    /// Its page requests.
    Faults,
    /// The token of its virtual functions.
    Token,
    /// A part of its registers as a dma-buf.
    DmaBuf,
    /// Destroying an address space.
    Space,
}

/// Reason why a function was not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// There is none.
    #[error(
        "there is no device {device}: `lspci -D` lists the PCI functions that there are, /sys/bus/platform/devices has \
         platform devices"
    )]
    NoSuchDevice {
        /// The device.
        device: DeviceName,
    },
    /// No IOMMU is between it and memory.
    #[error(
        "{device} is behind no IOMMU: switch it on in the firmware (VT-d, AMD-Vi, SMMU), and on Intel \
         boot with intel_iommu=on"
    )]
    NoIommu {
        /// The device.
        device: DeviceName,
    },
    /// The kernel has no VFIO.
    #[error("the kernel has no VFIO (/dev/vfio/vfio is not there): `modprobe vfio-pci`")]
    NoVfio,
    /// Another driver has it, or none.
    #[error(
        "{device} (group {group}) is not VFIO's: `echo {driver} > /sys/bus/{bus}/devices/{device}/driver_override`, \
         unbind it from its driver (`echo {device} > /sys/bus/{bus}/devices/{device}/driver/unbind`), then `echo \
         {device} > /sys/bus/{bus}/drivers_probe`",
        driver = .device.driver(), bus = .device.bus()
    )]
    NotBound {
        /// The device.
        device: DeviceName,
        /// Its group.
        group: u32,
    },
    /// iommufd was asked for, and the kernel has none.
    #[error(
        "the kernel has no iommufd (/dev/iommu is not there), or its VFIO does not know it (no node below \
         /dev/vfio/devices): `modprobe iommufd`, a kernel with CONFIG_IOMMUFD and CONFIG_VFIO_DEVICE_CDEV, or type 1"
    )]
    NoIommufd,
    /// The process may not open it.
    #[error("no permission for {step:?}: run as root, or `chown $USER {}`", owned(*step, *group))]
    NoPermission {
        /// Its group, where it is not about all of them.
        group: Option<u32>,
        /// Object that was opened.
        step: Step,
    },
    /// Another process has it.
    #[error(
        "group {group} is in use by another process, or twice by this one: `fuser /dev/vfio/{group} \
         /dev/vfio/devices/*`"
    )]
    Busy {
        /// Its group.
        group: u32,
    },
    /// Functions beside it belong to drivers of the kernel.
    #[error(
        "group {group} is not viable: functions beside this one reach the same memory, and drivers of the \
         kernel have them. Bind all of /sys/kernel/iommu_groups/{group}/devices to vfio-pci"
    )]
    NotViable {
        /// Its group.
        group: u32,
    },
    /// The kernel's VFIO has no type 1.
    #[error("the kernel's VFIO has no type 1 IOMMU, version 2: `modprobe vfio_iommu_type1`")]
    NoType1,
    /// Its interrupts are not remapped, so that it could raise any of the machine's.
    #[error(
        "interrupts of group {group} are not remapped, so the kernel does not hand it out: switch remapping \
         on in the firmware, or, if the device is trusted, load vfio_iommu_type1, or \
         iommufd, with allow_unsafe_interrupts=1"
    )]
    UnsafeInterrupts {
        /// Its group.
        group: u32,
    },
    /// The kernel gives it out without protection: it is behind no IOMMU, and reaches all memory.
    #[error(
        "{device} (group {group}) is behind no IOMMU, and the kernel gives it out all the same \
         (enable_unsafe_noiommu_mode): it reaches all memory. Switch the IOMMU on, or promise that it reaches its own \
         memory alone (vfio::open_unprotected)"
    )]
    Unprotected {
        /// The device.
        device: DeviceName,
        /// Its group.
        group: u32,
    },
    /// The kernel gives no device out without protection, or this one is behind an IOMMU.
    #[error(
        "the kernel does not give {device} out without an IOMMU: it has one, or vfio was loaded without \
         enable_unsafe_noiommu_mode=1, or the kernel was built without CONFIG_VFIO_NOIOMMU"
    )]
    Protected {
        /// The device.
        device: DeviceName,
    },
    /// The token is not that of its physical function, or is wanted and missing.
    #[error(
        "the kernel does not give {device} out: its token is not that of its physical function's driver, or one is \
         wanted, or none; over iommufd a kernel may know no tokens (before Linux 6.17)"
    )]
    Token {
        /// The device.
        device: DeviceName,
    },
    /// Its descriptors are of the other interface.
    #[error("the descriptors of {device} are of the other interface of the kernel's")]
    OtherInterface {
        /// The device.
        device: DeviceName,
    },
    /// Two devices have the same stream.
    #[error("two devices are to be stream {}", .stream.get())]
    Twice {
        /// The stream.
        stream: StreamId,
    },
    /// The functions have no addresses in common.
    #[error("the functions have no addresses in common")]
    NoCommonAddresses,
    /// Something else.
    #[error(transparent)]
    Device(#[from] VfioError),
}

/// The node that the process needs permission for.
fn owned(step: Step, group: Option<u32>) -> String {
    match (step, group) {
        (Step::Iommufd, _) => "/dev/iommu".to_owned(),
        (Step::Container, _) | (_, None) => "/dev/vfio/vfio".to_owned(),
        (Step::Device, Some(group)) => {
            format!("the node below /dev/vfio/devices of a function in group {group}")
        }
        (_, Some(group)) => format!("/dev/vfio/{group}"),
    }
}

/// Reason why a device did not do something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum VfioError {
    /// The kernel's description of it makes no sense.
    #[error(transparent)]
    Info(#[from] InfoError),
    /// It has no such region, or none with bytes.
    #[error("the device has no region {index}")]
    NoRegion {
        /// The region.
        index: u32,
    },
    /// Its writes cannot be combined.
    #[error(
        "the kernel combines no writes to it: it is not prefetchable, or the architecture has no such mappings"
    )]
    NotCombined,
    /// Past the end of a region.
    #[error("{bytes} bytes at {offset:#x} are not inside of the {length} bytes of the region")]
    OutOfBounds {
        /// Offset of the access in the region.
        offset: u64,
        /// Bytes of the access.
        bytes: u64,
        /// Length of the region.
        length: u64,
    },
    /// Fewer interrupts than asked for.
    #[error("the device has {there} interrupts of that kind, not {wanted}")]
    NoInterrupts {
        /// So many were asked for.
        wanted: u32,
        /// So many there are.
        there: u32,
    },
    /// It cannot be reset by itself.
    #[error("the device cannot be reset by itself")]
    NoReset,
    /// It was taken out of the machine.
    #[error("the device is gone")]
    Gone,
    /// It has an IOMMU that refuses.
    #[error(transparent)]
    Iommu(#[from] IommuError),
    /// The kernel refused.
    #[error("{step:?}: {}", io::Error::from_raw_os_error(*.code))]
    System {
        /// The refused request.
        step: Step,
        /// The system's number of the error.
        code: i32,
    },
}

impl VfioError {
    pub(super) fn of(step: Step) -> impl Fn(io::Error) -> Self {
        move |error| {
            let code = error.raw_os_error().unwrap_or(0);
            match Errno::from_raw_os_error(code) {
                Errno::NODEV => Self::Gone,
                _ => Self::System { step, code },
            }
        }
    }
}
