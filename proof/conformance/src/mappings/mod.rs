//! Buffers mapped, deferred and reclaimed by many CPUs in virtual time, with an IOMMU that forgets nothing until it
//! is told to.
//!
//! Each CPU maps buffers, lets the device read them, unmaps them in one of the ways that the policy
//! has, and lets the device try the old addresses at any time, before and after. A device may get
//! to a buffer that a mapping or a deferred buffer holds; it may not reach a buffer that its driver
//! has back, except under the lazy policy, there within the bounds and never by an address that
//! another mapping has by now.

mod cpu;
mod failing;
pub(crate) mod machine;
mod world;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use portolan::addr::{PageSize, PhysAddr};
use portolan::dma::Policy;
use portolan::inval::{CombineOptions, Combined, Ranges};
use portolan::platform::SlabTables;
use portolan_sim::cpus::Hardware;
use portolan_sim::iommu::Setup;
use serde::Serialize;

use cpu::MappingTally;
pub use cpu::Model;
pub(crate) use cpu::Tables;
pub use failing::Health;
use failing::{AilingHardware, Ailment};
use machine::MappingRound;

/// Options of CPUs that submit together: ranges instead of pages, and in one mode a separate CPU besides the batches.
fn combining(way: UnmapMode) -> CombineOptions {
    CombineOptions { beside: usize::from(way == UnmapMode::Combined), ..CombineOptions::default() }
}

/// Operations after which everything is taken down.
const ROUND: u64 = 20_000;
/// Table pages of a machine whose memory runs out.
const SCARCE: u32 = 24;

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

    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Strict => "strict",
            Self::Combined => "combined",
            Self::Deferred => "deferred",
            Self::Lazy => "lazy",
        }
    }

    fn policy(self) -> Policy {
        match self {
            Self::Strict | Self::Combined => Policy::Strict,
            Self::Deferred => Policy::Deferred,
            Self::Lazy => Policy::Lazy,
        }
    }
}

/// Results of a run of one way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MappingReport {
    /// Way in which the buffers were taken back.
    pub way: UnmapMode,
    /// The hardware that it ran on.
    pub health: Health,
    /// Seed that replays the run.
    pub seed: u64,
    /// CPUs that mapped and unmapped at once.
    pub cpus: u64,
    /// Buffers mapped and unmapped.
    pub operations: u64,
    /// Accesses to live mappings.
    pub accesses: u64,
    /// Old addresses that were tried.
    pub retries: u64,
    /// Accesses to buffers that had not been given back.
    pub reached_waiting: u64,
    /// Accesses to buffers that were given back: within the bounds of the lazy policy.
    pub reached_exposed: u64,
    /// The longest time from an unmap to such an access, in virtual nanoseconds.
    pub longest_window_ns: u64,
    /// Syncs that the hardware did.
    pub syncs: u64,
    /// Submissions that the hardware failed.
    pub failures: u64,
    /// Requests that were refused, or did not end, because of that or for want of memory.
    pub refused: u64,
    /// Times that a space was brought back.
    pub recovered: u64,
    /// Bytes that were given up in the end: any is a violation.
    pub quarantined_bytes: u64,
    /// Violations that were found, the first few.
    pub violations: Vec<String>,
}

/// Does `operations` unmaps by `cpus` CPUs in `way`, from `seed`, on hardware of `health`; calls
/// `progress` with the number done.
///
/// # Panics
/// If the machine's own parts cannot be put together, which is a defect.
pub fn mappings(
    (way, health): (UnmapMode, Health),
    seed: u64,
    cpus: u64,
    operations: u64,
    progress: &mut dyn FnMut(u64),
) -> MappingReport {
    sabotaged((way, health), seed, cpus, operations, progress, |model| model)
}

/// Runs the test on hardware that `wrap` makes of the model, to test the test.
///
/// # Panics
/// As [`mappings`].
pub fn sabotaged<H: Hardware + 'static>(
    (way, health): (UnmapMode, Health),
    seed: u64,
    cpus: u64,
    operations: u64,
    progress: &mut dyn FnMut(u64),
    wrap: impl Fn(Arc<Model>) -> H,
) -> MappingReport {
    let tally = MappingTally::default();
    let mut syncs = 0;
    let mut round = 0;
    let tables: Tables = Box::leak(Box::new(SlabTables::new(
        PhysAddr::new(1 << 30),
        PageSize::SIZE_4K,
        match health {
            Health::Sound => 4096,
            // Few enough to run out at times.
            Health::Failing => SCARCE,
        },
    )));
    loop {
        let done = tally.operations.load(Ordering::Relaxed);
        progress(done);
        let bad = tally.violations.lock().is_ok_and(|all| !all.is_empty());
        if done >= operations || bad {
            break;
        }
        let each = (operations - done).min(ROUND).div_ceil(cpus);
        let seed = seed.wrapping_add(round);
        round += 1;
        let ailment = Ailment::new(health, seed);
        let wrap = |model| AilingHardware { hardware: wrap(model), ailment: ailment.clone() };
        let this = MappingRound { way, ailment: &ailment, seed, cpus, each, tally: &tally, tables };
        syncs += match way {
            UnmapMode::Strict => this.run(&wrap, |_, server| server),
            _ => this.run(&wrap, |cpus, server| {
                let ranges = Ranges::of(&Setup::able(PageSize::SIZE_4K));
                Combined::new(cpus, server, ranges, combining(way))
            }),
        };
        tally.failed(ailment.failures());
        if tables.live() != 0 {
            tally.violation(format!("{}: {} tables left", way.name(), tables.live()));
        }
    }
    tally.report((way, health), seed, cpus, syncs)
}
