//! AArch64 on QEMU's `virt` machine: the device tree, and the way to the host by semihosting.
//!
//! Arm semihosting, version 3 (SYS_WRITEC, SYS_EXIT_EXTENDED).
//! QEMU: `docs/system/arm/virt`.

mod interrupts;
mod processors;
mod uncached;

use core::arch::{asm, global_asm};
use core::ffi::c_void;

use portolan::addr::{PhysAddr, PhysRange};
use portolan_bare::fdt::DeviceTree;
use portolan_bare::fw_cfg::{self, FwCfg};
use portolan_bare::pci::{self, Function};
use portolan_bare::{Heap, Machine, tree};

use crate::heap::HEAP;
use crate::{End, Outcome, say};

pub use interrupts::Interrupts;
pub use processors::{number, processor, set_number};
pub use uncached::{map_uncached, uncached_type};

/// Start of the kernel's memory, with the device tree: RAM, or what another kernel leaves free for the case that it
/// crashes.
#[cfg(not(feature = "after-crash"))]
const FIRST: u64 = 0x4000_0000;
#[cfg(feature = "after-crash")]
const FIRST: u64 = 0x5000_0000;
/// The highest address of the kernel's memory: `boot.s` maps no RAM behind it.
#[cfg(not(feature = "after-crash"))]
const LAST: u64 = 0x7fff_ffff;
#[cfg(feature = "after-crash")]
const LAST: u64 = FIRST + (64 << 20) - 1;

global_asm!(include_str!("boot.s"));
global_asm!(".global kernel_base", ".set kernel_base, {}", const FIRST + (2 << 20));

/// The highest address that `boot.s` maps.
pub const LAST_MAPPED: PhysAddr = PhysAddr::new((512 << 30) - 1);

unsafe extern "C" {
    /// End of the kernel (`kernel.ld`).
    static kernel_end: c_void;
}

/// Middle of the kernel's memory, where another kernel leaves notes and memory to it.
#[cfg(not(feature = "after-crash"))]
pub const KEPT: PhysAddr = PhysAddr::new(0x4800_0000);
#[cfg(feature = "after-crash")]
pub const KEPT: PhysAddr = PhysAddr::new(FIRST + (32 << 20));

/// Data that the loader leaves behind: a device tree.
pub struct Loader {
    tree: DeviceTree<'static>,
}

impl Loader {
    /// Reads the device tree at the loader's pointer; `None` if it makes no sense.
    ///
    /// # Safety
    /// The loader left the pointer, and no code writes to its memory.
    pub unsafe fn at(pointer: *const c_void) -> Option<Self> {
        let at = PhysAddr::new(pointer.expose_provenance() as u64);
        // SAFETY: the caller's promise.
        let bytes = unsafe { HEAP.map().device_tree(at) }?;
        let tree = DeviceTree::parse(bytes)?;
        Some(Self { tree })
    }

    /// RAM after the kernel that is mapped as such. The device tree is before the kernel.
    pub fn ram(&self) -> Option<PhysRange> {
        let behind = (&raw const kernel_end).expose_provenance() as u64;
        let memory = self.tree.memory()?;
        let start = PhysAddr::new(memory.start().get().max(behind));
        PhysRange::new(start, PhysAddr::new(memory.last().get().min(LAST)))
    }

    /// All RAM, of another kernel as well.
    pub fn all_ram(&self) -> Option<PhysRange> {
        self.tree.memory()
    }

    /// The machine, by the ACPI tables that QEMU has for firmware.
    ///
    /// # Safety
    /// As of [`Machine::from_tables`].
    pub unsafe fn machine(&self, heap: &'static Heap) -> Outcome<Machine> {
        let window = self
            .tree
            .compatible("qemu,fw-cfg-mmio")
            .and_then(|node| node.reg())
            .ok_or("there is no fw_cfg device")?;
        // SAFETY: the device tree says that registers are there.
        let registers = unsafe { heap.map().registers(window) };
        let tables = FwCfg::new(registers.ok_or("fw_cfg is not mapped")?).tables();
        let tables = tables.ok_or("there are no ACPI tables")?;
        // SAFETY: the caller's promise.
        Ok(unsafe { Machine::from_tables(heap, fw_cfg::each(tables)) }?)
    }

    /// Starts the processor with this affinity at `boot.s`.
    pub fn start_processor(&self, _machine: &Machine, affinity: u64) -> Outcome<()> {
        let node = self.tree.compatible("arm,psci-0.2");
        let method = node.and_then(|node| node.property("method"));
        processors::start(affinity, method.ok_or("there is no PSCI in the device tree")?)
    }

    /// Gives the windows of all functions addresses, as there is no firmware that did.
    pub fn give_addresses(&self, functions: &[Function]) -> Outcome<()> {
        let window = tree::pci_memory(self.tree).ok_or("PCI has no memory of 32 bits")?;
        Ok(pci::give_addresses(functions, window)?)
    }
}

/// Asks the host for something.
fn ask(operation: u32, about: *const c_void) {
    // SAFETY: the two operations below read the memory that they are told of.
    unsafe {
        asm!("hlt #0xf000", inout("x0") u64::from(operation) => _, in("x1") about, options(nostack))
    };
}

const SYS_WRITEC: u32 = 0x03;
const SYS_EXIT_EXTENDED: u32 = 0x20;
/// ADP_Stopped_ApplicationExit.
const ENDED: u64 = 0x2_0026;

/// Writes a byte to the console.
pub fn put(byte: u8) {
    ask(SYS_WRITEC, (&raw const byte).cast());
}

/// Ends the machine, with `end` for a code.
pub fn exit(end: End) -> ! {
    let how = [ENDED, end as u64];
    ask(SYS_EXIT_EXTENDED, how.as_ptr().cast());
    loop {
        core::hint::spin_loop();
    }
}

/// Entry from `boot.s` with an exception: none is expected.
#[unsafe(no_mangle)]
extern "C" fn kernel_exception(syndrome: u64, at: u64, address: u64) -> ! {
    say!("exception {syndrome:#x} at {at:#x}, address {address:#x}");
    exit(End::Bad)
}
