//! `portolan replay` of many traces.

use std::ops::ControlFlow;

use anyhow::{Result, bail};
use portolan_cli::{Form, Outcome};
use serde::Serialize;

use super::{ReplayArgs, policies};
use crate::cli::profile;
use crate::fleet::{self, Aggregate, Ended, Entry, Failed, How, Job};

/// Replays many traces, and adds them up or prints a line for each.
pub(super) fn run(args: &ReplayArgs) -> Result<Outcome> {
    let machine = args.machine.as_deref().map(profile).transpose()?;
    let policies = policies(args)?;
    let how = How {
        machine: machine.as_ref(),
        policies: &policies,
        linux: &args.linux,
    };
    let mut jobs = fleet::jobs(&args.traces);
    if args.traces.is_empty() && args.results.is_empty() {
        jobs.push(Job::Trace(None));
    }
    let ends = match (args.ndjson, args.output.form()) {
        (true, _) => stream(&jobs, &how)?,
        (false, Form::Text) => tables(args, &jobs, &how)?,
        (false, Form::Json) => one_object(args, &jobs, &how)?,
    };
    ends.outcome()
}

/// How the traces ended.
#[derive(Clone, Copy, Default)]
struct Ends {
    /// Accesses that were refused.
    faults: u64,
    /// Traces that could not be replayed.
    failed: usize,
}

impl Ends {
    fn of(ended: &Ended) -> Self {
        match ended {
            Ended::Replayed(line) => Self {
                faults: line.faults(),
                failed: 0,
            },
            Ended::Failed(_) => Self {
                faults: 0,
                failed: 1,
            },
        }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            faults: self.faults.saturating_add(other.faults),
            failed: self.failed + other.failed,
        }
    }

    /// A defect outdoes a trace that could not be replayed.
    fn outcome(self) -> Result<Outcome> {
        match (self.faults, self.failed) {
            (0, 0) => Ok(Outcome::Good),
            (0, 1) => bail!("one trace could not be replayed; all else is printed"),
            (0, failed) => bail!("{failed} traces could not be replayed; all else is printed"),
            _ => Ok(Outcome::CheckFailed),
        }
    }
}

/// A line for each trace, in the order in which they end; nothing is kept of them.
fn stream(jobs: &[Job], how: &How<'_>) -> Result<Ends> {
    let ends = fleet::run(jobs, how, |ended| {
        let ends = Ends::of(&ended);
        Ok(match fleet::write_line(&ended)? {
            ControlFlow::Continue(()) => ControlFlow::Continue(ends),
            ControlFlow::Break(()) => ControlFlow::Break(()),
        })
    })?;
    Ok(ends.into_iter().fold(Ends::default(), Ends::plus))
}

/// What is added up.
#[derive(Default)]
struct Gathered {
    entries: Vec<Entry>,
    failed: Vec<Failed>,
    ends: Ends,
}

impl Gathered {
    /// What was replayed elsewhere.
    fn elsewhere(args: &ReplayArgs) -> Result<Self> {
        let mut all = Self::default();
        for path in &args.results {
            let (entries, failed) = fleet::read_results(path)?;
            all.ends.failed += failed.len();
            let faults = entries.iter().map(Entry::faults);
            all.ends.faults = all.ends.faults.saturating_add(faults.sum());
            all.entries.extend(entries);
            all.failed.extend(failed);
        }
        Ok(all)
    }

    fn add(&mut self, ended: Result<Entry, Failed>, ends: Ends) {
        self.ends = self.ends.plus(ends);
        match ended {
            Ok(entry) => self.entries.push(entry),
            Err(failed) => self.failed.push(failed),
        }
    }
}

/// What is kept of a trace that ended.
fn kept(ended: &Ended) -> Result<Entry, Failed> {
    match ended {
        Ended::Replayed(line) => Ok(line.entry()),
        Ended::Failed(failed) => Err(failed.clone()),
    }
}

fn tables(args: &ReplayArgs, jobs: &[Job], how: &How<'_>) -> Result<Ends> {
    let mut all = Gathered::elsewhere(args)?;
    let ended = fleet::run(jobs, how, |ended| {
        Ok(ControlFlow::Continue((kept(&ended), Ends::of(&ended))))
    })?;
    for (ended, ends) in ended {
        all.add(ended, ends);
    }
    let sum = Aggregate::new(&all.entries, all.failed);
    portolan_cli::print(&fleet::text(&all.entries, &sum, args.output.columns()))?;
    Ok(all.ends)
}

fn one_object(args: &ReplayArgs, jobs: &[Job], how: &How<'_>) -> Result<Ends> {
    let mut all = Gathered::elsewhere(args)?;
    let traces = fleet::run(jobs, how, |ended| Ok(ControlFlow::Continue(ended)))?;
    for ended in &traces {
        all.add(kept(ended), Ends::of(ended));
    }
    let sum = Aggregate::new(&all.entries, all.failed);
    let traces = &traces;
    portolan_cli::print_json(&Whole {
        traces,
        aggregate: &sum,
    })?;
    Ok(all.ends)
}

/// The one object of `--json`.
#[derive(Serialize)]
struct Whole<'a> {
    traces: &'a [Ended],
    aggregate: &'a Aggregate,
}
