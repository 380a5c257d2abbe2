//! Machines without an IOMMU, where devices reach all memory, and machines whose IOMMU the kernel cannot use: it
//! continues without DMA.

use super::said::MOVED_DIRECTLY;
use super::{ARM, Firmware, GOOD, Guest, RISCV, Release, WITHOUT_DMA, X86};

/// The kernel's message if it continues without DMA.
const GOES_ON: &str = "2 CPUs go on";

/// A DMAR table after its header, with a unit at `base` that claims this length, and a scope that names nothing.
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

/// Units at an address without memory, in the kernel, and at an address where nothing answers; and
/// a unit without a length.
const NOWHERE: [u8; 36] = dmar(0x000f_ffff_ffff_f000, 24);
const IN_THE_KERNEL: [u8; 36] = dmar(0x10_0000, 24);
const SILENT: [u8; 36] = dmar(0xfed9_0000, 24);
const ENDLESS: [u8; 36] = dmar(0xfed9_0000, 0);

/// Two units: an existing one whose scope names nothing, and one for all functions that does not exist.
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
        said: [said, &[], &[], &[], &[], &[]],
        firmware: Firmware::Tables(tables),
        traced: &[],
        kinds: &[],
    }
}

/// The same machine, which has no IOMMU: its disks move their data all the same.
const fn without_iommu(guest: Guest) -> Guest {
    let [said, ..] = guest.said;
    Guest { code: GOOD, said: [said, MOVED_DIRECTLY, &[], &[], &[], &[]], ..guest }
}

/// The property `reg` of a node of a device tree: a base and a length of two cells each.
const fn registers(base: u64, bytes: u64) -> [u8; 16] {
    let (base, bytes) = (base.to_be_bytes(), bytes.to_be_bytes());
    let mut cells = [0; 16];
    let mut at = 0;
    while at < base.len() {
        (cells[at], cells[8 + at]) = (base[at], bytes[at]);
        at += 1;
    }
    cells
}

/// Registers of QEMU's platform device.
const UNIT: [u8; 16] = registers(0x0301_0000, 0x1000);

/// A board of RISC-V's whose kernel goes on without DMA.
const fn riscv(
    [name, step]: [&'static str; 2],
    arguments: &'static [&'static str],
    firmware: Firmware,
    said: &'static [&'static str],
) -> Guest {
    Guest {
        name,
        step,
        program: "qemu-system-riscv64",
        variable: "PORTOLAN_QEMU_RISCV",
        release: Release::Ten,
        target: RISCV,
        arguments,
        code: WITHOUT_DMA,
        said: [said, &[], &[], &[], &[], &[]],
        firmware,
        traced: &[],
        kinds: &[],
    }
}

/// All of them.
pub(super) const GUESTS: &[Guest] = &[
    without_iommu(without_dma(
        ["x86-none", "demo x86-none"],
        pc!(),
        &[],
        &["no IOMMU: there is no DMAR, IORT, IVRS, VIOT or RIMT table"],
    )),
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
        target: ARM,
        arguments: board!("virt"),
        code: GOOD,
        said: [&["no IOMMU: firmware's table has no unit"], MOVED_DIRECTLY, &[], &[], &[], &[]],
        firmware: Firmware::Own,
        traced: &[],
        kinds: &[],
    },
    without_iommu(riscv(
        ["riscv-none", "demo riscv-none"],
        riscv!("virt"),
        Firmware::Own,
        &["no IOMMU: firmware's table has no unit"],
    )),
    riscv(
        ["riscv-nowhere", "demo riscv-nowhere"],
        riscv!("virt,iommu-sys=on"),
        Firmware::Tree(&UNIT, &registers(0x000f_ffff_ffff_f000, 0x1000)),
        &["no DMA: the registers at", GOES_ON],
    ),
    riscv(
        ["riscv-kernel", "demo riscv-kernel"],
        riscv!("virt,iommu-sys=on"),
        Firmware::Tree(&UNIT, &registers(0x8020_0000, 0x1000)),
        &["no DMA: the unit at 0x80200000: ", GOES_ON],
    ),
    riscv(
        ["riscv-strange", "demo riscv-strange"],
        riscv!("virt,iommu-sys=on"),
        Firmware::Tree(&UNIT, &registers(0x1000_1000, 0x1000)),
        &["no DMA: the unit at 0x10001000: ", GOES_ON],
    ),
    riscv(
        ["riscv-endless", "demo riscv-endless"],
        riscv!("virt,iommu-sys=on"),
        Firmware::Tree(&UNIT, &registers(0x0301_0000, 0)),
        &["no DMA: the registers at 0x3010000", GOES_ON],
    ),
];
