//! `portolan replay`.

mod many;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use portolan_cli::progress::Progress;
use portolan_cli::{Outcome, Output};
use portolan_sim::profile::Profile;

use super::machine::{file_of, profile};
use super::report::{ReportArgs, fact, of_profile, origin};
use super::{ProgramArguments, elsewhere};
use crate::fleet;
use crate::linux::LinuxArgs;
use crate::replay::{self, Policy, Replay, Swiotlb, TraceInput};
use crate::report;
use crate::trace::Reader;

#[derive(Debug, Default, Args)]
#[command(after_help = columns_in_words())]
pub(super) struct ReplayArgs {
    /// Files of `portolan record`, Linux ftrace text, a trace.dat of trace-cmd, a perf.data of perf, or output of
    /// `trace-cmd report` and `perf script`, plain, .gz, .xz or .zst; - is standard input, a bundled trace if absent.
    /// Several, or folders with such files, are replayed on all CPUs and added up.
    #[arg(value_name = "TRACE")]
    traces: Vec<PathBuf>,
    /// Print one JSON object a line for each trace, as soon as it has ended, and go on past those that cannot be
    /// replayed.
    #[arg(long, conflicts_with = "json")]
    ndjson: bool,
    /// Output of --ndjson of another run, to be added up with the traces that are replayed here; may be repeated.
    #[arg(long, value_name = "FILE", conflicts_with = "ndjson")]
    results: Vec<PathBuf>,
    /// Add up by a fact of the traces, instead of by all of them.
    #[arg(long, value_name = "FACT", conflicts_with = "ndjson")]
    group_by: Option<fleet::GroupKey>,
    /// Print comma-separated values, those traces or groups first in which a change saves most.
    #[arg(long, conflicts_with_all = ["json", "ndjson"])]
    csv: bool,
    #[arg(long, hide = true)]
    synthetic: Option<String>,
    /// Machine profile (see `portolan machines`), or a file with one. If absent, the one for the machine that
    /// `portolan record` ran on, xeon-vtd for other traces.
    #[arg(long, value_name = "NAME")]
    pub(super) machine: Option<String>,
    /// Policy to replay; may be repeated. All if absent.
    #[arg(long = "policy", value_name = "POLICY")]
    pub(super) policies: Vec<Policy>,
    /// The pool of `--policy bounce`, as Linux's swiotlb= has it: slots of 2 KiB, areas (rounded up to a power of
    /// two), and force to copy everything. Without force, it copies only memory that 32-bit devices do not reach.
    /// 32768 slots, an area for each CPU and force if absent.
    #[arg(long, value_name = "SLOTS[,AREAS][,force]")]
    swiotlb: Option<Swiotlb>,
    #[command(flatten)]
    linux: LinuxArgs,
    #[command(flatten)]
    report: ReportArgs,
    #[command(flatten)]
    output: Output,
}

fn columns_in_words() -> String {
    [replay::COLUMNS_IN_WORDS, fleet::COLUMNS_IN_WORDS].join("\n\n")
}

/// The profile called `name`, or the one for the machine that recorded the trace.
fn machine_of(name: Option<&str>, reader: &Reader) -> Result<(Profile, Option<replay::Choice>)> {
    if let Some(name) = name {
        return Ok((profile(name)?, None));
    }
    let (profile, choice, warning) = replay::of_recording(reader)?;
    if let Some(warning) = warning {
        portolan_cli::warn("portolan", &warning);
    }
    Ok((profile, choice))
}

/// Facts on the origin of a replay, for its report.
fn facts(profile: &Profile) -> Vec<(String, String)> {
    let seed = format!("{}, which orders what happens at one time", replay::SEED);
    vec![of_profile(profile), fact("seed", seed)]
}

/// The policies that are asked for, with the pool that is.
fn policies(args: &ReplayArgs) -> Result<Vec<Policy>> {
    let mut policies = args.policies.clone();
    if policies.is_empty() {
        policies = Policy::ALL.to_vec();
    }
    if let Some(wanted) = args.swiotlb {
        let bounce = |policy: &&mut Policy| matches!(policy, Policy::Bounce(_));
        let policy = policies.iter_mut().find(bounce);
        *policy.context("--swiotlb is for `--policy bounce`")? = Policy::Bounce(wanted);
    }
    Ok(policies)
}

/// Opens a trace.
pub(super) fn open(input: TraceInput<'_>) -> Result<Reader> {
    input.open().with_context(|| format!("trace {input}"))
}

/// Replays one trace.
fn replay_one(args: &ReplayArgs, path: Option<&Path>) -> Result<Outcome> {
    let machine = args.machine.as_deref().and_then(file_of);
    let inputs: Vec<_> = path.into_iter().chain(machine).collect();
    let destination = args.report.destination(&inputs)?;
    let mut reader = open(TraceInput::of(path))?;
    let (profile, chosen) = machine_of(args.machine.as_deref(), &reader)?;
    let policies = policies(args)?;
    let linux = args.linux.rules(&profile)?;
    let progress = Progress::unbounded();
    let replay = Replay { linux, progress: Some(&progress), ..Replay::new(&profile, &policies) };
    let mut report = replay.run(&mut reader)?;
    drop(progress);
    for warning in &report.warnings {
        portolan_cli::warn("portolan", warning);
    }
    report.chosen = chosen;
    args.output.show(&report, replay::text)?;
    if let Some(destination) = destination {
        destination.write(&report::replay(&report, origin(facts(&profile))))?;
    }
    let faults = report.policies.iter().map(|policy| policy.device.faults);
    let is_answer = report.trace.understood.is_enough();
    Ok(Outcome::of(is_answer && faults.sum::<u64>() == 0))
}

/// Replays the traces that are asked for.
pub(super) fn run(args: &ReplayArgs) -> Result<Outcome> {
    if let Some(load) = &args.synthetic {
        let machine = args.machine.iter().flat_map(|name| ["--machine", name]);
        let rest = ProgramArguments {
            arguments: [load]
                .into_iter()
                .map(String::from)
                .chain(machine.map(String::from))
                .collect(),
        };
        return elsewhere("replay --synthetic", "--release -p portolan-papers -- synthetic", &rest);
    }
    let one = match args.traces.as_slice() {
        _ if args.ndjson || args.csv || args.group_by.is_some() => return many::run(args),
        _ if !args.results.is_empty() => return many::run(args),
        [] => None,
        [one] if !one.is_dir() => Some(one.as_path()),
        _ => return many::run(args),
    };
    replay_one(args, one)
}
