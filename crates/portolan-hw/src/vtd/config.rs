//! Settings of a unit.
//!
//! *Context.* Interrupt: everything here is a value.

use portolan::inval::{CombineOptions, Quirks};
use portolan::platform::{AllMemory, Nanos};

use super::quirks::Quirks as ChipQuirks;
use super::tables::Mode;
use crate::interrupt::Remapping;
use crate::reservations::Reservations;

/// Settings of a unit.
///
/// ```no_run
/// # use portolan::iommu::IommuError;
/// # use portolan::platform::{Nanos, UnitPlatform};
/// # use portolan_hw::vtd::{Config, Mode, Vtd};
/// /// A unit with PASIDs, that is waited for no longer than a tenth of a second.
/// fn open<P: UnitPlatform>(
///     registers: P::Registers, memory: P::Memory, cpus: P,
/// ) -> Result<Vtd<P>, IommuError> {
///     let mut config = Config::default();
///     config.mode = Mode::Scalable;
///     config.limit = Nanos::from_millis(100);
///     Vtd::enable(registers, memory, cpus, config)
/// }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Longest wait for the hardware, each time.
    pub limit: Nanos,
    /// Pages of the invalidation queue as an exponent, 7 at most.
    pub queue_lg2_pages: u32,
    /// Structures by which devices are found.
    /// [`Unsupported`](portolan::iommu::IommuError::Unsupported) if the unit cannot.
    pub mode: Mode,
    /// Way in which invalidations are submitted.
    pub invalidation: Invalidation,
    /// Width of physical addresses in bits.
    pub output_lg2: u32,
    /// Widest PASID that will be used, in bits; cut off at the unit's own.
    pub pasid_bits: u32,
    /// Quirks that the invalidation plans respect, beyond the hardware's own word.
    pub quirks: Quirks,
    /// Makes CPUs that invalidate at the same time submit together; each submits its own where it
    /// is `None`. See [`Combiner`](portolan::inval::Combiner) for a caller's wait then.
    pub combining: Option<CombineOptions>,
    /// Errors of the unit beyond its own word: the quirks of all PCI devices that are part of the
    /// machine ([`ChipQuirks::of`]); [`ChipQuirks::KEEP_TRANSLATION`] for the unit of the graphics
    /// alone.
    pub chip: ChipQuirks,
    /// Memory that devices reach while the unit is taken over from a previous owner.
    pub takeover: Takeover,
    /// Memory that devices go on reaching at its own addresses, beside their other mappings:
    /// regions that firmware lists as reserved (RMRR:
    /// [`Dmar::reserved`](portolan_tables::dmar::Dmar::reserved)).
    pub reserved: Reservations,
    /// Interrupt remapping by the driver; `None` leaves all of that as it is found, for an embedder
    /// with a table of its own. [`Unsupported`](portolan::iommu::IommuError::Unsupported) if the
    /// unit cannot, or without a queue.
    pub interrupts: Option<Remapping>,
}

/// Way in which invalidations are submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invalidation {
    /// Through the queue if there is one, else through registers.
    Best,
    /// Through registers, in legacy mode only.
    Registers,
}

/// Memory that devices reach while a unit whose translation is on is taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takeover {
    /// The old mappings, and from the moment on at which the unit changes to the new tables those
    /// of these: translation stays on. The tables have to be of the same mode as those of before,
    /// as a unit changes modes only while translation is off (11.4.5): with another one,
    /// [`Unsupported`](portolan::iommu::IommuError::Unsupported).
    Translated,
    /// All memory, at its own addresses, for a moment: DMA that is under way with the old addresses
    /// lands anywhere. For machines on which no device is at work, and for changing modes.
    Bypass(AllMemory),
}

impl Default for Config {
    fn default() -> Self {
        Self {
            limit: Nanos::from_millis(1000),
            queue_lg2_pages: 0,
            mode: Mode::Legacy,
            invalidation: Invalidation::Best,
            output_lg2: 52,
            pasid_bits: 13,
            quirks: Quirks::default(),
            combining: None,
            chip: ChipQuirks::empty(),
            takeover: Takeover::Translated,
            reserved: Reservations::default(),
            interrupts: None,
        }
    }
}
