//! x86-64: what the loader says, the serial port, and the way out of QEMU.
//!
//! Xen's direct boot ABI (PVH): `hvm_start_info`, version 1. Intel 64 and IA-32 architectures software
//! developer's manual, volume 2 (IN, OUT). National Semiconductor PC16550D (serial port).

pub mod bytes;
pub mod interrupts;
mod processors;

use core::arch::{asm, global_asm};
use core::ffi::c_void;

use portolan::addr::{PageSize, PhysAddr, PhysRange};
use portolan_bare::{Heap, Machine};

use crate::pci::Function;
use crate::{End, Outcome};

pub use processors::{number, processor, set_number};

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
/// Pages below 640 KiB.
const LOW_PAGES: u64 = 160;
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

    /// The regions of RAM.
    fn regions(&self) -> Option<impl Iterator<Item = PhysRange>> {
        let count = self.info.memory_entries.min(MOST_REGIONS) as usize;
        let first: *const Region =
            core::ptr::with_exposed_provenance(self.info.memory_map as usize);
        if first.is_null() || !first.is_aligned() {
            return None;
        }
        // SAFETY: the loader left so many regions there, in memory that is mapped.
        let regions = unsafe { core::slice::from_raw_parts(first, count) };
        let usable = regions.iter().filter(|region| region.kind == RAM);
        Some(
            usable.filter_map(|region| {
                PhysRange::from_len(PhysAddr::new(region.start), region.bytes)
            }),
        )
    }

    /// The largest region of RAM behind the kernel that is mapped and cached. The loader's own
    /// structures lie below 1 MiB, and so before the kernel.
    pub fn ram(&self) -> Option<PhysRange> {
        let behind = PhysAddr::new((&raw const kernel_end).expose_provenance() as u64);
        let usable = self.regions()?.filter_map(|region| {
            let last = region.last().min(PhysAddr::new(LAST_CACHED));
            PhysRange::new(region.start().max(behind), last)
        });
        usable.max_by_key(|range| range.len_minus_one())
    }

    /// The highest page of RAM below 640 KiB that is none of the loader's.
    fn low_page(&self) -> Option<PhysRange> {
        let of = |start: u64, bytes: usize| PhysRange::from_len(PhysAddr::new(start), bytes as u64);
        let info = of(
            (self.info as *const StartInfo).expose_provenance() as u64,
            size_of::<StartInfo>(),
        );
        let regions = size_of::<Region>().saturating_mul(self.info.memory_entries as usize);
        let taken = [info, of(self.info.memory_map, regions)];
        let page = |number: u64| PhysRange::page(PhysAddr::new(number << 12), PageSize::SIZE_4K);
        let mut pages = (1..LOW_PAGES).rev().map(page);
        pages.find(|page| {
            let ram = self
                .regions()
                .is_some_and(|mut all| all.any(|region| region.covers(*page)));
            ram && !taken.iter().flatten().any(|taken| taken.overlaps(*page))
        })
    }

    /// Has the processor with this APIC's number enter `boot.s`.
    pub fn start_processor(&self, machine: &Machine, apic: u64) -> Outcome<()> {
        let page = self.low_page().ok_or("there is no RAM below 640 KiB")?;
        processors::start(machine, page, apic)
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
