//! Units of VT-d by the DMAR table.

use alloc::vec::Vec;

use portolan::addr::{PciFunction, PciSegment, PhysAddr, RequesterId, StreamId};
use portolan::platform::Platform;

use super::claim::Claim;
use super::madt::IoApics;
use super::remark::Remark;
use super::survey::{Place, Survey, UnitKind};
use super::{
    ConfigSpace, EnableError, Enabling, FirmwareMemory, Outcome, TopologyError, enable_all,
    enable_at, window,
};
use crate::reservations::{Limits, Streams};
use crate::vtd::{self, Config, Features, Has, INTEL, Mode, PciIdentity, Quirks, Vtd, tylersburg};
use portolan_tables::dmar::{Dmar, Drhd, Scope, ScopeKind, Serves, Structure};

/// Offset of vendor and device in configuration space.
const IDENTITY: u16 = 0;
/// Offset of the class.
const CLASS: u16 = 8;
/// Offset of the kind of header, in the third byte; that of bridges.
const HEADER: u16 = 0xc;
const BRIDGE: u32 = 1;
/// Offset of a bridge's buses: primary, secondary, subordinate.
const BUSES: u16 = 0x18;

/// Identity of Sandy Bridge's DMA engine, of the processor's base of units' registers, and of the engine's there.
const SANDY_BRIDGE_DMA: u32 = 0x402f << 16 | INTEL as u32;
const UNITS_BASE: u16 = 0xb0;
const OWN_UNIT: u64 = 0xa000;

/// The buses behind a bridge, both ends included; `None` if it is none, or has not been numbered.
fn behind(read: ConfigSpace<'_>, segment: PciSegment, bridge: RequesterId) -> Option<(u8, u8)> {
    let requester = bridge;
    let function = PciFunction { segment, requester };
    let header = read(function, HEADER)? >> 16 & 0x7f;
    let buses = read(function, BUSES)?;
    let (first, last) = ((buses >> 8) as u8, (buses >> 16) as u8);
    (header == BRIDGE && first != 0).then_some((first, last))
}

/// Functions of Intel's on bus 0, which are the machine's own; `word` reads their configuration space.
fn own_functions(
    word: ConfigSpace<'_>,
    segment: PciSegment,
) -> impl Iterator<Item = (PciFunction, PciIdentity)> {
    (0..=0xff).filter_map(move |requester| {
        let requester = RequesterId::new(requester);
        let function = PciFunction { segment, requester };
        let identity = word(function, IDENTITY)?;
        let (vendor, device) = (identity as u16, (identity >> 16) as u16);
        if vendor != INTEL {
            return None;
        }
        let base_class = (word(function, CLASS)? >> 24) as u8;
        Some((function, PciIdentity { vendor, device, base_class }))
    })
}

/// The chipset's sound controller, and the TLB entries of its isochronous unit, if it has one.
fn isochronous(word: ConfigSpace<'_>, segment: PciSegment) -> Option<(PciFunction, u8)> {
    let with = |device| {
        let found = own_functions(word, segment).find(|(_, identity)| identity.device == device);
        found.map(|(function, _)| function)
    };
    let azalia = with(tylersburg::AZALIA)?;
    let control = word(with(tylersburg::SYSTEM_MANAGEMENT)?, tylersburg::VTISOCHCTRL)?;
    Some((azalia, tylersburg::isochronous_entries(control)?))
}

/// Quirks of the machine's units, by its own PCI devices; `word` reads their configuration space.
pub(super) fn quirks(word: ConfigSpace<'_>, segment: PciSegment) -> Quirks {
    let of_functions = own_functions(word, segment).map(|(_, identity)| Quirks::of(identity));
    let mut quirks = of_functions.fold(Quirks::empty(), Quirks::union);
    let hangs = isochronous(word, segment).is_some_and(|(_, entries)| entries == 0);
    quirks.set(Quirks::AZALIA_UNTRANSLATED, hangs);
    quirks
}

fn units<'t>(table: &Dmar<'t>) -> impl Iterator<Item = Result<Drhd<'t>, TopologyError>> + use<'t> {
    table.structures().filter_map(|structure| match structure {
        Ok(Structure::Drhd(unit)) => Some(Ok(unit)),
        Ok(_) => None,
        Err(error) => Some(Err(error.into())),
    })
}

/// The I/O APICs of which the table gives the requester identifier, and the bridges on the way to which have
/// buses.
pub(super) fn io_apics(table: &Dmar<'_>, read: ConfigSpace<'_>) -> IoApics {
    let mut found = IoApics::default();
    for unit in units(table).flatten() {
        for scope in unit.scopes.flatten() {
            if let Claim::IoApic(number, Some(_)) = claim(&unit, read, &scope) {
                found.insert(number);
            }
        }
    }
    found
}

