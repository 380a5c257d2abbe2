//! Devices that are not PCI functions, by the names that firmware has for them.
//!
//! Devicetree binding `iommu` (`iommus` of a device); VIOT, section 5.2.34 of ACPI 6.5 (MMIO endpoints); AMD
//! 48882, revision 3.10, section 5.2.2 (ACPI HID devices of IVRS). Not supported: named components of IORT and
//! platform devices of RIMT, whose names are paths of the ACPI name space.
//!
//! *Context.* Task.

use core::fmt;

use portolan::addr::{PhysAddr, StreamId};
use portolan::dma::Device;
use portolan::platform::Platform;
use portolan_tables::claim::{Claim, ClaimUid};

use super::iommus::{GroupKey, Member};
use super::{DeviceOptions, Iommus, OpenError};

/// Name of a device that is no PCI function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlatformDevice {
    /// Address of its registers, for processors: by a device tree or VIOT.
    Registers(PhysAddr),
    /// Its hardware identifier, filled up with zeros, and its unique one: by IVRS.
    Acpi {
        /// Hardware identifier (`_HID`).
        hid: [u8; 8],
        /// Unique identifier (`_UID`).
        uid: ClaimUid,
    },
}

impl PlatformDevice {
    /// Its stream, if `claim` is to it.
    fn stream(self, claim: &Claim) -> Option<StreamId> {
        match (*claim, self) {
            (Claim::Device { base, stream }, Self::Registers(at)) if base == at => Some(stream),
            (Claim::Acpi { hid, uid, stream }, Self::Acpi { hid: its, uid: of })
                if hid == its && uid == of =>
            {
                Some(stream)
            }
            _ => None,
        }
    }
}

impl fmt::Display for PlatformDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Registers(at) => write!(f, "the device at {at}"),
            Self::Acpi { hid, uid } => {
                let text = hid.iter().take_while(|byte| **byte != 0);
                f.write_str("ACPI device ")?;
                text.clone().try_for_each(|byte| write!(f, "{}", byte.escape_ascii()))?;
                write!(f, "{uid}")
            }
        }
    }
}

/// The stream of a claim to a device that is no PCI function.
fn stream_of(claim: &Claim) -> Option<StreamId> {
    match *claim {
        Claim::Device { stream, .. } | Claim::Acpi { stream, .. } => Some(stream),
        _ => None,
    }
}

impl<P: Platform> Iommus<P> {
    /// Opens a device that is no PCI function, in an address space of its own, or in that of all devices of its unit
    /// ([`SpaceScope::Unit`](super::SpaceScope::Unit)). The unit knows it by all streams that firmware gives it.
    ///
    /// ```no_run
    /// # use portolan::addr::PhysAddr;
    /// # use portolan::dma::Device;
    /// # use portolan::platform::Platform;
    /// # use portolan_hw::topology::{DeviceOptions, Iommus, OpenError, PlatformDevice};
    /// /// The disk controller of a board, whose registers are there by its device tree.
    /// fn open<P: Platform>(iommus: &Iommus<P>) -> Result<Device<P>, OpenError> {
    ///     let disk = PlatformDevice::Registers(PhysAddr::new(0x1_8040_0000));
    ///     iommus.platform_device(disk, &DeviceOptions::trusted())
    /// }
    /// ```
    ///
    /// # Errors
    /// See [`OpenError`]; [`OpenError::NotAlone`] of a device that several units serve, or whose stream another
    /// device has as well.
    pub fn platform_device(
        &self,
        device: PlatformDevice,
        options: &DeviceOptions,
    ) -> Result<Device<P>, OpenError> {
        let Some((unit, own)) = self.claims_of(device).next() else {
            let all = self.unserved.ok_or(OpenError::NoDevice { device })?;
            let (platform, stream) = (self.platform.clone(), StreamId::new(0));
            return Ok(Device::direct(platform, stream, options.constraints, all)?);
        };
        let enabled = self.units().get(unit).ok_or(OpenError::NoDevice { device })?;
        if let Err(error) = *enabled {
            return Err(OpenError::NoUnitOfDevice { device, unit, error });
        }
        for (its, stream) in self.claims_of(device) {
            if its != unit || self.is_another_s(device, unit, stream) {
                return Err(OpenError::NotAlone { device, stream });
            }
        }
        let options = &self.on_its_bus(device, unit, options)?;
        let limits = options.constraints;
        self.with_groups(|groups| {
            let member = Member { key: GroupKey::Stream(own), unit, streams: &[own] };
            let (_, space) = self.group(groups, member, options)?;
            let opened = Device::translated(space.clone(), own, limits)?;
            let more = self.claims_of(device).map(|(_, stream)| stream);
            let more = more.filter(|stream| *stream != own);
            let more =
                more.map(|stream| Ok(Device::translated(space.clone(), stream, limits)?.into()));
            let more = more.collect::<Result<alloc::vec::Vec<_>, OpenError>>()?;
            Ok(self.copying(opened.with_streams(more)?))
        })
    }

    /// The options for what gets past the device's bus.
    fn on_its_bus(
        &self,
        device: PlatformDevice,
        unit: usize,
        options: &DeviceOptions,
    ) -> Result<DeviceOptions, OpenError> {
        let none = OpenError::NoAddressOfDevice { device };
        let limits = self.survey().units().get(unit).map(|unit| &unit.limits);
        let mut limits = limits.into_iter().flatten();
        match limits.find(|limit| device.stream(&limit.claim).is_some()) {
            Some(limit) => limit.addresses.and_then(|range| options.within(range)).ok_or(none),
            None => Ok(*options),
        }
    }

    /// The units that serve the device, by their numbers, and its streams there.
    fn claims_of(&self, device: PlatformDevice) -> impl Iterator<Item = (usize, StreamId)> {
        let units = self.survey().units().iter().enumerate();
        units.flat_map(move |(number, unit)| {
            let streams = unit.claims.iter().filter_map(move |claim| device.stream(claim));
            streams.map(move |stream| (number, stream))
        })
    }

    /// Tells if something else has the stream as well.
    fn is_another_s(&self, device: PlatformDevice, unit: usize, stream: StreamId) -> bool {
        let claims = self.survey().units().get(unit).map(|unit| &unit.claims);
        let mut claims = claims.into_iter().flatten();
        let mut served = self.survey().served().iter();
        claims.any(|claim| stream_of(claim) == Some(stream) && device.stream(claim).is_none())
            || served.any(|one| one.unit == Some(unit) && one.streams.contains(&stream))
    }
}
