//! Cost of mapping memory for devices for the traced Linux, now and with the change that is advised, and a verdict on
//! the worth of that change.
//!
//! CPU time alone: time that devices wait for walks of page tables stands beside it.

use serde::{Deserialize, Serialize};

use super::situation::Now;
use crate::counts::Exposed;

/// Less than this share of the load's time is not worth a change, even at the upper end of the prices and if all of
/// it were on the load's critical path: runs of one load differ by more, so that the gain could not be seen.
pub const WORTH_PCT_OF_LOAD: f64 = 1.0;

/// Cost of mapping for the traced Linux.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MappingCost {
    /// The policy that it has.
    pub policy: Now,
    /// Cost today.
    #[serde(flatten)]
    pub now: CpuCost,
    /// Cost by cause.
    pub causes: Causes,
    /// Time that devices wait for walks of page tables, in microseconds of the trace; no CPU time.
    pub device_wait_us: f64,
    /// Invalidations that the kernel sent if the trace has them, otherwise by Linux's rules.
    pub invalidations: u64,
    /// Memory that stays reachable after unmap, where the kernel is lazy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exposed: Option<Exposed>,
    /// The trace's length, in microseconds.
    pub span_us: f64,
    /// CPUs of the machine, or of the trace if the machine's are unknown.
    pub cpus: u32,
    /// Assumptions that decide the numbers, as clauses.
    pub assumes: Vec<String>,
    /// Cost after the first advised change whose effect has a price.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub then: Option<CpuCost>,
    /// True if a setting saves enough of the load's time: [`WORTH_PCT_OF_LOAD`].
    pub worth_a_change: bool,
}

/// CPU time by cause, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Causes {
    /// Page tables, mapping.
    pub map: f64,
    /// Page tables, unmapping.
    pub unmap: f64,
    /// Device addresses and flush queues.
    pub addresses: f64,
    /// Writing invalidations.
    pub invalidation: f64,
    /// Waiting for them, exits to a hypervisor included.
    pub wait: f64,
    /// Copies through the bounce pool.
    pub copies: f64,
}

/// CPU time of mapping: in all, and by second, by request and by the load's time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CpuCost {
    /// Microseconds in the whole trace.
    pub cpu_us: f64,
    /// Microseconds of CPU time for each second of each CPU.
    pub cpu_us_per_s: f64,
    /// Lower limit of the cost, from the known prices.
    pub low: f64,
    /// The most.
    pub high: f64,
    /// Nanoseconds for a map and its unmap.
    pub ns_per_request: f64,
    /// Percentage of the load's time, if CPUs never did this in parallel.
    pub pct_of_load: f64,
}

/// Divisors of a trace's costs.
#[derive(Clone, Copy, Debug)]
pub(super) struct CostDivisors {
    pub(super) span_us: f64,
    pub(super) cpus: u32,
    pub(super) requests: u64,
}

impl CpuCost {
    /// `us` microseconds, between the ends of `range_us`, over `load`.
    pub(super) fn over(us: f64, range_us: [f64; 2], load: &CostDivisors) -> Self {
        let cpu_seconds = load.span_us * f64::from(load.cpus) / 1e6;
        let [low, high] = range_us.map(|end| end / cpu_seconds);
        Self {
            cpu_us: us,
            cpu_us_per_s: us / cpu_seconds,
            low,
            high,
            ns_per_request: us * 1000.0 / load.requests as f64,
            pct_of_load: 100.0 * us / load.span_us,
        }
    }
}

impl CostDivisors {
    /// True if there is something to divide by.
    pub(super) fn is_some(&self) -> bool {
        self.span_us > 0.0 && self.cpus > 0 && self.requests > 0
    }
}
