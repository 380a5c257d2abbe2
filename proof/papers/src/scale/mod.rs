//! Throughput by number of CPUs, in virtual time: the library's code under each policy, and today's Linux, with the
//! same prices.
//!
//! *Measured* figures were published by others and stand in a column of their own; everything else is computed.
//! Figures that a price was fitted on are marked.

mod fit;
mod point;
mod published;
mod text;
mod walks;

pub use fit::FittedOperation;
pub use point::{OperationLoad, PointResult, RowSettings};
pub use text::{COLUMNS_IN_WORDS, text};

use anyhow::{Context, Result};
use clap::ValueEnum;
use portolan_cli::progress::Progress;
use portolan_sim::profile::Profile;
use serde::{Serialize, Serializer};

use portolan_tune::advice::Advice;
use portolan_tune::parallel::in_parallel;

/// The machine that is used where none is named.
pub const DEFAULT_MACHINE: &str = "vtd-nested";
/// Numbers of CPUs that are computed by default, as far as the machine has that many.
const COUNTS: [usize; 8] = [1, 2, 4, 8, 16, 32, 64, 144];

/// Time at which unmapped memory is invalidated, and the CPU that does it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ScalePolicy {
    /// No translation.
    #[value(name = "passthrough")]
    Identity,
    /// Each unmap submits its own invalidation and waits, in the way that Linux has on the machine.
    Strict,
    /// Like strict, but CPUs that unmap at the same time submit together.
    Combined,
    /// Buffers are deferred and reclaimed in batches, which CPUs submit together.
    Deferred,
    /// Flush queues; memory stays reachable for a while.
    Lazy,
}

impl ScalePolicy {
    /// The name on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Identity => "passthrough",
            Self::Strict => "strict",
            Self::Combined => "combined",
            Self::Deferred => "deferred",
            Self::Lazy => "lazy",
        }
    }
}

impl Serialize for ScalePolicy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// A policy on a number of CPUs.
#[derive(Clone, Debug, Serialize)]
pub struct ScaleRow {
    /// The policy.
    pub policy: ScalePolicy,
    /// Difference from the profile, if there is one.
    pub with: Option<String>,
    /// CPUs.
    pub cpus: usize,
    /// Operations a second, computed.
    pub operations_per_s: f64,
    /// Throughput in Gbit/s.
    pub gbit_s: f64,
    /// Measured figure that was published for this row, in its own unit.
    pub published: Option<f64>,
    /// Unit of the published figure.
    pub published_unit: Option<&'static str>,
    /// Prices were fitted on it.
    pub fitted: bool,
    /// Syncs by operation.
    pub syncs_per_operation: f64,
    /// Exits to a hypervisor by operation; none where the unit is the hardware's own.
    pub exits_per_operation: f64,
    /// Invalidation commands by operation.
    pub commands_per_operation: f64,
}

/// A machine's rows.
#[derive(Debug, Serialize)]
pub struct ScaleReport {
    /// The machine.
    pub machine: String,
    /// The operation, in words.
    pub operation: String,
    /// Seed of all that is random.
    pub seed: u64,
    /// Fitted values, if prices were fitted.
    pub fit: Option<FittedOperation>,
    /// Rows.
    pub rows: Vec<ScaleRow>,
    /// The machine's default policies, as `explain` and `replay` say them.
    pub defaults: Advice,
}

/// Choice of rows.
#[derive(Clone, Debug)]
pub struct Options {
    /// Policies; all if empty.
    pub policies: Vec<ScalePolicy>,
    /// Numbers of CPUs; the usual ones if empty.
    pub cpus: Vec<usize>,
    /// Seed of all that is random.
    pub seed: u64,
    /// Virtual milliseconds that are computed for each row.
    pub horizon_ms: u64,
}

/// A row to be computed.
struct RowRun {
    policy: ScalePolicy,
    cpus: usize,
    exit_ns: Option<f64>,
}

/// Computes the rows of `options`.
///
/// # Errors
/// If the profile lacks something, or a run fails, which is a defect.
pub fn run(profile: &Profile, options: &Options) -> Result<ScaleReport> {
    let workload = profile
        .workload()
        .with_context(|| format!("`{}` has no workload to scale", profile.name()))?;
    let published = published::of(profile.name())?;
    let mut load = OperationLoad::of(workload);
    let fit = if published.is_by_cores() {
        Some(FittedOperation::compute(profile, &load, &published, options)?)
    } else {
        None
    };
    if let Some(fit) = &fit {
        load.work_ns = fit.work_ns;
        load.bytes = fit.bytes;
    }
    let tasks = tasks(profile, options, &published);
    let progress = Progress::new(tasks.len() as u64);
    let compute = |task: &RowRun| {
        let mut way = RowSettings::of(task.policy, task.cpus, options);
        way.exit_ns = task.exit_ns;
        let outcome = point::simulate(profile, &load, &way)?;
        progress.add(1);
        Ok(row(task, &outcome, &load, &published))
    };
    Ok(ScaleReport {
        machine: profile.name().to_owned(),
        operation: format!("{}: {} bytes", workload.what, load.bytes.round()),
        seed: options.seed,
        fit,
        rows: in_parallel(&tasks, compute)?,
        defaults: Advice::of(profile),
    })
}

fn tasks(
    profile: &Profile,
    options: &Options,
    published: &published::MachineFigures,
) -> Vec<RowRun> {
    let policies = match options.policies.as_slice() {
        [] => ScalePolicy::value_variants(),
        some => some,
    };
    let mut counts = options.cpus.clone();
    if counts.is_empty() {
        let most = profile.cpus() as usize;
        counts = COUNTS.into_iter().filter(|count| *count <= most).collect();
    }
    let mut tasks = Vec::new();
    for &policy in policies {
        let mut counts = counts.clone();
        if options.cpus.is_empty() {
            counts.extend(published.counts(policy));
            counts.sort_unstable();
            counts.dedup();
        }
        let task = |cpus, exit_ns| RowRun { policy, cpus, exit_ns };
        tasks.extend(counts.iter().map(|&cpus| task(cpus, None)));
        if policy == ScalePolicy::Strict {
            let slow = published.slow_submissions(profile);
            tasks.extend(slow.into_iter().map(|(cpus, ns)| task(cpus, Some(ns))));
        }
    }
    tasks
}

fn row(
    task: &RowRun,
    outcome: &PointResult,
    load: &OperationLoad,
    published: &published::MachineFigures,
) -> ScaleRow {
    let found = published.find(task.policy, task.cpus);
    ScaleRow {
        policy: task.policy,
        with: task.exit_ns.map(|ns| format!("an exit of {:.1} us", ns / 1000.0)),
        cpus: task.cpus,
        operations_per_s: outcome.operations_per_s,
        gbit_s: outcome.operations_per_s * load.bytes * 8.0 / 1e9,
        published: found.map(|found| found.value),
        published_unit: found.map(|found| found.unit),
        fitted: task.exit_ns.is_none() && found.is_some_and(|found| found.fitted),
        syncs_per_operation: outcome.syncs_per_operation,
        exits_per_operation: outcome.exits_per_operation,
        commands_per_operation: outcome.commands_per_operation,
    }
}

#[cfg(test)]
mod tests;
