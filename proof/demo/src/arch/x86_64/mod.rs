//! x86-64: the loader's structures, the serial port, and the way out of QEMU.
//!
//! Intel 64 and IA-32 architectures software developer's manual, volume 2 (IN, OUT). National
//! Semiconductor PC16550D (serial port).

mod interrupts;
mod processors;
mod sleep;
mod uncached;

use core::arch::{asm, global_asm};
use core::ffi::c_void;

use portolan::addr::{PhysAddr, PhysRange};
use portolan_bare::pci::Function;
use portolan_bare::{Heap, Machine, Pvh};

use crate::heap::HEAP;
use crate::{End, Outcome};

pub use interrupts::Interrupts;
pub use processors::{number, processor, set_number};
pub use sleep::Sleep;
pub use uncached::{map_uncached, uncached_type};

global_asm!(include_str!("boot.s"));

/// The highest address that `boot.s` maps.
pub const LAST_MAPPED: PhysAddr = PhysAddr::new(0xffff_ffff);
/// The highest address at which `boot.s` maps RAM.
const LAST_CACHED: PhysAddr = PhysAddr::new(0x7fff_ffff);

unsafe extern "C" {
    /// End of the kernel (`kernel.ld`).
    static kernel_end: c_void;
}

/// Middle of RAM, where one kernel leaves memory to the next.
pub const KEPT: PhysAddr = PhysAddr::new(0x0800_0000);

/// Data that the loader leaves behind.
pub struct Loader {
    left: Pvh,
}

impl Loader {
    /// Reads the structures at the loader's pointer; `None` if they make no sense.
    ///
    /// # Safety
    /// The loader left the pointer, and no code writes to its memory.
    pub unsafe fn at(pointer: *const c_void) -> Option<Self> {
        let at = PhysAddr::new(pointer.expose_provenance() as u64);
        // SAFETY: the caller's promise.
        let left = unsafe { Pvh::at(HEAP.map(), at) }?;
        Some(Self { left })
    }

    /// The machine, by ACPI's root pointer.
    ///
    /// # Safety
    /// As of [`Machine::from_acpi`], but for the root pointer.
    pub unsafe fn machine(&self, heap: &'static Heap) -> Outcome<Machine> {
        // SAFETY: the caller's promise, and the loader's pointer.
        Ok(unsafe { Machine::from_acpi(heap, self.left.root()) }?)
    }

    /// Firmware has given all windows addresses.
    pub fn give_addresses(&self, _functions: &[Function]) -> Outcome<()> {
        Ok(())
    }

    /// The largest region of RAM behind the kernel that is mapped and cached. The loader's own
    /// structures lie below 1 MiB, and so before the kernel.
    pub fn ram(&self) -> Option<PhysRange> {
        let behind = PhysAddr::new((&raw const kernel_end).expose_provenance() as u64);
        let usable = self.left.ram().filter_map(|region| {
            PhysRange::new(region.start().max(behind), region.last().min(LAST_CACHED))
        });
        usable.max_by_key(|range| range.len_minus_one())
    }

    /// All RAM, of another kernel as well.
    pub fn all_ram(&self) -> Option<PhysRange> {
        self.left.ram().reduce(PhysRange::hull)
    }

    /// Starts the processor with this APIC number at `boot.s`.
    pub fn start_processor(&self, machine: &Machine, apic: u64) -> Outcome<()> {
        processors::start(machine, self.first_page()?, apic)
    }

    /// The page at which a processor begins.
    fn first_page(&self) -> Outcome<u8> {
        Ok(self.left.low_page().ok_or("there is no RAM below 640 KiB")?)
    }
}

/// The first serial port.
const SERIAL: u16 = 0x3f8;
/// Line status register, and its bit that says that it takes a byte.
const SERIAL_STATUS: u16 = SERIAL + 5;
const SERIAL_READY: u8 = 0x20;
/// Looks at the status before a byte is given up.
const SERIAL_LOOKS: u32 = 1_000_000;

/// Writes a byte to the console.
pub fn put(byte: u8) {
    for _ in 0..SERIAL_LOOKS {
        let status: u8;
        // SAFETY: reading the status changes nothing.
        unsafe { asm!("in al, dx", in("dx") SERIAL_STATUS, out("al") status, options(nostack)) };
        if status & SERIAL_READY != 0 {
            // SAFETY: it is the port's data register.
            unsafe { asm!("out dx, al", in("dx") SERIAL, in("al") byte, options(nostack)) };
            return;
        }
    }
}

/// QEMU's `isa-debug-exit`: the process ends with twice the value and one.
const EXIT: u16 = 0xf4;

/// Ends the machine, with `end` for a code.
pub fn exit(end: End) -> ! {
    let value = end as u32 / 2;
    // SAFETY: where there is no such device, nothing listens at the port.
    unsafe { asm!("out dx, eax", in("dx") EXIT, in("eax") value, options(nostack)) };
    loop {
        // SAFETY: interrupts are off: the CPU stops.
        unsafe { asm!("hlt") };
    }
}
