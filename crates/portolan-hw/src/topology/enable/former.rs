//! Units of a former kernel, each taken over by its driver.
//!
//! *Context.* Task.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::RefCell;

use portolan::addr::{PciFunction, PhysAddr, PhysRange, StreamId};
use portolan::iommu::IommuDomains;
use portolan::iommu::handover::{InterruptHandover, UnitHandover};
use portolan::platform::{FormerMemory, Platform, PreservedMemory, RawMemory, TableClaims};
use portolan_tables::describe::UnitKind;

use super::super::survey::{Served, Survey};
use super::{Enabled, Enabling};
use crate::handover::{AdoptError, Record, RecordError, RecordedKind, SectionError};
use crate::promise;

/// Outcome of taking a machine over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adoption {
    /// Units that go on as they were, by their numbers.
    pub adopted: Vec<usize>,
    /// Units that were refused; their devices are blocked.
    pub refused: Vec<(usize, AdoptError)>,
    /// Interrupts that devices of these units raise, with the units' numbers: the CPUs' numbers for them are in use
    /// until the devices' drivers have taken them over
    /// ([`RemapInterrupts::adopted_interrupts`](portolan::iommu::RemapInterrupts::adopted_interrupts)).
    pub interrupts: Vec<(usize, InterruptHandover)>,
    /// Table memory that is in use: the rest of the preserved pages is free.
    pub tables: Vec<PhysRange>,
}

/// Outcome of taking a machine over from a kernel that crashed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakenOver {
    /// Functions that go on, of those that were named: each of their streams does.
    pub kept: Vec<PciFunction>,
    /// Units that were refused, by their numbers; their devices are blocked.
    pub refused: Vec<(usize, AdoptError)>,
    /// Memory of the former kernel's tables that the units go on to use, and whose entries they change.
    pub tables: Vec<PhysRange>,
}

/// A former kernel, and its memory.
pub(in crate::topology) struct Former<'r> {
    left: Left<'r>,
    claims: RefCell<TableClaims<'r>>,
    outcomes: RefCell<Vec<FormerUnit>>,
}

/// Knowledge of a former kernel's units.
enum Left<'r> {
    /// A record, of one that handed them over.
    Record(Result<Record<'r>, RecordError>),
    /// Functions that go on through the tables of one that crashed.
    Crash(&'r [PciFunction], FormerMemory<'r>),
}

/// Number and outcome of a unit: what goes on of it.
type FormerUnit = (usize, Result<GoesOn, AdoptError>);

/// Interrupts and streams of a unit that go on.
enum GoesOn {
    Interrupts(Vec<InterruptHandover>),
    Streams(Vec<StreamId>),
}

/// State in which a former kernel has left a unit, for the unit's driver.
pub(super) enum FormerState<'s> {
    Recorded(&'s UnitHandover),
    Crashed(&'s [StreamId], FormerMemory<'s>),
}

/// A unit as its driver has taken it over, with the streams that go on without a record.
pub(super) type TakenUnit<U> = (U, Vec<StreamId>);

