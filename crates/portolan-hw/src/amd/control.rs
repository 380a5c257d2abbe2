//! Registers, memory and time of a unit, and the two registers that everybody shares.
//!
//! AMD I/O Virtualization Technology (IOMMU) Specification (48882), revision 3.10, sections 3.4.5
//! and 3.4.22.

use portolan::iommu::{Awaited, IommuError};
use portolan::platform::{Guarded, Mmio, Nanos, UnitPlatform};

use super::counts::Counters;
use super::features::Features;
use crate::chassis::{Present, wait_for};
use portolan_spec::amd::reg;

/// Registers, memory, clock and features, which all parts of a unit need.
pub(super) struct Control<P: UnitPlatform> {
    pub(super) regs: P::Registers,
    pub(super) mem: P::Memory,
    pub(super) clock: P,
    pub(super) limit: Nanos,
    pub(super) features: Features,
    pub(super) counters: Counters,
    /// Held from reading the control register to writing it. A leaf: taken under the event log's lock
    /// and under the command buffer's.
    switches: Guarded<P, ()>,
}

impl<P: UnitPlatform> Control<P> {
    pub(super) fn new(
        regs: P::Registers,
        mem: P::Memory,
        clock: P,
        limit: Nanos,
        features: Features,
    ) -> Self {
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
    pub(super) fn read(&self, offset: usize) -> Result<u64, IommuError> {
        self.regs.present64(offset)
    }

    /// Keeps the bits `keep` of the control register and sets `set`.
    pub(super) fn switch(&self, keep: u64, set: u64) -> Result<(), IommuError> {
        let _held = self.switches.lock();
        let before = self.read(reg::CONTROL)?;
        self.regs.write64(reg::CONTROL, before & keep | set);
        Ok(())
    }

    /// Waits until the bits `mask` of the status are `wanted`.
    pub(super) fn await_status(&self, mask: u64, wanted: u64) -> Result<(), IommuError> {
        let look = || Ok((self.read(reg::STATUS)? & mask == wanted).then_some(()));
        wait_for(&self.clock, self.limit, Awaited::Control, look)
    }
}
