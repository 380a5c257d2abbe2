//! The command line: its arguments, and the code that each command runs.
//!
//! Exit codes are those of [`portolan_cli::exit`].

mod calibrate;
mod collect;
mod compare;
mod explain;
pub mod machine;
mod replay;
pub mod report;

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::{Args, Parser, Subcommand};
use portolan_cli::{Form, Outcome, Output};
use portolan_sim::profile::Profile;
use serde_json::json;

use crate::{machines, record, top};
use machine::profile;

/// Records DMA traces, replays them under each invalidation policy, and says which setting to change.
#[derive(Debug, Parser)]
#[command(name = "portolan", version, about, after_help = ELSEWHERE)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Record this machine's DMA, while a command runs or until Ctrl-C; as root.
    Record(record::RecordArgs),
    /// Show each second what each device maps, what that costs and what it can still reach; as root.
    Top(top::TopArgs),
    /// Drive the library against the model with the DMA activity of a trace, once per policy.
    Replay(replay::ReplayArgs),
    /// Put two traces, or two machines for one trace, side by side.
    Compare(compare::CompareArgs),
    /// Fit a machine profile's prices on latencies of this machine's kernel functions.
    Calibrate(calibrate::CalibrateArgs),
    /// Say what this machine's IOMMU does, and what stands in the way of what you want; or another machine's.
    Explain(explain::ExplainArgs),
    /// Put what `explain` needs of this machine into one small file, for another person to look at.
    Collect(collect::CollectArgs),
    /// List the machine profiles; with a NAME its prices and their sources.
    Machines(MachinesArgs),
    #[command(hide = true, disable_help_flag = true)]
    Check(ProgramArguments),
    #[command(hide = true, disable_help_flag = true)]
    Torture(ProgramArguments),
    #[command(hide = true, disable_help_flag = true)]
    Bench(ProgramArguments),
    #[command(hide = true, disable_help_flag = true)]
    Reproduce(ProgramArguments),
    #[command(hide = true, disable_help_flag = true)]
    Scale(ProgramArguments),
}

/// Commands that are programs of their own, so that this one builds without them.
const ELSEWHERE: &str = "\
Text fits the terminal (`--wide` prints all of it), and is coloured on one. NO_COLOR
and TERM=dumb switch colour off, CLICOLOR_FORCE=1 switches it on for a pipe.

Elsewhere:
  cargo run --release -p portolan-verify -- check    the conformance scenarios, on a model or on QEMU
  cargo run --release -p portolan-verify -- torture  random operations against an oracle
  cargo run --profile bench -p portolan-bench          the library's operations, measured here
  cargo run --release -p portolan-papers -- reproduce  published results, computed again
  cargo run --release -p portolan-papers -- scale      throughput by number of CPUs, in virtual time
  cargo run --release -p portolan-papers -- synthetic  a load that is made up, not recorded";

/// Arguments of a command that a separate program implements.
#[derive(Debug, Args)]
struct ProgramArguments {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

#[derive(Debug, Args)]
#[command(after_help = machines::COLUMNS_IN_WORDS)]
struct MachinesArgs {
    /// Machine profile, or a file with one, whose prices and their sources are printed; all are listed if absent.
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    #[command(flatten)]
    output: Output,
}

/// The command line's definition, of which manual pages and completions are made.
pub fn command() -> clap::Command {
    <Cli as clap::CommandFactory>::command()
}

/// Runs the command line of the process.
pub fn main() -> ExitCode {
    let command = Cli::parse().command;
    let ended = match command.unwrap_or(Command::Replay(replay::ReplayArgs::default())) {
        Command::Record(args) => record_trace(&args),
        Command::Top(args) => show_top(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Compare(args) => compare::run(&args),
        Command::Calibrate(args) => calibrate::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Collect(args) => collect::run(&args),
        Command::Machines(args) => list_machines(&args),
        Command::Check(rest) => elsewhere("check", "--release -p portolan-verify -- check", &rest),
        Command::Torture(rest) => {
            elsewhere("torture", "--release -p portolan-verify -- torture", &rest)
        }
        Command::Bench(rest) => elsewhere("bench", "--profile bench -p portolan-bench --", &rest),
        Command::Reproduce(rest) => {
            elsewhere("reproduce", "--release -p portolan-papers -- reproduce", &rest)
        }
        Command::Scale(rest) => elsewhere("scale", "--release -p portolan-papers -- scale", &rest),
    };
    portolan_cli::exit("portolan", ended)
}

/// Says where a command is.
fn elsewhere(command: &str, program: &str, rest: &ProgramArguments) -> Result<Outcome> {
    let arguments: String = rest.arguments.iter().map(|one| format!(" {one}")).collect();
    bail!(
        "`{command}` is a program of its own, so that this one builds without it: \
         run `cargo run {program}{arguments}`"
    )
}

/// Records, and prints where; on standard error if the trace goes to standard output.
fn record_trace(args: &record::RecordArgs) -> Result<Outcome> {
    let report = record::run(args)?;
    match (args.is_to_output(), args.form.form()) {
        (false, _) => args.form.show(&report, record::text)?,
        (true, Form::Text) => eprint!("{}", record::text(&report, args.form.columns())),
        (true, Form::Json) => eprintln!("{}", portolan_cli::json(&report)?),
    }
    Ok(report.outcome())
}

fn show_top(args: &top::TopArgs) -> Result<Outcome> {
    let profile = args.machine().map(profile).transpose()?;
    top::run(args, profile.as_ref())?;
    Ok(Outcome::Good)
}

fn list_machines(args: &MachinesArgs) -> Result<Outcome> {
    let profiles = match args.names.as_slice() {
        [] => Profile::builtin()?,
        names => names.iter().map(|name| profile(name)).collect::<Result<_>>()?,
    };
    let reports: Vec<_> = profiles.iter().map(machines::MachineReport::new).collect();
    let document = json!({ "machines": reports });
    args.output.show(&document, |_, columns| match args.names.as_slice() {
        [] => machines::list(&profiles, columns),
        _ => machines::text(&profiles, columns),
    })?;
    Ok(Outcome::Good)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn no_subcommand_is_a_replay() {
        let cli = Cli::try_parse_from(["portolan"]).unwrap();
        assert!(cli.command.is_none());
        let cli = Cli::try_parse_from(["portolan", "replay", "--policy", "lazy"]).unwrap();
        let Some(Command::Replay(args)) = cli.command else { panic!("not a replay") };
        assert_eq!(args.policies, [crate::replay::Policy::Lazy]);
        assert_eq!(args.machine, None);
    }
}
