//! RISC-V on QEMU's `virt` machine: the device tree, and firmware's services.
//!
//! QEMU: `docs/system/riscv/virt`, and the device that ends it (`hw/misc/sifive_test`).

mod interrupts;
mod processors;
mod sbi;
mod uncached;

use core::arch::global_asm;
use core::ffi::c_void;
use core::sync::atomic::{AtomicU64, Ordering};

use portolan::addr::{PhysAddr, PhysRange};
use portolan::platform::Mmio;
use portolan_bare::fdt::DeviceTree;
use portolan_bare::pci::{self, Function};
use portolan_bare::{Heap, Machine, tree};

use crate::heap::HEAP;
use crate::{End, Outcome, say};

pub use interrupts::Interrupts;
pub use processors::{number, processor, set_number};
pub use sbi::put;
pub use uncached::{map_uncached, uncached_type};

global_asm!(include_str!("boot.s"));

/// The highest physical address at which QEMU's `virt` has anything, the end of PCI's window for 64 bits:
/// everything below is seen at its own address. A hart that looks further takes an exception.
pub const LAST_MAPPED: PhysAddr = PhysAddr::new(0x7_ffff_ffff);

unsafe extern "C" {
    /// End of the kernel (`kernel.ld`).
    static kernel_end: c_void;
}

/// Middle of RAM, where one kernel leaves memory to the next.
pub const KEPT: PhysAddr = PhysAddr::new(0x8800_0000);

/// Data that the loader leaves behind: a device tree.
pub struct Loader {
    bytes: &'static [u8],
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
        let end = tree::compatible(tree, "sifive,test0").and_then(|node| node.reg());
        FINISHER.store(end.map_or(0, |end| end.start().get()), Ordering::Relaxed);
        Some(Self { bytes, tree })
    }

    /// RAM after the kernel, up to used memory. OpenSBI is before the kernel.
    pub fn ram(&self) -> Option<PhysRange> {
        let behind = (&raw const kernel_end).expose_provenance() as u64;
        let tree = self.bytes.as_ptr().expose_provenance() as u64;
        let tree = PhysRange::from_len(PhysAddr::new(tree), self.bytes.len() as u64)?;
        tree::memory_from(self.tree, PhysAddr::new(behind), tree)
    }

    /// All RAM, of another kernel as well.
    pub fn all_ram(&self) -> Option<PhysRange> {
        self.tree.memory()
    }

    /// The machine, by the device tree.
    ///
    /// # Safety
    /// As of [`Machine::from_device_tree`].
    pub unsafe fn machine(&self, heap: &'static Heap) -> Outcome<Machine> {
        // SAFETY: the caller's promise.
        Ok(unsafe { Machine::from_device_tree(heap, self.bytes) }?)
    }

    /// Starts this hart at `boot.s`.
    pub fn start_processor(&self, _machine: &Machine, hart: u64) -> Outcome<()> {
        processors::start(hart)
    }

    /// Gives the windows of all functions addresses, as there is no firmware that did.
    pub fn give_addresses(&self, functions: &[Function]) -> Outcome<()> {
        let window = tree::pci_memory(self.tree).ok_or("PCI has no memory of 32 bits")?;
        Ok(pci::give_addresses(functions, window)?)
    }
}

/// Registers of the device that ends QEMU; 0 before they are known, and if it does not exist.
static FINISHER: AtomicU64 = AtomicU64::new(0);
/// Value that has it end QEMU, with a code in the upper half.
const FINISHED: u32 = 0x3333;

/// Ends the machine, with `end` for a code.
pub fn exit(end: End) -> ! {
    let at = PhysAddr::new(FINISHER.load(Ordering::Relaxed));
    // SAFETY: the device tree says that the registers are there.
    let finisher = PhysRange::from_len(at, 4).map(|window| unsafe { HEAP.map().registers(window) });
    match finisher.flatten() {
        // A shut-down behind it would replace the code.
        Some(finisher) => finisher.write32(0, (end as u32) << 16 | FINISHED),
        None => sbi::shut_down(),
    }
    loop {
        core::hint::spin_loop();
    }
}

/// Entry from `boot.s` with an exception: none is expected.
#[unsafe(no_mangle)]
extern "C" fn kernel_exception(cause: u64, at: u64, address: u64) -> ! {
    say!("exception {cause:#x} at {at:#x}, address {address:#x}");
    exit(End::Bad)
}
