//! Options of a unit.
//!
//! *Context.* Interrupt: values; cloning a [`Config`] allocates.

use portolan::inval::{CombineOptions, Quirks};
use portolan::platform::Nanos;

use super::chip::Chip;
use crate::reservations::Reservations;

/// Options of a unit.
///
/// ```no_run
/// # use core::sync::atomic::AtomicU32;
/// # use portolan::iommu::IommuError;
/// # use portolan::platform::UnitPlatform;
/// # use portolan_hw::tegra_smmu::{Chip, Config, TegraSmmu};
/// /// The unit of a Tegra X1.
/// fn open<P: UnitPlatform<AtomicU32>>(
///     registers: P::Registers, memory: P::Memory, cpus: P,
/// ) -> Result<TegraSmmu<P>, IommuError> {
///     TegraSmmu::enable(registers, memory, cpus, Config::of(Chip::Tegra210))
/// }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Chip of the unit.
    pub chip: Chip,
    /// Longest wait for the hardware, each time.
    pub limit: Nanos,
    /// With more lines of the page-table cache to flush than this, all of them at once.
    pub lines_at_most: u64,
    /// Quirks that the plans respect, beyond the hardware's own word.
    pub quirks: Quirks,
    /// Makes CPUs that invalidate at the same time submit together; each submits its own where it
    /// is `None`. See [`Combiner`](portolan::inval::Combiner) for a caller's wait then.
    pub combining: Option<CombineOptions>,
    /// Memory that firmware reserves for swgroups: a display's framebuffer (a device tree's
    /// `memory-region` with `iommu-addresses`).
    pub reserved: Reservations,
}

impl Config {
    /// The usual for `chip`.
    pub fn of(chip: Chip) -> Self {
        Self {
            chip,
            limit: Nanos::from_millis(1000),
            lines_at_most: 16,
            quirks: Quirks::default(),
            combining: None,
            reserved: Reservations::default(),
        }
    }
}
