//! The unit that serves a function, and the function's stream there: one look among the claims of a survey.
//!
//! A unit that names a function goes before one that serves the remaining ones. Damage of the table may
//! have hidden a name: then no unit is taken to have the function among its remaining ones.
//!
//! *Context.* Task, if configuration space may be read there.

use portolan::addr::{Iova, IovaRange, PciFunction, PciSegment, PhysAddr, RequesterId, StreamId};

use portolan_tables::TableError;
use portolan_tables::claim::Claim;
use portolan_tables::describe::{Description, TableKind, UnitKind};

use super::survey::{Place, Survey, SurveyedUnit};
use super::{ConfigSpace, Topology, TopologyError};

/// Identity of Sandy Bridge's DMA engine, of the processor's base of units' registers, and of the engine's there.
const SANDY_BRIDGE_DMA: u32 = 0x402f_8086;
const UNITS_BASE: u16 = 0xb0;
const OWN_UNIT: u64 = 0xa000;
/// Offset of vendor and device in configuration space.
const IDENTITY: u16 = 0;

/// A unit that serves a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Service {
    unit: usize,
    stream: StreamId,
    claim: Claim,
}

/// The identifier of a function by which claims are looked at.
struct Asked {
    function: PciFunction,
    /// The function by which scopes name it.
    named_by: PciFunction,
    /// Its requester identifier, as far as its host tells functions apart.
    requester: RequesterId,
}

impl Topology {
    /// The number of the unit, in the order of the table, that serves `function`, and its stream
    /// there; `None` if no unit does. `survey` is of this topology.
    pub(super) fn find(
        &self,
        survey: &Survey,
        read: ConfigSpace<'_>,
        function: PciFunction,
    ) -> Result<Option<(usize, StreamId)>, TopologyError> {
        let mut moved = self.moved.iter().rev();
        if let Some((_, to)) = moved.find(|(of, _)| *of == function) {
            return Ok(Some(*to));
        }
        // Other tables name requester identifiers, of virtual functions too.
        let named_by = match self.description.kind {
            TableKind::Dmar => {
                let named_by = survey.tree().named_by(function, read);
                named_by.map_err(TopologyError::VirtualFunctions)?
            }
            _ => function,
        };
        self.find_named(survey, read, function, named_by)
    }

    /// The same of a function that scopes name by `named_by`.
    pub(super) fn find_named(
        &self,
        survey: &Survey,
        read: ConfigSpace<'_>,
        function: PciFunction,
        named_by: PciFunction,
    ) -> Result<Option<(usize, StreamId)>, TopologyError> {
        let found = survey.service(&self.description, function, named_by)?;
        let own = match self.description.kind {
            TableKind::Dmar => own_unit(read, function),
            _ => None,
        };
        Ok(match own {
            Some(registers) => {
                found.and(survey.at(registers)).map(|unit| (unit, function.requester.stream()))
            }
            None => found.map(|found| (found.unit, found.stream)),
        })
    }

