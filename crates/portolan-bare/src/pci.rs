//! PCI functions: found, started and stopped, given addresses and an interrupt.
//!
//! PCI Express base specification 6.0, sections 7.5.1 (header), 7.7.1 (MSI), 7.7.2 (MSI-X), 7.7.11 (ACS) and 10.5.1
//! (ATS). Not supported: addresses for bridges and for the functions behind them, ports, messages by MSI-X.
//!
//! *Context.* Interrupt, but for [`functions`], which takes heap memory (task).

use alloc::vec::Vec;

use portolan::addr::{PciFunction, PhysAddr, PhysRange};
use portolan::iommu::{DeviceTlb, MsiMessage};
use portolan::platform::Mmio;
use portolan_hw::topology::pci::PciOverrides;
use portolan_spec::pci::{capabilities, extended_capabilities, extended_id, id};
use thiserror::Error;

use crate::{Machine, Registers};

const IDENTITY: usize = 0x00;
const COMMAND: usize = 0x04;
const CLASS: usize = 0x08;
const HEADER: usize = 0x0c;
/// The base address registers of a function that is no bridge.
const FIRST_BAR: usize = 0x10;
const AFTER_BARS: usize = 0x28;

/// Bits of the command register. The upper half of its word is written as zero, which changes nothing.
const MEMORY_SPACE: u32 = 1 << 1;
const BUS_MASTER: u32 = 1 << 2;
const COMMANDS: u32 = 0xffff;
/// The bit of the header's kind that says that there are more functions than one, and the kind.
const MORE_FUNCTIONS: u32 = 1 << 23;
const KIND: u32 = 0x7f << 16;
/// IOMMUs that are PCI functions: a base system peripheral (08), IOMMU (06).
const IOMMU: u32 = 0x0806;
/// Bits of a base address register.
const PORTS: u32 = 1;
const WIDE: u32 = 0x4;
const FLAGS: u32 = 0xf;

/// The enable bit in the first word of the extended capability of messages (MSI-X).
const MSIX_ENABLED: u32 = 1 << 31;
/// Bits of the first word of the capability of message-signalled interrupts.
const MSI_ENABLED: u32 = 1 << 16;
const MSI_SEVERAL: u32 = 7 << 20;
const MSI_WIDE: u32 = 1 << 23;

/// The enable bit in the word of address translation services.
const ATS_ON: u32 = 1 << 31;
/// Access control services that keep functions from each other: source validation, redirection of requests
/// and of completions, upstream forwarding.
const ISOLATION: u32 = 0x1d;

/// Error of a function that is to interrupt by message, and cannot.
///
/// *Context.* Interrupt: a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{function} has no MSI")]
pub struct NoMsiCapability {
    /// The function.
    pub function: PciFunction,
}

/// Error of memory with too few addresses for the windows of all functions.
///
/// *Context.* Interrupt: a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("no room in {memory} for the windows of {function}")]
pub struct OutOfAddresses {
    /// The first function without room.
    pub function: PciFunction,
    /// The memory.
    pub memory: PhysRange,
}

/// A function, by its configuration space.
#[derive(Clone, Copy, Debug)]
pub struct Function<R = Registers> {
    at: PciFunction,
    space: R,
}

impl<R: Mmio> Function<R> {
    /// The function at `at`, whose configuration space is `space`.
    pub const fn new(at: PciFunction, space: R) -> Self {
        Self { at, space }
    }

    /// Address of the function.
    pub fn at(&self) -> PciFunction {
        self.at
    }

    /// Vendor and device.
    pub fn identity(&self) -> (u16, u16) {
        let both = self.space.read32(IDENTITY);
        (both as u16, (both >> 16) as u16)
    }

    /// Tells if it is a bridge: it passes on requests of others, and has registers of other places.
    pub fn is_bridge(&self) -> bool {
        self.space.read32(HEADER) & KIND != 0
    }

    /// Tells if it is an IOMMU, which reads its own tables.
    pub fn is_iommu(&self) -> bool {
        self.space.read32(CLASS) >> 16 == IOMMU
    }

    /// Lets the device answer and do DMA.
    pub fn start(&self) {
        let command = self.space.read32(COMMAND) & COMMANDS;
        let on = command | MEMORY_SPACE | BUS_MASTER;
        self.space.write32(COMMAND, on);
    }