/// Number of units in `table`, damaged ones included.
pub(super) fn count(table: &[u8]) -> Result<usize, TopologyError> {
    Ok(units(&Dmar::parse(table)?).count())
}

/// Takes over and enables all units of `table`.
pub(super) fn enable<P: Platform>(
    table: &[u8],
    by: &Enabling<'_, P>,
) -> Result<Vec<Outcome>, EnableError> {
    let table = Dmar::parse(table)?;
    let read: ConfigSpace<'_> = &|of, at| by.platform.pci_config(of, at);
    enable_all(units(&table), by.survey, |unit, added| {
        let mut config = Config {
            output_lg2: table.address_lg2(),
            chip: quirks(read, unit.segment),
            interrupts: by.options.interrupts,
            combining: by.options.combining,
            ..Config::default()
        };
        config.reserved.believe(by.description);
        if by.options.reserved == FirmwareMemory::Reached {
            let bus = |bridge| behind(read, unit.segment, bridge).map(|(first, _)| first);
            let found = table.reserved(unit.segment, Streams::ALL, bus);
            // What makes no sense is left out, and counted there.
            let _ = config.reserved.read(found);
        }
        let _ = config.reserved.read(added.iter().copied().map(Ok));
        let bytes = unit.registers.len_minus_one() + 1;
        let window = window(unit.registers.start(), bytes)?;
        enable_at(by, window, |registers, memory, clock| {
            // First-stage tables are the hardware's own under a hypervisor, too.
            let first = Has::SCALABLE | Has::FIRST | Has::CACHING_MODE;
            config.mode = match Features::read(&registers)?.has.contains(first) {
                true => Mode::Scalable,
                false => Mode::Legacy,
            };
            Vtd::enable(registers, memory.below(config.output_lg2), clock, config)
        })
    })
}

/// The number of the unit of `function`, which scopes name by `named_by`, and its stream: its requester
/// identifier.
pub(super) fn find(
    table: &[u8],
    read: ConfigSpace<'_>,
    function: PciFunction,
    named_by: PciFunction,
) -> Result<Option<(usize, StreamId)>, TopologyError> {
    let table = Dmar::parse(table)?;
    let stream = function.requester.stream();
    // A damaged unit may have named the function: then it is not one of the remaining.
    let mut remaining = Ok(None);
    for (number, unit) in units(&table).enumerate() {
        let named = unit.and_then(|unit| {
            let here = unit.segment == function.segment;
            match unit.serves {
                Serves::Remaining => {
                    let found = Some((number, stream)).filter(|_| here);
                    remaining = remaining.map(|before| before.or(found));
                    Ok(false)
                }
                Serves::Named => Ok(here && names(&unit, read, named_by)?),
            }
        });
        match named {
            Ok(true) => {
                remaining = Ok(Some((number, stream)));
                break;
            }
            Ok(false) => {}
            Err(error) => remaining = remaining.and(Err(error)),
        }
    }
    match own_unit(read, function) {
        Some(registers) => Ok(remaining?.and(at(&table, registers)).map(|unit| (unit, stream))),
        None => remaining,
    }
}

/// Sandy Bridge's DMA engine (QuickData) has a unit of its own, whatever the table says: that at an offset
/// from the base that the processor's own function has (Linux's `quirk_ioat_snb_local_iommu`).
fn own_unit(read: ConfigSpace<'_>, function: PciFunction) -> Option<PhysAddr> {
    read(function, IDENTITY).filter(|identity| *identity == SANDY_BRIDGE_DMA)?;
    let processor =
        PciFunction { requester: RequesterId::of(function.requester.bus(), 0, 0), ..function };
    let base = read(processor, UNITS_BASE)? & !0xffff;
    Some(PhysAddr::new(u64::from(base) + OWN_UNIT))
}

/// The number of the unit whose registers begin at `registers`.
fn at(table: &Dmar<'_>, registers: PhysAddr) -> Option<usize> {
    let starts =
        |unit: Result<Drhd<'_>, _>| unit.is_ok_and(|unit| unit.registers.start() == registers);
    units(table).position(starts)
}

