//! The machines on which the kernel runs.

use crate::cross;

/// What the kernel calls some commands, and QEMU's events for as many.
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
    /// Bits of the first number in it, and what they are, where one event is for all commands.
    pub word: Option<(u64, u64)>,
}

/// Releases of QEMU.
#[derive(Clone, Copy)]
pub enum Release {
    /// The distribution's will do.
    Any,
    /// From 10.0 on.
    Ten,
}

/// One machine.
pub struct Guest {
    /// Its name in commands.
    pub name: &'static str,
    /// Its name as a step of `cargo xtask test`.
    pub step: &'static str,
    /// QEMU's program, and the variable that names another one.
    pub program: &'static str,
    pub variable: &'static str,
    /// Which releases have the machine.
    pub release: Release,
    /// Rust's target.
    pub target: &'static str,
    /// What the machine consists of, but for the kernel and the disk's image.
    pub arguments: &'static [&'static str],
    /// The kernel's exit code.
    pub code: i32,
    /// How lines of the console have to begin, in this order: one list after the other.
    pub said: [&'static [&'static str]; 4],
    /// ACPI tables that the machine has beside its own: signatures, and what comes after the header.
    pub tables: &'static [(&'static str, &'static [u8])],
    /// Events to be traced.
    pub traced: &'static [&'static str],
    /// What is counted; nothing is where no device does DMA, and then the disks stay as they are.
    pub kinds: &'static [Kinds],
}

const X86: &str = "x86_64-unknown-linux-gnu";
pub const RISCV: &str = "riscv64gc-unknown-none-elf";

/// Where a process of its own serves the disk, if one does.
pub const SOCKET: &str = "socket,id=disk,path=disk.sock";

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

/// A PC whose disk is the device `$device`, in a process of its own that has the machine's memory.
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

/// How the kernel ends: well, and without DMA.
const GOOD: i32 = 33;
const WITHOUT_DMA: i32 = 37;

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

/// Once a machine's QEMU has them, they are to be shown (`docs/demo.md`).
const NO_PAGE_FAULTS: &str = "page faults: Absent";

/// What the kernel says where the unit records what it refuses.
const RECORDED: &[&str] = &[
    NO_PAGE_FAULTS,
    "not opened: refused, Blocked",
    "mapped at ",
    "taken back: refused, NotMapped",
];

/// And where it does not.
const REFUSED: &[&str] = &[
    NO_PAGE_FAULTS,
    "not opened: refused",
    "mapped at ",
    "taken back: refused",
];

/// What it says where interrupts are remapped.
const REMAPPED: &[&str] = &[
    "interrupt: arrived",
    "another device's interrupt: refused",
    "an interrupt given back: refused",
];

/// And where the unit records what it refuses of them.
const RECORDED_REMAPPED: &[&str] = &[
    "interrupt: arrived",
    "another device's interrupt: refused, Interrupt",
    "an interrupt given back: refused, Interrupt",
];

/// And where the unit raises one of its own.
const INTERRUPTED: &[&str] = &["fault, by interrupt: Blocked"];

/// What the kernel says where the disks' data is moved under each policy.
const MOVED: &[&str] = &[
    "Strict, Untrusted: 192 requests",
    "Lazy, Trusted: 192 requests",
    "NVMe on 2 CPUs, Strict, Untrusted: 192 requests",
    "NVMe on 2 CPUs, Deferred, Untrusted: 192 requests",
    "NVMe on 2 CPUs, Lazy, Trusted: 192 requests",
];

/// And with a disk that keeps translations.
const MOVED_BY_TLB: &[&str] = &[
    "the disk has a TLB of its own",
    "Strict, Untrusted: 192 requests",
    "Lazy, Trusted: 192 requests",
    "NVMe on 2 CPUs, Lazy, Trusted: 192 requests",
];

/// And where a lazy one is refused: a hypervisor follows the tables.
const MOVED_STRICTLY: &[&str] = &[
    "Strict, Untrusted: 192 requests",
    "Strict, Trusted: 192 requests",
    "NVMe on 2 CPUs, Strict, Untrusted: 192 requests",
    "NVMe on 2 CPUs, Deferred, Untrusted: 192 requests",
    "NVMe on 2 CPUs, Strict, Trusted: 192 requests",
];

/// What it says where it goes on without DMA.
const GOES_ON: &str = "2 CPUs go on";

/// A DMAR table, behind its header, of a unit at `base` that says to have so many bytes, with a scope
/// that names nothing.
const fn dmar(base: u64, bytes: u8) -> [u8; 36] {
    let mut table = [0; 36];
    // Addresses of 48 bits, interrupts remapped.
    (table[0], table[1]) = (47, 1);
    (table[14], table[16]) = (bytes, 0);
    let base = base.to_le_bytes();
    let mut at = 0;
    while at < base.len() {
        table[20 + at] = base[at];
        at += 1;
    }
    // A function, of 8 bytes: 7f:1f.7.
    (table[28], table[29], table[33], table[34], table[35]) = (1, 8, 0x7f, 0x1f, 7);
    table
}

