//! The machines on which the kernel runs.

use said::{
    INTERRUPTED, INTERRUPTED_UNMAPPED, MOVED, MOVED_BY_TLB, MOVED_STRICTLY, POOLED,
    POOLED_UNSNOOPED, RECORDED, RECORDED_REMAPPED, REFUSED, REFUSED_RINGS, REMAPPED, RINGS,
    UNSNOOPED,
};

/// The kernel's names of some commands, and the event of QEMU that occurs as often.
pub struct Kinds {
    /// The kernel's names.
    pub ours: &'static [&'static str],
    /// The event.
    pub event: Event,
}

/// An event of QEMU's.
pub struct Event {
    /// Its name, or the command that it names last.
    pub name: &'static str,
    /// Bits of the first number in it, as a mask and their value, where one event is for all commands.
    pub word: Option<(u64, u64)>,
}

/// Releases of QEMU.
#[derive(Clone, Copy)]
pub enum Release {
    /// The distribution's will do.
    Any,
    /// Release 10.0 or newer.
    Ten,
    /// Release 11.1 or newer: its AMD-Vi reports what it refuses.
    Eleven,
}

/// An ACPI table: its signature, and the bytes behind its header.
pub type Table = (&'static str, &'static [u8]);

/// Firmware that describes the machine to a kernel.
pub enum Firmware {
    /// QEMU's own.
    Own,
    /// QEMU's own, and more tables of ACPI.
    Tables(&'static [Table]),
    /// The device tree with one place, which is like no other, changed: the bytes there, and those in their place.
    Tree(&'static [u8], &'static [u8]),
}

/// A machine.
pub struct Guest {
    /// Its name in commands.
    pub name: &'static str,
    /// Its name as a step of `cargo xtask test`.
    pub step: &'static str,
    /// QEMU's program, and the variable that names another one.
    pub program: &'static str,
    pub variable: &'static str,
    /// Releases of QEMU that have the machine.
    pub release: Release,
    /// Rust's target.
    pub target: &'static str,
    /// QEMU's arguments for the machine, except those for the kernel, the network cards and the disks' images.
    pub arguments: &'static [&'static str],
    /// The kernel's exit code.
    pub code: i32,
    /// Starts of lines that the console must have, in this order: one list after the other.
    pub said: [&'static [&'static str]; 6],
    /// Firmware that describes the machine to the kernel.
    pub firmware: Firmware,
    /// Events to be traced.
    pub traced: &'static [&'static str],
    /// Commands that are counted; empty if the kernel uses no unit.
    pub kinds: &'static [Kinds],
}

/// Targets of the kernels.
pub const X86: &str = "x86_64-unknown-linux-gnu";
pub const ARM: &str = "aarch64-unknown-none";
pub const RISCV: &str = "riscv64gc-unknown-none-elf";

/// Socket of a disk that a separate process serves.
pub const SOCKET: &str = "socket,id=disk,path=disk.sock";

/// QEMU's arguments for the network cards of each machine: two on one hub, with no way to the host.
pub(super) const CARDS: [&str; 8] = [
    "-netdev",
    "hubport,id=one,hubid=0",
    "-netdev",
    "hubport,id=other,hubid=0",
    "-device",
    "virtio-net-pci,netdev=one,disable-legacy=on,iommu_platform=on,romfile=",
    "-device",
    "virtio-net-pci,netdev=other,disable-legacy=on,iommu_platform=on,romfile=",
];

/// A PC with a disk and an `edu` device behind `$iommu`.
macro_rules! pc {
    ($($iommu:literal),* $(; $firmware:literal)?) => {
        pc!(@
            "-device", "virtio-blk-pci,drive=disk,disable-legacy=on,iommu_platform=on,romfile=";
            $($iommu),* $(; $firmware)?
        )
    };
    // The same, its disk being `$disk`.
    (@ $($disk:expr),*; $($iommu:literal),* $(; $firmware:literal)?) => {
        &[
            "-M", concat!("q35,kernel-irqchip=off" $(, $firmware)?),
            "-accel", "tcg", "-cpu", "max", "-m", "256", "-smp", "2",
            "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-serial", "stdio",
            "-device", "isa-debug-exit,iobase=0xf4,iosize=4",
            $("-device", $iommu,)*
            $($disk,)*
            "-device", "nvme,serial=1,drive=flash",
            "-device", "edu",
        ]
    };
}

