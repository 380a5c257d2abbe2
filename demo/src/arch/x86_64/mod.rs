//! x86-64: what the loader says, the serial port, and the way out of QEMU.
//!
//! Xen's direct boot ABI (PVH): `hvm_start_info`, version 1. Intel 64 and IA-32 architectures software
//! developer's manual, volume 2 (IN, OUT). National Semiconductor PC16550D (serial port).

pub mod bytes;

use core::arch::{asm, global_asm};
use core::ffi::c_void;

use portolan::addr::{PhysAddr, PhysRange};
use portolan_bare::{Heap, Machine};

use crate::pci::Function;
use crate::{End, Outcome};

global_asm!(include_str!("boot.s"));

/// The highest address that `boot.s` maps.
pub const LAST_MAPPED: PhysAddr = PhysAddr::new(0xffff_ffff);
/// The highest address at which `boot.s` maps RAM.
const LAST_CACHED: u64 = 0x7fff_ffff;

/// What the loader leaves behind (`hvm_start_info`).
#[repr(C)]
struct StartInfo {
    magic: u32,
    version: u32,
    flags: u32,
    modules: u32,
    module_list: u64,
    command_line: u64,
    root: u64,
    memory_map: u64,
    memory_entries: u32,
    reserved: u32,
}

/// A region of the memory map (`hvm_memmap_table_entry`).
#[repr(C)]
struct Region {
    start: u64,
    bytes: u64,
    kind: u32,
    reserved: u32,
}

const MAGIC: u32 = 0x336e_c578;
/// The kind of region that is RAM.
const RAM: u32 = 1;
/// The most regions that are looked at.
const MOST_REGIONS: u32 = 128;

unsafe extern "C" {
    /// Where the kernel ends (`kernel.ld`).
    static kernel_end: c_void;
}

/// What the loader leaves behind.
pub struct Loader {
    info: &'static StartInfo,
}

impl Loader {
    /// What is at the loader's pointer; `None` if it makes no sense.
    ///
    /// # Safety
    /// The loader left the pointer, and nobody writes to its memory.
    pub unsafe fn at(pointer: *const c_void) -> Option<Self> {
        // SAFETY: the caller's promise.
        let info = unsafe { pointer.cast::<StartInfo>().as_ref() }?;
        (info.magic == MAGIC && info.version >= 1).then_some(Self { info })
    }

    /// The machine, by ACPI's root pointer.
    ///
    /// # Safety
    /// As of [`Machine::from_acpi`], but for the root pointer.
    pub unsafe fn machine(&self, heap: &'static Heap) -> Outcome<Machine> {
        // SAFETY: the caller's promise, and the loader's pointer.
        Ok(unsafe { Machine::from_acpi(heap, PhysAddr::new(self.info.root)) }?)
    }

    /// Firmware has given all windows addresses.
    pub fn give_addresses(&self, _functions: &[Function]) -> Outcome<()> {
        Ok(())
    }

    /// The largest region of RAM behind the kernel that is mapped and cached. The loader's own
    /// structures lie below 1 MiB, and so before the kernel.
    pub fn ram(&self) -> Option<PhysRange> {
        let count = self.info.memory_entries.min(MOST_REGIONS) as usize;
        let first: *const Region =
            core::ptr::with_exposed_provenance(self.info.memory_map as usize);
        if first.is_null() || !first.is_aligned() {
            return None;
        }
        // SAFETY: the loader left so many regions there, in memory that is mapped.
        let regions = unsafe { core::slice::from_raw_parts(first, count) };
        let behind = (&raw const kernel_end).expose_provenance() as u64;
        let usable = regions.iter().filter(|region| region.kind == RAM);
        let usable = usable.filter_map(|region| {
            let last = region.start.checked_add(region.bytes.checked_sub(1)?)?;
            let start = PhysAddr::new(region.start.max(behind));
            PhysRange::new(start, PhysAddr::new(last.min(LAST_CACHED)))
        });
        usable.max_by_key(|range| range.len_minus_one())
    }
}

/// The first serial port.
const SERIAL: u16 = 0x3f8;
/// Its line status register, and the bit that says that it takes a byte.
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

/// Ends the machine: well, or not.
pub fn exit(end: End) -> ! {
    let value: u32 = match end {
        End::Good => 16,
        End::Bad => 17,
    };
    // SAFETY: where there is no such device, nothing listens at the port.
    unsafe { asm!("out dx, eax", in("dx") EXIT, in("eax") value, options(nostack)) };
    loop {
        // SAFETY: interrupts are off: the CPU stops.
        unsafe { asm!("hlt") };
    }
}
