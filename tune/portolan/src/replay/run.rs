//! A pass over a trace in which each operation is fed to every policy.
//!
//! Memory is bounded by the buffers that are mapped at once. All devices of a trace share one address space and
//! one IOMMU.

use anyhow::{Result, bail};
use portolan::table::Format;
use portolan_cli::progress::Progress;
use portolan_sim::cpus::MAX_CPUS;
use portolan_sim::profile::{Event, Price, Profile};

use super::drive::{Driven, LinuxCounting, Rejected, drive};
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
use crate::trace::Reader;

/// A replay of traces: a machine, and the policies that each operation is fed to.
#[derive(Clone, Copy)]
pub struct Replay<'a> {
    /// The machine.
    pub profile: &'a Profile,
    /// Policies; duplicates are replayed once.
    pub policies: &'a [Policy],
    /// Linux's rules, whose commands are counted as well.
    pub linux: Option<Rules>,
    /// Shows the operations that are done.
    pub progress: Option<&'a Progress>,
}

impl<'a> Replay<'a> {
    /// A replay that counts nothing of Linux's, and shows no progress.
    pub fn new(profile: &'a Profile, policies: &'a [Policy]) -> Self {
        Self { profile, policies, linux: None, progress: None }
    }

    /// Replays the operations of `reader`, once for each policy, in one pass. Warnings on the trace are in the report.
    ///
    /// # Errors
    /// If the library or the model refuses an operation that it should take, or the machine lacks something that the
    /// replay needs, a price for one.
    pub fn run(&self, reader: &mut Reader) -> Result<ReplayReport> {
        if self.policies.is_empty() {
            bail!("no policy to replay");
        }
        let mut policies = Vec::new();
        for policy in self.policies {
            if !policies.contains(policy) {
                policies.push(*policy);
            }
        }
        let replay = Replay { policies: &policies, ..*self };
        with_format(self.profile.format(), Task { reader, replay })
    }
}

struct Task<'a> {
    reader: &'a mut Reader,
    replay: Replay<'a>,
}

impl WithFormat for Task<'_> {
    type Output = ReplayReport;

    fn run<F: Format>(self, format: F) -> Result<ReplayReport> {
        let Self { reader, replay: Replay { profile, policies, linux, progress } } = self;
        let facts = reader.facts().and_then(Result::ok);
        let kernel = Kernel::of(reader, facts.as_ref());
        let asked = linux.map(|rules| Counter::new(rules.of_trace(kernel), profile));
        let linux =
            LinuxCounting { asked: asked.transpose()?, all: LinuxCounters::new(profile, kernel) };
        let cpus = profile.cpus().clamp(1, MAX_CPUS as u32) as usize;
        let mut lanes = policies
            .iter()
            .map(|policy| Lane::new(*policy, profile, format, cpus))
            .collect::<Result<Vec<_>>>()?;
        let driven = drive(reader, F::GRANULE, cpus, &mut lanes, linux, progress)?;
        let Driven { rejected, shape, recorded, linux: LinuxCounting { asked, all } } = driven;
        let reports = lanes
            .iter_mut()
            .map(|lane| lane.finish().map(|report| ranged(report, profile)))
            .collect::<Result<Vec<_>>>()?;
        let trace = trace_report(reader, rejected);
        let warnings = warnings(reader.summary(), &trace);
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
            warnings,
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

fn trace_report(reader: &Reader, rejected: Rejected) -> TraceReport {
    let summary = reader.summary();
    TraceReport {
        source: reader.name().to_owned(),
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