/// Where no memory is; in the kernel; where nothing answers; and of a unit without a length.
const NOWHERE: [u8; 36] = dmar(0x000f_ffff_ffff_f000, 24);
const IN_THE_KERNEL: [u8; 36] = dmar(0x10_0000, 24);
const SILENT: [u8; 36] = dmar(0xfed9_0000, 24);
const ENDLESS: [u8; 36] = dmar(0xfed9_0000, 0);

/// Two units: one that is there, with the scope that names nothing, and one for all functions where
/// nothing answers.
const HALF: [u8; 52] = {
    let (one, other) = (dmar(0xfed9_0000, 24), dmar(0xfeda_0000, 16));
    let mut table = [0; 52];
    let mut at = 0;
    while at < table.len() {
        table[at] = if at < 36 { one[at] } else { other[at - 24] };
        at += 1;
    }
    table[36 + 4] = 1;
    table
};

/// A PC whose kernel goes on without DMA.
const fn without_dma(
    [name, step]: [&'static str; 2],
    arguments: &'static [&'static str],
    tables: &'static [(&'static str, &'static [u8])],
    said: &'static [&'static str],
) -> Guest {
    Guest {
        name,
        step,
        program: "qemu-system-x86_64",
        variable: "PORTOLAN_QEMU_X86",
        release: Release::Any,
        target: X86,
        arguments,
        code: WITHOUT_DMA,
        said: [said, &[], &[], &[]],
        tables,
        traced: &[],
        kinds: &[],
    }
}

/// What the driver of VT-d counts.
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

/// And a device with a TLB of its own.
const DEVICE_TLB: Kinds = kinds(&["dev_tlb_inv_dsc"], "desc type device high");

