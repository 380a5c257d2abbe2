//! Translations of this machine's addresses for `virtio-drivers`, and the queues of a virtio-iommu that is
//! a PCI function.

use alloc::sync::Arc;
use core::ptr::NonNull;

use portolan::addr::{PciFunction, PhysAddr, PhysRange};
use portolan::iommu::IommuError;
use portolan::platform::Mmio;
use portolan_bare::pci::Function;
use portolan_bare::{Machine, Registers};
use portolan_tables::viot::Viommu;
use portolan_virtio::{Addresses, BindError, SlotHal, ViommuQueues};
use virtio_drivers::Hal;
use virtio_drivers::transport::pci::PciTransport;
use virtio_drivers::transport::pci::bus::{ConfigurationAccess, DeviceFunction, PciRoot};

/// Addresses.
pub struct Mapped(pub Machine);

// SAFETY: all of memory is in the direct map, the heap, the stack and statics included, and stays
// there; `mmio` gives out no memory of the heap, and registers stay mapped.
unsafe impl Addresses for Mapped {
    fn phys(&self, at: NonNull<u8>) -> Option<PhysAddr> {
        self.0.phys(at)
    }

    fn mmio(&self, window: PhysRange) -> Option<NonNull<u8>> {
        self.0.mmio(window)
    }
}

/// Configuration space.
struct Configuration(Machine);

impl Configuration {
    fn registers(&self, of: DeviceFunction) -> Option<Registers> {
        self.0.pci(PciFunction::of(of.bus, of.device, of.function))
    }
}

impl ConfigurationAccess for Configuration {
    fn read_word(&self, of: DeviceFunction, offset: u8) -> u32 {
        let registers = self.registers(of);
        registers.map_or(u32::MAX, |registers| registers.read32(offset.into()))
    }

    fn write_word(&mut self, of: DeviceFunction, offset: u8, value: u32) {
        if let Some(registers) = self.registers(of) {
            registers.write32(offset.into(), value);
        }
    }

    unsafe fn unsafe_clone(&self) -> Self {
        Self(self.0)
    }
}

/// The device at `at`, for its driver; `None` if it is no virtio device.
pub fn transport<H: Hal>(machine: Machine, at: PciFunction) -> Option<PciTransport> {
    let mut root = PciRoot::new(Configuration(machine));
    let name = DeviceFunction {
        bus: at.requester.bus(),
        device: at.requester.device(),
        function: at.requester.function(),
    };
    PciTransport::new::<H, _>(&mut root, name).ok()
}

/// The virtio-iommu's slot in `portolan-virtio`: there is one such device.
type OfViommu = SlotHal<1>;

/// Starts the virtio-iommu at `place` anew.
pub fn queues(
    machine: Machine,
    place: Viommu,
) -> Result<ViommuQueues<Machine, OfViommu, PciTransport>, IommuError> {
    let Viommu::Pci { segment, requester } = place else {
        return Err(IommuError::Unsupported);
    };
    let at = PciFunction { segment, requester };
    let space = machine.pci(at).ok_or(IommuError::Gone)?;
    Function::new(at, space).start();
    match OfViommu::bind_untranslated(machine, Arc::new(Mapped(machine))) {
        // It is this device's since it was started before.
        Ok(()) | Err(BindError::Taken) => {}
        Err(_) => return Err(IommuError::Unsupported),
    }
    let transport = transport::<OfViommu>(machine, at).ok_or(IommuError::Gone)?;
    ViommuQueues::start(machine, transport)
}
