//! RISC-V IOMMUs of a device tree: platform devices and PCI functions.
//!
//! Devicetree bindings `riscv,iommu` and `riscv,pci-iommu`.

use portolan::addr::{PciFunction, PhysAddr, PhysRange};
use portolan::platform::Platform;

use super::bus::Window;
use super::{Described, EnableError, Enabling, Unit, wires};
use crate::interrupt::Remapping;
use crate::riscv::{Config, Messages, Signal};
use crate::topology::{riscv, streams_lg2};

/// The registers of a unit that is the PCI function `at`.
pub(super) fn window(
    platform: &impl Platform,
    at: PciFunction,
    windows: &[Window],
) -> Result<PhysRange, EnableError> {
    let none = EnableError::NoWindow { function: at };
    let base = riscv::base(platform, at)?;
    let mut windows = windows.iter();
    let base = windows.find_map(|window| window.reached(base));
    super::window(PhysAddr::new(base.ok_or(none)?), riscv::WINDOW)
}

/// Settings of a unit by the tree.
pub(super) fn config<P>(
    described: &Described<'_>,
    unit: &Unit<'_>,
    by: &Enabling<'_, P>,
) -> Config {
    let mut config = Config::default();
    if let Some(last) = described.last_stream(unit.phandle) {
        config.streams_lg2 = streams_lg2(last);
    }
    if wires::has_any(&unit.node).is_some() {
        config.signal = Signal::Wired;
    }
    let messages = |wanted: Remapping| {
        let mut messages = Messages::new(described.files(unit)?, by.description);
        messages.lg2_entries = wanted.lg2_entries;
        Some(messages)
    };
    config.interrupts = by.options.interrupts.and_then(messages);
    config
}
