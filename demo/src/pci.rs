//! PCI functions: found, stopped, given their registers.
//!
//! PCI Express base specification 6.0, section 7.5.1, and 7.7.1 (MSI).

use alloc::vec::Vec;

use portolan::addr::{PciFunction, PhysAddr, PhysRange};
#[cfg(target_arch = "x86_64")]
use portolan::iommu::MsiMessage;
use portolan::platform::Mmio;
use portolan_bare::{Machine, Registers};
use virtio_drivers::transport::pci::bus::{ConfigurationAccess, DeviceFunction};

const COMMAND: usize = 0x04;
const CLASS: usize = 0x0a;
const HEADER: usize = 0x0e;
const FIRST_BAR: usize = 0x10;
#[cfg(target_arch = "x86_64")]
const CAPABILITIES: usize = 0x34;

/// Message-signalled interrupts: the capability's number, and bits of its control register.
#[cfg(target_arch = "x86_64")]
const MSI: u16 = 0x05;
#[cfg(target_arch = "x86_64")]
const MSI_ENABLED: u16 = 1;
#[cfg(target_arch = "x86_64")]
const MSI_SEVERAL: u16 = 0x70;
#[cfg(target_arch = "x86_64")]
const MSI_WIDE: u16 = 1 << 7;

/// Bits of the command register.
const MEMORY_SPACE: u16 = 1 << 1;
const BUS_MASTER: u16 = 1 << 2;
/// The bit of the header's kind that says that there are more functions than one.
const MORE_FUNCTIONS: u16 = 1 << 7;
/// IOMMUs that are PCI functions: a base system peripheral (08), IOMMU (06).
const IOMMU: u16 = 0x0806;

/// A function.
#[derive(Clone, Copy)]
pub struct Function {
    pub at: PciFunction,
    registers: Registers,
}

impl Function {
    /// Vendor and device.
    pub fn identity(&self) -> (u16, u16) {
        (self.registers.read16(0), self.registers.read16(2))
    }

    /// Its configuration space.
    #[cfg(target_arch = "aarch64")]
    pub fn registers(&self) -> &Registers {
        &self.registers
    }

    /// Base class and class.
    fn class(&self) -> u16 {
        self.registers.read16(CLASS)
    }

    pub fn is_bridge(&self) -> bool {
        self.registers.read16(HEADER) & 0x7f != 0
    }

    /// The function at that place, if there is one.
    pub fn of(machine: &Machine, at: PciFunction) -> Option<Self> {
        let registers = machine.pci(at)?;
        Some(Self { at, registers })
    }

    /// Lets the device answer and do DMA.
    pub fn start(&self) {
        let command = self.registers.read16(COMMAND);
        self.registers
            .write16(COMMAND, command | MEMORY_SPACE | BUS_MASTER);
    }

    /// Keeps the device from doing DMA: what firmware left running may not go on.
    pub fn stop(&self) {
        let command = self.registers.read16(COMMAND);
        self.registers.write16(COMMAND, command & !BUS_MASTER);
    }

    /// Has the function raise its interrupt by `message`; `None` if it has no capability for that.
    #[cfg(target_arch = "x86_64")]
    pub fn set_message(&self, message: MsiMessage) -> Option<()> {
        let registers = &self.registers;
        let mut at = usize::from(registers.read16(CAPABILITIES) & 0xfc);
        // A list has no room for more.
        for _ in 0..48 {
            let head = registers.read16(at);
            match (at, head & 0xff) {
                (0, _) => return None,
                (_, MSI) => break,
                _ => at = usize::from(head >> 8 & 0xfc),
            }
        }
        let control = registers.read16(at + 2);
        registers.write16(at + 2, control & !MSI_ENABLED);
        registers.write32(at + 4, message.address as u32);
        let wide = control & MSI_WIDE != 0;
        if wide {
            registers.write32(at + 8, (message.address >> 32) as u32);
        }
        let data = if wide { at + 12 } else { at + 8 };
        registers.write16(data, message.data as u16);
        registers.write16(at + 2, control & !MSI_SEVERAL | MSI_ENABLED);
        Some(())
    }

    /// The address in the first base address register, if it is one of memory.
    fn first_bar(&self) -> Option<PhysAddr> {
        let low = self.registers.read32(FIRST_BAR);
        let high = match low & 0x7 {
            0x0 => 0,
            0x4 => self.registers.read32(FIRST_BAR + 4),
            _ => return None,
        };
        let at = u64::from(high) << 32 | u64::from(low & !0xf);
        (at != 0).then_some(PhysAddr::new(at))
    }

    /// The first `bytes` bytes of its first window of registers.
    pub fn window(&self, machine: &Machine, bytes: u64) -> Option<Registers> {
        use portolan::platform::Platform as _;
        machine.registers(PhysRange::from_len(self.first_bar()?, bytes)?)
    }
}

/// All functions of segment 0.
pub fn functions(machine: &Machine) -> Vec<Function> {
    let mut found = Vec::new();
    for bus in machine.ecam().buses() {
        for device in 0..32 {
            for function in 0..8 {
                let at = PciFunction::of(bus, device, function);
                let Some(registers) = machine.pci(at) else {
                    if function == 0 { break } else { continue }
                };
                found.push(Function { at, registers });
                if function == 0 && registers.read16(HEADER) & MORE_FUNCTIONS == 0 {
                    break;
                }
            }
        }
    }
    found
}

/// Stops what firmware left running, before an IOMMU changes what its addresses mean. Bridges pass
/// on what others do, and an IOMMU reads its own tables.
pub fn stop_all(functions: &[Function]) {
    let devices = functions.iter().filter(|function| !function.is_bridge());
    devices
        .filter(|function| function.class() != IOMMU)
        .for_each(Function::stop);
}

/// The name that `virtio-drivers` has for a function.
pub fn named(function: PciFunction) -> DeviceFunction {
    DeviceFunction {
        bus: function.requester.bus(),
        device: function.requester.device(),
        function: function.requester.function(),
    }
}

/// Configuration space as `virtio-drivers` wants it.
pub struct Configuration(pub Machine);

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
