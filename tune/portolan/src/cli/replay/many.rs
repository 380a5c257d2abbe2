//! `portolan replay` of many traces.

use std::ops::ControlFlow;
use std::path::PathBuf;

use anyhow::{Result, bail};
use portolan_cli::{Form, Outcome};
use portolan_sim::profile::Profile;
use serde::Serialize;

use super::{ReplayArgs, policies};
use crate::cli::machine::{file_of, profile};
use crate::cli::report::{fact, origin};
use crate::fleet::{self, Aggregate, Entry, Failed, How, Job, TraceResult};
use crate::{replay, report};

/// Replays many traces, and adds them up or prints a line for each.
pub(super) fn run(args: &ReplayArgs) -> Result<Outcome> {
    let machine = args.machine.as_deref().map(profile).transpose()?;
    let policies = policies(args)?;
    let how = How { machine: machine.as_ref(), policies: &policies, linux: &args.linux };
    let mut jobs = fleet::jobs(&args.traces);
    if args.traces.is_empty() && args.results.is_empty() {
        jobs.push(Job::Trace(None));
    }
    let traces = jobs.iter().filter_map(|job| match job {
        Job::Trace(path) => path.as_deref(),
        Job::Failed(_) => None,
    });
    let others =
        args.results.iter().map(PathBuf::as_path).chain(args.machine.as_deref().and_then(file_of));
    let inputs: Vec<_> = traces.chain(others).collect();
    let destination = args.report.destination(&inputs)?;
    if args.ndjson && destination.is_none() {
        return stream(&jobs, &how)?.outcome();
    }
    let all = match (args.ndjson, args.output.form()) {
        (true, _) => lines(args, &jobs, &how)?,
        (false, Form::Text) => tables(args, &jobs, &how)?,
        (false, Form::Json) => one_object(args, &jobs, &how)?,
    };
    if let Some(destination) = destination {
        let machine = how.machine.map_or("each trace's own", Profile::name);
        let facts = vec![fact("machine profile", machine), fact("seed", replay::SEED.to_string())];
        let page = report::fleet(&all.entries, &all.sum, origin(facts));
        destination.write(&page)?;
    }
    all.ends.outcome()
}

/// Numbers of traces and accesses that ended badly.
#[derive(Clone, Copy, Default)]
struct FailureCounts {
    /// Accesses that were refused.
    faults: u64,
    /// Traces that could not be replayed.
    failed: usize,
    /// Traces of which too little was understood.
    not_understood: usize,
}

impl FailureCounts {
    fn of(ended: &TraceResult) -> Self {
        match ended {
            TraceResult::Replayed(line) => Self {
                faults: line.faults(),
                failed: 0,
                not_understood: usize::from(!line.report.trace.understood.is_enough()),
            },
            TraceResult::Failed(_) => Self { failed: 1, ..Self::default() },
        }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            faults: self.faults.saturating_add(other.faults),
            failed: self.failed + other.failed,
            not_understood: self.not_understood + other.not_understood,
        }
    }

    /// A defect outdoes a trace that could not be replayed.
    fn outcome(self) -> Result<Outcome> {
        match (self.faults, self.failed) {
            (0, 0) => Ok(Outcome::of(self.not_understood == 0)),
            (0, 1) => bail!("one trace could not be replayed; all else is printed"),
            (0, failed) => bail!("{failed} traces could not be replayed; all else is printed"),
            _ => Ok(Outcome::CheckFailed),
        }
    }
}

/// Prints a line for each trace, in the order in which they end, and keeps nothing of them.
fn stream(jobs: &[Job], how: &How<'_>) -> Result<FailureCounts> {
    let ends = fleet::run(jobs, how, |ended| {
        let ends = FailureCounts::of(&ended);
        Ok(match portolan_cli::print_json_line(&ended)? {
            ControlFlow::Continue(()) => ControlFlow::Continue(ends),
            ControlFlow::Break(()) => ControlFlow::Break(()),
        })
    })?;
    Ok(ends.into_iter().fold(FailureCounts::default(), FailureCounts::plus))
}

/// Traces that are added up.
struct ReplaySums {
    entries: Vec<Entry>,
    sum: Aggregate,
    ends: FailureCounts,
}

impl ReplaySums {
    /// Joins the results of other runs and those of the traces replayed here.
    fn new(args: &ReplayArgs, here: impl IntoIterator<Item = Kept>) -> Result<Self> {
        let (mut entries, mut failed, mut ends) =
            (Vec::new(), Vec::new(), FailureCounts::default());
        for path in &args.results {
            let (found, bad) = fleet::read_results(path)?;
            let faults = found.iter().map(Entry::faults);
            ends = ends.plus(FailureCounts {
                faults: faults.fold(0, u64::saturating_add),
                failed: bad.len(),
                not_understood: found.iter().filter_map(Entry::not_understood).count(),
            });
            entries.extend(found);
            failed.extend(bad);
        }
        for (ended, its) in here {
            ends = ends.plus(its);
            match ended {
                Ok(entry) => entries.push(entry),
                Err(bad) => failed.push(bad),
            }
        }
        // Traces that were not understood tell nothing.
        failed.extend(entries.iter().filter_map(Entry::not_understood));
        entries.retain(|entry| entry.not_understood().is_none());
        Ok(Self { sum: fleet::add_up(&entries, failed, args.group_by), entries, ends })
    }
}

/// Result of a trace that ended.
type Kept = (Result<Entry, Failed>, FailureCounts);

fn kept(ended: &TraceResult) -> Kept {
    let entry = match ended {
        TraceResult::Replayed(line) => Ok(line.entry()),
        TraceResult::Failed(failed) => Err(failed.clone()),
    };
    (entry, FailureCounts::of(ended))
}

/// Replays like [`stream`], and adds the results up.
fn lines(args: &ReplayArgs, jobs: &[Job], how: &How<'_>) -> Result<ReplaySums> {
    let ended = fleet::run(jobs, how, |ended| {
        // A reader that has gone away does not take the report away.
        let _ = portolan_cli::print_json_line(&ended)?;
        Ok(ControlFlow::Continue(kept(&ended)))
    })?;
    ReplaySums::new(args, ended)
}

fn tables(args: &ReplayArgs, jobs: &[Job], how: &How<'_>) -> Result<ReplaySums> {
    let ended = fleet::run(jobs, how, |ended| Ok(ControlFlow::Continue(kept(&ended))))?;
    let all = ReplaySums::new(args, ended)?;
    match args.csv {
        true => portolan_cli::print_data(&fleet::csv(&all.entries, &all.sum)?)?,
        false => {
            portolan_cli::print(&fleet::text(&all.entries, &all.sum, args.output.columns()))?;
        }
    }
    Ok(all)
}

fn one_object(args: &ReplayArgs, jobs: &[Job], how: &How<'_>) -> Result<ReplaySums> {
    let traces = fleet::run(jobs, how, |ended| Ok(ControlFlow::Continue(ended)))?;
    let all = ReplaySums::new(args, traces.iter().map(kept))?;
    portolan_cli::print_json(&Whole { traces: &traces, aggregate: &all.sum })?;
    Ok(all)
}

/// The object that `--json` prints.
#[derive(Serialize)]
struct Whole<'a> {
    traces: &'a [TraceResult],
    aggregate: &'a Aggregate,
}
