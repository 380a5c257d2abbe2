//! Linux with a disk at work, and another kernel loaded for the case that it crashes (`crashes`).

use super::architecture::ARM;
use super::kernel::Kernel;
use super::machines::{DISKS, Machine, program};
use crate::demo::Release;

/// A machine with an SMMUv3.
pub const CRASH_ARM: Machine = Machine {
    name: "crash-arm",
    step: "Linux guest: a crash behind an SMMUv3",
    architecture: &ARM,
    kernel: Kernel::NewestArm,
    limit: "120",
    release: Release::Any,
    devices: &[
        // The kernel maps the lowest 512 GiB.
        "-machine",
        "highmem=off",
        "-device",
        "nvme,serial=1,drive=flash",
        "-device",
        "edu,dma_mask=0xffffffffff",
    ],
    disks: &[],
    // The kernel is linked there.
    kernel_arguments: "crashkernel=64M@0x50000000",
    modules: &[],
    programs: &[program("crash-kernel")],
    runs: &["crash-kernel /dev/nvme0n1 /bin/kernel 32"],
    traced: &[
        "smmuv3_record_event",
        "smmuv3_translate_*",
        "smmuv3_write_mmio",
        "pci_nvme_mmio_start_success",
        "pci_nvme_mmio_stopped",
    ],
    check: |_| Ok(()),
    ..DISKS
};
