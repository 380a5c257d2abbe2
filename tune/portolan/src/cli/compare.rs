//! `portolan compare`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use portolan_cli::{Outcome, Output};
use portolan_sim::profile::Profile;

use super::machine::{file_of, profile};
use super::report::{ReportArgs, fact, origin};
use crate::compare::{self, Comparison};
use crate::parallel::in_parallel;
use crate::replay::{self, Policy, Replay, ReplayReport, TraceInput};
use crate::report;

#[derive(Debug, Args)]
pub(super) struct CompareArgs {
    /// Two traces, or one (the bundled one if absent) that is replayed on two machines; - is standard input.
    #[arg(value_name = "TRACE", num_args = 0..=2)]
    traces: Vec<PathBuf>,
    /// Machine profile (see `portolan machines`): one for both traces, or given twice one for each. If absent, traces
    /// of `portolan record` bring theirs along, and others are replayed on xeon-vtd.
    #[arg(long = "machine", value_name = "NAME")]
    machines: Vec<String>,
    /// Policy to compare; may be repeated. All if absent.
    #[arg(long = "policy", value_name = "POLICY")]
    policies: Vec<Policy>,
    #[command(flatten)]
    report: ReportArgs,
    #[command(flatten)]
    output: Output,
}

/// One of the two.
struct Half<'a> {
    path: Option<&'a Path>,
    machine: Option<&'a Profile>,
}

/// The two halves of a comparison: a trace and a machine each.
fn halves<'a>(args: &'a CompareArgs, machines: &'a [Profile]) -> Result<[Half<'a>; 2]> {
    let paths: [Option<&Path>; 2] = match args.traces.as_slice() {
        [] => [None; 2],
        [one] => [Some(one); 2],
        [a, b] => [Some(a), Some(b)],
        _ => bail!("two traces are compared, not {}", args.traces.len()),
    };
    let machines = match machines {
        [] => [None; 2],
        [one] => [Some(one); 2],
        [a, b] => [Some(a), Some(b)],
        _ => bail!("two machines are compared, not {}", machines.len()),
    };
    if args.traces.len() < 2 && args.machines.len() < 2 {
        bail!(
            "one trace on one machine is nothing to compare: name a second trace, or two machines \
             (`--machine X --machine Y`)"
        );
    }
    if paths == [Some(Path::new("-")); 2] {
        bail!("standard input can be read once alone; write it to a file first");
    }
    let [a, b] = [0, 1].map(|index: usize| Half { path: paths[index], machine: machines[index] });
    Ok([a, b])
}

/// Replays one of the two; returns warnings to its reader too.
fn half(half: &Half<'_>, policies: &[Policy]) -> Result<(ReplayReport, Vec<String>)> {
    let input = TraceInput::of(half.path);
    let mut reader = super::replay::open(input)?;
    let (own, chosen, warning) = match half.machine {
        Some(_) => (None, None, None),
        None => {
            let (profile, choice, warning) = replay::of_recording(&reader)?;
            (Some(profile), choice, warning)
        }
    };
    let profile = own.as_ref().or(half.machine).context("no machine profile")?;
    let report = Replay::new(profile, policies)
        .run(&mut reader)
        .with_context(|| format!("trace {input}"))?;
    let warnings = warning.into_iter().chain(report.warnings.clone()).collect();
    Ok((ReplayReport { chosen, ..report }, warnings))
}

pub(super) fn run(args: &CompareArgs) -> Result<Outcome> {
    let machines = args.machines.iter().map(|name| profile(name)).collect::<Result<Vec<_>>>()?;
    let halves = halves(args, &machines)?;
    let traces = args.traces.iter().map(PathBuf::as_path);
    let machines = args.machines.iter().filter_map(|name| file_of(name));
    let inputs: Vec<_> = traces.chain(machines).collect();
    let destination = args.report.destination(&inputs)?;
    let policies = match args.policies.as_slice() {
        [] => &Policy::ALL[..],
        some => some,
    };
    let replayed = in_parallel(&halves, |one| half(one, policies))?;
    let Ok([(a, of_a), (b, of_b)]) = <[_; 2]>::try_from(replayed) else {
        bail!("one of two replays is missing");
    };
    for (name, warning) in [("A", of_a), ("B", of_b)]
        .iter()
        .flat_map(|(name, warnings)| warnings.iter().map(move |warning| (name, warning)))
    {
        portolan_cli::warn("portolan", &format!("{name}: {warning}"));
    }
    let two = Comparison::new(a, b);
    args.output.show(&two, compare::text)?;
    if let Some(destination) = destination {
        let facts = vec![
            fact("machine profile of A", two.a.machine.as_str()),
            fact("machine profile of B", two.b.machine.as_str()),
            fact("seed", replay::SEED.to_string()),
        ];
        destination.write(&report::compare(&two, origin(facts)))?;
    }
    let replays = [&two.a, &two.b].into_iter();
    let faults = replays.flat_map(|of| &of.policies).map(|p| p.device.faults);
    let understood = [&two.a, &two.b].map(|of| of.trace.understood.is_enough());
    let holds = faults.fold(0, u64::saturating_add) == 0;
    Ok(Outcome::of(holds && understood == [true, true]))
}
