//! Description of a PCI function in /sys, and the change of its driver.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use portolan::addr::PciFunction;

use super::error::{OpenError, Step, VfioError};

fn directory(function: PciFunction) -> PathBuf {
    PathBuf::from(format!("/sys/bus/pci/devices/{function}"))
}

/// The group of a function.
pub(super) fn group(function: PciFunction) -> Result<u32, OpenError> {
    let directory = directory(function);
    if !directory.exists() {
        return Err(OpenError::NoSuchFunction { function });
    }
    let link = match fs::read_link(directory.join("iommu_group")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(OpenError::NoIommu { function });
        }
        link => link.map_err(VfioError::of(Step::Sysfs))?,
    };
    let name = link.file_name().and_then(|name| name.to_str());
    let number = name.and_then(|name| name.parse().ok());
    number.ok_or(OpenError::NoIommu { function })
}

/// The node below /dev by which VFIO offers a function to iommufd, if it does.
pub(super) fn node(function: PciFunction) -> Option<String> {
    let mut entries = fs::read_dir(directory(function).join("vfio-dev")).ok()?;
    let name = entries.next()?.ok()?.file_name();
    Some(format!("/dev/vfio/devices/{}", name.to_str()?))
}

fn driver(device: &Path) -> Option<OsString> {
    let link = fs::read_link(device.join("driver")).ok()?;
    link.file_name().map(OsString::from)
}

/// Tells if the function's driver is `vfio-pci`.
pub(super) fn is_vfio(function: PciFunction) -> bool {
    driver(&directory(function)).is_some_and(|name| name == "vfio-pci")
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

/// Takes `function` from the driver that it has and binds it to `vfio-pci`, as [`OpenError::NotBound`] says to
/// do by hand. It needs the rights of root. A disk that is in use is taken away as well: the caller has to
/// know that it is not.
///
/// *Context.* Task.
///
/// # Errors
/// The kernel's error.
pub fn bind(function: PciFunction) -> Result<(), VfioError> {
    rebind(function, "vfio-pci\n")
}

/// Gives `function` back to the driver that the kernel finds for it.
///
/// *Context.* Task.
///
/// # Errors
/// The kernel's error. It waits until every process has closed the function.
pub fn unbind(function: PciFunction) -> Result<(), VfioError> {
    rebind(function, "\n")
}

fn rebind(function: PciFunction, driver: &str) -> Result<(), VfioError> {
    let (directory, name) = (directory(function), function.to_string());
    let failed = VfioError::of(Step::Sysfs);
    fs::write(directory.join("driver_override"), driver).map_err(&failed)?;
    match fs::write(directory.join("driver/unbind"), &name) {
        // It has no driver.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        done => done.map_err(&failed)?,
    }
    fs::write("/sys/bus/pci/drivers_probe", name).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_bound_that_is_not_there() {
        let function: PciFunction = "ffff:ff:1f.7".parse().unwrap();
        for done in [bind(function), unbind(function)] {
            let (step, code) = (Step::Sysfs, 2);
            assert_eq!(done, Err(VfioError::System { step, code }));
        }
    }
}