    /// Keeps the device from doing DMA, and from raising interrupts by message.
    pub fn stop(&self) {
        let command = self.space.read32(COMMAND) & COMMANDS;
        self.space.write32(COMMAND, command & !BUS_MASTER);
    }

    /// Has the function raise its interrupt by `message`.
    ///
    /// # Errors
    /// [`NoMsiCapability`].
    pub fn set_message(&self, message: MsiMessage) -> Result<(), NoMsiCapability> {
        let space = &self.space;
        let found = capabilities(|at| Some(space.read32(at.into()))).first(id::MSI);
        let found = found.ok_or(NoMsiCapability { function: self.at })?;
        let at = usize::from(found.at);
        let head = found.head & !(MSI_ENABLED | MSI_SEVERAL);
        // So that no message is sent with half of an address.
        space.write32(at, head);
        space.write32(at + 4, message.address as u32);
        let data = match head & MSI_WIDE {
            0 => at + 8,
            _ => {
                space.write32(at + 8, (message.address >> 32) as u32);
                at + 12
            }
        };
        space.write32(data, message.data & 0xffff);
        space.write32(at, head | MSI_ENABLED);
        Ok(())
    }

    /// Switches the function's messages off, for a device that another kernel has set up.
    pub fn stop_messages(&self) {
        let space = &self.space;
        for (id, enabled) in [(id::MSI, MSI_ENABLED), (id::MSIX, MSIX_ENABLED)] {
            if let Some(found) = capabilities(|at| Some(space.read32(at.into()))).first(id) {
                space.write32(found.at.into(), found.head & !enabled);
            }
        }
    }

    /// Offset of the first extended capability with this identifier.
    fn extended(&self, id: u16) -> Option<usize> {
        let read = |at: u16| Some(self.space.read32(at.into()));
        extended_capabilities(read).first(id).map(|found| found.at.into())
    }

    /// Switches access control services on, as far as the function has them: functions behind it, or
    /// beside it in the same device, then reach others through the IOMMU alone.
    fn isolate(&self) {
        if let Some(at) = self.extended(extended_id::ACS) {
            // The capability is in the lower half, and read-only.
            let word = self.space.read32(at + 4);
            self.space.write32(at + 4, word | (word & ISOLATION) << 16);
        }
    }

    /// The TLB that the function has of its own, if it has one that can be used. It is no virtual function.
    pub fn device_tlb(&self) -> Option<DeviceTlb> {
        let read = |offset: u16| Some(self.space.read32(offset.into()));
        PciOverrides::KNOWN.device_tlb(self.at, read)
    }

    /// Lets the function ask for translations and keep them, in pages of 4 KiB and more. Its unit has to be
    /// told before it is attached
    /// ([`IommuDomains::use_device_tlb`](portolan::iommu::IommuDomains::use_device_tlb)).
    pub fn start_device_tlb(&self) {
        if let Some(at) = self.extended(extended_id::ATS) {
            // The lower half is read-only. QEMU looks for the bit there in a write of 32 bits.
            self.space.write32(at + 4, ATS_ON | ATS_ON >> 16);
        }
    }

    /// The address in the first base address register, if it is one of memory and there is one.
    pub fn first_bar(&self) -> Option<PhysAddr> {
        let low = self.space.read32(FIRST_BAR);
        let high = match low & (PORTS | WIDE) {
            0 => 0,
            WIDE => self.space.read32(FIRST_BAR + 4),
            _ => return None,
        };
        let at = u64::from(high) << 32 | u64::from(low & !FLAGS);
        (at != 0).then_some(PhysAddr::new(at))
    }

    /// Gives each window of registers a place from `next` on, below 4 GiB and inside of `memory`: where
    /// the next one can begin. `None` if there is too little.
    fn place(&self, mut next: u64, memory: PhysRange) -> Option<u64> {
        let mut at = FIRST_BAR;
        while at < AFTER_BARS {
            self.space.write32(at, u32::MAX);
            let answer = self.space.read32(at);
            let memory_bar = answer & PORTS == 0;
            if answer & !FLAGS != 0 && memory_bar {
                let bytes = u64::from(!(answer & !FLAGS)) + 1;
                let start = PhysAddr::new(next.checked_next_multiple_of(bytes)?);
                let place = PhysRange::from_len(start, bytes)?;
                if !memory.covers(place) {
                    return None;
                }
                self.space.write32(at, u32::try_from(start.get()).ok()?);
                next = place.last().get() + 1;
            }
            if answer & WIDE != 0 && memory_bar {
                self.space.write32(at + 4, 0);
                at += 4;
            }
            at += 4;
        }
        Some(next)
    }
}