/// Tells if a scope of `unit` is `function`, or a bridge that it is behind.
fn names(
    unit: &Drhd<'_>,
    read: ConfigSpace<'_>,
    function: PciFunction,
) -> Result<bool, TopologyError> {
    let buses = |bridge| behind(read, unit.segment, bridge);
    for scope in unit.scopes {
        let scope = scope?;
        let at = scope.requester(|bridge| buses(bridge).map(|(first, _)| first));
        let found = match (scope.kind, at) {
            (ScopeKind::Endpoint, Some(at)) => at == function.requester,
            (ScopeKind::Bridge, Some(at)) => {
                let bus = function.requester.bus();
                let inside = |(first, last)| first <= bus && bus <= last;
                at == function.requester || buses(at).is_some_and(inside)
            }
            _ => false,
        };
        if found {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Claim of a scope of `unit`.
fn claim(unit: &Drhd<'_>, read: ConfigSpace<'_>, scope: &Scope<'_>) -> Claim {
    let segment = unit.segment;
    let bus = |bridge| behind(read, segment, bridge).map(|(first, _)| first);
    let place = scope.requester(bus);
    let at = place.map(|requester| PciFunction { segment, requester });
    match (scope.kind, at) {
        (ScopeKind::IoApic, _) => Claim::IoApic(scope.enumeration, place),
        (ScopeKind::Timer, _) => Claim::Timer(scope.enumeration, place),
        (ScopeKind::Named, _) => Claim::Named(scope.enumeration.into()),
        (ScopeKind::Endpoint, Some(at)) => Claim::Function(at),
        (ScopeKind::Bridge, Some(at)) => Claim::Behind(at),
        (_, None) => Claim::NoSuchPath { segment, bus: scope.start_bus, steps: scope.path().len() },
    }
}

/// Surveys the units of `table`, and the memory that functions go on using.
pub(super) fn survey(
    table: &[u8],
    read: ConfigSpace<'_>,
    into: &mut Survey,
) -> Result<(), TopologyError> {
    let parsed = Dmar::parse(table)?;
    let mut segments: Vec<PciSegment> = Vec::new();
    for unit in units(&parsed) {
        let Some(unit) = into.described(UnitKind::Vtd, unit) else {
            continue;
        };
        let place = Place::of(unit.registers.start(), unit.registers.len_minus_one() + 1);
        let number = into.unit(UnitKind::Vtd, place, Some(unit.segment));
        if unit.serves == Serves::Remaining {
            into.claim(number, Claim::Remaining(unit.segment));
        }
        for scope in unit.scopes {
            if let Some(scope) = into.note(scope.map_err(Into::into)) {
                into.claim(number, claim(&unit, read, &scope));
            }
        }
        into.hold(number, [vtd::INTERRUPTS]);
        if !segments.contains(&unit.segment) {
            segments.push(unit.segment);
        }
    }
    for structure in parsed.structures().flatten() {
        let Structure::Reserved(block) = structure else {
            continue;
        };
        let bus = |bridge| behind(read, block.segment, bridge).map(|(first, _)| first);
        for scope in block.scopes.flatten() {
            if scope.requester(bus).is_none() {
                into.remark(Remark::ReservedElsewhere {
                    start: block.range.start(),
                    segment: block.segment,
                    bus: scope.start_bus,
                    steps: scope.path().len(),
                });
            }
        }
    }
    for segment in segments {
        let odd = isochronous(read, segment);
        if let Some((function, entries)) =
            odd.filter(|odd| odd.1 != tylersburg::RECOMMENDED_ENTRIES)
        {
            into.remark(Remark::IsochronousEntries { function, entries });
        }
        let bus = |bridge| behind(read, segment, bridge).map(|(first, _)| first);
        let found = parsed.reserved(segment, Streams::ALL, bus);
        for found in found.take(Limits::USUAL.most) {
            // Each stream of these is a requester of its own.
            let of = found.map(|reserved| RequesterId::new(reserved.streams.first().get() as u16));
            let of = of.map(|requester| PciFunction { segment, requester });
            let by = of.map(|of| find(table, read, of, of));
            match by {
                Ok(Ok(Some((number, _)))) => into.reserve(number, [found]),
                Ok(_) => {}
                Err(_) => into.reserve(0, [found]),
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_display_controller_of_bus_0_keeps_translation_on_and_nothing_else_of_its_number_does() {
        let of = |segment, requester, identity, class| {
            let at = PciFunction { segment: PciSegment::new(segment), requester };
            let word = |function, offset| match offset {
                0x0 if function == at => Some(identity),
                0x8 if function == at => Some(class),
                _ => None,
            };
            quirks(&word, PciSegment::new(1))
        };
        let last = RequesterId::of(0, 31, 7);
        let display = 0x0300_0001;
        assert_eq!(of(1, last, 0x9a49_8086, display), Quirks::KEEP_TRANSLATION);
        let others = [
            of(1, last, 0x9a49_1022, display),
            of(1, last, 0x9a49_8086, 0x0003_0003),
            of(0, last, 0x9a49_8086, display),
            of(1, RequesterId::of(1, 0, 0), 0x9a49_8086, display),
        ];
        assert_eq!(others, [Quirks::empty(); 4]);
    }
}
