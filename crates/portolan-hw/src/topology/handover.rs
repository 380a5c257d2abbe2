//! A machine's units that change hands: from this kernel to the next, while devices are at work.
//!
//! *Context.* Task.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::RefCell;

use portolan::addr::{PhysAddr, PhysRange, StreamId};
use portolan::iommu::handover::{ReservedHandover, UnitHandover};
use portolan::iommu::{IommuDomains, IommuError};
use portolan::platform::{Platform, PreservedMemory, RawMemory, TableClaims};
use portolan_tables::describe::UnitKind;

use super::enable::{Enabled, Enabling};
use super::{EnableError, Iommus, Options, Place, Topology};
use crate::handover::{
    AdoptError, PrepareError, Record, RecordError, RecordedKind, RecordedUnit, SectionError, write,
};
use crate::promise::{self, TrustedDescription};

/// Outcome of handing a machine over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prepared {
    /// Length of the record.
    pub bytes: usize,
    /// Units that are not in the record, or that did not come to rest, by their numbers: the next kernel blocks
    /// their devices.
    pub left_out: Vec<(usize, IommuError)>,
    /// Address spaces whose debt the hardware did not take: the next kernel's first invalidation pays it.
    pub in_debt: usize,
}

/// Outcome of taking a machine over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adoption {
    /// Units that go on as they were, by their numbers.
    pub adopted: Vec<usize>,
    /// Units that were refused; their devices are blocked.
    pub refused: Vec<(usize, AdoptError)>,
    /// Table memory that is in use: the rest of the preserved pages is free.
    pub tables: Vec<PhysRange>,
}

/// The record of a former kernel, and its memory.
pub(super) struct Former<'r> {
    record: Result<Record<'r>, RecordError>,
    claims: RefCell<TableClaims<'r>>,
    outcomes: RefCell<Vec<(usize, Result<(), AdoptError>)>>,
}

/// Parts of the platform for one unit.
pub(super) struct OfUnit<P: Platform> {
    pub(super) registers: P::Registers,
    pub(super) memory: RawMemory<P>,
    pub(super) clock: P,
}

/// Name of a unit: its number, kind and registers.
#[derive(Clone, Copy, Debug)]
pub(super) struct NamedUnit {
    pub(super) number: usize,
    pub(super) kind: UnitKind,
    pub(super) window: PhysRange,
}

impl<'r> Former<'r> {
    fn unit(&self, kind: UnitKind, base: PhysAddr) -> Result<UnitHandover, AdoptError> {
        let record = self.record?;
        let kind = RecordedKind::of(kind).ok_or(SectionError::Absent { base })?;
        Ok(record.unit(base, kind)?)
    }

    /// Notes the outcome of a unit, and returns the unit if there is one.
    fn note<T>(&self, number: usize, outcome: Result<T, AdoptError>) -> Option<T> {
        let (unit, noted) = match outcome {
            Ok(unit) => (Some(unit), Ok(())),
            Err(error) => (None, Err(error)),
        };
        self.outcomes.borrow_mut().push((number, noted));
        unit
    }

    fn end(self) -> Adoption {
        let (mut adopted, mut refused) = (Vec::new(), Vec::new());
        for (number, outcome) in self.outcomes.into_inner() {
            match outcome {
                Ok(()) => adopted.push(number),
                Err(error) => refused.push((number, error)),
            }
        }
        let tables = self.claims.into_inner().claimed().collect();
        Adoption { adopted, refused, tables }
    }
}

