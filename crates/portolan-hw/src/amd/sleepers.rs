//! Log of interrupts for virtual CPUs that sleep, and the state of its readers.
//!
//! AMD I/O Virtualization Technology (IOMMU) Specification (48882), revision 3.10, section 2.7. Not here: the records.

use super::log::{Log, SLEEPERS};
use core::sync::atomic::{AtomicBool, AtomicU64};
use portolan::iommu::InterruptTarget;
use portolan::platform::{Guarded, OutOfTableMemory, TableMem, UnitPlatform};

/// The log.
pub(super) struct Sleepers<P: UnitPlatform> {
    pub(super) log: Log<P>,
    /// The log was begun again, and no caller has heard of it.
    pub(super) cut: AtomicBool,
    /// Target of the interrupt that records raise, if they do.
    pub(super) signals: Guarded<P, Option<InterruptTarget>>,
}

impl<P: UnitPlatform> Sleepers<P> {
    /// A log of `2^lg2_slots` records (9 to 16), not yet handed to the unit.
    pub(super) fn new(
        mem: &impl TableMem<AtomicU64>,
        lg2_slots: u32,
    ) -> Result<Self, OutOfTableMemory> {
        let log = Log::new(mem, SLEEPERS, lg2_slots)?;
        Ok(Self { log, cut: AtomicBool::new(false), signals: Guarded::default() })
    }
}
