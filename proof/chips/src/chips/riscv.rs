//! RISC-V: no log prints the register `capabilities`, and no data sheet of a chip that is sold has it. The
//! open design of Zero-Day Labs runs beside CVA6 cores on a Genesys 2 (an FPGA); its source has the
//! register, whose bits follow the design's parameters.
//!
//! Not published: how long queues may be.

use super::RealChip;
use crate::riscv::RiscvIdentification;

/// Version 1.0, Sv39 and Sv39x4, physical addresses of 56 bits, PASIDs of 8, 17 and 20 bits.
const FIXED: u64 = 0x10 | 1 << 9 | 1 << 17 | 56 << 32 | 0b111 << 38;
/// `IGS`: interrupts by wires, or by wires and messages.
const WIRES: u64 = 1 << 28;
const BOTH: u64 = 2 << 28;
/// `MSI_FLAT`, `MSI_MRIF`, `HPM`, `DBG`.
const MESSAGE_TABLES: u64 = 1 << 22;
const MESSAGE_FILES: u64 = 1 << 23;
const COUNTERS: u64 = 1 << 30;
const DEBUG: u64 = 1 << 31;

const SOURCE: &str = "https://github.com/zero-day-labs/riscv-iommu, rv_iommu_regmap.sv";

const fn chip(name: &'static str, more: u64, counters: u8) -> RealChip<RiscvIdentification> {
    RealChip {
        name,
        source: SOURCE,
        identification: RiscvIdentification {
            capabilities: FIXED | more,
            levels: 0b1110,
            queue_lg2: 15,
            counters,
        },
    }
}

/// The narrowest: tables of three levels, interrupts by wires.
pub const ZERO_DAY: RealChip<RiscvIdentification> =
    chip("Zero-Day Labs, as its parameters are by default", WIRES, 0);

impl Default for RiscvIdentification {
    /// The narrowest published unit, [`ZERO_DAY`].
    fn default() -> Self {
        ZERO_DAY.identification
    }
}

/// Units by the RISC-V specification.
pub const RISCV: &[RealChip<RiscvIdentification>] = &[
    ZERO_DAY,
    chip(
        "Zero-Day Labs, with all that its parameters offer",
        BOTH | MESSAGE_TABLES | MESSAGE_FILES | COUNTERS | DEBUG,
        31,
    ),
];
