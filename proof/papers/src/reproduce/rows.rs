//! Results of a reproduction, as data: the keys of `portolan-papers reproduce --json`.

use serde::Serialize;

use super::bounds::{Bound, Evidence};
use portolan_tune::counts::{CommandCounts, RegisterWrites};
use portolan_tune::explain::PolicyRow;

/// A reproduction of one published table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Reproduction {
    /// Name of the published result.
    pub name: String,
    /// Name of the machine profile.
    pub machine: String,
    /// Published and computed, row by row.
    pub rows: Vec<LatencyRow>,
    /// The prices that the fit found, each with the rows that it was fitted on.
    pub prices: Vec<FittedPrice>,
    /// The bounds on figures that were not fitted, and the worth of each without its mechanism.
    pub bounds: Vec<Bound>,
    /// Further checks.
    pub checks: Vec<Check>,
    /// Conclusions from the rows, and points that they do not explain, a sentence each.
    pub notes: Vec<String>,
}

impl Reproduction {
    /// Tells if all bounds and checks are kept.
    pub fn holds(&self) -> bool {
        let bounds = self.bounds.iter().all(|bound| bound.holds);
        bounds && self.checks.iter().all(|check| check.holds)
    }
}

/// A latency.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LatencyRow {
    /// `map`, `unmap`, or `tear-down`: an address space given up with all that it maps.
    pub case: &'static str,
    /// `before`, `after` or `portolan`; `tlb-batched` and `lines-batched`: `before` with one half of the change to
    /// `after`.
    pub variant: &'static str,
    /// Bytes mapped or unmapped.
    pub size_bytes: u64,
    /// The size as published, where that is not a number of bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<String>,
    /// Always `latency_us`.
    pub quantity: &'static str,
    /// Published latency in microseconds (the median where several samples were published).
    pub published: Option<f64>,
    /// Smallest and largest published sample, if there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub published_range: Option<[f64; 2]>,
    /// Computed latency in microseconds.
    pub computed: f64,
    /// The least and the most that it may be, over prices that are assumed or another CPU's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub computed_range: Option<Ranged>,
    /// `computed` against `published`, in per cent.
    pub error_pct: Option<f64>,
    /// The prices were fitted on this row.
    pub fitted: bool,
    /// Evidence for `computed`.
    pub evidence: Evidence,
    /// Commands that the library planned and the model carried out.
    pub counts: CommandCounts,
    /// Cache lines of tables that were written back.
    pub lines: u64,
    /// Registers that a driver wrote for them, as the model counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub registers: Option<RegisterWrites>,
}

/// Range of a figure, and the prices behind it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ranged {
    /// The least.
    pub low: f64,
    /// The most.
    pub high: f64,
    /// The prices that are not known, and their ranges.
    pub over: &'static str,
}

/// Sets the evidence of each row; `what` names the bound on a row that nothing was fitted on.
pub(super) fn judge(
    rows: &mut [LatencyRow],
    what: impl Fn(&LatencyRow) -> String,
    bounds: &[Bound],
) {
    for row in rows {
        let bound = || bounds.iter().find(|bound| bound.what == what(row));
        row.evidence = match (row.published, row.fitted) {
            (None, _) => Evidence::Computed,
            (_, true) => Evidence::Fitted,
            _ => bound().map_or(Evidence::Implied, |bound| bound.evidence),
        };
    }
}

/// A price that a fit found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FittedPrice {
    /// Map or unmap.
    pub case: &'static str,
    /// Event that the price is for.
    pub event: &'static str,
    /// Nanoseconds an event.
    pub ns: f64,
    /// The rows that it was fitted on.
    pub fitted_on: &'static str,
}

/// A bound on predicted rows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Check {
    /// The rows, and the bound.
    pub what: String,
    /// The values found.
    pub found: String,
    /// The bound is kept.
    pub holds: bool,
}

impl Check {
    /// Text of `checks`, one line each.
    pub(super) fn lines(checks: &[Self]) -> String {
        let line = |check: &Self| {
            let verdict = if check.holds { "holds" } else { "FAILS" };
            format!("{verdict}: {}; {}.\n", check.what, check.found)
        };
        checks.iter().map(line).collect()
    }
}

/// Says if all of `bounds` and `checks` hold, as a sentence.
pub(super) fn verdict(bounds: &[Bound], checks: &[Check]) -> String {
    let held = bounds.iter().map(|bound| bound.holds);
    let held: Vec<bool> = held.chain(checks.iter().map(|check| check.holds)).collect();
    match held.iter().filter(|holds| !**holds).count() {
        0 => format!("All {} bounds and checks below hold.\n", held.len()),
        failed => format!("{failed} of {} bounds and checks below FAIL.\n", held.len()),
    }
}

/// A reproduction of the flush-queue table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FlushQueue {
    /// `flush-queue`.
    pub name: String,
    /// Name of the machine profile.
    pub machine: String,
    /// Each combination of stage and policy.
    pub rows: Vec<Throughput>,
    /// The two prices.
    pub prices: Vec<FittedPrice>,
    /// Price of one invalidation for the machine if unmaps were of another size.
    pub implied: Vec<Implied>,
    /// Price of one invalidation for the CPU that waits, by the number of CPUs that receive.
    pub receivers: Receivers,
    /// Nanoseconds of one strict invalidation on one CPU of bare metal, by the literature.
    pub literature_ns: f64,
    /// Source of that.
    pub literature: String,
    /// The bounds on figures that were not fitted: none, since nothing else was published.
    pub bounds: Vec<Bound>,
    /// The rule.
    pub decisions: Vec<PolicyRow>,
    /// Checks.
    pub checks: Vec<Check>,
}

impl FlushQueue {
    /// Tells if all checks hold.
    pub fn holds(&self) -> bool {
        self.checks.iter().all(|check| check.holds)
    }
}

/// A combination of settings.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Throughput {
    /// `receive`.
    pub case: &'static str,
    /// `strict` or `flush-queue`.
    pub variant: &'static str,
    /// `first` or `second`.
    pub stage: &'static str,
    /// Way in which the hypervisor follows second-stage tables: `caching-mode` or `write-protection`.
    pub shadowing: &'static str,
    /// `yes` if the rule allows it, else `no`.
    pub allowed: &'static str,
    /// Bytes of a packet.
    pub size_bytes: u64,
    /// `throughput_gbit_s`.
    pub quantity: &'static str,
    /// Gbit/s.
    pub published: Option<f64>,
    /// Gbit/s.
    pub computed: f64,
    /// `computed` against `published`, in per cent.
    pub error_pct: Option<f64>,
    /// The prices were fitted on it.
    pub fitted: bool,
    /// Evidence for `computed`.
    pub evidence: Evidence,
    /// Commands of a GiB received.
    pub counts: CommandCounts,
    /// Exits of a GiB received: one for each submission, and each write to a table that is protected.
    pub exits: u64,
}

/// The price of an invalidation for the CPU that waits: the machine's times the CPUs that receive. The
/// least that it can be, the profile's, and the most.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Receivers {
    /// Nanoseconds.
    pub waits_ns: [f64; 3],
    /// CPUs that receive at the same time for that.
    pub cpus: [f64; 3],
}

/// The price of an invalidation under another assumption.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Implied {
    /// Extent of one unmap, in words.
    pub unmap: &'static str,
    /// Its bytes.
    pub size_bytes: u64,
    /// Nanoseconds of the whole machine.
    pub ns: f64,
}

/// The relative error of `computed` in per cent.
pub(crate) fn error_pct(computed: f64, published: f64) -> f64 {
    (computed / published - 1.0) * 100.0
}
