//! The machines on which the kernel runs.

use crate::cross;

/// What the kernel calls some commands, and QEMU's events for as many.
pub struct Kinds {
    /// The kernel's names.
    pub ours: &'static [&'static str],
    /// The event.
    pub event: &'static str,
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
    /// Rust's target.
    pub target: &'static str,
    /// What the machine consists of, but for the kernel and the disk's image.
    pub arguments: &'static [&'static str],
    /// The exit code of a kernel that ends well.
    pub good: i32,
    /// How lines of the console have to begin, in this order: one list after the other.
    pub said: &'static [&'static [&'static str]],
    /// Events to be traced.
    pub traced: &'static [&'static str],
    /// What is counted.
    pub kinds: &'static [Kinds],
}

const X86: &str = "x86_64-unknown-linux-gnu";

/// A PC with a disk and an `edu` device behind `$iommu`.
macro_rules! pc {
    ($($iommu:literal),*) => {
        &[
            "-M", "q35,kernel-irqchip=off", "-accel", "tcg", "-cpu", "max", "-m", "256", "-smp", "2",
            "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-serial", "stdio",
            "-device", "isa-debug-exit,iobase=0xf4,iosize=4",
            $("-device", $iommu,)*
            "-device", "virtio-blk-pci,drive=disk,disable-legacy=on,iommu_platform=on,romfile=",
            "-device", "nvme,serial=1,drive=flash",
            "-device", "edu",
        ]
    };
}

/// A board of QEMU's with an SMMU, and the host for a console.
const BOARD: &[&str] = &[
    "-M",
    "virt,iommu=smmuv3",
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
];

const fn kinds(ours: &'static [&'static str], event: &'static str) -> Kinds {
    Kinds { ours, event }
}

/// Once a machine's QEMU has them, they are to be shown (`docs/demo.md`).
const NO_PAGE_FAULTS: &str = "page faults: the IOMMU has neither stalls nor requests";

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

/// What it says where interrupts are remapped, and the unit raises one of its own.
const INTERRUPTED: &[&str] = &[
    "interrupt: arrived",
    "another device's interrupt: refused",
    "an interrupt given back: refused",
    "fault, by interrupt: Blocked",
];

/// What the kernel says where the disks' data is moved under each policy.
const MOVED: &[&str] = &[
    "Strict, Untrusted: 768 requests",
    "Lazy, Trusted: 768 requests",
    "NVMe on 2 CPUs, Strict, Untrusted: 384 requests",
    "NVMe on 2 CPUs, Deferred, Untrusted: 384 requests",
    "NVMe on 2 CPUs, Lazy, Trusted: 384 requests",
];

/// And where a lazy one is refused: a hypervisor follows the tables.
const MOVED_STRICTLY: &[&str] = &[
    "Strict, Untrusted: 768 requests",
    "Strict, Trusted: 768 requests",
    "NVMe on 2 CPUs, Strict, Untrusted: 384 requests",
    "NVMe on 2 CPUs, Deferred, Untrusted: 384 requests",
    "NVMe on 2 CPUs, Strict, Trusted: 384 requests",
];

/// All of them.
pub const GUESTS: &[Guest] = &[
    Guest {
        name: "x86-vtd",
        step: "demo x86-vtd",
        program: "qemu-system-x86_64",
        variable: "PORTOLAN_QEMU_X86",
        target: X86,
        arguments: pc!("intel-iommu,intremap=on"),
        good: 33,
        said: &[RECORDED, INTERRUPTED, MOVED],
        traced: &["vtd_inv_desc*"],
        kinds: &[
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
        ],
    },
    Guest {
        name: "x86-amd",
        step: "demo x86-amd",
        program: "qemu-system-x86_64",
        variable: "PORTOLAN_QEMU_X86",
        target: X86,
        // With `pt=on`, its default, QEMU 10 lets devices past the unit.
        arguments: pc!("amd-iommu,pt=off"),
        good: 33,
        // Its event log stays empty.
        said: &[REFUSED, MOVED_STRICTLY],
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
        ],
    },
    Guest {
        name: "x86-virtio",
        step: "demo x86-virtio",
        program: "qemu-system-x86_64",
        variable: "PORTOLAN_QEMU_X86",
        target: X86,
        arguments: pc!("virtio-iommu-pci,romfile="),
        good: 33,
        said: &[RECORDED, MOVED_STRICTLY],
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
        target: cross::TARGET,
        arguments: BOARD,
        good: 33,
        said: &[RECORDED, MOVED],
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
];
