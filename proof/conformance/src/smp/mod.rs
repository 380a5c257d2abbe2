//! Many CPUs in virtual time on one machine whose IOMMU forgets nothing until it is told to, and may fail.
//!
//! A load has CPUs that map, unmap, defer and reclaim buffers through the DMA layer, or devices that
//! fault on memory that its owner takes back, or both on one unit. Devices try old addresses at any
//! time. Wrong is an access to memory that its owner has back, except under the lazy policy, there
//! within the bounds; an access to memory of another address; a page request without a response, or
//! with two; and memory, an address or a table page that does not come back in the end.
//!
//! A run is made of rounds, each on a machine of its own. Its seed follows the run's: the first
//! round of a run from there is the same. Equal seeds give equal runs.

mod buffers;
mod cpu;
mod devices;
mod failing;
mod machine;
mod manner;
mod region;
mod round;
mod world;

use std::sync::Arc;

use portolan::dma::Policy;
use portolan_sim::cpus::Hardware;
use serde::Serialize;

pub use failing::Health;
pub use machine::Model;

use crate::record::{Record, Round, in_rounds};

/// Operations after which everything is taken down.
const ROUND: u64 = 10_000;
/// Events that every record counts.
const EVENTS: [&str; 5] = ["accesses", "syncs", "failures", "recovered", "quarantined_bytes"];

/// Way in which buffers are taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum UnmapMode {
    /// Each unmap waits for its own invalidation.
    Strict,
    /// Strict, with one CPU submitting for all.
    Combined,
    /// Buffers are deferred and reclaimed later, many at once.
    Deferred,
    /// Unmaps return at once.
    Lazy,
}

impl UnmapMode {
    /// Every way that there is.
    pub const ALL: [Self; 4] = [Self::Strict, Self::Combined, Self::Deferred, Self::Lazy];

    const fn policy(self) -> Policy {
        match self {
            Self::Strict | Self::Combined => Policy::Strict,
            Self::Deferred => Policy::Deferred,
            Self::Lazy => Policy::Lazy,
        }
    }
}

/// Work of the CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SmpLoad {
    /// Buffers through the DMA layer; an operation is an unmap.
    Buffers(UnmapMode),
    /// Devices that fault on memory that its owner takes back; an operation is a page request.
    Faults,
    /// Both, side by side.
    Both(UnmapMode),
}

impl SmpLoad {
    /// Buffers, in every way.
    pub const BUFFERS: [Self; 4] = [
        Self::Buffers(UnmapMode::Strict),
        Self::Buffers(UnmapMode::Combined),
        Self::Buffers(UnmapMode::Deferred),
        Self::Buffers(UnmapMode::Lazy),
    ];

    /// Buffers in every way, beside faults.
    pub const BOTH: [Self; 4] = [
        Self::Both(UnmapMode::Strict),
        Self::Both(UnmapMode::Combined),
        Self::Both(UnmapMode::Deferred),
        Self::Both(UnmapMode::Lazy),
    ];

    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Buffers(UnmapMode::Strict) => "strict",
            Self::Buffers(UnmapMode::Combined) => "combined",
            Self::Buffers(UnmapMode::Deferred) => "deferred",
            Self::Buffers(UnmapMode::Lazy) => "lazy",
            Self::Faults => "faults",
            Self::Both(UnmapMode::Strict) => "faults, strict",
            Self::Both(UnmapMode::Combined) => "faults, combined",
            Self::Both(UnmapMode::Deferred) => "faults, deferred",
            Self::Both(UnmapMode::Lazy) => "faults, lazy",
        }
    }

    /// Way in which buffers are taken back, if there are any.
    const fn buffers(self) -> Option<UnmapMode> {
        match self {
            Self::Buffers(mode) | Self::Both(mode) => Some(mode),
            Self::Faults => None,
        }
    }

    /// Tells if devices fault.
    const fn faults(self) -> bool {
        matches!(self, Self::Faults | Self::Both(_))
    }
}

/// Conditions of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SmpPlan {
    /// Work of the CPUs.
    pub load: SmpLoad,
    /// Health of the hardware.
    pub health: Health,
    /// Seed that replays the run.
    pub seed: u64,
    /// Number of CPUs.
    pub cpus: u64,
    /// Operations of all CPUs.
    pub operations: u64,
}

/// Does the operations of `plan`, and stops after a round with a violation; calls `progress` with the number done.
///
/// # Panics
/// If the machine's own parts cannot be put together, which is a defect.
pub fn smp(plan: SmpPlan, progress: &mut dyn FnMut(u64)) -> Record {
    sabotaged(plan, progress, &|model| Box::new(model))
}

/// Runs [`smp`] on hardware that `wrap` makes of the model. A record without violations then means that a mistake of
/// that hardware is missed.
///
/// # Panics
/// As [`smp`].
pub fn sabotaged(
    plan: SmpPlan,
    progress: &mut dyn FnMut(u64),
    wrap: &dyn Fn(Arc<Model>) -> Box<dyn Hardware>,
) -> Record {
    let whole = Round { seed: plan.seed, operations: plan.operations };
    in_rounds(whole, ROUND, &EVENTS, progress, |Round { seed, operations }, tally| {
        round::run(SmpPlan { seed, operations, ..plan }, tally, wrap);
    })
}
