//! The command line: its arguments, and what each command runs.
//!
//! Exit codes are those of [`portolan_cli::exit`].

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::{Args, Parser, Subcommand, ValueEnum};
use portolan_cli::display::width_of_output;
use portolan_cli::{Form, Outcome, Output};
use portolan_model::profile::Profile;
use serde_json::json;

use crate::linux::LinuxArgs;
use crate::replay::{self, Policy, Swiotlb};
use crate::trace::Reader;
use crate::{explain, firmware, machines, record, reproduce, scale, synthetic};

/// Replays DMA traces under each invalidation policy, and recomputes published results.
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
    /// Drive the library against the model with the DMA activity of a trace, once per policy.
    Replay(ReplayArgs),
    /// Recompute a published table row by row.
    Reproduce(ReproduceArgs),
    /// Say which policy is a machine's default, and why; or what firmware's tables come to.
    Explain(ExplainArgs),
    /// List the machine profiles, their prices and sources.
    Machines(MachinesArgs),
    /// Compute throughput by number of CPUs under each policy, in virtual time.
    Scale(ScaleArgs),
    #[command(hide = true, disable_help_flag = true)]
    Check(Rest),
    #[command(hide = true, disable_help_flag = true)]
    Torture(Rest),
    #[command(hide = true, disable_help_flag = true)]
    Bench(Rest),
}

/// Commands that are programs of their own, so that this one builds without them.
const ELSEWHERE: &str = "\
Elsewhere:
  cargo run --release -p portolan-verify -- check    the conformance scenarios, on a model or on QEMU
  cargo run --release -p portolan-verify -- torture  random operations against an oracle
  cargo run --profile bench -p portolan-bench          the library's operations, measured here";

