//! PCI through ECAM: enumeration, bus numbers, addresses, capabilities.
//!
//! There is no firmware, so this does its work: it numbers the buses behind bridges, sizes the
//! memory BARs and gives them addresses below 4 GiB. I/O BARs and expansion ROMs stay unassigned.
//! DMA is off until [`Function::enable`]. PCI Local Bus 3.0 section 6.2.5, PCI-to-PCI Bridge 1.2
//! section 3.2, PCI Express 4.0 sections 7.2.2 and 7.6.3.

use portolan::addr::StreamId;
use portolan_spec::pci::{Capability, capabilities, extended_capabilities};
use thiserror::Error;

use crate::config::Architecture;
use crate::mmio::Registers;
use crate::qtest::{Batch, Qtest, QtestError};

/// Buses that are numbered at most.
const MAX_BUSES: u8 = 32;
/// Granularity of a bridge's memory window.
const BRIDGE_WINDOW: u64 = 1 << 20;

const COMMAND: u16 = 0x04;
const CLASS: u16 = 0x08;
const HEADER_TYPE: u16 = 0x0c;
const BAR0: u16 = 0x10;
const BUS_NUMBERS: u16 = 0x18;
const BRIDGE_MEMORY: u16 = 0x20;
const BRIDGE_PREFETCHABLE: u16 = 0x24;
const MEMORY_AND_MASTER: u16 = 0x6;
/// A prefetchable window that ends before it starts.
const NO_WINDOW: u32 = 0x0000_fff0;

/// Reason why PCI could not be set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PciError {
    /// QEMU did not answer.
    #[error(transparent)]
    Qtest(#[from] QtestError),
    /// No address is left for a BAR.
    #[error("no {bytes:#x} bytes of addresses are left for a BAR")]
    OutOfAddresses {
        /// Its size.
        bytes: u64,
    },
    /// More buses than are numbered.
    #[error("more than {MAX_BUSES} buses")]
    TooManyBuses,
    /// There is no such device.
    #[error("no device {vendor:04x}:{device:04x}")]
    NoDevice {
        /// Vendor id.
        vendor: u16,
        /// Device id.
        device: u16,
    },
    /// There is no such capability or BAR.
    #[error("no {what} in {at}")]
    Absent {
        /// The part that is missing.
        what: &'static str,
        /// The function whose window it is.
        at: FunctionId,
    },
}

/// Bus, device and function: a requester id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FunctionId(u16);

impl FunctionId {
    /// Device number `device` modulo 32, function `function` modulo 8.
    pub const fn new(bus: u8, device: u8, function: u8) -> Self {
        Self((bus as u16) << 8 | (device as u16 & 31) << 3 | (function as u16 & 7))
    }

    /// The bus.
    pub const fn bus(self) -> u8 {
        (self.0 >> 8) as u8
    }

    /// The requester id.
    pub const fn get(self) -> u16 {
        self.0
    }

    /// Its stream at the IOMMU, on all machines.
    pub const fn stream(self) -> StreamId {
        StreamId::new(self.0 as u32)
    }
}

impl std::fmt::Display for FunctionId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (device, function) = (self.0 >> 3 & 31, self.0 & 7);
        write!(f, "{:02x}:{device:02x}.{function}", self.bus())
    }
}

/// A memory BAR with its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bar {
    /// Guest-physical address.
    pub base: u64,
    /// Size in bytes.
    pub bytes: u64,
}

/// A function that was found.
#[derive(Clone, Debug)]
pub struct Function {
    qtest: Qtest,
    config: u64,
    id: FunctionId,
    vendor: u16,
    device: u16,
    class: u32,
    bars: [Option<Bar>; 6],
}

impl Function {
    /// Identifier of its place on the bus.
    pub fn id(&self) -> FunctionId {
        self.id
    }

    /// Its stream at the IOMMU.
    pub fn stream(&self) -> StreamId {
        self.id.stream()
    }

    /// Vendor id.
    pub fn vendor(&self) -> u16 {
        self.vendor
    }

    /// Device id.
    pub fn device(&self) -> u16 {
        self.device
    }

    /// Class, subclass and interface, in 24 bits.
    pub fn class(&self) -> u32 {
        self.class
    }

    /// The registers behind BAR `index`.
    ///
    /// # Errors
    /// [`PciError::Absent`] if there is no memory BAR of this number.
    pub fn bar(&self, index: usize) -> Result<Registers, PciError> {
        let bar = self
            .bars
            .get(index)
            .copied()
            .flatten()
            .ok_or(PciError::Absent { what: "memory BAR", at: self.id })?;
        Ok(Registers::new(self.qtest.clone(), bar.base, bar.bytes))
    }

    /// Guest-physical address of a register of configuration space.
    pub fn config_address(&self, offset: u16) -> u64 {
        self.config + u64::from(offset & 0xfff)
    }

