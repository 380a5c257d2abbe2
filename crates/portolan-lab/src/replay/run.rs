//! One pass over a trace, each operation fed to every policy.
//!
//! Memory is bounded by what is mapped at once. All devices of a trace share one address space and
//! one IOMMU.

use std::path::Path;
use std::thread;

use anyhow::{Context, Result, bail};
use portolan::addr::PageSize;
use portolan::table::Format;
use portolan_cli::display;
use portolan_cli::progress::{Pace, Progress};
use portolan_model::cpus::MAX_CPUS;
use portolan_model::profile::{Event, Price, Profile};

use super::chunk::Chunk;
use super::findings::{findings, linux_finding};
use super::lane::Lane;
use super::policy::Policy;
use super::report::{PolicyReport, ReplayReport, TraceReport};
use super::sent::Sent;
use super::settings::{Input, LinuxCounters, LinuxCounts, advise, spread_us};
use super::shape::{Observer, Shape};
use super::warnings::warnings;
use crate::advice::Advice;
use crate::linux::{Counter, Rules};
use crate::machines::{WithFormat, with_format};
use crate::trace::{self, At, Reader, Summary};

/// The trace that comes with the program, and its name.
const BUNDLED: &[u8] = include_bytes!("../../../../data/traces/vtd-strict.mixed-sg-4j.trace.xz");
const BUNDLED_NAME: &str = "bundled trace vtd-strict.mixed-sg-4j";
/// Line numbers kept of what was rejected.
const KEPT_LINES: usize = 20;

/// The name for people of the trace at `path`, as [`open`] takes it.
pub(crate) fn name_of(path: Option<&Path>) -> String {
    match path {
        Some(path) if path == Path::new("-") => "standard input".to_owned(),
        Some(path) => path.display().to_string(),
        None => BUNDLED_NAME.to_owned(),
    }
}

/// Opens what [`open`] opens; its errors do not name the trace.
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

/// As [`run_opened`], but what a reader of the report should know of its trace is handed back, and how far the
/// replay is goes to `progress`.
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

/// Replays what `reader` reads, once for each policy, in one pass.
///
/// # Errors
/// If the library or the model refuses what it should take, or a price is missing.
pub fn run(reader: &mut Reader, profile: &Profile, policies: &[Policy]) -> Result<ReplayReport> {
    run_beside(reader, profile, policies, None)
}

