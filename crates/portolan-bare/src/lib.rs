//! The platform of a kernel on bare metal: `portolan::platform::Platform` for x86-64, AArch64 and RISC-V.
//!
//! * [`Heap`]: memory of any size from one region of RAM, for the kernel's own `alloc` and for devices.
//! * [`Machine`]: that heap, a clock, locks that keep interrupts out, registers, PCI configuration
//!   space and firmware's tables, found from ACPI's root pointer, or a device tree.
//! * [`pci`]: functions, their windows and messages; [`apic`], [`gic`], [`imsic`] and [`aplic`]: interrupts,
//!   and other CPUs.
//! * [`nvme`]: a driver of disks, with a queue for each CPU.
//! * [`fdt`] and [`tree`]: contents of a device tree; [`fw_cfg`]: ACPI's tables on a machine of QEMU's
//!   that starts without firmware.
//!
//! ```no_run
//! use portolan::addr::{PciFunction, PhysAddr, PhysRange};
//! use portolan_bare::{DirectMap, Heap, Machine};
//! use portolan_hw::TrustedDescription;
//! use portolan_hw::topology::{Options, Topology};
//!
//! // SAFETY: the page tables of this kernel map the lowest 4 GiB one to one.
//! static HEAP: Heap = Heap::new(unsafe { DirectMap::new(0, PhysAddr::new(0xffff_ffff)) });
//!
//! fn start(ram: PhysRange, root: PhysAddr) -> Result<(), Box<dyn std::error::Error>> {
//!     // SAFETY: the boot loader says that `ram` is free, and that `root` is ACPI's root pointer.
//!     let machine = unsafe {
//!         HEAP.init(ram)?;
//!         Machine::from_acpi(&HEAP, root)?
//!     };
//!     let topology = Topology::from_acpi(machine.tables())?;
//!     // SAFETY: these are the tables of the machine.
//!     let described = unsafe { TrustedDescription::new() };
//!     let iommus = topology.enable(machine, Options::default(), described)?;
//!     let _disk = iommus.trusted_device(PciFunction::of(0, 3, 0))?;
//!     Ok(())
//! }
//! ```
//!
//! Sources: ACPI specification 6.5, sections 5.2.5 to 5.2.9; PCI firmware specification 3.3, section
//! 4.1 (MCFG); Intel 64 and IA-32 architectures software developer's manual; Arm architecture
//! reference manual for A-profile; RISC-V Instruction Set Manual. Not supported: confidential guests, whose memory is
//! shared with a host ([`alloc_shared`](portolan::platform::Platform::alloc_shared) has none). Memory that CPUs do not
//! cache is the kernel's to map ([`Machine::add_uncached`]). To start other CPUs is the kernel's;
//! [`Machine::processors`] names them, and
//! [`Machine::with_cpus`] takes their numbers.
#![no_std]
#![deny(unsafe_code)]

extern crate alloc;

pub mod acpi;
pub mod apic;
pub mod aplic;
pub mod arena;
pub mod ecam;
pub mod fw_cfg;
pub mod gic;
mod hardware;
pub mod imsic;
pub mod madt;
pub mod nvme;
pub mod pci;
pub mod ticks;
pub mod tree;

pub use portolan_tables::fdt;

#[cfg(target_arch = "riscv64")]
pub use hardware::OwnFile;
pub use hardware::{
    CpuInterrupts, DirectMap, Heap, HeapError, Machine, Pages, Pvh, Registers, StartError,
};

/// The crate's page, whose example is compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