/// A unit by its record.
pub(super) fn by_record<U>(unit: U) -> TakenUnit<U> {
    (unit, Vec::new())
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
    pub(in crate::topology) fn new(record: &'r [u8], preserved: PreservedMemory<'r>) -> Self {
        Self::of(Left::Record(Record::read(record)), preserved)
    }

    pub(in crate::topology) fn crashed(
        keep: &'r [PciFunction],
        memory: FormerMemory<'r>,
        preserved: PreservedMemory<'r>,
    ) -> Self {
        Self::of(Left::Crash(keep, memory), preserved)
    }

    fn of(left: Left<'r>, preserved: PreservedMemory<'r>) -> Self {
        let claims = RefCell::new(TableClaims::new(preserved));
        Self { left, claims, outcomes: RefCell::default() }
    }

    fn recorded(
        record: Result<Record<'_>, RecordError>,
        kind: UnitKind,
        base: PhysAddr,
    ) -> Result<UnitHandover, AdoptError> {
        let record = record?;
        let kind = RecordedKind::of(kind).ok_or(SectionError::Absent { base })?;
        Ok(record.unit(base, kind)?)
    }

    /// Notes the outcome of a unit, and returns the unit if there is one.
    fn note<T>(&self, number: usize, outcome: Result<(T, GoesOn), AdoptError>) -> Option<T> {
        let (unit, noted) = match outcome {
            Ok((unit, goes_on)) => (Some(unit), Ok(goes_on)),
            Err(error) => (None, Err(error)),
        };
        self.outcomes.borrow_mut().push((number, noted));
        unit
    }

    pub(in crate::topology) fn end(self) -> Adoption {
        let (mut adopted, mut refused, mut interrupts) = (Vec::new(), Vec::new(), Vec::new());
        for (number, outcome) in self.outcomes.into_inner() {
            match outcome {
                Ok(goes_on) => {
                    adopted.push(number);
                    if let GoesOn::Interrupts(its) = goes_on {
                        interrupts.extend(its.into_iter().map(|interrupt| (number, interrupt)));
                    }
                }
                Err(error) => refused.push((number, error)),
            }
        }
        let tables = self.claims.into_inner().claimed().collect();
        Adoption { adopted, refused, interrupts, tables }
    }

    /// The outcome of a crash; `of` has the unit and the streams of a function.
    pub(in crate::topology) fn end_of_crash(self, of: impl Fn(PciFunction) -> Served) -> TakenOver {
        let (mut streams, mut refused, mut kept) = (Vec::new(), Vec::new(), Vec::new());
        for (number, outcome) in self.outcomes.into_inner() {
            match outcome {
                Ok(GoesOn::Streams(its)) => {
                    streams.extend(its.into_iter().map(|one| (number, one)))
                }
                Ok(GoesOn::Interrupts(_)) => {}
                Err(error) => refused.push((number, error)),
            }
        }
        if let Left::Crash(keep, _) = self.left {
            kept.extend(keep.iter().copied().filter(|function| {
                let Served { unit, streams: its, .. } = of(*function);
                let goes_on =
                    |stream: &StreamId| unit.is_some_and(|unit| streams.contains(&(unit, *stream)));
                !its.is_empty() && its.iter().all(goes_on)
            }));
        }
        let tables = self.claims.into_inner().claimed().collect();
        TakenOver { kept, refused, tables }
    }
}

impl<P: Platform> Enabling<'_, '_, P> {
    /// A unit of a former kernel, taken over by `take` of its driver; `None` if there was no such kernel, or the
    /// unit is refused, which is noted.
    pub(super) fn of_former<U: IommuDomains + 'static>(
        &self,
        named: NamedUnit,
        take: impl FnOnce(
            OfUnit<P>,
            FormerState<'_>,
            &mut TableClaims<'_>,
        ) -> Result<TakenUnit<U>, AdoptError>,
    ) -> Option<Enabled> {
        let former = self.former?;
        let NamedUnit { number, kind, window } = named;
        let registers = promise::registers_of_unit(self.platform, window, self.description)?;
        let (memory, clock) = (promise::for_driver(self.platform), self.platform.clone());
        let parts = OfUnit { registers, memory, clock };
        let claims = &mut *former.claims.borrow_mut();
        let unit = match former.left {
            Left::Record(record) => {
                Former::recorded(record, kind, window.start()).and_then(|state| {
                    let (unit, _) = take(parts, FormerState::Recorded(&state), claims)?;
                    Ok((unit, GoesOn::Interrupts(state.interrupts)))
                })
            }
            Left::Crash(keep, memory) => {
                let keep = self.streams_behind(number, keep);
                let taken = take(parts, FormerState::Crashed(&keep, memory), claims);
                taken.map(|(unit, streams)| (unit, GoesOn::Streams(streams)))
            }
        };
        former.note(number, unit).map(|unit| Arc::new(unit) as Enabled)
    }

    /// The streams of `functions` at the unit of that number.
    fn streams_behind(&self, number: usize, functions: &[PciFunction]) -> Vec<StreamId> {
        let read = |of, at| self.platform.pci_config(of, at);
        let find = |survey: &Survey, of| self.topology.find(survey, &read, of).ok().flatten();
        let served = functions.iter().map(|function| self.survey.serving(*function, find).0);
        served.filter(|of| of.unit == Some(number)).flat_map(|of| of.streams).collect()
    }
}
