//! Units that are enabled, and the devices behind them.

use alloc::sync::Arc;
use alloc::vec::Vec;

use portolan::addr::{PciFunction, StreamId};
use portolan::dma::{
    Buffers, Constraints, Decision, Device, DeviceTlb, DmaSpace, PolicyInputs, PolicyPreference,
    Shadowing, SpaceOptions, default_policy,
};
use portolan::iommu::IommuDomains;
use portolan::platform::Platform;

use super::{Enabled, OpenError, Topology};

/// How a device is opened.
///
/// *Context.* Interrupt: a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceOptions {
    /// What the device can reach, and how far it is trusted.
    pub constraints: Constraints,
    /// What its driver does with buffers.
    pub buffers: Buffers,
    /// What the administrator prefers.
    pub preference: PolicyPreference,
    /// Its address space; the policy in it is replaced by the one that is decided on.
    pub space: SpaceOptions,
}

impl Default for DeviceOptions {
    /// A driver that hands its buffers over.
    fn default() -> Self {
        Self {
            constraints: Constraints::default(),
            buffers: Buffers::Owned,
            preference: PolicyPreference::None,
            space: SpaceOptions::default(),
        }
    }
}

/// A machine's units, enabled.
///
/// *Context.* Task, also to drop it: units without devices are dropped then, as their drivers say.
///
/// ```no_run
/// # use portolan::addr::PciFunction;
/// # use portolan::dma::{Buffer, Direction};
/// # use portolan::platform::Platform;
/// # use portolan_hw::topology::{Options, Topology};
/// # fn of<K: Platform, B: Buffer>(kernel: K, tables: &[&[u8]], packet: B) -> Result<(), Box<dyn std::error::Error>> {
/// let iommus = Topology::from_acpi(tables.iter().copied())?.enable(kernel, Options::default())?;
/// let device = iommus.device(PciFunction::of(0, 3, 0))?;
/// let mapping = device.map(packet, Direction::FromDevice).map_err(|failed| failed.error)?;
/// let packet = mapping.unmap().map_err(|failed| failed.error)?;
/// # Ok(())
/// # }
/// ```
pub struct Iommus<P: Platform> {
    pub(super) topology: Topology,
    platform: P,
    pub(super) units: Vec<Enabled>,
}

impl<P: Platform> Iommus<P> {
    pub(super) const fn new(topology: Topology, platform: P, units: Vec<Enabled>) -> Self {
        Self {
            topology,
            platform,
            units,
        }
    }

    /// The units, in the order of firmware's table.
    pub fn units(&self) -> &[Arc<dyn IommuDomains>] {
        &self.units
    }

    /// The unit that serves `function`, and the function's stream there.
    ///
    /// # Errors
    /// If the table is damaged, or no unit serves it.
    pub fn unit_of(
        &self,
        function: PciFunction,
    ) -> Result<(&Arc<dyn IommuDomains>, StreamId), OpenError> {
        let found = self.topology.find(&self.platform, function)?;
        let served = found.and_then(|(unit, stream)| Some((self.units.get(unit)?, stream)));
        served.ok_or(OpenError::NotServed { function })
    }

    /// The policy for a device behind `unit`, and the reason for it.
    pub fn decide(&self, unit: &dyn IommuDomains, options: &DeviceOptions) -> Decision {
        let conditions = unit.conditions();
        default_policy(&PolicyInputs {
            trust: options.constraints.trust,
            stage: conditions.stage,
            shadowing: match conditions.shadowing {
                Shadowing::None => options.space.shadowing,
                told => told,
            },
            device_tlb: DeviceTlb::Absent,
            exits: conditions.exits,
            buffers: options.buffers,
            wish: options.preference,
        })
    }

    /// Opens a device for a driver that hands its buffers over, in an address space of its own.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn device(&self, function: PciFunction) -> Result<Device<P>, OpenError> {
        self.device_with(function, &DeviceOptions::default())
    }

    /// As [`Iommus::device`], with `options`.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn device_with(
        &self,
        function: PciFunction,
        options: &DeviceOptions,
    ) -> Result<Device<P>, OpenError> {
        let (unit, stream) = self.unit_of(function)?;
        let bound = unit.clone().new_domain().map_err(OpenError::Domain)?;
        let mut space = options.space;
        space.policy = self.decide(&**unit, options).policy;
        let space = Arc::new(DmaSpace::new(bound, self.platform.clone(), &space)?);
        Ok(Device::translated(space, stream, options.constraints)?)
    }
}
