//! QEMU's IOMMU models and devices, driven from this process: the process is the machine's CPU.
//!
//! A [`machine::Builder`] starts a QEMU whose own CPU never runs. Registers are read and written
//! through QEMU's qtest protocol ([`mmio::Registers`], an implementation of
//! [`portolan::platform::Mmio`]); guest RAM is shared memory ([`ram::GuestRam`]), out of which
//! [`guest_tables::GuestTables`] hands pages for tables, queues and buffers; devices ([`edu`],
//! [`nvme`], [`virtio_blk`]) do DMA through the IOMMU; and [`trace::Trace`] has QEMU's own counts.
//! Nothing gets a name in the file system, and QEMU ends with the [`machine::Machine`], or with
//! this process if that is killed.
//!
//! ```
//! use portolan::addr::{Iova, PageSize};
//! use portolan::platform::Mmio;
//! use portolan_qemu::config::{Architecture, Device, Iommu, Vtd, VtdWidth};
//! use portolan_qemu::edu::Edu;
//! use portolan_qemu::machine::Builder;
//!
//! let builder = Builder::new(Architecture::X86)
//!     .iommu(Iommu::Vtd(Vtd::new(VtdWidth::Bits48)))
//!     .device(Device::edu());
//! let machine = match builder.start() {
//!     Ok(machine) => machine,
//!     Err(error) => {
//!         // A QEMU that is missing or too old is no failure.
//!         println!("SKIP: {}", error.skip().ok_or(error)?);
//!         return Ok(());
//!     }
//! };
//! // What a driver needs: registers, table memory (`&GuestTables` is a `TableMem`), a clock.
//! let registers = machine.iommu_registers().ok_or("no registers")?;
//! let capabilities = registers.read64(0x8);
//! let tables = machine.tables();
//! let clock = portolan_qemu::mmio::HostClock::new();
//! # let _ = (capabilities, clock);
//!
//! // A device and its stream, which is what the driver attaches.
//! let edu = Edu::find(&machine.pci()?)?;
//! let stream = edu.function().stream();
//! # let _ = stream;
//! // A buffer; addresses that are not mapped yet are physical ones, because translation is off.
//! let buffer = tables.alloc(PageSize::SIZE_4K)?;
//! let before = machine.trace().mark()?;
//! edu.dma_write32(Iova::new(buffer.get()), 0xbeef)?;
//! assert_eq!(machine.ram().read32(buffer)?, 0xbeef);
//! assert_eq!(machine.trace().counts_since(before)?.vtd_descriptors(), 0);
//! tables.free(buffer, PageSize::SIZE_4K);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Which QEMU
//!
//! `qemu-system-x86_64`, `qemu-system-aarch64` and `qemu-system-riscv64` from the path, or the programs
//! that the environment variables `PORTOLAN_QEMU_X86`, `PORTOLAN_QEMU_ARM` and `PORTOLAN_QEMU_RISCV`
//! name. 7.2 is enough but for VT-d's first level, SMMUv3's stage 2 and the RISC-V IOMMU, which need
//! 10.0; [`machine::version`] tells.
//!
//! # Properties that a scenario can rely on
//!
//! * A register write is carried out before it returns. VT-d, SMMUv3 and the RISC-V IOMMU work off a whole queue in
//!   the write of its tail; their waits and syncs are done then. A missing sync is therefore seen
//!   only in the trace.
//! * [`edu::Edu::dma_write32`] is over when it returns. Neither it nor the disks report a
//!   blocked write of data: the proof is a fault record and unchanged RAM.
//! * VT-d, SMMUv3, AMD-Vi and the RISC-V IOMMU keep translations until told; virtio-iommu has no cache.
//! * Every wait has a limit. After the first failure of the connection, every call fails
//!   ([`qtest::Qtest::failed`]), and registers read all ones as those of a removed device.
//!
//! # Modules
//!
//! * [`machine`], [`config`]: machines to start; [`qtest`]: the protocol, with batches.
//! * [`mmio`], [`ram`], [`guest_tables`], [`dma`]: registers, memory, and addresses for devices.
//! * [`pci`]: enumeration, BARs, capabilities; [`virtio_pci`], [`virtqueue`]: the transport, for a
//!   virtio-iommu driver too.
//! * [`viommu`]: the virtio-iommu, as its driver wants it.
//! * [`edu`], [`nvme`], [`virtio_blk`]: devices; [`fw_cfg`]: ACPI tables; [`trace`]: counts.
//!
//! Linux only. Interrupts can be intercepted ([`qtest::Qtest::irq_intercept_in`]); a running clock
//! and guest code are not supported.
#![deny(unsafe_code)]

#[cfg(not(all(target_os = "linux", target_endian = "little", target_pointer_width = "64")))]
compile_error!("portolan-qemu needs a 64-bit little-endian Linux host");

pub mod config;
pub mod dma;
pub mod edu;
pub mod fw_cfg;
pub mod guest_tables;
pub mod machine;
pub mod mmio;
pub mod nvme;
pub mod pci;
mod process;
pub mod qtest;
pub mod ram;
pub mod trace;
pub mod viommu;
pub mod virtio_blk;
pub mod virtio_pci;
pub mod virtqueue;
