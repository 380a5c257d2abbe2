//! The machines on which the kernel runs.

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
            "-M", "q35,kernel-irqchip=off", "-accel", "tcg", "-cpu", "max", "-m", "256",
            "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-serial", "stdio",
            "-device", "isa-debug-exit,iobase=0xf4,iosize=4",
            $("-device", $iommu,)*
            "-device", "virtio-blk-pci,drive=disk,disable-legacy=on,iommu_platform=on,romfile=",
            "-device", "edu",
        ]
    };
}

const fn kinds(ours: &'static [&'static str], event: &'static str) -> Kinds {
    Kinds { ours, event }
}

/// All of them.
pub const GUESTS: &[Guest] = &[Guest {
    name: "x86-vtd",
    step: "demo x86-vtd",
    program: "qemu-system-x86_64",
    variable: "PORTOLAN_QEMU_X86",
    target: X86,
    arguments: pc!("intel-iommu,intremap=off"),
    good: 33,
    traced: &["vtd_inv_desc*"],
    kinds: &[
        kinds(&["cc_inv_dsc (global)"], "vtd_inv_desc_cc_global"),
        kinds(&["cc_inv_dsc (device)"], "vtd_inv_desc_cc_devices"),
        kinds(&["iotlb_inv_dsc (global)"], "vtd_inv_desc_iotlb_global"),
        kinds(&["iotlb_inv_dsc (domain)"], "vtd_inv_desc_iotlb_domain"),
        kinds(&["iotlb_inv_dsc (pages)"], "vtd_inv_desc_iotlb_pages"),
        kinds(
            &["inv_wait_dsc", "inv_wait_dsc (replaced)"],
            "vtd_inv_desc_wait_sw",
        ),
    ],
}];