/// A PC whose disk is the device `$device`, served by a separate process that shares the machine's memory.
macro_rules! served_pc {
    ($($device:literal),*; $iommu:literal) => {
        pc!(@
            "-object", "memory-backend-memfd,id=ram,size=256M,share=on",
            "-machine", "memory-backend=ram",
            "-chardev", SOCKET
            $(, "-device", $device)*;
            $iommu
        )
    };
}

/// `$machine`, a board of QEMU's, with the host for a console.
macro_rules! board {
    ($machine:literal) => {
        &[
            "-M",
            $machine,
            "-accel",
            "tcg",
            "-cpu",
            "cortex-a57",
            "-m",
            "256",
            "-smp",
            "2",
            "-nodefaults",
            "-no-user-config",
            "-display",
            "none",
            "-no-reboot",
            "-nic",
            "none",
            "-chardev",
            "stdio,id=console",
            "-semihosting-config",
            "enable=on,target=native,chardev=console",
            "-device",
            "virtio-blk-pci,drive=disk,disable-legacy=on,iommu_platform=on,romfile=",
            "-device",
            "nvme,serial=1,drive=flash",
            // RAM is where 28 bits do not reach.
            "-device",
            "edu,dma_mask=0xffffffffff",
        ]
    };
}

/// `$machine`, a board of RISC-V's with interrupts by message, and `$iommu`.
macro_rules! riscv {
    ($machine:literal $(, $iommu:literal)*) => {
        &[
            "-M", concat!($machine, ",aia=aplic-imsic"),
            "-accel", "tcg", "-cpu", "rv64", "-m", "256", "-smp", "2",
            "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-nic", "none",
            "-serial", "stdio",
            $("-device", $iommu,)*
            "-device", "virtio-blk-pci,drive=disk,disable-legacy=on,iommu_platform=on,romfile=",
            "-device", "nvme,serial=1,drive=flash",
            // RAM is where 28 bits do not reach.
            "-device", "edu,dma_mask=0xffffffffff",
        ]
    };
}

mod said;
// Behind the macros, which it uses.
mod without;

/// Exit codes of the kernel: all well, and well without DMA.
pub const GOOD: i32 = 33;
pub const WITHOUT_DMA: i32 = 37;

const fn kinds(ours: &'static [&'static str], name: &'static str) -> Kinds {
    let event = Event { name, word: None };
    Kinds { ours, event }
}

/// Commands of the RISC-V IOMMU whose first word has these bits: the operation with its function (9:0),
/// an address (10), and which of its operands count (32 and 33).
const fn words(ours: &'static [&'static str], mask: u64, value: u64) -> Kinds {
    let (name, word) = ("riscv_iommu_cmd", Some((mask, value)));
    let event = Event { name, word };
    Kinds { ours, event }
}

/// Commands that the driver of VT-d counts.
macro_rules! vtd_kinds {
    ($($more:expr),*) => {
        &[
            kinds(&["cc_inv_dsc (global)"], "vtd_inv_desc_cc_global"),
            kinds(&["cc_inv_dsc (device)"], "vtd_inv_desc_cc_devices"),
            kinds(&["iotlb_inv_dsc (global)"], "vtd_inv_desc_iotlb_global"),
            kinds(&["iotlb_inv_dsc (domain)"], "vtd_inv_desc_iotlb_domain"),
            kinds(&["iotlb_inv_dsc (pages)"], "vtd_inv_desc_iotlb_pages"),
            kinds(&["iec_inv_dsc"], "vtd_inv_desc_iec"),
            kinds(
                &["inv_wait_dsc", "inv_wait_dsc (replaced)"],
                "vtd_inv_desc_wait_sw",
            ),
            $($more),*
        ]
    };
}

/// Commands of a device with a TLB.
const DEVICE_TLB: Kinds = kinds(&["dev_tlb_inv_dsc"], "desc type device high");

/// All machines.
pub fn all() -> impl Iterator<Item = &'static Guest> {
    GUESTS.iter().chain(without::GUESTS)
}

