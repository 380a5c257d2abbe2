//! Units of AMD-Vi by the IVRS table.

use alloc::vec::Vec;

use portolan::addr::{PciFunction, PhysRange, StreamId};
use portolan::platform::Platform;

use super::claim::{Claim, ClaimUid};
use super::madt::IoApics;
use super::survey::{Place, Survey, UnitKind};
use super::{
    EnableError, Enabling, FirmwareMemory, Outcome, TopologyError, enable_all, enable_at, window,
};
use crate::amd::{self, AmdVi, Capability, Config, NotAnIommu};
use crate::reservations::{Reservations, Streams};
use portolan_tables::ivrs::{Entry, EntryKind, Ivhd, Ivrs, Level, SpecialKind};

/// Bit of the attributes of blocks from type 11h on: host tables are not walked (HATDis; 48882, section 5.2.2.1).
const NO_HOST_TABLES: u32 = 1;
/// Bytes of a unit's registers without its performance counters.
const WINDOW: u64 = 0x4000;

/// The capability block of `unit`, in the configuration space of its own PCI function.
fn capability(platform: &impl Platform, unit: &Ivhd<'_>) -> Result<Capability, EnableError> {
    let function = own(unit);
    let word = |number: u16| {
        let offset = unit.capability.checked_add(4 * number)?;
        platform.pci_config(function, offset)
    };
    // An absent function reads as all ones.
    let words = [0, 1, 2, 3, 4].map(|number| word(number).unwrap_or(u32::MAX));
    let no = |error: NotAnIommu| EnableError::NoCapability { function, error };
    Capability::parse(words).map_err(no)
}

/// The reason for which a unit is not enabled that its block tells already.
fn refused(unit: &Ivhd<'_>, window: PhysRange) -> Option<EnableError> {
    let no_tables = unit.level > Level::Basic && unit.attributes & NO_HOST_TABLES != 0;
    no_tables.then_some(EnableError::NoHostTables { window })
}

/// The narrower of two widths that may both be unknown.
fn narrower(one: Option<u32>, other: Option<u32>) -> Option<u32> {
    one.into_iter().chain(other).min()
}

/// The I/O APICs that the table names; `None` if it gives two the same number, so that their
/// messages cannot be told apart.
pub(super) fn io_apics(table: &[u8]) -> Option<IoApics> {
    let mut found = IoApics::default();
    let table = Ivrs::parse(table).ok()?;
    let entries = table.units().flatten().flat_map(|unit| unit.entries()).flatten();
    for entry in entries {
        let EntryKind::Special(special) = entry.kind else {
            continue;
        };
        if special.kind == SpecialKind::IoApic && !found.insert(special.handle) {
            return None;
        }
    }
    Some(found)
}

/// Number of units in `table`, damaged ones included.
pub(super) fn count(table: &[u8]) -> Result<usize, TopologyError> {
    Ok(Ivrs::parse(table)?.units().count())
}

/// Takes over and enables all units of `table`.
pub(super) fn enable<P: Platform>(
    table: &[u8],
    by: &Enabling<'_, P>,
) -> Result<Vec<Outcome>, EnableError> {
    let table = Ivrs::parse(table)?;
    let units = table.units().map(|unit| unit.map_err(TopologyError::from));
    enable_all(units, by.survey, |unit, added| {
        let window = window(unit.base, WINDOW)?;
        refused(&unit, window).map_or(Ok(()), Err)?;
        let mut capability = capability(by.platform, &unit)?;
        capability.physical_lg2 = narrower(capability.physical_lg2, table.physical_lg2());
        capability.virtual_lg2 = narrower(capability.virtual_lg2, table.virtual_lg2());
        let mut config = Config {
            interrupts: by.options.interrupts,
            combining: by.options.combining,
            ..Config::default()
        };
        config.reserved.believe(by.description);
        // What makes no sense is left out, and counted there.
        let _ = config.honour(&table, &unit);
        if by.options.reserved == FirmwareMemory::Refused {
            config.reserved = Reservations::default();
            config.reserved.believe(by.description);
        }
        let _ = config.reserved.read(added.iter().copied().map(Ok));
        enable_at(by, window, |registers, memory, clock| {
            let memory = match capability.physical_lg2 {
                Some(lg2) => memory.below(lg2),
                None => memory,
            };
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

/// The unit's own PCI function.
pub(super) fn function(table: &[u8], unit: usize) -> Result<Option<PciFunction>, TopologyError> {
    let unit = Ivrs::parse(table)?.units().nth(unit).transpose()?;
    Ok(unit.as_ref().map(own))
}

fn own(unit: &Ivhd<'_>) -> PciFunction {
    PciFunction { segment: unit.segment, requester: unit.requester }
}

/// Claim of an entry of `unit`.
fn claim(unit: &Ivhd<'_>, entry: &Entry<'_>) -> Claim {
    let (first, last) = (entry.devices.first(), entry.devices.last());
    let segment = unit.segment;
    match entry.kind {
        EntryKind::All => Claim::Remaining(segment),
        EntryKind::Named => {
            Claim::Range { segments: (segment, segment), first, last, stream: first.stream() }
        }
        EntryKind::Alias(alias) => Claim::Alias { segment, first, last, alias },
        EntryKind::Special(special) => match special.kind {
            SpecialKind::IoApic => Claim::IoApic(special.handle, Some(special.source)),
            SpecialKind::Timer => Claim::Timer(special.handle, Some(special.source)),
        },
        EntryKind::Acpi(device) => Claim::Acpi {
            hid: super::claim::name(device.hid),
            uid: ClaimUid::of(device.uid),
            stream: first.stream(),
        },
    }
}

/// Surveys the units of `table`, and the memory that functions go on using.
pub(super) fn survey(table: &[u8], into: &mut Survey) -> Result<(), TopologyError> {
    let parsed = Ivrs::parse(table)?;
    for unit in parsed.units() {
        let Some(unit) = into.described(UnitKind::AmdVi, unit.map_err(Into::into)) else {
            continue;
        };
        let place = Place::of(unit.base, WINDOW);
        let number = into.unit(UnitKind::AmdVi, place, Some(unit.segment));
        if let Place::Registers(window) = place {
            into.refuse(number, refused(&unit, window));
        }
        for entry in unit.entries() {
            if let Some(entry) = into.note(entry.map_err(Into::into)) {
                into.claim(number, claim(&unit, &entry));
            }
        }
        // A block may be for all functions of the segment: each of its units has it.
        let found = parsed.reserved(unit.segment, Streams::ALL);
        let its = found.filter(|found| found.is_ok() || number == 0);
        into.reserve(number, its);
        into.hold(number, amd::windows());
    }
    Ok(())
}
