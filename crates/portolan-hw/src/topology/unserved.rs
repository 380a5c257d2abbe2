//! Machines without IOMMUs, and devices that none of them serves.
//!
//! *Context.* Task.

use alloc::vec::Vec;

use portolan::addr::PciFunction;
use portolan::dma::Device;
use portolan::platform::{AllMemory, Platform};
use portolan_tables::describe::{Description, TableKind};

use super::external::External;
use super::{DeviceOptions, Iommus, OpenError, Survey, Topology};
use crate::turn::Turn;

impl<P: Platform> Iommus<P> {
    /// The devices of a machine that has no IOMMU ([`TopologyError::NoTable`](super::TopologyError::NoTable)
    /// or [`NoUnit`](super::TopologyError::NoUnit)): there are no units, and each function is opened as a
    /// device that [reaches all memory](Device::direct). So a kernel has one way to open devices, and one kind
    /// of drivers. Memory that a device's addresses do not reach is copied, if it has a pool
    /// ([`Device::with_copies`]). Limits of its bus are the caller's to say, among those of the device.
    ///
    /// ```no_run
    /// # use portolan::platform::{AllMemory, Platform};
    /// # use portolan_hw::TrustedDescription;
    /// # use portolan_hw::topology::{EnableError, Iommus, Options, Topology, TopologyError};
    /// fn start<K: Platform>(
    ///     kernel: K, tables: &[&[u8]], described: TrustedDescription,
    /// ) -> Result<Iommus<K>, EnableError> {
    ///     match Topology::from_acpi(tables.iter().copied()) {
    ///         Ok(topology) => topology.enable(kernel, Options::default(), described),
    ///         Err(TopologyError::NoTable | TopologyError::NoUnit) => {
    ///             // SAFETY: drivers hand their devices addresses of mappings alone; all other devices are stopped.
    ///             let all = unsafe { AllMemory::new() };
    ///             Ok(Iommus::none(kernel, all))
    ///         }
    ///         Err(error) => Err(error.into()),
    ///     }
    /// }
    /// ```
    pub fn none(platform: P, all: AllMemory) -> Self {
        let topology = Topology {
            description: Description::without_units(),
            io_apics: None,
            added: Vec::new(),
            moved: Vec::new(),
            external: External::default(),
        };
        Self {
            topology,
            survey: Survey::default(),
            platform,
            units: Vec::new(),
            groups: Turn::new(Vec::new()),
            copying: None,
            apic: None,
            unserved: Some(all),
        }
    }

    /// The same, where a function that no unit serves is opened as a device that [reaches all
    /// memory](Device::direct), as `all` gives leave to; without this it is refused. One whose unit was not
    /// enabled, or that a damaged table may name, is refused all the same.
    #[must_use]
    pub fn reaching_unserved(mut self, all: AllMemory) -> Self {
        self.unserved = Some(all);
        self
    }

    /// Opens a function that no unit serves.
    pub(super) fn open_unserved(
        &self,
        function: PciFunction,
        options: &DeviceOptions,
    ) -> Result<Device<P>, OpenError> {
        let all = self.unserved.ok_or(OpenError::NotServed { function })?;
        let options = options.trusted_at_most(self.survey.trust(function));
        let options = self.topology.on_its_bus(&self.survey, function, options)?;
        let (platform, stream) = (self.platform.clone(), function.requester.stream());
        Ok(Device::direct(platform, stream, options.constraints, all)?)
    }
}

impl Topology {
    /// The options for what gets past the function's host, if firmware says that.
    fn on_its_bus(
        &self,
        survey: &Survey,
        function: PciFunction,
        options: DeviceOptions,
    ) -> Result<DeviceOptions, OpenError> {
        let mut hosts = self.description.hosts.iter();
        let is_known = hosts.any(|host| host.segment == function.segment);
        if self.description.kind == TableKind::Tree && !is_known {
            return Ok(options);
        }
        let within = self.reach(survey, function)?.and_then(|reach| options.within(reach));
        within.ok_or(OpenError::NoAddress { function })
    }
}