    /// The addresses of `function` that arrive at its unit: buses and bridges on the way pass fewer on
    /// than the unit could translate. `None` if those are none.
    pub(super) fn reach(
        &self,
        survey: &Survey,
        function: PciFunction,
    ) -> Result<Option<IovaRange>, TopologyError> {
        let description = &self.description;
        let all = IovaRange::new(Iova::new(0), Iova::new(u64::MAX));
        match description.kind {
            TableKind::Tree => {
                let mut hosts = description.hosts.iter();
                let host = hosts.find(|host| host.segment == function.segment);
                Ok(host.and_then(|host| host.reach))
            }
            TableKind::Iort => {
                let Some(found) = survey.service(description, function, function)? else {
                    return Ok(all);
                };
                let limits = survey.units().get(found.unit).map(|unit| &unit.limits);
                let limit = limits.into_iter().flatten().find(|one| one.claim == found.claim);
                Ok(limit.map_or(all, |limit| limit.addresses))
            }
            // They say nothing of it.
            _ => Ok(all),
        }
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

impl Survey {
    /// The number of the unit whose registers begin at `registers`.
    fn at(&self, registers: PhysAddr) -> Option<usize> {
        self.units().iter().position(|unit| match unit.place {
            Place::Registers(window) => window.start() == registers,
            Place::Nowhere(start) => start == registers,
            _ => false,
        })
    }

    /// The unit that serves `function`, which scopes name by `named_by`.
    fn service(
        &self,
        description: &Description,
        function: PciFunction,
        named_by: PciFunction,
    ) -> Result<Option<Service>, TableError> {
        let mut hosts = description.hosts.iter();
        let host = hosts.find(|host| host.segment == function.segment);
        let mask = host.map_or(u16::MAX, |host| host.mask);
        let requester = RequesterId::new(function.requester.get() & mask);
        let asked = Asked { function, named_by, requester };
        if let Some(found) = self.named(description.kind, &asked) {
            let unit = description.units.get(found.unit);
            let damage = unit.and_then(|unit| unit.damage);
            // A damaged entry may have given the function another identifier.
            return damage.map_or(Ok(Some(found)), Err);
        }
        let mut broken = description.broken.iter();
        if let Some(broken) = broken.find(|one| stream_of(&one.claim, &asked).is_some()) {
            return Err(broken.error);
        }
        let its = description.units.iter();
        let mut its = its.filter(|unit| unit.segment.is_none_or(|its| its == function.segment));
        if let Some(damage) = description.damage.or_else(|| its.find_map(|unit| unit.damage)) {
            return Err(damage);
        }
        Ok(self.remaining(function))
    }

    /// The unit that has the remaining functions of the segment.
    fn remaining(&self, function: PciFunction) -> Option<Service> {
        let claim = Claim::Remaining(function.segment);
        let unit = self.units().iter().position(|unit| unit.claims.contains(&claim))?;
        Some(Service { unit, stream: function.requester.stream(), claim })
    }

    /// The unit that names the function. Of two mappings of IORT that share an identifier, the end of one
    /// and the start of the other, the one that starts there has it.
    fn named(&self, kind: TableKind, asked: &Asked) -> Option<Service> {
        let mut ending = None;
        for (number, unit) in self.units().iter().enumerate() {
            let names = unit.claims.iter().filter_map(|claim| {
                let stream = unit.names(claim, asked)?;
                Some(Service { unit: number, stream, claim: *claim })
            });
            for found in names {
                let (begins, ends) = ends_of(&found.claim, asked.requester);
                if kind == TableKind::Iort && ends && !begins {
                    ending = ending.or(Some(found));
                } else if ending.is_none() || begins {
                    return Some(found);
                }
            }
        }
        ending
    }
}

/// Tells if `requester` is the first, and the last, of a claimed range.
fn ends_of(claim: &Claim, requester: RequesterId) -> (bool, bool) {
    match claim {
        Claim::Range { first, last, .. } => (*first == requester, *last == requester),
        _ => (false, false),
    }
}

impl SurveyedUnit {
    /// The stream of the function, if `claim`, one of the unit's, names it.
    fn names(&self, claim: &Claim, asked: &Asked) -> Option<StreamId> {
        match self.kind {
            UnitKind::Vtd => {
                self.has_in_scope(claim, asked).then(|| asked.function.requester.stream())
            }
            UnitKind::AmdVi => self.entry_names(claim, asked).then(|| self.aliased(asked).stream()),
            _ => stream_of(claim, asked),
        }
    }

    /// Tells if a scope of VT-d is the function, or a bridge that it is behind.
    fn has_in_scope(&self, claim: &Claim, asked: &Asked) -> bool {
        let bus = asked.named_by.requester.bus();
        let inside = |bridge: PciFunction| {
            let mut buses = self.buses.iter().filter(|(of, _)| *of == bridge);
            let segment = bridge.segment == asked.named_by.segment;
            segment && buses.any(|(_, (first, last))| (*first..=*last).contains(&bus))
        };
        match *claim {
            Claim::Function(at) => at == asked.named_by,
            Claim::Behind(bridge) => bridge == asked.named_by || inside(bridge),
            _ => false,
        }
    }

    /// Tells if an entry of AMD-Vi names the function, as a device or as the one whose identifier others carry.
    fn entry_names(&self, claim: &Claim, asked: &Asked) -> bool {
        let requester = asked.requester;
        let here = self.segment == Some(asked.function.segment);
        here && match *claim {
            Claim::Range { first, last, .. } => (first..=last).contains(&requester),
            Claim::Alias { first, last, alias, .. } => {
                (first..=last).contains(&requester) || alias == requester
            }
            Claim::IoApic(_, source) | Claim::Timer(_, source) => source == Some(requester),
            Claim::Acpi { stream, .. } => stream == requester.stream(),
            _ => false,
        }
    }

    /// The requester identifier that accesses of the function carry: the last one that an entry gives it.
    fn aliased(&self, asked: &Asked) -> RequesterId {
        let alias = self.claims.iter().rev().find_map(|claim| match *claim {
            Claim::Alias { first, last, alias, .. } => {
                let its = (first..=last).contains(&asked.requester);
                // A source that is the device itself renames nothing.
                Some(alias).filter(|alias| its && *alias != asked.requester)
            }
            _ => None,
        });
        alias.unwrap_or(asked.requester)
    }
}

/// The stream of the function by a claim to requesters.
fn stream_of(claim: &Claim, asked: &Asked) -> Option<StreamId> {
    let segment = asked.function.segment;
    match *claim {
        Claim::Range { segments, first, last, stream } => {
            let here = (segments.0..=segments.1).contains(&segment);
            let inside = (first..=last).contains(&asked.requester);
            (here && inside).then_some(())?;
            following(stream, segments.0, first, asked)
        }
        Claim::OneStream { segment: its, stream } => (its == segment).then_some(stream),
        _ => None,
    }
}

/// The stream that is as far behind `stream` as the function is behind the requester `first` of `segment`.
fn following(
    stream: StreamId,
    segment: PciSegment,
    first: RequesterId,
    asked: &Asked,
) -> Option<StreamId> {
    let segments = u32::from(asked.function.segment.get().checked_sub(segment.get())?);
    let functions = u32::from(asked.requester.get().checked_sub(first.get())?);
    let above = (segments << 16).checked_add(functions)?;
    stream.get().checked_add(above).map(StreamId::new)
}