/// A PC with VT-d.
pub(super) const VTD: Guest = Guest {
    name: "x86-vtd",
    step: "demo x86-vtd",
    program: "qemu-system-x86_64",
    variable: "PORTOLAN_QEMU_X86",
    release: Release::Any,
    target: X86,
    arguments: pc!("intel-iommu,intremap=on"),
    code: GOOD,
    said: [UNSNOOPED, RECORDED, REMAPPED, INTERRUPTED, MOVED, POOLED_UNSNOOPED],
    firmware: Firmware::Own,
    traced: &["vtd_inv_desc*"],
    kinds: vtd_kinds!(),
};

/// A machine whose disk is a separate process.
pub(super) const VHOST: Guest = Guest {
    name: "x86-vhost",
    step: "demo x86-vhost",
    program: "qemu-system-x86_64",
    variable: "PORTOLAN_QEMU_X86",
    release: Release::Any,
    target: X86,
    arguments: served_pc!(
        "vhost-user-blk-pci,chardev=disk,num-queues=1,disable-legacy=on,iommu_platform=on,romfile=";
        "intel-iommu,intremap=on"
    ),
    code: GOOD,
    said: [UNSNOOPED, RECORDED, REMAPPED, INTERRUPTED, MOVED, POOLED_UNSNOOPED],
    firmware: Firmware::Own,
    traced: &["vtd_inv_desc*"],
    kinds: vtd_kinds!(),
};

/// A machine whose disk is a separate process and has a TLB.
pub(super) const VHOST_ATS: Guest = Guest {
    name: "x86-vhost-ats",
    step: "demo x86-vhost-ats",
    program: "qemu-system-x86_64",
    variable: "PORTOLAN_QEMU_X86",
    release: Release::Any,
    target: X86,
    arguments: served_pc!(
        "pcie-root-port,id=root,chassis=1,slot=1",
        "vhost-user-blk-pci,bus=root,chardev=disk,num-queues=1,disable-legacy=on,iommu_platform=on,ats=on,romfile=";
        "intel-iommu,intremap=on,device-iotlb=on"
    ),
    code: GOOD,
    said: [UNSNOOPED, RECORDED, REMAPPED, INTERRUPTED, MOVED_BY_TLB, POOLED_UNSNOOPED],
    firmware: Firmware::Own,
    traced: &["vtd_inv_desc*"],
    kinds: vtd_kinds!(DEVICE_TLB),
};

/// A board with an SMMUv3.
pub const SMMU: Guest = Guest {
    name: "aarch64",
    step: "demo aarch64",
    program: "qemu-system-aarch64",
    variable: "PORTOLAN_QEMU_ARM",
    release: Release::Any,
    target: ARM,
    arguments: board!("virt,iommu=smmuv3"),
    code: GOOD,
    said: [UNSNOOPED, RECORDED, INTERRUPTED, MOVED, POOLED_UNSNOOPED, &[]],
    firmware: Firmware::Own,
    traced: &["smmuv3_cmdq_opcode"],
    kinds: &[
        kinds(&["CFGI_STE"], "SMMU_CMD_CFGI_STE"),
        kinds(&["CFGI_STE_RANGE"], "SMMU_CMD_CFGI_STE_RANGE"),
        kinds(&["CFGI_CD"], "SMMU_CMD_CFGI_CD"),
        kinds(&["CFGI_CD_ALL"], "SMMU_CMD_CFGI_CD_ALL"),
        kinds(&["TLBI_NH_ASID"], "SMMU_CMD_TLBI_NH_ASID"),
        kinds(&["TLBI_NH_VA"], "SMMU_CMD_TLBI_NH_VA"),
        kinds(&["TLBI_NSNH_ALL"], "SMMU_CMD_TLBI_NSNH_ALL"),
        kinds(&["SYNC"], "SMMU_CMD_SYNC"),
    ],
};

