//! RISC-V IOMMUs of a device tree: platform devices and PCI functions.
//!
//! Devicetree bindings `riscv,iommu` and `riscv,pci-iommu`. RISC-V IOMMU Architecture Specification,
//! version 1.0, chapter "Memory-mapped register interface": a function's registers are in its first
//! window, which firmware or the kernel has placed and switched on.

use portolan::addr::{PciFunction, PhysAddr, PhysRange};
use portolan::platform::Platform;

use super::bus::Window;
use super::{Described, EnableError, Enabled, Options, Unit, enable_at, wires};
use crate::interrupt::Remapping;
use crate::riscv::{Config, Messages, RiscvIommu, Signal};

/// Bytes of a unit's registers.
const WINDOW: u64 = 0x1000;
/// Offset in configuration space of the first window's address.
const BASE: u16 = 0x10;
/// Bits of it: ports instead of memory; what kind of memory; not of the address.
const PORTS: u32 = 1;
const KIND: u32 = 3 << 1;
const KIND_64: u32 = 2 << 1;
const FLAGS: u32 = 0xf;

/// The registers of a unit that is the PCI function `at`.
pub(super) fn window(
    platform: &impl Platform,
    at: PciFunction,
    windows: &[Window],
) -> Result<PhysRange, EnableError> {
    let none = EnableError::NoWindow { function: at };
    let low = platform.pci_config(at, BASE).ok_or(none)?;
    let high = match low & KIND {
        KIND_64 => platform.pci_config(at, BASE + 4).ok_or(none)?,
        _ => 0,
    };
    let base = u64::from(high) << 32 | u64::from(low & !FLAGS);
    if low & PORTS != 0 || base == 0 {
        return Err(none);
    }
    let mut windows = windows.iter();
    let base = windows
        .find_map(|window| window.reached(base))
        .ok_or(none)?;
    super::window(PhysAddr::new(base), WINDOW)
}

/// How the tree wants a unit to be driven.
pub(super) fn config(described: &Described<'_>, unit: &Unit<'_>, options: Options) -> Config {
    let mut config = Config::default();
    if let Some(last) = described.last_stream(unit.phandle) {
        config.streams_lg2 = u32::BITS - last.leading_zeros();
    }
    if wires::has_any(&unit.node).is_some() {
        config.signal = Signal::Wired;
    }
    let messages = |wanted: Remapping| {
        let mut messages = Messages::new(described.files(unit)?);
        messages.lg2_entries = wanted.lg2_entries;
        Some(messages)
    };
    config.interrupts = options.interrupts.and_then(messages);
    config
}

/// Takes over and enables the unit with registers at `window`. Where it has no wires, whatever the tree
/// says, it tells nobody of faults.
pub(super) fn enable<P: Platform>(
    platform: &P,
    window: PhysRange,
    mut config: Config,
) -> Result<Enabled, EnableError> {
    enable_at(platform, window, |registers, memory, clock| {
        if !RiscvIommu::<_, portolan::platform::RawMemory<P>, P>::can_signal(
            &registers,
            config.signal,
        )? {
            config.signal = Signal::None;
        }
        RiscvIommu::enable(registers, memory, clock, config)
    })
}
