//! Units of a former kernel, each taken over by its driver.
//!
//! *Context.* Task.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::RefCell;

use portolan::addr::{PhysAddr, PhysRange};
use portolan::iommu::IommuDomains;
use portolan::iommu::handover::{InterruptHandover, UnitHandover};
use portolan::platform::{Platform, PreservedMemory, RawMemory, TableClaims};
use portolan_tables::describe::UnitKind;

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
    /// ([`RemapInterrupts::adopted`](portolan::iommu::RemapInterrupts::adopted)).
    pub interrupts: Vec<(usize, InterruptHandover)>,
    /// Table memory that is in use: the rest of the preserved pages is free.
    pub tables: Vec<PhysRange>,
}

/// The record of a former kernel, and its memory.
pub(in crate::topology) struct Former<'r> {
    record: Result<Record<'r>, RecordError>,
    claims: RefCell<TableClaims<'r>>,
    outcomes: RefCell<Vec<FormerUnit>>,
}

/// Number and outcome of a unit: its interrupts where it goes on.
type FormerUnit = (usize, Result<Vec<InterruptHandover>, AdoptError>);

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
        Self {
            record: Record::read(record),
            claims: RefCell::new(TableClaims::new(preserved)),
            outcomes: RefCell::default(),
        }
    }

    fn unit(&self, kind: UnitKind, base: PhysAddr) -> Result<UnitHandover, AdoptError> {
        let record = self.record?;
        let kind = RecordedKind::of(kind).ok_or(SectionError::Absent { base })?;
        Ok(record.unit(base, kind)?)
    }

    /// Notes the outcome of a unit, and returns the unit if there is one.
    fn note<T>(
        &self,
        number: usize,
        outcome: Result<(T, Vec<InterruptHandover>), AdoptError>,
    ) -> Option<T> {
        let (unit, noted) = match outcome {
            Ok((unit, interrupts)) => (Some(unit), Ok(interrupts)),
            Err(error) => (None, Err(error)),
        };
        self.outcomes.borrow_mut().push((number, noted));
        unit
    }

    pub(in crate::topology) fn end(self) -> Adoption {
        let (mut adopted, mut refused, mut interrupts) = (Vec::new(), Vec::new(), Vec::new());
        for (number, outcome) in self.outcomes.into_inner() {
            match outcome {
                Ok(its) => {
                    adopted.push(number);
                    interrupts.extend(its.into_iter().map(|interrupt| (number, interrupt)));
                }
                Err(error) => refused.push((number, error)),
            }
        }
        let tables = self.claims.into_inner().claimed().collect();
        Adoption { adopted, refused, interrupts, tables }
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
        let unit = state.and_then(|state| {
            let unit = adopt(parts, &state, &mut former.claims.borrow_mut())?;
            Ok((unit, state.interrupts))
        });
        former.note(number, unit).map(|unit| Arc::new(unit) as Enabled)
    }
}
