//! Architectures of guests: QEMU's program and machine, and the compiler of the guest's programs.

/// An architecture.
pub struct Architecture {
    /// QEMU's program, and the variable that names another.
    pub emulator: [&'static str; 2],
    /// QEMU's arguments for a board and its processor.
    pub board: [&'static str; 4],
    /// Name of the console.
    pub console: &'static str,
    /// Rust's name for static programs.
    pub target: &'static str,
    /// Flags of their compilation.
    pub flags: &'static str,
}

/// QEMU's arguments for any board: without devices, and with QEMU's standard output for a console.
pub const BARE: &[&str] = &[
    "-m",
    "512",
    "-smp",
    "2",
    "-nodefaults",
    "-no-user-config",
    "-display",
    "none",
    "-no-reboot",
    "-serial",
    "stdio",
];

/// A PC.
pub const X86: Architecture = Architecture {
    emulator: ["qemu-system-x86_64", "PORTOLAN_QEMU_X86"],
    board: ["-M", "q35,kernel-irqchip=off", "-cpu", "max"],
    console: "ttyS0",
    target: "x86_64-unknown-linux-gnu",
    flags: "-Ctarget-feature=+crt-static",
};

/// QEMU's own machine with an SMMUv3, and a GIC that keeps devices' interrupts apart. Programs are linked by Rust's own
/// linker and library, so that no other C compiler is needed.
pub const ARM: Architecture = Architecture {
    emulator: ["qemu-system-aarch64", "PORTOLAN_QEMU_ARM"],
    board: ["-M", "virt,iommu=smmuv3,gic-version=3", "-cpu", "cortex-a72"],
    console: "ttyAMA0",
    target: "aarch64-unknown-linux-musl",
    flags: "-Clinker=rust-lld -Clink-self-contained=yes",
};