/// A board with a RISC-V IOMMU.
pub(super) const RISCV_SYSTEM: Guest = Guest {
    name: "riscv",
    step: "demo riscv",
    program: "qemu-system-riscv64",
    variable: "PORTOLAN_QEMU_RISCV",
    release: Release::Ten,
    target: RISCV,
    arguments: riscv!("virt,iommu-sys=on"),
    code: GOOD,
    said: [REFUSED_RINGS, RECORDED, RECORDED_REMAPPED, INTERRUPTED_UNMAPPED, MOVED, POOLED],
    firmware: Firmware::Own,
    traced: &["riscv_iommu_cmd"],
    kinds: &[
        words(&["IOFENCE.C"], 0x7ff, 0x402),
        words(&["IOFENCE.C (fence)", "IOFENCE.C (replaced)"], 0x7ff, 2),
        words(&["IODIR.INVAL_DDT"], 1 << 33 | 0x7ff, 1 << 33 | 3),
        words(&["IODIR.INVAL_DDT (all)"], 1 << 33 | 0x7ff, 3),
        words(&["IOTINVAL.VMA"], 0x7ff, 0x401),
        words(&["IOTINVAL.VMA (context)"], 1 << 32 | 0x7ff, 1 << 32 | 1),
        words(&["IOTINVAL.VMA (guest)"], 3 << 32 | 0x7ff, 2 << 32 | 1),
        words(&["IOTINVAL.VMA (all)"], 3 << 32 | 0x7ff, 1),
        words(&["IOTINVAL.GVMA"], 0x7ff, 0x481),
        words(&["IOTINVAL.GVMA (context)"], 1 << 33 | 0x7ff, 1 << 33 | 0x81),
        words(&["IOTINVAL.GVMA (all)"], 1 << 33 | 0x7ff, 0x81),
    ],
};

/// A PC with AMD-Vi.
pub(super) const AMD: Guest = Guest {
    name: "x86-amd",
    step: "demo x86-amd",
    program: "qemu-system-x86_64",
    variable: "PORTOLAN_QEMU_X86",
    release: Release::Any,
    target: X86,
    // With `pt=on`, its default, QEMU 10 lets devices past the unit.
    arguments: pc!("amd-iommu,pt=off,intremap=on"),
    code: GOOD,
    // Its event log stays empty.
    said: [RINGS, REFUSED, REMAPPED, MOVED_STRICTLY, POOLED_UNSNOOPED, &[]],
    firmware: Firmware::Own,
    traced: &["amdvi_*inval", "amdvi_completion_wait"],
    kinds: &[
        kinds(
            &["COMPLETION_WAIT", "COMPLETION_WAIT (fence)", "COMPLETION_WAIT (replaced)"],
            "amdvi_completion_wait",
        ),
        kinds(&["INVALIDATE_DEVTAB_ENTRY"], "amdvi_devtab_inval"),
        kinds(&["INVALIDATE_IOMMU_PAGES", "INVALIDATE_IOMMU_PAGES (domain)"], "amdvi_pages_inval"),
        kinds(&["INVALIDATE_IOMMU_ALL"], "amdvi_all_inval"),
        kinds(&["INVALIDATE_INTERRUPT_TABLE"], "amdvi_intr_inval"),
    ],
};

/// Machines whose kernel moves data behind an IOMMU.
const GUESTS: &[Guest] = &[
    VTD,
    Guest {
        name: "x86-vtd-10",
        step: "demo x86-vtd-10",
        release: Release::Ten,
        // It records the interrupts that it refuses, as older releases do not.
        said: [UNSNOOPED, RECORDED, RECORDED_REMAPPED, INTERRUPTED, MOVED, POOLED_UNSNOOPED],
        ..VTD
    },
    VHOST,
    VHOST_ATS,
    AMD,
    Guest {
        name: "x86-virtio",
        step: "demo x86-virtio",
        program: "qemu-system-x86_64",
        variable: "PORTOLAN_QEMU_X86",
        release: Release::Any,
        target: X86,
        arguments: pc!("virtio-iommu-pci,romfile="),
        code: GOOD,
        said: [RINGS, RECORDED, MOVED_STRICTLY, POOLED_UNSNOOPED, &[], &[]],
        firmware: Firmware::Own,
        traced: &[
            "virtio_iommu_attach",
            "virtio_iommu_detach",
            "virtio_iommu_map",
            "virtio_iommu_unmap",
        ],
        kinds: &[
            kinds(&["ATTACH"], "virtio_iommu_attach"),
            kinds(&["DETACH"], "virtio_iommu_detach"),
            kinds(&["MAP"], "virtio_iommu_map"),
            kinds(&["UNMAP"], "virtio_iommu_unmap"),
        ],
    },
    SMMU,
    RISCV_SYSTEM,
    // Its node in the tree has neither wires nor a way for messages of devices.
    Guest {
        name: "riscv-pci",
        step: "demo riscv-pci",
        arguments: riscv!("virt", "riscv-iommu-pci"),
        said: [REFUSED_RINGS, RECORDED, MOVED, POOLED, &[], &[]],
        ..RISCV_SYSTEM
    },
];
