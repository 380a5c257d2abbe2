//! Virtio-iommu devices, by VIOT: their queues are started by the embedder's transport.
//!
//! *Context.* Task.

use alloc::sync::Arc;

use portolan::iommu::IommuError;
use portolan::platform::Platform;
use portolan_tables::viot::Viommu;

use super::super::{EnableError, Iommus, Options, Topology};
use crate::promise::TrustedDescription;
use crate::virtio::{self, Transport};

impl Topology {
    /// As [`Topology::enable`], also of machines whose units are virtio-iommu devices: `transport`
    /// starts the queues of the device at that place.
    ///
    /// ```no_run
    /// # use portolan::platform::Platform;
    /// # use portolan::iommu::IommuError;
    /// # use portolan_hw::TrustedDescription;
    /// # use portolan_tables::viot::Viommu;
    /// # use portolan_hw::topology::{EnableError, Iommus, Options, Topology};
    /// # use portolan_hw::virtio::Transport;
    /// # fn of<K: Platform, Q: Transport + Send + Sync + 'static>(
    /// #     kernel: K, tables: &[&[u8]], start: fn(Viommu) -> Result<Q, IommuError>, described: TrustedDescription,
    /// # ) -> Result<Iommus<K>, EnableError> {
    /// let topology = Topology::from_acpi(tables.iter().copied())?;
    /// topology.enable_with(kernel, Options::default(), described, start)
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Topology::enable`], and the error of `transport`.
    pub fn enable_with<P: Platform, T: Transport + Send + Sync + 'static>(
        self,
        platform: P,
        options: Options,
        description: TrustedDescription,
        transport: impl Fn(Viommu) -> Result<T, IommuError>,
    ) -> Result<Iommus<P>, EnableError> {
        self.enable_by(platform, options, description, None, |place, platform| {
            let unit = transport(place).and_then(|queues| {
                virtio::Viommu::start(queues, platform.clone(), virtio::Config::default())
            });
            let unit = unit.map_err(|error| EnableError::Viommu { place, error })?;
            Ok(Arc::new(unit))
        })
    }
}
