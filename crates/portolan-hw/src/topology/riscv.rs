//! RISC-V IOMMUs, whichever table describes them.
//!
//! RISC-V IOMMU Architecture Specification, version 1.0, chapter "Memory-mapped register interface": a
//! function's registers are in its first window, which firmware or the kernel has placed and switched on.

use portolan::addr::{PciFunction, PhysRange};
use portolan::platform::Platform;

use super::{EnableError, Enabling, Outcome, enable_at};
use crate::riscv::{Config, Features, RiscvIommu, Signal};

/// Bytes of a unit's registers.
pub(super) const WINDOW: u64 = 0x1000;
/// Offset in configuration space of the first window's address.
const BASE: u16 = 0x10;
/// Bits of it: ports instead of memory; kind of memory; all that are not of the address.
const PORTS: u32 = 1;
const KIND: u32 = 3 << 1;
const KIND_64: u32 = 2 << 1;
const FLAGS: u32 = 0xf;

/// Address of the registers of a unit that is the PCI function `at`, on its bus.
pub(super) fn base(platform: &impl Platform, at: PciFunction) -> Result<u64, EnableError> {
    let none = EnableError::NoWindow { function: at };
    let low = platform.pci_config(at, BASE).ok_or(none)?;
    let high = match low & KIND {
        KIND_64 => platform.pci_config(at, BASE + 4).ok_or(none)?,
        _ => 0,
    };
    let base = u64::from(high) << 32 | u64::from(low & !FLAGS);
    match low & PORTS == 0 && base != 0 {
        true => Ok(base),
        false => Err(none),
    }
}

/// Takes over and enables the unit with registers at `window`. Where it has no wires, even if the
/// table names some, it does not tell of faults.
pub(super) fn enable<P: Platform>(
    by: &Enabling<'_, P>,
    window: PhysRange,
    mut config: Config,
) -> Outcome {
    enable_at(by, window, |registers, memory, clock| {
        if !RiscvIommu::<P>::can_signal(&registers, config.signal)? {
            config.signal = Signal::None;
        }
        let lg2 = Features::read(&registers)?.output_lg2;
        RiscvIommu::enable(registers, memory.below(lg2), clock, config)
    })
}
