//! Memory that virtio drivers share with their devices, and the queues of a virtio-iommu that is a PCI function.

use alloc::sync::Arc;
use core::ptr::NonNull;

use portolan::addr::{PciFunction, PhysAddr, PhysRange, StreamId};
use portolan::dma::{Constraints, Device};
use portolan::iommu::IommuError;
use portolan::platform::{AllMemory, Mmio};
use portolan_bare::pci::Function;
use portolan_bare::{Machine, Registers};
use portolan_tables::viot::Viommu;
use portolan_virtio::{AccessPlatform, Addresses, HalMemory, SpaceHal, ViommuQueues, VirtioMemory};
use virtio_drivers::Hal;
use virtio_drivers::transport::pci::PciTransport;
use virtio_drivers::transport::pci::bus::{ConfigurationAccess, DeviceFunction, PciRoot};

use crate::heap::HEAP;

/// Addresses.
struct Mapped;

// SAFETY: all of memory is in the direct map, the heap, the stack and statics included, and stays
// there; `mmio` gives out no memory of the heap, and registers stay mapped.
unsafe impl Addresses for Mapped {
    fn phys(&self, at: NonNull<u8>) -> Option<PhysAddr> {
        HEAP.phys(at)
    }

    fn mmio(&self, window: PhysRange) -> Option<NonNull<u8>> {
        HEAP.mmio(window)
    }
}

/// Disks.
pub struct Disks;

impl HalMemory for Disks {
    type Platform = Machine;

    fn memory() -> &'static VirtioMemory<Machine> {
        static MEMORY: VirtioMemory<Machine> = VirtioMemory::new(&Mapped);
        &MEMORY
    }
}

/// Virtio-iommus.
pub struct Viommus;

impl HalMemory for Viommus {
    type Platform = Machine;

    fn memory() -> &'static VirtioMemory<Machine> {
        static MEMORY: VirtioMemory<Machine> = VirtioMemory::new(&Mapped);
        &MEMORY
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

type Queues = ViommuQueues<Machine, SpaceHal<Viommus>, AccessPlatform<PciTransport>>;

/// Starts the virtio-iommu at `place` anew.
pub fn queues(machine: Machine, place: Viommu) -> Result<Queues, IommuError> {
    let Viommu::Pci { segment, requester } = place else {
        return Err(IommuError::Unsupported);
    };
    let at = PciFunction { segment, requester };
    let space = machine.pci(at).ok_or(IommuError::Gone)?;
    Function::new(at, space).start();
    let transport = transport::<SpaceHal<Viommus>>(machine, at).ok_or(IommuError::Gone)?;
    // SAFETY: its accesses go past itself, and its driver hands it addresses of what it shares alone.
    let all = unsafe { AllMemory::new() };
    let stream = StreamId::new(requester.get().into());
    let device = Device::direct(machine, stream, Constraints::trusted(), all);
    let device = device.map_err(|_| IommuError::Unsupported)?;
    let transport = Viommus::memory().add(Arc::new(device), transport);
    ViommuQueues::start(machine, transport.map_err(|_| IommuError::Unsupported)?)
}
