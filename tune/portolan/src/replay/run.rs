//! One pass over a trace, each operation fed to every policy.
//!
//! Memory is bounded by the buffers that are mapped at once. All devices of a trace share one address space and
//! one IOMMU.

use std::path::Path;

use anyhow::{Context, Result, bail};
use portolan::table::Format;
use portolan_cli::progress::Progress;
use portolan_sim::cpus::MAX_CPUS;
use portolan_sim::profile::{Event, Price, Profile};

use super::drive::{Beside, Driven, Rejected, drive};
use super::findings::{findings, linux_finding};
use super::lane::Lane;
use super::policy::Policy;
use super::report::{PolicyReport, ReplayReport, TraceReport};
use super::sent::Sent;
use super::settings::{Input, LinuxCounters, LinuxCounts, advise, spread_us};
use super::warnings::warnings;
use crate::advice::Advice;
use crate::linux::{Counter, Kernel, Rules};
use crate::machines::{WithFormat, with_format};
use crate::trace::{self, Reader, Summary};

/// The trace that comes with the program, and its name.
const BUNDLED: &[u8] = include_bytes!("../../../../data/traces/vtd-strict.mixed-sg-4j.trace.xz");
const BUNDLED_NAME: &str = "bundled trace vtd-strict.mixed-sg-4j";

/// The name for people of the trace at `path`, as [`open`] takes it.
pub(crate) fn name_of(path: Option<&Path>) -> String {
    match path {
        Some(path) if path == Path::new("-") => "standard input".to_owned(),
        Some(path) => path.display().to_string(),
        None => BUNDLED_NAME.to_owned(),
    }
}

/// Opens the same traces as [`open`]; its errors do not name the trace.
///
/// # Errors
/// If the trace cannot be read.
pub(crate) fn reader(path: Option<&Path>) -> Result<Reader> {
    Ok(match path {
        Some(path) => trace::open(path)?,
        None => trace::from_bytes(BUNDLED)?,
    })
}

/// Opens the trace at `path` (`-` is standard input), or the bundled one; its name for people.
///
/// # Errors
/// If the trace cannot be read.
pub fn open(path: Option<&Path>) -> Result<(Reader, String)> {
    let name = name_of(path);
    let reader = reader(path).with_context(|| format!("trace {name}"))?;
    Ok((reader, name))
}

/// Opens and replays the trace at `path`, or the bundled one.
///
/// # Errors
/// As [`open`] and [`run_opened`].
pub fn run_file(
    path: Option<&Path>,
    profile: &Profile,
    policies: &[Policy],
    linux: Option<Rules>,
) -> Result<ReplayReport> {
    run_opened(open(path)?, profile, policies, linux)
}

/// Replays an opened trace that is called `name`; progress and warnings go to standard error.
///
/// # Errors
/// If the machine lacks something that the replay needs.
pub fn run_opened(
    opened: (Reader, String),
    profile: &Profile,
    policies: &[Policy],
    linux: Option<Rules>,
) -> Result<ReplayReport> {
    let progress = Progress::unbounded();
    let (mut report, warnings) = run_told(opened, profile, policies, linux, Some(&progress))?;
    drop(progress);
    report.warnings = warnings;
    for warning in &report.warnings {
        portolan_cli::warn("portolan", warning);
    }
    Ok(report)
}

/// As [`run_opened`], but returns the warnings on the trace, and reports progress to `progress`.
///
/// # Errors
/// As [`run_opened`].
pub(crate) fn run_told(
    (mut reader, name): (Reader, String),
    profile: &Profile,
    policies: &[Policy],
    linux: Option<Rules>,
    progress: Option<&Progress>,
) -> Result<(ReplayReport, Vec<String>)> {
    let mut report = run_lanes(&mut reader, profile, policies, linux, progress)?;
    report.trace.source = name;
    let warnings = warnings(reader.summary(), &report.trace);
    Ok((report, warnings))
}

/// Replays the operations of `reader`, once for each policy, in one pass.
///
/// # Errors
/// If the library or the model refuses an operation that it should take, or a price is missing.
pub fn run(reader: &mut Reader, profile: &Profile, policies: &[Policy]) -> Result<ReplayReport> {
    run_beside(reader, profile, policies, None)
}

/// As [`run`], and counts the commands that Linux would have submitted by `linux` beside it.
///
/// # Errors
/// As [`run`].
pub fn run_beside(
    reader: &mut Reader,
    profile: &Profile,
    policies: &[Policy],
    linux: Option<Rules>,
) -> Result<ReplayReport> {
    run_lanes(reader, profile, policies, linux, Some(&Progress::unbounded()))
}