/// As [`run`], and counts beside it what Linux would have submitted by `linux`.
///
/// # Errors
/// As [`run`].
pub fn run_beside(
    reader: &mut Reader,
    profile: &Profile,
    policies: &[Policy],
    linux: Option<Rules>,
) -> Result<ReplayReport> {
    run_lanes(
        reader,
        profile,
        policies,
        linux,
        Some(&Progress::unbounded()),
    )
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
    with_format(
        profile.format(),
        Task {
            reader,
            profile,
            policies: &policies,
            linux,
            progress,
        },
    )
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
        let Self {
            reader,
            profile,
            policies,
            linux,
            progress,
        } = self;
        let facts = reader.facts().and_then(Result::ok);
        let asked = linux.map(|rules| Counter::new(rules, profile));
        let linux = Beside {
            asked: asked.transpose()?,
            all: LinuxCounters::new(profile),
        };
        let cpus = profile.cpus().clamp(1, MAX_CPUS as u32) as usize;
        let lanes = policies
            .iter()
            .map(|policy| Lane::new(*policy, profile, format, cpus));
        let mut lanes = lanes.collect::<Result<Vec<_>>>()?;
        let driven = drive(reader, F::GRANULE, cpus, &mut lanes, linux, progress)?;
        let Driven {
            rejected,
            shape,
            linux: Beside { asked, all },
        } = driven;
        let reports = lanes
            .iter_mut()
            .map(|lane| lane.finish().map(|report| ranged(report, profile)))
            .collect::<Result<Vec<_>>>()?;
        let trace = trace_report(reader.summary(), rejected);
        let linux = asked.map(|counter| counter.finish(&trace.devices));
        let counts = all.map(|counters| counters.finish(&trace.devices));
        let defaults = Advice::of(profile);
        let (situation, settings) = advise(&Input {
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
            situation,
            sent: Sent::of(reader.summary()),
            predicted: counts.as_ref().map(LinuxCounts::predicted),
            advice: settings,
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

/// Maps that no lane took.
#[derive(Default)]
struct Rejected {
    maps: u64,
    first_lines: Vec<u64>,
}

impl Rejected {
    fn note(&mut self, line: u64) {
        self.maps += 1;
        if self.first_lines.len() < KEPT_LINES {
            self.first_lines.push(line);
        }
    }
}

/// What a pass over a trace leaves beside the lanes.
struct Driven {
    rejected: Rejected,
    shape: Shape,
    linux: Beside,
}

/// Linux's rules beside the policies: those that were asked for, and those that advice is taken from.
struct Beside {
    asked: Option<Counter>,
    all: Option<LinuxCounters>,
}

/// Feeds all operations to all lanes; the maps that no lane took, and what the trace holds.
fn drive(
    reader: &mut Reader,
    granule: PageSize,
    cpus: usize,
    lanes: &mut [Lane],
    mut linux: Beside,
    progress: Option<&Progress>,
) -> Result<Driven> {
    let mut operations = 0u64;
    let mut rejected = Rejected::default();
    let mut observer = Observer::default();
    let mut chunk = Chunk::new(cpus);
    // Time stamps of different CPUs may step back; policies see time that does not.
    let mut now_ns = 0;
    loop {
        let op = reader.next_op();
        let ended = op.is_none();
        if let Some(op) = op {
            now_ns = now_ns.max(op.time_ns);
            let cpu = op.cpu;
            let running = op.running;
            let at = At {
                now_ns,
                cpu,
                running,
            };
            observer.note(&op, now_ns);
            let padded = chunk.push(&op, at, granule);
            if let Some(linux) = &mut linux.asked {
                linux.note(&op, at, padded);
            }
            if let Some(linux) = &mut linux.all {
                linux.note(&op, at, padded);
            }
            operations += 1;
        }
        if !ended && !chunk.is_full() {
            continue;
        }
        run_all(lanes, &chunk)?;
        chunk.rejected().for_each(|line| rejected.note(line));
        chunk.clear();
        if ended {
            let shape = observer.finish(&reader.summary().devices);
            return Ok(Driven {
                rejected,
                shape,
                linux,
            });
        }
        if let Some(progress) = progress {
            progress.say(|pace| so_far(operations, reader, pace));
        }
    }
}

/// Has all lanes carry out `chunk`, several at a time where the process has the cores.
fn run_all(lanes: &mut [Lane], chunk: &Chunk) -> Result<()> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let each = lanes.len().div_ceil(cores).max(1);
    let run = |part: &mut [Lane]| part.iter_mut().try_for_each(|lane| lane.run(chunk));
    if each >= lanes.len() {
        return run(lanes);
    }
    thread::scope(|scope| {
        let parts = lanes.chunks_mut(each);
        let parts: Vec<_> = parts.map(|part| scope.spawn(move || run(part))).collect();
        let mut ended = parts.into_iter().map(|part| part.join());
        ended.try_for_each(|ended| ended.unwrap_or_else(|_| bail!("a policy's thread ended early")))
    })
}

fn so_far(operations: u64, reader: &Reader, pace: Pace) -> String {
    let (done, rate) = (display::grouped(operations), pace.rate(operations));
    match reader.bytes_done() {
        Some((read, size)) => format!(
            "{done} operations, {} of {}, {rate}{}",
            display::bytes(read),
            display::bytes(size),
            pace.left(read, size)
        ),
        None => format!(
            "{done} operations, {} read, {rate}",
            display::bytes(reader.bytes_read())
        ),
    }
}

fn trace_report(summary: &Summary, rejected: Rejected) -> TraceReport {
    TraceReport {
        source: String::new(),
        events: summary.events,
        maps: summary.maps,
        unmaps: summary.unmaps,
        bytes_mapped: summary.bytes_mapped,
        orphan_unmaps: summary.orphan_unmaps,
        lost_events: summary.lost_events,
        bad_lines: summary.bad_lines,
        coherent_allocs: summary.coherent_allocs,
        coherent_frees: summary.coherent_frees,
        bounced_bytes: summary.bounced_bytes,
        left_mapped: summary.left_mapped,
        out_of_order: summary.out_of_order,
        truncated_lists: summary.truncated_lists,
        inexact_lists: summary.inexact_lists,
        failed_maps: summary.failed_maps,
        devices: summary.devices.clone(),
        rejected_maps: rejected.maps,
        rejected_lines: rejected.first_lines,
    }
}
