//! The command line: arguments, output, exit codes.
//!
//! Results go to standard output, progress and warnings to standard error. Exit codes: 0 all is
//! well, 1 a check failed, 2 the input is wrong (clap's own for wrong usage).

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand, ValueEnum};
use portolan_model::profile::Profile;
use portolan_verify::backend::BackendGroup;
use portolan_verify::format::FormatName;

use crate::linux::LinuxArgs;
use crate::replay::{self, Policy};
use crate::{
    bench, bench_fault, check, explain, machines, reproduce, scale, synthetic, torture,
    torture_faults, torture_mappings,
};

/// Replays DMA traces under each invalidation policy, and recomputes published results.
#[derive(Debug, Parser)]
#[command(name = "portolan", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Drive the library against the model with the DMA activity of a trace, once per policy.
    Replay(ReplayArgs),
    /// Recompute a published table row by row.
    Reproduce(ReproduceArgs),
    /// Say which policy is a machine's default, and why.
    Explain(ExplainArgs),
    /// List the machine profiles, their prices and sources.
    Machines(MachinesArgs),
    /// Compute throughput by number of CPUs under each policy, in virtual time.
    Scale(ScaleArgs),
    /// Do random operations on every table format against an oracle and the adversarial model.
    Torture(TortureArgs),
    /// Run the conformance scenarios on a model or on QEMU.
    Check(CheckArgs),
    /// Measure the library's operations on this machine.
    Bench(BenchArgs),
}

#[derive(Debug, Default, Args)]
struct ReplayArgs {
    /// Linux ftrace text, `trace-cmd report` or `perf script` output, plain, .gz, .xz or .zst; a
    /// bundled trace if absent.
    trace: Option<PathBuf>,
    /// A load that nobody recorded, instead of a trace.
    #[arg(long, value_enum, value_name = "LOAD", conflicts_with_all = ["trace", "policies", "as_linux"])]
    synthetic: Option<synthetic::Load>,
    /// Machine profile (see `portolan machines`); xeon-vtd if absent, tegra210 for the camera.
    #[arg(long, value_name = "NAME")]
    machine: Option<String>,
    /// Policy to replay; may be repeated. All if absent.
    #[arg(long = "policy", value_name = "POLICY")]
    policies: Vec<Policy>,
    #[command(flatten)]
    linux: LinuxArgs,
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
}