fn run_lanes(
    reader: &mut Reader,
    profile: &Profile,
    policies: &[Policy],
    linux: Option<Rules>,
    progress: Option<&Progress>,
) -> Result<ReplayReport> {
    if policies.is_empty() {
        bail!("no policy to replay");
    }
    let mut policies = policies.to_vec();
    let mut seen = Vec::new();
    policies.retain(|policy| {
        !seen.contains(policy) && {
            seen.push(*policy);
            true
        }
    });
    with_format(profile.format(), Task { reader, profile, policies: &policies, linux, progress })
}

struct Task<'a> {
    reader: &'a mut Reader,
    profile: &'a Profile,
    policies: &'a [Policy],
    linux: Option<Rules>,
    progress: Option<&'a Progress>,
}

impl WithFormat for Task<'_> {
    type Output = ReplayReport;

    fn run<F: Format>(self, format: F) -> Result<ReplayReport> {
        let Self { reader, profile, policies, linux, progress } = self;
        let facts = reader.facts().and_then(Result::ok);
        let kernel = Kernel::of(reader, facts.as_ref());
        let asked = linux.map(|rules| Counter::new(rules.of_trace(kernel), profile));
        let linux = Beside { asked: asked.transpose()?, all: LinuxCounters::new(profile, kernel) };
        let cpus = profile.cpus().clamp(1, MAX_CPUS as u32) as usize;
        let lanes = policies.iter().map(|policy| Lane::new(*policy, profile, format, cpus));
        let mut lanes = lanes.collect::<Result<Vec<_>>>()?;
        let driven = drive(reader, F::GRANULE, cpus, &mut lanes, linux, progress)?;
        let Driven { rejected, shape, recorded, linux: Beside { asked, all } } = driven;
        let reports = lanes
            .iter_mut()
            .map(|lane| lane.finish().map(|report| ranged(report, profile)))
            .collect::<Result<Vec<_>>>()?;
        let trace = trace_report(reader.summary(), rejected);
        let linux = asked.map(|counter| counter.finish(&trace.devices));
        let counts = all.map(|counters| counters.finish(reader.summary()));
        let defaults = Advice::of(profile);
        let advised = advise(&Input {
            profile,
            facts: facts.as_ref(),
            summary: reader.summary(),
            trace: &trace,
            shape: &shape,
            policies: &reports,
            linux: counts.as_ref(),
            defaults: &defaults,
        });
        let mut findings = findings(&trace, &reports, &defaults);
        findings.extend(linux.as_ref().map(|linux| linux_finding(&trace, linux)));
        Ok(ReplayReport {
            trace,
            shape,
            machine: profile.name().to_owned(),
            chosen: None,
            policies: reports,
            defaults,
            linux,
            situation: advised.situation,
            recorded,
            sent: Sent::of(reader.summary()),
            predicted: counts.as_ref().map(LinuxCounts::predicted),
            cost: advised.cost,
            advice: advised.settings,
            findings,
            warnings: Vec::new(),
        })
    }
}

/// `report` with the range of its total, if prices of invalidations have one.
fn ranged(mut report: PolicyReport, profile: &Profile) -> PolicyReport {
    let done = report.invalidations;
    let paid = [
        (Event::CmdPage, done.page),
        (Event::CmdRange, done.range),
        (Event::CmdContext, done.context),
        (Event::CmdGlobal, done.global),
        (Event::Sync, report.syncs),
        (Event::Exit, report.exits),
    ];
    let total = |end: fn(&Price) -> f64| report.time_us.total + spread_us(profile, &paid, end);
    let range = [total(Price::low), total(Price::high)];
    report.total_range_us = Some(range).filter(|[low, high]| low < high);
    report
}

fn trace_report(summary: &Summary, rejected: Rejected) -> TraceReport {
    TraceReport {
        source: String::new(),
        events: summary.events,
        understood: summary.understood.pct(),
        maps: summary.maps,
        unmaps: summary.unmaps,
        bytes_mapped: summary.bytes_mapped,
        orphan_unmaps: summary.orphan_unmaps,
        lost_events: summary.lost_events,
        bad_lines: summary.bad_lines,
        coherent_allocs: summary.coherent_allocs,
        coherent_frees: summary.coherent_frees,
        bounced_bytes: summary.bounced_bytes,
        bounced_by_device: summary.bounced_by_device.clone(),
        left_mapped: summary.left_mapped,
        out_of_order: summary.out_of_order,
        early_unmaps: summary.early_unmaps,
        clock: summary.clock,
        clock_jumps: summary.clock_jumps,
        truncated_lists: summary.truncated_lists,
        inexact_lists: summary.inexact_lists,
        partial_unmaps: summary.partial_unmaps,
        ambiguous_unmaps: summary.ambiguous_unmaps,
        inferred_devices: summary.inferred_devices,
        failed_maps: summary.failed_maps,
        devices: summary.devices.clone(),
        rejected_maps: rejected.maps,
        rejected_lines: rejected.first_lines,
    }
}
