//! Description of a device in /sys, and the change of its driver.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::error::{OpenError, Step, VfioError};
use super::name::DeviceName;

fn directory(device: DeviceName) -> PathBuf {
    PathBuf::from(format!("/sys/bus/{}/devices/{device}", device.bus()))
}

/// The group of a device.
pub(super) fn group(device: DeviceName) -> Result<u32, OpenError> {
    let directory = directory(device);
    if !directory.exists() {
        return Err(OpenError::NoSuchDevice { device });
    }
    let link = match fs::read_link(directory.join("iommu_group")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(OpenError::NoIommu { device });
        }
        link => link.map_err(VfioError::of(Step::Sysfs))?,
    };
    let name = link.file_name().and_then(|name| name.to_str());
    let number = name.and_then(|name| name.parse().ok());
    number.ok_or(OpenError::NoIommu { device })
}

/// The node below /dev by which VFIO offers a device to iommufd, if it does.
pub(super) fn node(device: DeviceName) -> Option<String> {
    let mut entries = fs::read_dir(directory(device).join("vfio-dev")).ok()?;
    let name = entries.next()?.ok()?.file_name();
    Some(format!("/dev/vfio/devices/{}", name.to_str()?))
}

/// The file of a BAR, mapped so that writes are combined.
pub(super) fn combined(device: DeviceName, number: u8) -> PathBuf {
    directory(device).join(format!("resource{number}_wc"))
}

fn driver(device: &Path) -> Option<OsString> {
    let link = fs::read_link(device.join("driver")).ok()?;
    link.file_name().map(OsString::from)
}

/// Tells if the device's driver is VFIO's.
pub(super) fn is_vfio(device: DeviceName) -> bool {
    driver(&directory(device)).is_some_and(|name| name == device.driver())
}

/// Tells if no driver of the kernel's that does DMA has a function of `group`.
pub(super) fn is_viable(group: u32) -> bool {
    let devices = fs::read_dir(format!("/sys/kernel/iommu_groups/{group}/devices"));
    let mut drivers = devices.into_iter().flatten().flatten();
    drivers.all(|device| {
        let name = driver(&device.path());
        let name = name.as_deref().unwrap_or_default().to_string_lossy();
        name.is_empty() || name.starts_with("vfio") || ["pci-stub", "pcieport"].contains(&&*name)
    })
}

/// Takes `device` from the driver that it has and binds it to `vfio-pci`, or `vfio-platform`, as
/// [`OpenError::NotBound`] says to do by hand. It needs the rights of root. A disk that is in use is taken away as
/// well: the caller has to know that it is not.
///
/// *Context.* Task.
///
/// # Errors
/// The kernel's error.
pub fn bind(device: impl Into<DeviceName>) -> Result<(), VfioError> {
    let device = device.into();
    rebind(device, &format!("{}\n", device.driver()))
}

/// Gives `device` back to the driver that the kernel finds for it.
///
/// *Context.* Task.
///
/// # Errors
/// The kernel's error. It waits until every process has closed the device.
pub fn unbind(device: impl Into<DeviceName>) -> Result<(), VfioError> {
    rebind(device.into(), "\n")
}

fn rebind(device: DeviceName, driver: &str) -> Result<(), VfioError> {
    let (directory, name) = (directory(device), device.to_string());
    let failed = VfioError::of(Step::Sysfs);
    fs::write(directory.join("driver_override"), driver).map_err(&failed)?;
    match fs::write(directory.join("driver/unbind"), &name) {
        // It has no driver.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        done => done.map_err(&failed)?,
    }
    fs::write(format!("/sys/bus/{}/drivers_probe", device.bus()), name).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use portolan::addr::{PciFunction, StreamId};

    #[test]
    fn nothing_is_bound_that_is_not_there() {
        let function: PciFunction = "ffff:ff:1f.7".parse().unwrap();
        let (name, stream) = ("none.at.all".parse().unwrap(), StreamId::new(1));
        for device in [function.into(), DeviceName::Platform { name, stream }] {
            for done in [bind(device), unbind(device)] {
                let (step, code) = (Step::Sysfs, 2);
                assert_eq!(done, Err(VfioError::System { step, code }));
            }
        }
    }
}