#[derive(Debug, Args)]
struct ExplainArgs {
    /// Machine profile; may be repeated. All if absent.
    #[arg(long = "machine", value_name = "NAME")]
    machines: Vec<String>,
    /// The whole table of decisions as well.
    #[arg(long)]
    all: bool,
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

#[derive(Debug, Args)]
struct TortureArgs {
    /// Random operations, shared out evenly over the formats.
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    operations: u64,
    /// Where the random operations come from; chosen and printed if absent.
    #[arg(long)]
    seed: Option<u64>,
    /// What the operations go through.
    #[arg(long, value_enum, default_value_t = Layer::Tables)]
    layer: Layer,
    /// Table format; may be repeated. All if absent.
    #[arg(long = "format", value_name = "FORMAT")]
    formats: Vec<FormatName>,
    /// CPUs in virtual time, for the layers of mappings and faults.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
    cpus: u16,
    #[command(flatten)]
    output: Output,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Layer {
    /// Page tables of every format.
    Tables,
    /// Buffers through the DMA layer, under every policy.
    Mappings,
    /// I/O page faults on memory that its owner takes back.
    Faults,
}

#[derive(Debug, Args)]
struct CheckArgs {
    /// Whose IOMMU; may be repeated. Those of the model if absent.
    #[arg(long = "backend", value_name = "BACKEND")]
    backends: Vec<BackendGroup>,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
struct BenchArgs {
    /// Measures only what has this in its name; `fault`, and `bounce` (pools on real threads), only if
    /// named.
    #[arg(default_value = "")]
    name: String,
    /// For `bounce`: the most threads; as many as there are CPUs if absent.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: Option<u16>,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Default, Args)]
struct Output {
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// How a command ended, if it ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Good,
    CheckFailed,
}

/// Runs the command line of the process.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(cli
        .command
        .unwrap_or(Command::Replay(ReplayArgs::default())))
    {
        Ok(Outcome::Good) => ExitCode::SUCCESS,
        Ok(Outcome::CheckFailed) => ExitCode::from(1),
        Err(error) => {
            eprintln!("portolan: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(command: Command) -> Result<Outcome> {
    match command {
        Command::Replay(args) => replay_trace(args),
        Command::Reproduce(args) => reproduce_result(&args),
        Command::Explain(args) => explain_policies(&args),
        Command::Machines(args) => list_machines(&args),
        Command::Scale(args) => run_scale(&args),
        Command::Torture(args) => run_torture(&args),
        Command::Check(args) => run_check(&args),
        Command::Bench(args) => run_bench(&args),
    }
}

fn profile(name: &str) -> Result<Profile> {
    Profile::by_name(name).context("no such machine profile can be used; see `portolan machines`")
}

fn replay_synthetic(
    load: synthetic::Load,
    machine: Option<&str>,
    output: &Output,
) -> Result<Outcome> {
    let profile = profile(machine.unwrap_or(load.machine()))?;
    let report = match load {
        synthetic::Load::Camera => synthetic::camera::run(&profile)?,
    };
    let text = match output.json {
        true => json(&report)?,
        false => synthetic::text(&report),
    };
    print(&text)?;
    Ok(match report.ways.iter().all(|way| way.faults == 0) {
        true => Outcome::Good,
        false => Outcome::CheckFailed,
    })
}

fn replay_trace(args: ReplayArgs) -> Result<Outcome> {
    if let Some(load) = args.synthetic {
        return replay_synthetic(load, args.machine.as_deref(), &args.output);
    }
    let profile = profile(args.machine.as_deref().unwrap_or(replay::DEFAULT_MACHINE))?;
    let mut policies = args.policies;
    if policies.is_empty() {
        policies = Policy::ALL.to_vec();
    }
    let linux = args.linux.rules(&profile)?;
    let report = replay::run_file(args.trace.as_deref(), &profile, &policies, linux)?;
    let text = match args.output.json {
        true => json(&report)?,
        false => replay::text(&report),
    };
    print(&text)?;
    let faults: u64 = report
        .policies
        .iter()
        .map(|policy| policy.device.faults)
        .sum();
    Ok(if faults == 0 {
        Outcome::Good
    } else {
        Outcome::CheckFailed
    })
}

fn reproduce_result(args: &ReproduceArgs) -> Result<Outcome> {
    let as_json = args.output.json;
    let common = |result: reproduce::Reproduction| {
        let text = match as_json {
            true => json(&result)?,
            false => reproduce::text(&result),
        };
        Ok::<_, anyhow::Error>((text, result.holds()))
    };
    let (text, holds) = match args.result {
        Published::WalkFlush => common(reproduce::walk_flush()?)?,
        Published::RangeFlush => common(reproduce::range_flush()?)?,
        Published::FlushQueue => {
            let result = reproduce::flush_queue()?;
            let text = match as_json {
                true => json(&result)?,
                false => reproduce::flush_queue_text(&result),
            };
            (text, result.holds())
        }
        Published::Swiotlb => {
            let result = reproduce::swiotlb()?;
            let text = match as_json {
                true => json(&result)?,
                false => reproduce::swiotlb_text(&result),
            };
            (text, result.holds())
        }
        Published::Iopf => {
            let result = reproduce::iopf()?;
            let text = match as_json {
                true => json(&result)?,
                false => reproduce::iopf_text(&result),
            };
            (text, result.holds())
        }
    };
    print(&text)?;
    Ok(if holds {
        Outcome::Good
    } else {
        Outcome::CheckFailed
    })
}

fn explain_policies(args: &ExplainArgs) -> Result<Outcome> {
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
    let text = match args.output.json {
        true => json(&explanation)?,
        false => explain::text(&explanation),
    };
    print(&text)?;
    Ok(Outcome::Good)
}

fn list_machines(args: &MachinesArgs) -> Result<Outcome> {
    let profiles = Profile::builtin()?;
    let text = match args.output.json {
        true => {
            let reports: Vec<_> = profiles.iter().map(machines::MachineReport::new).collect();
            json(&serde_json::json!({ "machines": reports }))?
        }
        false => machines::text(&profiles),
    };
    print(&text)?;
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
    let text = match args.output.json {
        true => json(&report)?,
        false => scale::text(&report),
    };
    print(&text)?;
    Ok(Outcome::Good)
}

fn run_torture(args: &TortureArgs) -> Result<Outcome> {
    let formats = match args.formats.as_slice() {
        [] => &FormatName::ALL[..],
        some => some,
    };
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..));
    // Said before anything can go wrong.
    eprintln!("seed {seed}");
    let (as_json, cpus) = (args.output.json, args.cpus.into());
    let (text, holds) = match args.layer {
        Layer::Mappings => {
            let report = torture_mappings::run(seed, cpus, args.operations);
            let text = match as_json {
                true => json(&report)?,
                false => torture_mappings::text(&report),
            };
            (text, report.holds())
        }
        Layer::Faults => {
            let report = torture_faults::run(seed, cpus, args.operations);
            let text = match as_json {
                true => json(&report)?,
                false => torture_faults::text(&report),
            };
            (text, report.holds())
        }
        Layer::Tables => {
            let report = torture::run(formats, seed, args.operations);
            let text = match as_json {
                true => json(&report)?,
                false => torture::text(&report),
            };
            (text, report.holds())
        }
    };
    print(&text)?;
    Ok(if holds {
        Outcome::Good
    } else {
        Outcome::CheckFailed
    })
}

fn run_check(args: &CheckArgs) -> Result<Outcome> {
    let models = [BackendGroup::models()];
    let backends = match args.backends.as_slice() {
        [] => &models[..],
        some => some,
    };
    let mut reports = Vec::new();
    for backend in backends {
        let report = check::run(backend, &mut |on, line| {
            if !args.output.json {
                // A reader that has gone away ends the output and not the check.
                let _ = print(&format!("{on}  {line}\n"));
            }
        });
        if !args.output.json {
            print(&check::totals(&report))?;
        }
        reports.push(report);
    }
    let good = reports.iter().all(check::Report::holds);
    if args.output.json {
        // One backend is one object, as the others' output is.
        match reports.as_slice() {
            [one] => print(&json(one)?)?,
            several => print(&json(&serde_json::json!({ "backends": several }))?)?,
        }
    }
    Ok(if good {
        Outcome::Good
    } else {
        Outcome::CheckFailed
    })
}

fn run_bench(args: &BenchArgs) -> Result<Outcome> {
    if args.name == "bounce" {
        let report = bench::measure_bounce(args.threads.map(usize::from))?;
        let text = match args.output.json {
            true => json(&report)?,
            false => bench::bounce_text(&report),
        };
        print(&text)?;
        return Ok(Outcome::Good);
    }
    if args.threads.is_some() {
        anyhow::bail!("--threads is for `portolan bench bounce`");
    }
    if args.name == bench_fault::NAME {
        let report = bench_fault::measure()?;
        print(&match args.output.json {
            true => json(&report)?,
            false => bench_fault::text(&report),
        })?;
        return Ok(Outcome::Good);
    }
    let report = bench::measure(&args.name)?;
    let text = match args.output.json {
        true => json(&report)?,
        false => bench::text(&report),
    };
    print(&text)?;
    Ok(Outcome::Good)
}

fn json<T: serde::Serialize>(value: &T) -> Result<String> {
    let mut text = serde_json::to_string_pretty(value)?;
    text.push('\n');
    Ok(text)
}

/// Writes to standard output; a reader that has gone away (`| head`) is no error.
fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        done => done.context("standard output cannot be written"),
    }
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
