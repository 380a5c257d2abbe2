//! Devices that are not trusted because of their place: which ports lead out of the machine, as the embedder, a device
//! tree or firmware's wish for protection say, and what follows for those who open a device below one.
//!
//! VT-d (D51397), revision 4.1, section 8.1 (flag DMA_CTRL_PLATFORM_OPT_IN); AMD 48882, revision 3.10, section 5.2.1
//! (DmaRemapSup of IVinfo); devicetree binding of PCI (`external-facing`). Not supported: AML, in which ACPI says which
//! ports those are (`ExternalFacingPort`), so that [`Topology::external_ports`] takes them.
//!
//! *Context.* Task.

use alloc::vec::Vec;

use portolan::addr::PciFunction;
use portolan::dma::{Constraints, Copying, Device, DeviceError};
use portolan::iommu::DeviceTlb;
use portolan::platform::{AllMemory, Platform};

use super::enable::Enabled;
use super::remark::Remark;
use super::{Iommus, OpenError, Served, Survey, Topology};

/// Words of the embedder on devices from outside.
#[derive(Clone, Debug, Default)]
pub(super) struct External {
    /// The ports, if it knows them.
    ports: Option<Vec<PciFunction>>,
    /// Functions that it trusts all the same.
    trusted: Vec<PciFunction>,
}

impl Topology {
    /// Says which ports lead out of the machine (external-facing): those whose ACPI devices have
    /// `ExternalFacingPort` in their `_DSD`, none if there is none. A device tree names its own
    /// (`external-facing`), which are added. No function below such a port is trusted, whatever
    /// its driver says: see [`Iommus::device_with`](super::Iommus::device_with).
    ///
    /// Where this is not called and firmware [asks for protection](Self::wants_dma_protection), all
    /// ports with hot-plug slots are taken for such: that is the safe mistake.
    ///
    /// ```
    /// # use portolan::addr::PciFunction;
    /// # use portolan_hw::topology::{Topology, TopologyError};
    /// /// `thunderbolt` is what the name space says of root ports.
    /// fn of(tables: &[&[u8]], thunderbolt: &[PciFunction]) -> Result<Topology, TopologyError> {
    ///     let topology = Topology::from_acpi(tables.iter().copied())?;
    ///     Ok(topology.external_ports(thunderbolt.iter().copied()))
    /// }
    /// ```
    #[must_use]
    pub fn external_ports(mut self, ports: impl IntoIterator<Item = PciFunction>) -> Self {
        self.external.ports = Some(ports.into_iter().collect());
        self
    }

    /// Trusts the function at this address as far as its driver says although it is below an
    /// external-facing port: whatever is plugged in there, is. The other functions of its group
    /// have to be trusted as well.
    #[must_use]
    pub fn trusting_external(mut self, function: PciFunction) -> Self {
        self.external.trusted.push(function);
        self
    }

    /// Tells if firmware asks a kernel to protect itself from DMA from the start, and to keep
    /// devices from outside behind their IOMMU even if it passes all others through
    /// (DMA_CTRL_PLATFORM_OPT_IN of DMAR, DmaRemapSup of IVRS). Other tables cannot say so.
    pub fn wants_dma_protection(&self) -> bool {
        self.description.wants_protection
    }

    /// Adds to `survey`, whose tree is complete, which functions are not trusted.
    pub(super) fn look_outside(&self, survey: &mut Survey) {
        let mut ports = match &self.external.ports {
            Some(ports) => ports.clone(),
            None if self.wants_dma_protection() => {
                let nodes = survey.tree().nodes().iter();
                let ports = nodes.filter(|node| node.hot_plug).map(|node| node.at);
                let ports: Vec<_> = ports.collect();
                if !ports.is_empty() {
                    survey.remark(Remark::PortsByHotPlug { ports: ports.len() });
                }
                ports
            }
            None => Vec::new(),
        };
        ports.extend_from_slice(&self.description.external);
        survey.note_external(ports, self.external.trusted.clone());
    }
}

impl<P: Platform> Iommus<P> {
    /// The same, with `copying` for each device that is opened and not trusted, of pages that it shares
    /// with other memory. [`Device::with_copies`] replaces it.
    #[must_use]
    pub fn copying_for_untrusted(mut self, copying: Copying) -> Self {
        self.copying = Some(copying);
        self
    }

    /// Passes `function` through, as `all` gives leave to: it reaches all memory at its physical address.
    /// Streams that several functions have are not passed through.
    ///
    /// # Errors
    /// [`OpenError::Untrusted`] below a port that leads out of the machine;
    /// [`DeviceError::Untrusted`] if `limits` say that it is not trusted; [`DeviceError::Shared`] if
    /// it has streams with others, or several.
    pub fn pass_through(
        &self,
        function: PciFunction,
        limits: Constraints,
        all: AllMemory,
    ) -> Result<Device<P>, OpenError> {
        let (unit, served) = self.reaching_all(function)?;
        let alone = |unit, stream| !self.survey().is_shared(function, unit, stream);
        let stream = match (served.unit, &*served.streams) {
            (Some(unit), &[stream]) if alone(unit, stream) => stream,
            _ => return Err(DeviceError::Shared.into()),
        };
        let (platform, unit) = (self.platform.clone(), unit.clone().as_iommu());
        Ok(Device::identity(platform, unit, stream, limits, all)?)
    }

    /// Says that `function` has a TLB of its own, to be used from when it is next opened on
    /// ([`IommuDomains::use_device_tlb`](portolan::iommu::IommuDomains::use_device_tlb)), for all
    /// its streams. No unit checks where accesses go that it has translated: so `all` gives leave.
    ///
    /// # Errors
    /// [`OpenError::Untrusted`] below a port that leads out of the machine; [`OpenError::DeviceTlb`] with
    /// the error of the unit.
    pub fn use_device_tlb(
        &self,
        function: PciFunction,
        tlb: DeviceTlb,
        all: AllMemory,
    ) -> Result<(), OpenError> {
        let (unit, served) = self.reaching_all(function)?;
        let mut streams = served.streams.into_iter();
        streams
            .try_for_each(|stream| unit.use_device_tlb(stream, tlb, all))
            .map_err(OpenError::DeviceTlb)
    }

    /// The unit of `function` and its streams there, if it may reach more than its buffers.
    fn reaching_all(&self, function: PciFunction) -> Result<(&Enabled, Served), OpenError> {
        if let Some(port) = self.survey().external_port_above(function) {
            return Err(OpenError::Untrusted { function, port });
        }
        let (unit, _) = self.unit_of(function)?;
        Ok((unit, self.streams(function)))
    }
}
