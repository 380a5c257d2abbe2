//! A description and the machine's PCI functions, put together to a survey.
//!
//! Paths through bridges are followed here, once: a survey has the functions at their ends, and the buses
//! behind the bridges that units serve.
//!
//! *Context.* Task.

use alloc::vec::Vec;

use portolan::addr::{PciFunction, PciSegment, RequesterId};
use portolan_spec::vtd::tylersburg::RECOMMENDED_ENTRIES;
use portolan_tables::TableError;
use portolan_tables::claim::Claim;
use portolan_tables::describe::{Description, Note, TableKind, UnitDescription, UnitSettings};
use portolan_tables::dmar::{PathScope, ScopeKind};
use portolan_tables::iort::SmmuModel;
use portolan_tables::reserved::Reserved;

use super::chipset::isochronous;
use super::remark::Remark;
use super::survey::{Place, Survey};
use super::{ConfigSpace, EnableError, Topology};
use crate::reservations::Limits;

/// Offset of the kind of header, in the third byte; that of bridges.
const HEADER: u16 = 0xc;
const BRIDGE: u32 = 1;
/// Offset of a bridge's buses: primary, secondary, subordinate.
const BUSES: u16 = 0x18;

/// The buses behind a bridge, both ends included; `None` if it is none, or has not been numbered.
pub(super) fn behind(
    read: ConfigSpace<'_>,
    segment: PciSegment,
    bridge: RequesterId,
) -> Option<(u8, u8)> {
    let requester = bridge;
    let function = PciFunction { segment, requester };
    let header = read(function, HEADER)? >> 16 & 0x7f;
    let buses = read(function, BUSES)?;
    let (first, last) = ((buses >> 8) as u8, (buses >> 16) as u8);
    (header == BRIDGE && first != 0).then_some((first, last))
}

/// The memory that functions of a segment go on using by paths, with errors of the table in between.
pub(super) fn memory_of(
    description: &Description,
    read: ConfigSpace<'_>,
    segment: PciSegment,
) -> impl Iterator<Item = Result<Reserved, TableError>> {
    let bus = move |bridge| behind(read, segment, bridge).map(|(first, _)| first);
    description.memory.iter().flat_map(move |block| -> Vec<_> {
        match block {
            Ok(block) if block.segment == segment => block.regions(bus).collect(),
            Ok(_) => Vec::new(),
            Err(error) => alloc::vec![Err(*error)],
        }
    })
}

/// The reason for which a unit is not enabled that its description tells already.
fn refused(unit: &UnitDescription) -> Option<EnableError> {
    match (&unit.settings, unit.place) {
        (UnitSettings::AmdVi(amd), Place::Registers(window)) if !amd.host_tables => {
            Some(EnableError::NoHostTables { window })
        }
        (UnitSettings::Smmu(smmu, maker), _) if SmmuModel::of(*maker, smmu.model).is_none() => {
            let (model, window) = (smmu.model, smmu.registers);
            Some(EnableError::UnknownModel { window, model })
        }
        _ => None,
    }
}

/// Claim of a scope of a unit of `segment`.
fn claim(segment: PciSegment, scope: &PathScope, place: Option<RequesterId>) -> Claim {
    let at = place.map(|requester| PciFunction { segment, requester });
    match (scope.kind, at) {
        (ScopeKind::IoApic, _) => Claim::IoApic(scope.enumeration, place),
        (ScopeKind::Timer, _) => Claim::Timer(scope.enumeration, place),
        (ScopeKind::Named, _) => Claim::Named(scope.enumeration.into()),
        (ScopeKind::Endpoint, Some(at)) => Claim::Function(at),
        (ScopeKind::Bridge, Some(at)) => Claim::Behind(at),
        (_, None) => Claim::NoSuchPath { segment, bus: scope.start_bus, steps: scope.path.len() },
    }
}

impl Topology {
    /// Adds the units of the description to `survey`, with what they serve and what is reserved, and
    /// remarks on the rest.
    pub(super) fn join(&self, read: ConfigSpace<'_>, survey: &mut Survey) {
        let description = &self.description;
        for unit in &description.units {
            add(unit, read, survey);
        }
        for note in &description.notes {
            survey.remark(match *note {
                Note::Damage(error) => Remark::Table(error.into()),
                Note::Astray(claim) => Remark::Astray { claim },
                Note::NoAddress(unit, claim) => Remark::NoAddress { unit, claim },
                Note::NotDescribed(at) => Remark::NotDriven(at),
            });
        }
        for block in description.memory.iter().flatten() {
            let bus = |bridge| behind(read, block.segment, bridge).map(|(first, _)| first);
            for scope in block.scopes.iter().flatten() {
                if scope.requester(bus).is_none() {
                    survey.remark(Remark::ReservedElsewhere {
                        start: block.range.start(),
                        segment: block.segment,
                        bus: scope.start_bus,
                        steps: scope.path.len(),
                    });
                }
            }
        }
        if description.kind == TableKind::Dmar {
            self.reserve_by_paths(read, survey);
        }
        if let Some(error) = description.checksum {
            survey.remark(Remark::Table(error.into()));
        }
    }

    /// Adds memory that is named by paths to the unit of each function.
    fn reserve_by_paths(&self, read: ConfigSpace<'_>, survey: &mut Survey) {
        let mut segments: Vec<PciSegment> = Vec::new();
        for segment in self.description.units.iter().filter_map(|unit| unit.segment) {
            if !segments.contains(&segment) {
                segments.push(segment);
            }
        }
        for segment in segments {
            let odd =
                isochronous(read, segment).filter(|(_, entries)| *entries != RECOMMENDED_ENTRIES);
            if let Some((function, entries)) = odd {
                survey.remark(Remark::IsochronousEntries { function, entries });
            }
            let found = memory_of(&self.description, read, segment);
            for found in found.take(Limits::USUAL.most) {
                let Ok(reserved) = found else {
                    survey.reserve(0, [found]);
                    continue;
                };
                // Each stream of these is a requester of its own.
                let requester = RequesterId::new(reserved.streams.first().get() as u16);
                let of = PciFunction { segment, requester };
                if let Ok(Some((unit, _))) = self.find_named(survey, read, of, of) {
                    survey.reserve(unit, [found]);
                }
            }
        }
    }
}

/// Claims of the scopes of a unit, at the ends of their paths.
pub(super) fn followed<'u>(
    unit: &'u UnitDescription,
    read: ConfigSpace<'u>,
) -> impl Iterator<Item = Claim> + 'u {
    unit.scopes.iter().filter_map(move |scope| {
        let segment = unit.segment?;
        let bus = |bridge| behind(read, segment, bridge).map(|(first, _)| first);
        Some(claim(segment, scope, scope.requester(bus)))
    })
}

/// Adds a unit.
fn add(unit: &UnitDescription, read: ConfigSpace<'_>, survey: &mut Survey) {
    let number = survey.unit(unit.kind, unit.place, unit.segment);
    survey.refuse(number, refused(unit));
    for claim in unit.claims.iter().copied().chain(followed(unit, read)) {
        survey.claim(number, claim);
        if let Claim::Behind(bridge) = claim {
            survey.leads_to(number, bridge, behind(read, bridge.segment, bridge.requester));
        }
    }
    survey.limits(number, &unit.limits);
    survey.reserve(number, unit.reserved.iter().copied());
    if unit.place != Place::Damaged {
        survey.hold(number, unit.kind.not_translated());
    }
}
