//! The queues of a virtio-iommu that is a PCI function.

use alloc::sync::Arc;

use portolan::addr::PciFunction;
use portolan::iommu::IommuError;
use portolan_bare::Machine;
use portolan_hw::firmware::viot::Viommu;
use portolan_virtio::{SlotHal, ViommuQueues};
use virtio_drivers::transport::pci::PciTransport;
use virtio_drivers::transport::pci::bus::PciRoot;

use crate::mapped::Mapped;
use crate::pci::{self, Configuration, Function};

/// The device's slot in `portolan-virtio`.
type Hal = SlotHal<1>;

/// Starts the device at `place`.
pub fn queues(
    machine: Machine,
    place: Viommu,
) -> Result<ViommuQueues<Machine, Hal, PciTransport>, IommuError> {
    let Viommu::Pci { segment, requester } = place else {
        return Err(IommuError::Unsupported);
    };
    let at = PciFunction { segment, requester };
    Function::of(&machine, at).ok_or(IommuError::Gone)?.start();
    // There is one slot, and so one such device.
    let bound = Hal::bind_untranslated(machine, Arc::new(Mapped(machine)));
    bound.map_err(|_| IommuError::Unsupported)?;
    let mut root = PciRoot::new(Configuration(machine));
    let transport = PciTransport::new::<Hal, _>(&mut root, pci::named(at));
    ViommuQueues::start(machine, transport.map_err(|_| IommuError::Gone)?)
}
