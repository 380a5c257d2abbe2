//! Replays many traces, as many at a time as the process has CPUs.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use portolan_cli::display;
use portolan_cli::progress::Progress;
use portolan_sim::profile::Profile;

use super::entry::{Failed, ReplayedTrace, TraceResult};
use super::files::Job;
use crate::linux::LinuxArgs;
use crate::parallel::in_parallel;
use crate::replay::{self, Policy, Replay, TraceInput};

/// Settings with which every trace is replayed.
pub struct How<'a> {
    /// The machine; if absent, that which the trace brings along.
    pub machine: Option<&'a Profile>,
    /// Policies.
    pub policies: &'a [Policy],
    /// Linux's rules, if they are asked for.
    pub linux: &'a LinuxArgs,
}

/// Replays the traces of `jobs`. `keep` receives each result as soon as it is there, on the thread that replayed it,
/// and returns the part to keep, or stops: then no further trace begins. The results are in the order of `jobs`.
///
/// # Errors
/// Errors of `keep`. A trace that cannot be replayed is no error.
pub fn run<K: Send>(
    jobs: &[Job],
    how: &How<'_>,
    keep: impl Fn(TraceResult) -> Result<ControlFlow<(), K>> + Sync,
) -> Result<Vec<K>> {
    let progress = Progress::new(jobs.len() as u64);
    let broken_off = AtomicBool::new(false);
    let kept = in_parallel(jobs, |job| {
        if broken_off.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let ended = match job {
            Job::Trace(path) => one(path.as_deref(), how),
            Job::Failed(failed) => TraceResult::Failed(failed.clone()),
        };
        if let TraceResult::Failed(Failed { trace, error }) = &ended {
            let said = format!("portolan: {}: {error}", trace.source);
            eprintln!("{}", display::plain(&said));
        }
        let kept = keep(ended);
        progress.add(1);
        let stop = !matches!(kept, Ok(ControlFlow::Continue(_)));
        broken_off.fetch_or(stop, Ordering::Relaxed);
        Ok(kept?.continue_value())
    })?;
    Ok(kept.into_iter().flatten().collect())
}

fn one(path: Option<&Path>, how: &How<'_>) -> TraceResult {
    let input = TraceInput::of(path);
    match replayed(input, how) {
        Ok(line) => TraceResult::Replayed(Box::new(line)),
        Err(error) => TraceResult::Failed(Failed::new(&input.to_string(), format!("{error:#}"))),
    }
}

fn replayed(input: TraceInput<'_>, how: &How<'_>) -> Result<ReplayedTrace> {
    let mut reader = input.open()?;
    let facts = reader.facts().and_then(Result::ok);
    let (own, choice, warning) = match how.machine {
        Some(_) => (None, None, None),
        None => {
            let (profile, choice, warning) = replay::of_recording(&reader)?;
            (Some(profile), choice, warning)
        }
    };
    let profile = own.as_ref().or(how.machine);
    let profile = profile.context("no machine profile")?;
    let linux = how.linux.rules(profile)?;
    let replay = Replay { linux, ..Replay::new(profile, how.policies) };
    let mut report = replay.run(&mut reader)?;
    report.chosen = choice;
    for warning in warning.iter().chain(&report.warnings) {
        portolan_cli::warn("portolan", &format!("{input}: {warning}"));
    }
    Ok(ReplayedTrace::new(report, facts.as_ref(), reader.release()))
}