    /// The connection to QEMU.
    pub fn qtest(&self) -> &Qtest {
        &self.qtest
    }

    /// Reads four bytes of configuration space.
    ///
    /// # Errors
    /// [`QtestError`].
    pub fn read32(&self, offset: u16) -> Result<u32, QtestError> {
        self.qtest.read32(self.config_address(offset & !3))
    }

    /// Reads two bytes of configuration space.
    ///
    /// # Errors
    /// [`QtestError`].
    pub fn read16(&self, offset: u16) -> Result<u16, QtestError> {
        self.qtest.read16(self.config_address(offset & !1))
    }

    /// Writes two bytes of configuration space.
    ///
    /// # Errors
    /// [`QtestError`].
    pub fn write16(&self, offset: u16, value: u16) -> Result<(), QtestError> {
        self.qtest.write16(self.config_address(offset & !1), value)
    }

    /// Writes four bytes of configuration space.
    ///
    /// # Errors
    /// [`QtestError`].
    pub fn write32(&self, offset: u16, value: u32) -> Result<(), QtestError> {
        self.qtest.write32(self.config_address(offset & !3), value)
    }

    /// Lets the device answer and do DMA; without this its DMA is dropped without a fault.
    ///
    /// # Errors
    /// [`QtestError`].
    pub fn enable(&self) -> Result<(), QtestError> {
        let command = self.read16(COMMAND)?;
        self.write16(COMMAND, command | MEMORY_AND_MASTER)
    }

    /// Capabilities, in the order of the list, which is cut at a loop.
    ///
    /// # Errors
    /// [`QtestError`].
    pub fn capabilities(&self) -> Result<Vec<Capability>, QtestError> {
        let mut error = None;
        let read = |at| self.read32(at).map_err(|failed| error = Some(failed)).ok();
        let found = capabilities(read).collect();
        error.map_or(Ok(found), Err)
    }

    /// Extended capabilities; none without extended space.
    ///
    /// # Errors
    /// [`QtestError`].
    pub fn extended_capabilities(&self) -> Result<Vec<Capability>, QtestError> {
        let mut error = None;
        let read = |at| self.read32(at).map_err(|failed| error = Some(failed)).ok();
        let found = extended_capabilities(read).collect();
        error.map_or(Ok(found), Err)
    }

    /// Offset of the first capability of this id.
    ///
    /// # Errors
    /// [`PciError::Absent`].
    pub fn capability(&self, id: u16) -> Result<u16, PciError> {
        let found = self.capabilities()?.into_iter().find(|of| of.id == id);
        let absent = PciError::Absent { what: "capability", at: self.id };
        found.map(|of| of.at).ok_or(absent)
    }

    /// Offset of the first extended capability of this id.
    ///
    /// # Errors
    /// [`PciError::Absent`].
    pub fn extended_capability(&self, id: u16) -> Result<u16, PciError> {
        let found = self.extended_capabilities()?.into_iter().find(|of| of.id == id);
        let absent = PciError::Absent { what: "extended capability", at: self.id };
        found.map(|of| of.at).ok_or(absent)
    }

    fn is_bridge(&self) -> Result<bool, QtestError> {
        Ok(self.read32(HEADER_TYPE)? >> 16 & 0x7f == 1)
    }
}

/// The functions of a machine.
#[derive(Clone, Debug)]
pub struct Pci {
    functions: Vec<Function>,
}

impl Pci {
    /// Finds all functions; numbers buses and assigns BARs.
    pub(crate) fn enumerate(qtest: Qtest, architecture: Architecture) -> Result<Self, PciError> {
        let (ecam, start, last) = match architecture {
            Architecture::X86 => {
                qtest.submit(Batch::new().out32(0xcf8, 0x8000_0064).out32(0xcfc, 0))?;
                // PCIEXBAR at its reset address, 256 buses, enabled.
                qtest.submit(Batch::new().out32(0xcf8, 0x8000_0060).out32(0xcfc, 0xb000_0001))?;
                (0xb000_0000, 0xe000_0000, 0xfdff_ffff)
            }
            Architecture::Aarch64 => (0x40_1000_0000, 0x1000_0000, 0x3efe_ffff),
            Architecture::Riscv64 => (0x3000_0000, 0x4000_0000, 0x7fff_ffff),
        };
        let functions = Vec::new();
        let mut scan = Scan { qtest, ecam, next: start, last, buses: 1, functions };
        scan.bus(0)?;
        let mut functions = scan.functions;
        functions.sort_by_key(Function::id);
        Ok(Self { functions })
    }

    /// All functions, by requester id.
    pub fn functions(&self) -> &[Function] {
        &self.functions
    }

    /// Functions of a vendor's device, by requester id.
    pub fn find(&self, vendor: u16, device: u16) -> impl Iterator<Item = &Function> {
        let wanted = move |f: &&Function| f.vendor == vendor && f.device == device;
        self.functions.iter().filter(wanted)
    }