impl Function {
    /// The first `bytes` bytes of its first window of registers; `None` for an IOMMU, whose registers its driver
    /// has.
    pub fn window(&self, machine: &Machine, bytes: u64) -> Option<Registers> {
        let window = PhysRange::from_len(self.first_bar()?, bytes)?;
        match self.is_iommu() {
            true => None,
            false => machine.window_of_function(window),
        }
    }
}

/// All functions of segment 0.
pub fn functions(machine: &Machine) -> Vec<Function> {
    let mut found = Vec::new();
    for bus in machine.ecam().buses() {
        for device in 0..32 {
            for function in 0..8 {
                let at = PciFunction::of(bus, device, function);
                let Some(space) = machine.pci(at) else {
                    if function == 0 { break } else { continue }
                };
                found.push(Function::new(at, space));
                if function == 0 && space.read32(HEADER) & MORE_FUNCTIONS == 0 {
                    break;
                }
            }
        }
    }
    found
}

/// Stops devices that firmware left running, before an IOMMU changes the meaning of their addresses.
/// Bridges and IOMMUs go on.
pub fn stop_all<R: Mmio>(functions: &[Function<R>]) {
    let devices = functions.iter().filter(|of| !of.is_bridge());
    devices.filter(|of| !of.is_iommu()).for_each(Function::stop);
}

/// Lets IOMMUs that are functions answer, and read their own tables.
pub fn start_iommus<R: Mmio>(functions: &[Function<R>]) {
    let units = functions.iter().filter(|of| of.is_iommu());
    units.for_each(Function::start);
}

/// Switches access control services on wherever they are, before the IOMMUs are enabled: functions that
/// would share an address space otherwise need not.
pub fn isolate<R: Mmio>(functions: &[Function<R>]) {
    functions.iter().for_each(Function::isolate);
}

