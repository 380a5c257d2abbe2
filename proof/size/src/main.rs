//! The smallest kernel that opens a device behind an IOMMU, to be weighed: `cargo xtask size`.
//!
//! From firmware's table to one buffer that is mapped and unmapped, with the drivers that its features name. It is
//! linked and never run: the table's address and the functions come from its caller.
#![no_std]
#![no_main]

extern crate alloc;

mod platform;

use core::panic::PanicInfo;

use portolan::addr::{PageSize, PciFunction, PhysAddr, PhysRange};
use portolan::dma::{Buffer, Direction, Pieces};
use portolan_hw::TrustedDescription;
use portolan_hw::topology::{Options, Topology};

use platform::Kernel;

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    loop {
        core::hint::spin_loop();
    }
}

/// A page.
struct Packet(PhysAddr);

// SAFETY: the caller of the kernel hands the page over.
unsafe impl Buffer for Packet {
    fn pieces(&self) -> Pieces<'_> {
        Pieces::One(PhysRange::page(self.0, PageSize::SIZE_4K))
    }

    fn device_may_write(&self) -> bool {
        true
    }
}

/// Maps and unmaps the page at `page` for the function `requester` of segment 0, by the ACPI table of `bytes` bytes at
/// `table`. Returns the address that the device was given, or 0.
///
/// # Safety
/// The table is this machine's, and mapped; nothing else uses the page.
#[unsafe(no_mangle)]
unsafe extern "C" fn _start(table: *const u8, bytes: usize, requester: u16, page: u64) -> u64 {
    // SAFETY: the caller's promise.
    let table = unsafe { core::slice::from_raw_parts(table, bytes) };
    let [bus, function] = requester.to_be_bytes();
    let function = PciFunction::of(bus, function >> 3, function & 7);
    cycle(table, function, Packet(PhysAddr::new(page))).unwrap_or(0)
}

fn cycle(table: &[u8], function: PciFunction, packet: Packet) -> Option<u64> {
    let topology = Topology::from_acpi([table]).ok()?;
    // SAFETY: the table is this machine's.
    let described = unsafe { TrustedDescription::new() };
    let iommus = topology.enable(Kernel, Options::default(), described).ok()?;
    let device = iommus.trusted_device(function).ok()?;
    let mapping = device.map(packet, Direction::FromDevice).ok()?;
    let iova = mapping.iova().get();
    mapping.unmap().ok()?;
    Some(iova)
}
