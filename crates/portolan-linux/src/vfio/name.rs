//! Names of devices that are opened, and the tokens of virtual functions.
//!
//! Documentation/driver-api/vfio.rst, drivers/vfio/pci (the `vf_token` of a function's name), RFC 9562 (text form of a
//! token). A platform device is named as in /sys/bus/platform/devices.

use std::fmt;
use std::str::FromStr;

use portolan::addr::{PciFunction, StreamId};
use thiserror::Error;

/// Name of a device, as the kernel knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DeviceName {
    /// A PCI function.
    Pci(PciFunction),
    /// A platform device: described by a device tree or ACPI, behind `vfio-platform`.
    Platform {
        /// Its name.
        name: PlatformName,
        /// Stream by which its unit is to know it: that of the firmware's tables, or any other number.
        stream: StreamId,
    },
}

impl From<PciFunction> for DeviceName {
    fn from(function: PciFunction) -> Self {
        Self::Pci(function)
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pci(function) => function.fmt(f),
            Self::Platform { name, .. } => f.write_str(name.as_str()),
        }
    }
}

impl DeviceName {
    /// The stream: of a PCI function its requester identifier below its segment.
    pub fn stream(&self) -> StreamId {
        match *self {
            Self::Pci(function) => {
                let segment = u32::from(function.segment.get());
                StreamId::new(segment << 16 | u32::from(function.requester.get()))
            }
            Self::Platform { stream, .. } => stream,
        }
    }

    /// Folder of its bus below /sys/bus.
    pub(super) const fn bus(&self) -> &'static str {
        match self {
            Self::Pci(_) => "pci",
            Self::Platform { .. } => "platform",
        }
    }

    /// Driver of VFIO's that it is bound to.
    pub(super) const fn driver(&self) -> &'static str {
        match self {
            Self::Pci(_) => "vfio-pci",
            Self::Platform { .. } => "vfio-platform",
        }
    }
}

/// Number of an address space of an iommufd, as `IOMMU_IOAS_ALLOC` returned it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IoasId(u32);

impl IoasId {
    /// The address space of that number.
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    /// The number.
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// Number of a device of an iommufd, as `VFIO_DEVICE_BIND_IOMMUFD` returned it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BoundNumber(u32);

impl BoundNumber {
    /// The device of that number.
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    /// The number.
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// Longest name of a platform device.
const LONGEST: usize = 62;

/// Name of a platform device, `fff51000.ethernet` for example.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PlatformName {
    bytes: [u8; LONGEST],
    length: u8,
}

impl PlatformName {
    /// The name.
    pub fn as_str(&self) -> &str {
        let bytes = self.bytes.get(..usize::from(self.length)).unwrap_or_default();
        str::from_utf8(bytes).unwrap_or_default()
    }
}

impl fmt::Debug for PlatformName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

/// A text that is no name of a platform device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "a platform device is named by 1 to 62 letters, digits and any of `.:,_-@`, the first no dot"
)]
pub struct BadPlatformName;

impl FromStr for PlatformName {
    type Err = BadPlatformName;

    fn from_str(text: &str) -> Result<Self, BadPlatformName> {
        // The name becomes a part of a path.
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b".:,_-@".contains(&byte);
        if text.starts_with('.') || text.is_empty() || !text.bytes().all(fits) {
            return Err(BadPlatformName);
        }
        let mut bytes = [0; LONGEST];
        let room = bytes.get_mut(..text.len()).ok_or(BadPlatformName)?;
        room.copy_from_slice(text.as_bytes());
        let length = u8::try_from(text.len()).map_err(|_| BadPlatformName)?;
        Ok(Self { bytes, length })
    }
}

/// Secret that the owner of a physical function shares with the users of its virtual functions, a UUID. Without it the
/// kernel opens none of them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct VfToken([u8; 16]);

impl VfToken {
    /// The token of these bytes, in the order of its text.
    pub const fn new(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    pub(super) const fn bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

/// Shows no secret.
impl fmt::Debug for VfToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("VfToken(..)")
    }
}

impl fmt::Display for VfToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, byte) in self.0.iter().enumerate() {
            let dash = if matches!(at, 4 | 6 | 8 | 10) { "-" } else { "" };
            write!(f, "{dash}{byte:02x}")?;
        }
        Ok(())
    }
}

/// A text that is no token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "a token is a UUID: 32 hexadecimal digits in groups of 8, 4, 4, 4 and 12 with dashes between them"
)]
pub struct BadVfToken;

impl FromStr for VfToken {
    type Err = BadVfToken;

    fn from_str(text: &str) -> Result<Self, BadVfToken> {
        let groups: Vec<&str> = text.split('-').collect();
        let lengths: Vec<usize> = groups.iter().map(|group| group.len()).collect();
        let digits = groups.concat();
        if lengths != [8, 4, 4, 4, 12] || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(BadVfToken);
        }
        let number = u128::from_str_radix(&digits, 16).map_err(|_| BadVfToken)?;
        Ok(Self(number.to_be_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        for name in ["fff51000.ethernet", "a003c00.virtio_mmio", "arm-smmu-v3.0.auto", "a,b:c@d"] {
            assert_eq!(name.parse::<PlatformName>().unwrap().as_str(), name);
        }
        let long = "a".repeat(LONGEST + 1);
        for name in ["", ".", "..", "a/b", "../x", "a b", "a\0", "\n", "é", &long] {
            assert_eq!(name.parse::<PlatformName>(), Err(BadPlatformName), "{name:?}");
        }
        assert_eq!(long[1..].parse::<PlatformName>().unwrap().as_str(), &long[1..]);
    }

    #[test]
    fn tokens_are_read_and_written_as_the_kernel_reads_them_and_never_shown() {
        let text = "01234567-89ab-cdef-0123-456789abcdef";
        let token: VfToken = text.parse().unwrap();
        assert_eq!(
            (token.to_string(), token.bytes()[..4].to_vec()),
            (text.to_owned(), vec![1, 0x23, 0x45, 0x67])
        );
        assert!(!format!("{token:?}").contains("01"));
        let upper: VfToken = text.to_uppercase().parse().unwrap();
        assert_eq!(upper, token);
        let cut = &text[..text.len() - 1];
        let signed = text.replacen('0', "+", 1);
        let moved = text.replacen("-", "", 1);
        for wrong in ["", "-", cut, &signed, &moved, &text.replace('f', "g"), &format!("{text}0")] {
            assert_eq!(wrong.parse::<VfToken>(), Err(BadVfToken), "{wrong:?}");
        }
    }

    #[test]
    fn functions_of_two_segments_are_two_streams() {
        let one = PciFunction::of(1, 2, 3);
        let far: PciFunction = "0001:01:02.3".parse().unwrap();
        assert_eq!(DeviceName::from(one).stream().get(), 0x113);
        assert_eq!(DeviceName::from(far).stream().get(), 0x1_0113);
    }
}