/// Gives all windows of registers addresses in `memory`, where no firmware did.
///
/// # Errors
/// [`OutOfAddresses`].
pub fn give_addresses<R: Mmio>(
    functions: &[Function<R>],
    memory: PhysRange,
) -> Result<(), OutOfAddresses> {
    let mut next = memory.start().get();
    for device in functions.iter().filter(|of| !of.is_bridge()) {
        let none = OutOfAddresses { function: device.at, memory };
        next = device.place(next, memory).ok_or(none)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::{AtomicU32, Ordering};

    /// Configuration space whose words keep the bits of a mask.
    struct Space([AtomicU32; 128], fn(usize) -> u32);

    impl Mmio for Space {
        fn read32(&self, offset: usize) -> u32 {
            self.0[offset / 4].load(Ordering::Relaxed)
        }

        fn write32(&self, offset: usize, value: u32) {
            let (word, mask) = (&self.0[offset / 4], self.1(offset));
            let old = word.load(Ordering::Relaxed);
            word.store(old & !mask | value & mask, Ordering::Relaxed);
        }
    }

    impl Space {
        fn with(words: &[(usize, u32)], mask: fn(usize) -> u32) -> Function<Self> {
            let space = Self([const { AtomicU32::new(0) }; 128], mask);
            for (offset, value) in words {
                space.0[offset / 4].store(*value, Ordering::Relaxed);
            }
            Function::new(PciFunction::of(0, 3, 0), space)
        }
    }

    const MESSAGE: MsiMessage = MsiMessage { address: 0x1_fee0_1000, data: 0x40 };

    #[test]
    fn a_message_goes_where_the_capability_has_room_for_it() {
        for (control, words) in [
            (0x0080, [0x0081_0005, 0xfee0_1000, 1, 0x40]),
            (0x0070, [0x0001_0005, 0xfee0_1000, 0x40, 0]),
        ] {
            let head = control << 16 | u32::from(id::MSI);
            let list = [(4, 1 << 20), (0x34, 0x40), (0x40, 0x5010), (0x50, head)];
            let function = Space::with(&list, |_| u32::MAX);
            assert_eq!(function.set_message(MESSAGE), Ok(()));
            let found = [0x50, 0x54, 0x58, 0x5c].map(|at| function.space.read32(at));
            assert_eq!(found, words);
        }
    }

    #[test]
    fn messages_of_either_kind_are_switched_off() {
        let (msi, msix) = (0x0181_6005, 0x8003_0011);
        let list = [(4, 1 << 20), (0x34, 0x50), (0x50, msi), (0x60, msix)];
        let function = Space::with(&list, |_| u32::MAX);
        function.stop_messages();
        assert_eq!([0x50, 0x60].map(|at| function.space.read32(at)), [0x0180_6005, 0x0003_0011]);
    }

    #[test]
    fn a_list_of_capabilities_that_never_ends_is_left() {
        let circle = Space::with(&[(4, 1 << 20), (0x34, 0x40), (0x40, 0x4010)], |_| 0);
        assert_eq!(circle.set_message(MESSAGE), Err(NoMsiCapability { function: circle.at() }));
        let nowhere = Space::with(&[], |_| 0);
        assert_eq!(nowhere.set_message(MESSAGE), Err(NoMsiCapability { function: nowhere.at() }));
    }

    /// A window of 4 KiB, one of 64 bits and 1 MiB, and ports.
    fn bars(offset: usize) -> u32 {
        match offset {
            0x10 => 0xffff_f000,
            0x14 => 0xfff0_0000,
            0x18 => u32::MAX,
            0x1c => 0xffff_ff00,
            COMMAND => u32::MAX,
            _ => 0,
        }
    }

    #[test]
    fn windows_are_placed_by_their_sizes_or_not_at_all() {
        let device = [Space::with(&[(0x14, WIDE), (0x1c, PORTS)], bars)];
        let memory = |last| PhysRange::new(PhysAddr::new(0x1000_0000), PhysAddr::new(last));
        assert_eq!(give_addresses(&device, memory(0x101f_ffff).unwrap()), Ok(()));
        let found = [0x10, 0x14, 0x18].map(|at| device[0].space.read32(at));
        assert_eq!(found, [0x1000_0000, 0x1010_0004, 0]);
        assert_eq!(device[0].first_bar(), Some(PhysAddr::new(0x1000_0000)));
        let memory = memory(0x101f_fffe).unwrap();
        let function = device[0].at();
        assert_eq!(give_addresses(&device, memory), Err(OutOfAddresses { function, memory }));
    }

    #[test]
    fn services_that_are_there_are_switched_on() {
        let others = (0x100, 0x1401_0001);
        let acs = [(0x140, 0x1_000d), (0x144, 0x0002_005f)];
        let port = Space::with(&[others, acs[0], acs[1]], |_| u32::MAX);
        isolate(core::slice::from_ref(&port));
        assert_eq!(port.space.read32(0x144), 0x001f_005f);
        // A list that never ends.
        let circle = Space::with(&[(0x100, 0x1001_0001)], |_| 0);
        isolate(&[circle]);
    }

    #[test]
    fn a_tlb_of_a_function_is_found_and_switched_on() {
        let ats = |depth| [(0x100, 0x1401_0001), (0x140, 0x1_000f), (0x144, 0x20 | depth)];
        let mask = |offset| if offset == 0x144 { 0xffff_0000 } else { 0 };
        for (depth, found) in [(0, 32), (5, 5)] {
            let function = Space::with(&ats(depth), mask);
            let physical = function.at().requester.get();
            let tlb = DeviceTlb { depth: found, physical, twice: false };
            assert_eq!(function.device_tlb(), Some(tlb));
            function.start_device_tlb();
            assert_eq!(function.space.read32(0x144), 1 << 31 | 0x20 | depth);
        }
        let without = Space::with(&[(0x100, 0x1_0001)], mask);
        assert_eq!(without.device_tlb(), None);
        without.start_device_tlb();
    }

    #[test]
    fn bridges_and_iommus_are_not_stopped_and_iommus_are_started() {
        let command = (COMMAND, 0x10_0006);
        let of = |class, header| Space::with(&[command, (CLASS, class), (HEADER, header)], bars);
        let all = [of(0x0100_0000, 0), of(0x0806_0000, 0), of(0x0604_0000, 1 << 16)];
        stop_all(&all);
        let left = || all.each_ref().map(|of| of.space.read32(COMMAND) & COMMANDS);
        assert_eq!(left(), [2, 6, 6]);
        all.iter().for_each(|of| of.space.write32(COMMAND, 0));
        start_iommus(&all);
        assert_eq!(left(), [0, 6, 0]);
    }
}
