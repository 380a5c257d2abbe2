//! Units of AMD-Vi by the IVRS table.

use alloc::vec::Vec;

use portolan::addr::{PciFunction, StreamId};
use portolan::platform::Platform;

use super::{
    EnableError, Enabled, FirmwareMemory, Options, TopologyError, enable_all, enable_at, window,
};
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
    let units = table.units().map(|unit| unit.map_err(TopologyError::from));
    enable_all(units, |unit| {
        let window = window(unit.base, WINDOW)?;
        let capability = capability(platform, &unit)?;
        let mut config = Config::default();
        // What makes no sense is left out, and counted there.
        let _ = config.honour(&table, &unit);
        if options.reserved == FirmwareMemory::Refused {
            config.reserved = Reservations::default();
        }
        enable_at(platform, window, |registers, memory, clock| {
            AmdVi::enable(registers, memory, clock, capability, config)
        })
    })
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