/// All of them.
pub const GUESTS: &[Guest] = &[
    Guest {
        name: "x86-vtd",
        step: "demo x86-vtd",
        program: "qemu-system-x86_64",
        variable: "PORTOLAN_QEMU_X86",
        release: Release::Any,
        target: X86,
        arguments: pc!("intel-iommu,intremap=on"),
        code: GOOD,
        said: [RECORDED, REMAPPED, INTERRUPTED, MOVED],
        tables: &[],
        traced: &["vtd_inv_desc*"],
        kinds: vtd_kinds!(),
    },
    Guest {
        name: "x86-vhost",
        step: "demo x86-vhost",
        program: "qemu-system-x86_64",
        variable: "PORTOLAN_QEMU_X86",
        release: Release::Any,
        target: X86,
        arguments: served_pc!(
            "vhost-user-blk-pci,chardev=disk,disable-legacy=on,iommu_platform=on,romfile=";
            "intel-iommu,intremap=on"
        ),
        code: GOOD,
        said: [RECORDED, REMAPPED, INTERRUPTED, MOVED],
        tables: &[],
        traced: &["vtd_inv_desc*"],
        kinds: vtd_kinds!(),
    },
    Guest {
        name: "x86-vhost-ats",
        step: "demo x86-vhost-ats",
        program: "qemu-system-x86_64",
        variable: "PORTOLAN_QEMU_X86",
        release: Release::Any,
        target: X86,
        arguments: served_pc!(
            "pcie-root-port,id=root,chassis=1,slot=1",
            "vhost-user-blk-pci,bus=root,chardev=disk,disable-legacy=on,iommu_platform=on,ats=on,romfile=";
            "intel-iommu,intremap=on,device-iotlb=on"
        ),
        code: GOOD,
        said: [RECORDED, REMAPPED, INTERRUPTED, MOVED_BY_TLB],
        tables: &[],
        traced: &["vtd_inv_desc*"],
        kinds: vtd_kinds!(DEVICE_TLB),
    },
    Guest {
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
        said: [REFUSED, REMAPPED, MOVED_STRICTLY, &[]],
        tables: &[],
        traced: &["amdvi_*inval", "amdvi_completion_wait"],
        kinds: &[
            kinds(
                &[
                    "COMPLETION_WAIT",
                    "COMPLETION_WAIT (fence)",
                    "COMPLETION_WAIT (replaced)",
                ],
                "amdvi_completion_wait",
            ),
            kinds(&["INVALIDATE_DEVTAB_ENTRY"], "amdvi_devtab_inval"),
            kinds(
                &["INVALIDATE_IOMMU_PAGES", "INVALIDATE_IOMMU_PAGES (domain)"],
                "amdvi_pages_inval",
            ),
            kinds(&["INVALIDATE_IOMMU_ALL"], "amdvi_all_inval"),
            kinds(&["INVALIDATE_INTERRUPT_TABLE"], "amdvi_intr_inval"),
        ],
    },
    Guest {
        name: "x86-virtio",
        step: "demo x86-virtio",
        program: "qemu-system-x86_64",
        variable: "PORTOLAN_QEMU_X86",
        release: Release::Any,
        target: X86,
        arguments: pc!("virtio-iommu-pci,romfile="),
        code: GOOD,
        said: [RECORDED, MOVED_STRICTLY, &[], &[]],
        tables: &[],
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
    Guest {
        name: "aarch64",
        step: "demo aarch64",
        program: "qemu-system-aarch64",
        variable: "PORTOLAN_QEMU_ARM",
        release: Release::Any,
        target: cross::TARGET,
        arguments: board!("virt,iommu=smmuv3"),
        code: GOOD,
        said: [RECORDED, INTERRUPTED, MOVED, &[]],
        tables: &[],
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
    },
    without_dma(
        ["x86-none", "demo x86-none"],
        pc!(),
        &[],
        &[
            "no DMA: there is no DMAR, IORT, IVRS or VIOT table",
            GOES_ON,
        ],
    ),
    without_dma(
        ["x86-two", "demo x86-two"],
        pc!("intel-iommu,intremap=on"),
        &[("IVRS", &[0; 12])],
        &["no DMA: two tables describe units", GOES_ON],
    ),
    without_dma(
        ["x86-nowhere", "demo x86-nowhere"],
        pc!(),
        &[("DMAR", &NOWHERE)],
        &["no DMA: the registers at", GOES_ON],
    ),
    without_dma(
        ["x86-kernel", "demo x86-kernel"],
        pc!(),
        &[("DMAR", &IN_THE_KERNEL)],
        &["no DMA: ", GOES_ON],
    ),
    without_dma(
        ["x86-silent", "demo x86-silent"],
        pc!(),
        &[("DMAR", &SILENT)],
        &["no DMA: the unit at 0xfed90000: ", GOES_ON],
    ),
    without_dma(
        ["x86-half", "demo x86-half"],
        // Firmware makes its own tables, and of the DMAR only ours.
        pc!("intel-iommu,intremap=on"; ",acpi=off"),
        &[("DMAR", &HALF)],
        &["no DMA: the unit at 0xfeda0000: ", GOES_ON],
    ),
    without_dma(
        ["x86-endless", "demo x86-endless"],
        pc!(),
        &[("DMAR", &ENDLESS)],
        &["no DMA: ", GOES_ON],
    ),
    Guest {
        name: "aarch64-none",
        step: "demo aarch64-none",
        program: "qemu-system-aarch64",
        variable: "PORTOLAN_QEMU_ARM",
        release: Release::Any,
        target: cross::TARGET,
        arguments: board!("virt"),
        code: WITHOUT_DMA,
        said: [
            &["no DMA: firmware's table has no unit", GOES_ON],
            &[],
            &[],
            &[],
        ],
        tables: &[],
        traced: &[],
        kinds: &[],
    },
    Guest {
        name: "riscv",
        step: "demo riscv",
        program: "qemu-system-riscv64",
        variable: "PORTOLAN_QEMU_RISCV",
        release: Release::Ten,
        target: RISCV,
        arguments: riscv!("virt,iommu-sys=on"),
        code: GOOD,
        said: [RECORDED, RECORDED_REMAPPED, INTERRUPTED, MOVED],
        tables: &[],
        traced: &["riscv_iommu_cmd"],
        kinds: &[
            words(&["IOFENCE.C"], 0x7ff, 0x402),
            words(&["IOFENCE.C (fence)", "IOFENCE.C (replaced)"], 0x7ff, 2),
            words(&["IODIR.INVAL_DDT"], 1 << 33 | 0x7ff, 1 << 33 | 3),
            words(&["IODIR.INVAL_DDT (all)"], 1 << 33 | 0x7ff, 3),
            words(&["IOTINVAL.VMA"], 0x7ff, 0x401),
            words(&["IOTINVAL.VMA (context)"], 1 << 32 | 0x7ff, 1 << 32 | 1),
            words(&["IOTINVAL.VMA (all)"], 1 << 32 | 0x7ff, 1),
            words(&["IOTINVAL.GVMA"], 0x7ff, 0x481),
            words(
                &["IOTINVAL.GVMA (context)"],
                1 << 33 | 0x7ff,
                1 << 33 | 0x81,
            ),
            words(&["IOTINVAL.GVMA (all)"], 1 << 33 | 0x7ff, 0x81),
        ],
    },
    Guest {
        name: "riscv-none",
        step: "demo riscv-none",
        program: "qemu-system-riscv64",
        variable: "PORTOLAN_QEMU_RISCV",
        release: Release::Ten,
        target: RISCV,
        arguments: riscv!("virt"),
        code: WITHOUT_DMA,
        said: [
            &["no DMA: firmware's table has no unit", GOES_ON],
            &[],
            &[],
            &[],
        ],
        tables: &[],
        traced: &[],
        kinds: &[],
    },
];