    /// The first function of a vendor's device.
    ///
    /// # Errors
    /// [`PciError::NoDevice`].
    pub fn first(&self, vendor: u16, device: u16) -> Result<&Function, PciError> {
        let absent = PciError::NoDevice { vendor, device };
        self.find(vendor, device).next().ok_or(absent)
    }

    /// The function at a place.
    pub fn at(&self, id: FunctionId) -> Option<&Function> {
        self.functions.iter().find(|function| function.id == id)
    }
}

struct Scan {
    qtest: Qtest,
    ecam: u64,
    /// Next free address, and the last one.
    next: u64,
    last: u64,
    buses: u8,
    functions: Vec<Function>,
}

impl Scan {
    /// Scans the functions of one bus, and the buses behind its bridges.
    fn bus(&mut self, bus: u8) -> Result<(), PciError> {
        let mut batch = Batch::new();
        let ids = || (0..=255).map(|low: u8| FunctionId::new(bus, low >> 3, low & 7));
        for id in ids() {
            batch.read32(self.config(id));
        }
        let heads = self.qtest.submit(&batch)?;
        for (id, head) in ids().zip(heads) {
            let (vendor, device) = (head as u16, (head >> 16) as u16);
            if vendor == 0xffff || head == 0 {
                continue;
            }
            let mut function = Function {
                qtest: self.qtest.clone(),
                config: self.config(id),
                id,
                vendor,
                device,
                class: 0,
                bars: [None; 6],
            };
            function.class = function.read32(CLASS)? >> 8;
            if function.is_bridge()? {
                self.bridge(&function)?;
            } else {
                self.assign(&mut function)?;
            }
            self.functions.push(function);
        }
        Ok(())
    }

    fn config(&self, id: FunctionId) -> u64 {
        self.ecam + (u64::from(id.get()) << 12)
    }

    /// Numbers the bus behind a bridge and opens the window to it. The number of the last bus
    /// behind it is known only at the end; until then all are let through.
    fn bridge(&mut self, bridge: &Function) -> Result<(), PciError> {
        let bus = self.buses;
        if bus >= MAX_BUSES {
            return Err(PciError::TooManyBuses);
        }
        self.buses += 1;
        let numbers =
            |last: u8| u32::from(bridge.id.bus()) | u32::from(bus) << 8 | u32::from(last) << 16;
        bridge.write32(BUS_NUMBERS, numbers(0xff))?;
        let start = self.take(BRIDGE_WINDOW, 0)?;
        self.bus(bus)?;
        bridge.write32(BUS_NUMBERS, numbers(self.buses - 1))?;
        let end = self.take(BRIDGE_WINDOW, 0)?;
        let window = if end > start {
            // Bits 31:20 of the first and the last byte.
            (start >> 16) as u32 | ((end - 1) & 0xfff0_0000) as u32
        } else {
            NO_WINDOW
        };
        bridge.write32(BRIDGE_MEMORY, window)?;
        bridge.write32(BRIDGE_PREFETCHABLE, NO_WINDOW)?;
        bridge.enable()?;
        Ok(())
    }

    /// `bytes` bytes of addresses, aligned.
    fn take(&mut self, align: u64, bytes: u64) -> Result<u64, PciError> {
        let none = PciError::OutOfAddresses { bytes };
        let start = self.next.checked_next_multiple_of(align).ok_or(none)?;
        let next = start.checked_add(bytes).ok_or(none)?;
        if next > self.last + 1 {
            return Err(none);
        }
        self.next = next;
        Ok(start)
    }

    fn assign(&mut self, function: &mut Function) -> Result<(), PciError> {
        let command = function.read16(COMMAND)?;
        function.write16(COMMAND, command & !MEMORY_AND_MASTER)?;
        let mut index = 0u16;
        while index < 6 {
            let at = BAR0 + 4 * index;
            function.write32(at, u32::MAX)?;
            let low = function.read32(at)?;
            let wide = low & 7 == 4 && index < 5;
            let (number, step) = (usize::from(index), if wide { 2 } else { 1 });
            index += step;
            if low == 0 || low & 1 == 1 {
                continue;
            }
            let mut mask = u64::from(low & !0xf) | 0xffff_ffff_0000_0000;
            if wide {
                function.write32(at + 4, u32::MAX)?;
                let high = u64::from(function.read32(at + 4)?);
                mask = high << 32 | u64::from(low & !0xf);
            }
            let bytes = (!mask).wrapping_add(1);
            if !bytes.is_power_of_two() {
                continue;
            }
            let base = self.take(bytes.max(0x1000), bytes)?;
            // All addresses are below 4 GiB.
            function.write32(at, base as u32)?;
            if wide {
                function.write32(at + 4, (base >> 32) as u32)?;
            }
            if let Some(bar) = function.bars.get_mut(number) {
                *bar = Some(Bar { base, bytes });
            }
        }
        Ok(())
    }
}
