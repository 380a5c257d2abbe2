//! Devices that no IOMMU serves.
//!
//! Most virtual machines have no IOMMU, and on others firmware's table leaves devices out. Their drivers are
//! the same: buffers are mapped at their physical addresses, and copied where the device does not reach them.

use alloc::vec::Vec;

use super::{Device, DeviceTranslation};
use crate::addr::StreamId;
use crate::dma::error::DeviceError;
use crate::dma::policy::{Constraints, Trust};
use crate::dma::reach::{ContextCopies, DeviceContext};
use crate::iommu::Requester;
use crate::platform::Cpus;
use crate::platform::contract::AllMemory;

impl<P: Cpus + Clone> Device<P> {
    /// A device that no IOMMU serves: it reaches all memory at its physical address, and nothing can block it.
    /// Mappings check that it reaches the buffer; with [`Device::with_copies`], memory above its highest
    /// address is copied. `stream` names it in traces.
    ///
    /// ```no_run
    /// # use portolan::addr::StreamId;
    /// # use portolan::dma::{Constraints, Device, DeviceError};
    /// # use portolan::platform::{AllMemory, Platform};
    /// /// A disk of a machine without IOMMUs, whose controller has 32 bits of address.
    /// fn open<P: Platform>(kernel: P) -> Result<Device<P>, DeviceError> {
    ///     // SAFETY: the disk's driver hands it addresses of its mappings alone.
    ///     let all = unsafe { AllMemory::new() };
    ///     let limits = Constraints::trusted().address_bits(32);
    ///     Device::direct(kernel, StreamId::new(0x18), limits, all)
    /// }
    /// ```
    ///
    /// *Context.* Task.
    ///
    /// # Errors
    /// [`DeviceError::Untrusted`]: nothing keeps such a device from memory that is not its own.
    pub fn direct(
        platform: P,
        stream: StreamId,
        constraints: Constraints,
        all: AllMemory,
    ) -> Result<Self, DeviceError> {
        if constraints.trust == Trust::Untrusted {
            return Err(DeviceError::Untrusted);
        }
        let requester = Requester { stream, pasid: None };
        let context = DeviceContext::new(platform, None, requester, constraints);
        Ok(Self {
            unit: None,
            translation: DeviceTranslation::Identity(all),
            trust: constraints.trust,
            contexts: ContextCopies::new(context),
            beside: Vec::new(),
        })
    }

    /// Tells if no IOMMU serves the device.
    ///
    /// *Context.* Interrupt.
    pub fn is_direct(&self) -> bool {
        self.unit.is_none() && matches!(self.translation, DeviceTranslation::Identity(_))
    }
}