impl<P: Platform> Enabling<'_, '_, P> {
    /// A unit of a former kernel, taken over by `adopt` of its driver; `None` if there was no such kernel, or the
    /// unit is refused, which is noted.
    pub(super) fn of_former<U: IommuDomains + 'static>(
        &self,
        named: NamedUnit,
        adopt: impl FnOnce(OfUnit<P>, &UnitHandover, &mut TableClaims<'_>) -> Result<U, AdoptError>,
    ) -> Option<Enabled> {
        let former = self.former?;
        let NamedUnit { number, kind, window } = named;
        let registers = promise::registers_of_unit(self.platform, window, self.description)?;
        let (memory, clock) = (promise::for_driver(self.platform), self.platform.clone());
        let parts = OfUnit { registers, memory, clock };
        let state = former.unit(kind, window.start());
        let unit = state.and_then(|state| adopt(parts, &state, &mut former.claims.borrow_mut()));
        former.note(number, unit).map(|unit| Arc::new(unit) as Enabled)
    }
}

impl Topology {
    /// Takes the units over from a former kernel, which [prepared](Iommus::prepare) for that: translation and the
    /// accesses of devices go on as they are, and a device that is opened has its former address space, in which
    /// the addresses are set aside that it may be using. A unit that is not as `record` says is taken over as by
    /// [`Topology::enable`], which blocks its devices; the others are not affected.
    ///
    /// # Errors
    /// As [`Topology::enable`].
    pub fn adopt<P: Platform>(
        self,
        platform: P,
        options: Options,
        description: TrustedDescription,
        record: &[u8],
        preserved: PreservedMemory<'_>,
    ) -> Result<(Iommus<P>, Adoption), EnableError> {
        let former = Former {
            record: Record::read(record),
            claims: RefCell::new(TableClaims::new(preserved)),
            outcomes: RefCell::default(),
        };
        let iommus = self.enable_from(platform, options, description, Some(&former))?;
        Ok((iommus, former.end()))
    }
}

impl<P: Platform> Iommus<P> {
    /// Hands the units to the next kernel: pays the debts of all address spaces, writes a record into the first
    /// bytes of `into`, and leaves the units as they are. From then on this kernel's streams cannot be moved, and
    /// what it unmaps is not invalidated ([`IommuError::Stopped`]), also when these values are dropped. The caller
    /// lets nothing be mapped, unmapped, opened or closed from this call on; devices stay at work.
    ///
    /// # Errors
    /// See [`PrepareError`]; the units are still this kernel's.
    pub fn prepare(&self, into: &mut [u8]) -> Result<Prepared, PrepareError> {
        let spaces = self.with_groups(|groups| {
            Ok(groups.iter().filter_map(|group| group.space.upgrade()).collect::<Vec<_>>())
        });
        let spaces = spaces.unwrap_or_default();
        let in_debt = spaces.iter().filter(|space| space.flush().is_err()).count();
        let (mut recorded, mut numbers, mut left_out) = (Vec::new(), Vec::new(), Vec::new());
        for (number, unit) in self.units.iter().enumerate() {
            let Ok(unit) = unit else { continue };
            match self.recorded(number, unit) {
                Ok(unit) => {
                    recorded.push(unit);
                    numbers.push(number);
                }
                Err(error) => left_out.push((number, error)),
            }
        }
        let bytes = write(&recorded, into)?;
        for number in numbers {
            if let Some(Ok(unit)) = self.units.get(number) {
                left_out.extend(unit.leave().err().map(|error| (number, error)));
            }
        }
        Ok(Prepared { bytes, left_out, in_debt })
    }

    fn recorded(&self, number: usize, unit: &Enabled) -> Result<RecordedUnit, IommuError> {
        let surveyed = self.survey.units().get(number).ok_or(IommuError::Unsupported)?;
        let kind = RecordedKind::of(surveyed.kind).ok_or(IommuError::Unsupported)?;
        let Place::Registers(window) = surveyed.place else {
            return Err(IommuError::Unsupported);
        };
        let mut state = unit.handover()?;
        let mut streams: Vec<StreamId> =
            state.streams.iter().map(|stream| stream.requester.stream).collect();
        streams.dedup();
        for stream in streams {
            unit.reserved(stream, &mut |region| {
                state.reserved.push(ReservedHandover { stream, range: region.range });
            });
        }
        Ok(RecordedUnit { base: window.start(), kind, state })
    }
}