/// Arguments of a command that is a program of its own.
#[derive(Debug, Args)]
struct Rest {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

#[derive(Debug, Default, Args)]
#[command(after_help = replay::COLUMNS_IN_WORDS)]
struct ReplayArgs {
    /// What `portolan record` wrote, Linux ftrace text, `trace-cmd report` or `perf script` output, plain, .gz, .xz or
    /// .zst; - is standard input, a bundled trace if absent.
    trace: Option<PathBuf>,
    /// A load that nobody recorded, instead of a trace.
    #[arg(long, value_enum, value_name = "LOAD", conflicts_with_all = ["trace", "policies", "as_linux", "swiotlb"])]
    synthetic: Option<synthetic::Load>,
    /// Machine profile (see `portolan machines`). If absent, the one for the machine that `portolan record` ran on,
    /// xeon-vtd for other traces, tegra210 for the camera.
    #[arg(long, value_name = "NAME")]
    machine: Option<String>,
    /// Policy to replay; may be repeated. All if absent.
    #[arg(long = "policy", value_name = "POLICY")]
    policies: Vec<Policy>,
    /// The pool of `--policy bounce`, as Linux's swiotlb= has it: slots of 2 KiB, areas (rounded up to a
    /// power of two), and force to copy everything. Without force, what 32-bit devices do not reach.
    /// 32768 slots, an area for each CPU and force if absent.
    #[arg(long, value_name = "SLOTS[,AREAS][,force]")]
    swiotlb: Option<Swiotlb>,
    #[command(flatten)]
    linux: LinuxArgs,
    /// Print all columns of the table, however narrow the terminal is.
    #[arg(long)]
    wide: bool,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
struct ReproduceArgs {
    /// The published result.
    result: Published,
    #[command(flatten)]
    output: Output,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Published {
    /// Walk flush by context (Qualcomm SMMU, 2021).
    WalkFlush,
    /// Range flush (Tegra SMMU, 2015).
    RangeFlush,
    /// Lazy invalidation under a virtual IOMMU (VT-d, 2023).
    FlushQueue,
    /// Bounce-buffer pools that scale (swiotlb, 2022).
    Swiotlb,
    /// I/O page faults instead of pinning (VFIO passthrough, 2021).
    Iopf,
    /// Figures of other machines, on which no price was fitted.
    HeldOut,
    /// Each of them, one after the other; one object by name.
    All,
}

#[derive(Debug, Args)]
struct ExplainArgs {
    /// Machine profile; may be repeated. All if absent.
    #[arg(long = "machine", value_name = "NAME")]
    machines: Vec<String>,
    /// The whole table of decisions as well.
    #[arg(long)]
    all: bool,
    /// Tables of a machine's firmware (DMAR, IVRS, IORT, VIOT or RIMT) as files, in binary or as `acpidump`
    /// prints them, a folder like /sys/firmware/acpi/tables, or a device tree: print its IOMMUs, whom they
    /// serve, and addresses that are taken.
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with_all = ["machines", "all"])]
    firmware: Vec<PathBuf>,
    /// The machine's PCI functions: what `lspci -xxxx` prints as root, or /sys/bus/pci/devices.
    #[arg(long, value_name = "FILE", requires = "firmware")]
    pci: Option<PathBuf>,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
struct ScaleArgs {
    /// Machine profile (see `portolan machines`).
    #[arg(long, value_name = "NAME", default_value = scale::DEFAULT_MACHINE)]
    machine: String,
    /// Policy; may be repeated. All if absent.
    #[arg(long = "policy", value_name = "POLICY")]
    policies: Vec<scale::Policy>,
    /// Number of CPUs; may be repeated. Powers of two and what was measured if absent.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    cpus: Vec<u16>,
    /// Where the order of simultaneous events and the variation of work come from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Virtual milliseconds that are computed for each row.
    #[arg(long, value_name = "MS", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    horizon: u64,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
struct MachinesArgs {
    #[command(flatten)]
    output: Output,
}

/// Runs the command line of the process.
pub fn main() -> ExitCode {
    let command = Cli::parse().command;
    let ended = match command.unwrap_or(Command::Replay(ReplayArgs::default())) {
        Command::Record(args) => record_trace(&args),
        Command::Replay(args) => replay_trace(args),
        Command::Reproduce(args) => reproduce_result(&args),
        Command::Explain(args) => explain_policies(&args),
        Command::Machines(args) => list_machines(&args),
        Command::Scale(args) => run_scale(&args),
        Command::Check(rest) => elsewhere("check", "--release -p portolan-verify -- check", &rest),
        Command::Torture(rest) => {
            elsewhere("torture", "--release -p portolan-verify -- torture", &rest)
        }
        Command::Bench(rest) => elsewhere("bench", "--profile bench -p portolan-bench --", &rest),
    };
    portolan_cli::exit("portolan", ended)
}

/// Says where a command is.
fn elsewhere(command: &str, program: &str, rest: &Rest) -> Result<Outcome> {
    let arguments: String = rest.arguments.iter().map(|one| format!(" {one}")).collect();
    bail!(
        "`{command}` is a program of its own, so that this one builds without it: \
         run `cargo run {program}{arguments}`"
    )
}

fn profile(name: &str) -> Result<Profile> {
    let profile = Profile::by_name(name)
        .context("no such machine profile can be used; see `portolan machines`")?;
    for warning in profile.warnings() {
        eprintln!("portolan: warning: {warning}");
    }
    Ok(profile)
}

fn replay_synthetic(
    load: synthetic::Load,
    machine: Option<&str>,
    output: Output,
) -> Result<Outcome> {
    let profile = profile(machine.unwrap_or(load.machine()))?;
    let report = match load {
        synthetic::Load::Camera => synthetic::camera::run(&profile)?,
    };
    output.show(&report, synthetic::text)?;
    let holds = report.ways.iter().all(|way| way.faults == 0);
    Ok(Outcome::of(holds))
}

/// Records, and says where: on standard error where the trace is on standard output.
fn record_trace(args: &record::RecordArgs) -> Result<Outcome> {
    let report = record::run(args)?;
    match (args.is_to_output(), args.form.form()) {
        (false, _) => args.form.show(&report, record::text)?,
        (true, Form::Text) => eprint!("{}", record::text(&report)),
        (true, Form::Json) => eprintln!("{}", serde_json::to_string_pretty(&report)?),
    }
    Ok(report.outcome())
}

/// The profile called `name`, or the one for the machine that recorded the trace.
fn machine_of(name: Option<&str>, reader: &Reader) -> Result<(Profile, Option<replay::Choice>)> {
    let facts = match (name, reader.facts()) {
        (Some(name), _) => return Ok((profile(name)?, None)),
        (None, None) => return Ok((profile(replay::DEFAULT_MACHINE)?, None)),
        (None, Some(facts)) => facts,
    };
    match facts {
        Ok(facts) => {
            let (profile, choice) = replay::fit(&facts)?;
            Ok((profile, Some(choice)))
        }
        Err(why) => {
            eprintln!(
                "portolan: warning: what the recording says of its machine cannot be read: {why}"
            );
            Ok((profile(replay::DEFAULT_MACHINE)?, None))
        }
    }
}

fn replay_trace(args: ReplayArgs) -> Result<Outcome> {
    if let Some(load) = args.synthetic {
        return replay_synthetic(load, args.machine.as_deref(), args.output);
    }
    let opened = replay::open(args.trace.as_deref())?;
    let (profile, chosen) = machine_of(args.machine.as_deref(), &opened.0)?;
    let mut policies = args.policies;
    if policies.is_empty() {
        policies = Policy::ALL.to_vec();
    }
    if let Some(wanted) = args.swiotlb {
        let bounce = |policy: &&mut Policy| matches!(policy, Policy::Bounce(_));
        let policy = policies.iter_mut().find(bounce);
        *policy.context("--swiotlb is for `--policy bounce`")? = Policy::Bounce(wanted);
    }
    let linux = args.linux.rules(&profile)?;
    let mut report = replay::run_opened(opened, &profile, &policies, linux)?;
    report.chosen = chosen;
    let columns = match args.wide {
        true => usize::MAX,
        false => width_of_output(),
    };
    args.output
        .show(&report, |report| replay::text(report, columns))?;
    let faults = report.policies.iter().map(|policy| policy.device.faults);
    Ok(Outcome::of(faults.sum::<u64>() == 0))
}

/// A reproduction: its JSON, its text, and whether it holds.
type Reproduced = (&'static str, serde_json::Value, String, bool);

fn reproduce_one(result: Published) -> Result<Reproduced> {
    macro_rules! reproduced {
        ($name:literal, $run:ident, $text:ident) => {{
            let result = reproduce::$run()?;
            let holds = result.holds();
            (
                $name,
                serde_json::to_value(&result)?,
                reproduce::$text(&result),
                holds,
            )
        }};
    }
    Ok(match result {
        Published::WalkFlush => reproduced!("walk-flush", walk_flush, text),
        Published::RangeFlush => reproduced!("range-flush", range_flush, text),
        Published::FlushQueue => reproduced!("flush-queue", flush_queue, flush_queue_text),
        Published::Swiotlb => reproduced!("swiotlb", swiotlb, swiotlb_text),
        Published::Iopf => reproduced!("iopf", iopf, iopf_text),
        Published::HeldOut => reproduced!("held-out", held_out, held_out_text),
        Published::All => bail!("`all` is not one result"),
    })
}

fn reproduce_result(args: &ReproduceArgs) -> Result<Outcome> {
    let Published::All = args.result else {
        let (_, value, text, holds) = reproduce_one(args.result)?;
        args.output.show(&value, |_| text.clone())?;
        return Ok(Outcome::of(holds));
    };
    let (mut document, mut texts, mut all) = (serde_json::Map::new(), String::new(), true);
    for result in Published::value_variants() {
        if let Published::All = result {
            continue;
        }
        let (name, value, text, holds) = reproduce_one(*result)?;
        document.insert(name.to_owned(), value);
        texts.push_str(&text);
        texts.push('\n');
        all &= holds;
    }
    args.output.show(&document, |_| texts.clone())?;
    Ok(Outcome::of(all))
}

fn explain_firmware(args: &ExplainArgs) -> Result<Outcome> {
    let tables = firmware::read(&args.firmware)?;
    let config = args.pci.as_deref().map(firmware::Config::read);
    let report = firmware::Report::new(&tables, &config.transpose()?.unwrap_or_default())?;
    args.output.show(&report, firmware::text)?;
    Ok(Outcome::of(report.holds()))
}

fn explain_policies(args: &ExplainArgs) -> Result<Outcome> {
    if !args.firmware.is_empty() {
        return explain_firmware(args);
    }
    let profiles = match args.machines.as_slice() {
        [] => Profile::builtin()?,
        names => names
            .iter()
            .map(|name| profile(name))
            .collect::<Result<_>>()?,
    };
    let mut explanation = explain::explain(&profiles);
    if args.all {
        explanation.table = explain::everything();
    }
    args.output.show(&explanation, explain::text)?;
    Ok(Outcome::Good)
}

fn list_machines(args: &MachinesArgs) -> Result<Outcome> {
    let profiles = Profile::builtin()?;
    let reports: Vec<_> = profiles.iter().map(machines::MachineReport::new).collect();
    let document = json!({ "machines": reports });
    args.output.show(&document, |_| machines::text(&profiles))?;
    Ok(Outcome::Good)
}

fn run_scale(args: &ScaleArgs) -> Result<Outcome> {
    let options = scale::Options {
        policies: args.policies.clone(),
        cpus: args.cpus.iter().copied().map(usize::from).collect(),
        seed: args.seed,
        horizon_ms: args.horizon,
    };
    let report = scale::run(&profile(&args.machine)?, &options)?;
    args.output.show(&report, scale::text)?;
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
        let Some(Command::Replay(args)) = cli.command else {
            panic!("not a replay")
        };
        assert_eq!(args.policies, [Policy::Lazy]);
        assert_eq!(args.machine, ReplayArgs::default().machine);
    }
}
