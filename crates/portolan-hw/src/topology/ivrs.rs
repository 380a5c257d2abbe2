//! Units of AMD-Vi by the IVRS table.

use alloc::sync::Arc;
use alloc::vec::Vec;

use portolan::addr::{PciFunction, PhysRange, StreamId};
use portolan::platform::Platform;

use super::{EnableError, Enabled, FirmwareMemory, Options, TopologyError, memory};
use crate::amd::{AmdVi, Capability, Config, NotAnIommu};
use crate::firmware::ivrs::{Ivhd, Ivrs};
use crate::firmware::reservations::Reservations;

/// Bytes of a unit's registers without its performance counters.
const WINDOW: u64 = 0x4000;

/// The capability block of `unit`, in the configuration space of its own PCI function.
fn capability(platform: &impl Platform, unit: &Ivhd<'_>) -> Result<Capability, EnableError> {
    let function = PciFunction {
        segment: unit.segment,
        requester: unit.requester,
    };
    let word = |number: u16| {
        let offset = unit.capability.checked_add(4 * number)?;
        platform.pci_config(function, offset)
    };
    // An absent function reads as all ones.
    let words = [0, 1, 2, 3, 4].map(|number| word(number).unwrap_or(u32::MAX));
    let no = |error: NotAnIommu| EnableError::NoCapability { function, error };
    Capability::parse(words).map_err(no)
}

/// Takes over and enables all units of `table`.
pub(super) fn enable<P: Platform>(
    table: &[u8],
    platform: &P,
    options: Options,
) -> Result<Vec<Enabled>, EnableError> {
    let table = Ivrs::parse(table)?;
    let mut enabled = Vec::new();
    for unit in table.units() {
        let unit = unit?;
        let at = PhysRange::page(unit.base, portolan::addr::PageSize::of_lg2(0));
        let window = PhysRange::from_len(unit.base, WINDOW);
        let window = window.ok_or(EnableError::NoRegisters { window: at })?;
        let capability = capability(platform, &unit)?;
        let registers = platform.registers(window);
        let registers = registers.ok_or(EnableError::NoRegisters { window })?;
        let mut config = Config::default();
        // What makes no sense is left out, and counted there.
        let _ = config.honour(&table, &unit);
        if options.reserved == FirmwareMemory::Refused {
            config.reserved = Reservations::default();
        }
        let memory = memory::for_driver(platform);
        let unit = AmdVi::enable(registers, memory, platform.clone(), capability, config);
        let unit = unit.map_err(|error| EnableError::Iommu { window, error })?;
        enabled.try_reserve(1).map_err(|_| EnableError::Memory)?;
        enabled.push(Arc::new(unit) as Enabled);
    }
    Ok(enabled)
}

/// The number of the unit of `function`, and its stream: that of the requester that its accesses
/// carry.
pub(super) fn find(
    table: &[u8],
    function: PciFunction,
) -> Result<Option<(usize, StreamId)>, TopologyError> {
    let table = Ivrs::parse(table)?;
    let Some((unit, device)) = table.device(function.segment, function.requester)? else {
        return Ok(None);
    };
    for (number, other) in table.units().enumerate() {
        if other?.offset == unit.offset {
            let requester = device.alias.unwrap_or(function.requester);
            return Ok(Some((number, requester.stream())));
        }
    }
    Ok(None)
}
