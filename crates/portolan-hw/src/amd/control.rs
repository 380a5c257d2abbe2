//! Registers, memory and time of a unit, and the two registers that everybody shares.
//!
//! AMD I/O Virtualization Technology (IOMMU) Specification (48882), revision 3.10, sections 3.4.5
//! and 3.4.22.

use core::sync::atomic::{AtomicBool, Ordering};

use portolan::platform::{Clock, Cpus, Guarded, Mmio, Nanos, poll};
use portolan::unit::{Awaited, UnitError};

use super::counts::Counters;
use super::features::Features;
use super::spec::reg;

/// A right that one caller has at a time. Nobody waits for it for ever.
#[derive(Debug, Default)]
pub(super) struct Turn(AtomicBool);

/// A turn that was taken; it ends when this is dropped.
pub(super) struct Taken<'a>(&'a AtomicBool);

impl Turn {
    pub(super) fn take(&self, clock: &impl Clock, limit: Nanos) -> Result<Taken<'_>, UnitError> {
        let free = || (!self.0.swap(true, Ordering::Acquire)).then_some(());
        let awaited = Awaited::Turn;
        poll(clock, limit, free)
            .map(|()| Taken(&self.0))
            .map_err(|waited| UnitError::TimedOut { awaited, waited })
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// What all parts of a unit need.
#[derive(Debug)]
pub(super) struct Control<R, M, C: Cpus> {
    pub(super) regs: R,
    pub(super) mem: M,
    pub(super) clock: C,
    pub(super) limit: Nanos,
    pub(super) features: Features,
    pub(super) counters: Counters,
    /// Held from reading the control register to writing it.
    switches: Guarded<C, ()>,
}

impl<R: Mmio, M, C: Cpus> Control<R, M, C> {
    pub(super) fn new(regs: R, mem: M, clock: C, limit: Nanos, features: Features) -> Self {
        Self {
            regs,
            mem,
            clock,
            limit,
            features,
            counters: Counters::default(),
            switches: Guarded::new(()),
        }
    }

    /// A register that never reads as all ones while the unit is there.
    pub(super) fn read(&self, offset: usize) -> Result<u64, UnitError> {
        match self.regs.read64(offset) {
            u64::MAX => Err(UnitError::Gone),
            value => Ok(value),
        }
    }

    /// Keeps the bits `keep` of the control register and sets `set`.
    pub(super) fn switch(&self, keep: u64, set: u64) -> Result<(), UnitError> {
        let _held = self.switches.lock();
        let before = self.read(reg::CONTROL)?;
        self.regs.write64(reg::CONTROL, before & keep | set);
        Ok(())
    }

    /// Waits until the bits `mask` of the status are `wanted`.
    pub(super) fn await_status(&self, mask: u64, wanted: u64) -> Result<(), UnitError> {
        let look = || match self.read(reg::STATUS) {
            Ok(status) => (status & mask == wanted).then_some(Ok(())),
            Err(error) => Some(Err(error)),
        };
        let awaited = Awaited::Control;
        poll(&self.clock, self.limit, look)
            .unwrap_or_else(|waited| Err(UnitError::TimedOut { awaited, waited }))
    }
}
